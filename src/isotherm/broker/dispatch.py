"""From a frame to its answer: header, version check, handler, response. The request boundary.

Behaviour
- A version that is not served: ApiVersions is answered in version 0 with UNSUPPORTED_VERSION and
  the table, so that a newer client can step down (KIP-511); on any other API the connection is
  closed, as Kafka does.
- A request that cannot be decoded closes its connection.
- An error that a handler raises is answered with its code (`error_mapping`) in the API's own
  response. What nobody expected is logged with its traceback, once, and answered with
  UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from isotherm.broker.apis import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_user_scram_credentials,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    refused,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    update_features,
    write_txn_markers,
)
from isotherm.broker.connection import Answer, Connection, PendingAnswer
from isotherm.broker.context import BrokerServices, HangUpError, RequestContext
from isotherm.broker.error_mapping import error_code
from isotherm.broker.quotas import ClientQuotaManager
from isotherm.broker.request_meter import RequestMeter
from isotherm.broker.split_requests import (
    JoinedResponse,
    Split,
    find_split,
    is_long_produce,
    next_turn,
    split_request,
)
from isotherm.errors import IsothermError, UnsupportedVersionError
from isotherm.metrics.request_metrics import RequestMetrics
from isotherm.protocol.api_versions import ApiKey, is_served
from isotherm.protocol.framing import (
    read_request,
    read_request_frame,
    write_response,
)
from isotherm.protocol.served_table import api_name

logger = logging.getLogger(__name__)

# What takes longer to decode or to encode than some milliseconds is left to another thread, so that
# the other connections stay served: a request of more bytes than this (records are not decoded), a
# response about more topics, groups or resources than that.
LOOP_REQUEST_SIZE_MAX = 16 * 1024
LOOP_ELEMENTS_MAX = 200

# A handler returns the response, None when the client wants no answer, or an awaitable of either.
Handler: TypeAlias = Callable[[RequestContext, Any], Any]
ErrorResponse: TypeAlias = Callable[[RequestContext, Any, ErrorCode], Any]


class Api(NamedTuple):
    handle: Handler
    error_response: ErrorResponse


def _api(module: ModuleType) -> Api:
    return Api(module.handle, module.error_response)


# Every API that `isotherm.protocol.api_versions.SERVED` names, and no other.
APIS: Mapping[int, Api] = {
    ApiKey.PRODUCE: _api(produce),
    ApiKey.FETCH: _api(fetch),
    ApiKey.LIST_OFFSETS: _api(list_offsets),
    ApiKey.METADATA: _api(metadata),
    ApiKey.OFFSET_COMMIT: _api(offset_commit),
    ApiKey.OFFSET_FETCH: _api(offset_fetch),
    ApiKey.FIND_COORDINATOR: _api(find_coordinator),
    ApiKey.JOIN_GROUP: _api(join_group),
    ApiKey.HEARTBEAT: _api(heartbeat),
    ApiKey.LEAVE_GROUP: _api(leave_group),
    ApiKey.SYNC_GROUP: _api(sync_group),
    ApiKey.DESCRIBE_GROUPS: _api(describe_groups),
    ApiKey.LIST_GROUPS: _api(list_groups),
    ApiKey.API_VERSIONS: _api(api_versions),
    ApiKey.CREATE_TOPICS: _api(create_topics),
    ApiKey.DELETE_TOPICS: _api(delete_topics),
    ApiKey.DELETE_RECORDS: _api(delete_records),
    ApiKey.INIT_PRODUCER_ID: _api(init_producer_id),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _api(offset_for_leader_epoch),
    ApiKey.ADD_PARTITIONS_TO_TXN: _api(add_partitions_to_txn),
    ApiKey.ADD_OFFSETS_TO_TXN: _api(add_offsets_to_txn),
    ApiKey.END_TXN: _api(end_txn),
    ApiKey.WRITE_TXN_MARKERS: _api(write_txn_markers),
    ApiKey.TXN_OFFSET_COMMIT: _api(txn_offset_commit),
    ApiKey.DESCRIBE_ACLS: _api(describe_acls),
    ApiKey.CREATE_ACLS: _api(create_acls),
    ApiKey.DELETE_ACLS: _api(delete_acls),
    ApiKey.DESCRIBE_CONFIGS: _api(describe_configs),
    ApiKey.ALTER_CONFIGS: _api(alter_configs),
    ApiKey.ALTER_REPLICA_LOG_DIRS: _api(alter_replica_log_dirs),
    ApiKey.DESCRIBE_LOG_DIRS: _api(describe_log_dirs),
    ApiKey.CREATE_PARTITIONS: _api(create_partitions),
    ApiKey.DELETE_GROUPS: _api(delete_groups),
    ApiKey.ELECT_LEADERS: _api(elect_leaders),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _api(incremental_alter_configs),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _api(alter_partition_reassignments),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _api(list_partition_reassignments),
    ApiKey.OFFSET_DELETE: _api(offset_delete),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _api(describe_client_quotas),
    ApiKey.ALTER_CLIENT_QUOTAS: _api(alter_client_quotas),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _api(describe_user_scram_credentials),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _api(alter_user_scram_credentials),
    ApiKey.DESCRIBE_QUORUM: _api(describe_quorum),
    ApiKey.UPDATE_FEATURES: _api(update_features),
    ApiKey.DESCRIBE_CLUSTER: _api(describe_cluster),
    ApiKey.DESCRIBE_PRODUCERS: _api(describe_producers),
    ApiKey.UNREGISTER_BROKER: _api(unregister_broker),
    ApiKey.DESCRIBE_TRANSACTIONS: _api(describe_transactions),
    ApiKey.LIST_TRANSACTIONS: _api(list_transactions),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _api(consumer_group_heartbeat),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _api(consumer_group_describe),
    ApiKey.LIST_CONFIG_RESOURCES: _api(list_config_resources),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _api(describe_topic_partitions),
    **dict.fromkeys(refused.REFUSALS, _api(refused)),
}


class Dispatcher:
    """The `connection.FrameHandler` of a broker. Event loop thread only."""

    def __init__(
        self,
        services: BrokerServices,
        apis: Mapping[int, Api] = APIS,
        *,
        quotas: ClientQuotaManager | None = None,
    ) -> None:
        self._services = services
        self._apis = apis
        self._quotas = quotas
        self.metrics = RequestMetrics({int(key): api_name(key) for key in apis})

    def handle_frame(self, frame: memoryview, connection: Connection) -> Answer | PendingAnswer:
        """Raises IsothermError when the connection must be closed."""
        header, body = read_request_frame(frame)
        context = RequestContext(
            self._services,
            header,
            connection.client_address,
            connection.listener_name,
            self._services.clock.monotonic_s(),
        )
        if not is_served(header.api_key, header.api_version):
            return _answer_unserved(context)
        meter = None
        if self._quotas is not None and self._quotas.is_active:
            clock = self._services.clock
            meter = RequestMeter(self._quotas, clock, header, len(frame), connection)
            if meter.mutations is not None:
                context = context._replace(charge=meter.mutations.charge)
        if len(body) <= LOOP_REQUEST_SIZE_MAX or header.api_key == ApiKey.PRODUCE:
            return self._handle(context, read_request(header, body), meter)
        loop = asyncio.get_running_loop()
        decoding = loop.run_in_executor(None, read_request, header, body)
        context = context._replace(is_large=True)
        return PendingAnswer(decoding, lambda: self._handle(context, decoding.result(), meter))

    def _handle(
        self, context: RequestContext, request: Any, meter: RequestMeter | None
    ) -> Answer | PendingAnswer:
        if meter is not None:
            request = meter.bounded(request)
        key = context.header.api_key
        handle = self._apis[key].handle
        if is_long_produce(key, request):
            context = context._replace(is_large=True)
        if context.is_large and (split := find_split(key, request)) is not None:
            return self._respond(
                context, request, lambda: _handle_parts(context, request, handle, split), meter
            )
        return self._respond(context, request, lambda: handle(context, request), meter)

    def _respond(
        self,
        context: RequestContext,
        request: Any,
        respond: Callable[[], Any],
        meter: RequestMeter | None,
    ) -> Answer | PendingAnswer:
        """What `respond` returns, or the answer to what it raises."""
        try:
            response = respond() if meter is None else meter.timed(respond)
            if not isinstance(response, Awaitable):
                return self._encode(context, response, meter)
            # The connection keeps the future, and cancels it when the client goes away. Records that
            # have arrived are appended all the same: with acks=0 a client waits for nothing.
            future = asyncio.ensure_future(response)
            return PendingAnswer(
                future,
                lambda: self._respond(context, request, future.result, meter),
                outlives_client=context.header.api_key == ApiKey.PRODUCE,
            )
        except HangUpError:
            raise
        except Exception as error:  # noqa: BLE001 - the request boundary
            return self._answer_error(context, request, error, meter)

    def _answer_error(
        self, context: RequestContext, request: Any, error: Exception, meter: RequestMeter | None
    ) -> Answer | PendingAnswer:
        header = context.header
        if not isinstance(error, IsothermError):
            logger.error(
                "request failed api_key=%d api_version=%d client_id=%s client=%s",
                header.api_key,
                header.api_version,
                header.client_id,
                context.client_address,
                exc_info=error,
            )
        error_response = self._apis[header.api_key].error_response
        return self._encode(context, error_response(context, request, error_code(error)), meter)

    def _encode(
        self, context: RequestContext, response: Any, meter: RequestMeter | None
    ) -> Answer | PendingAnswer:
        if meter is not None:
            response = meter.throttled(response)
        if response is None:
            return self._finished(context, ())
        key, version, correlation_id, _ = context.header
        if context.is_large or _is_large(response):
            encoding = asyncio.get_running_loop().run_in_executor(
                None, write_response, key, version, correlation_id, response
            )
            return PendingAnswer(encoding, lambda: self._finished(context, encoding.result()))
        return self._finished(context, write_response(key, version, correlation_id, response))

    def _finished(self, context: RequestContext, answer: Answer) -> Answer:
        header = context.header
        total_s = self._services.clock.monotonic_s() - context.arrived_s
        self.metrics.mark(header.api_key, header.api_version, total_s * 1000)
        return answer


async def _handle_parts(
    context: RequestContext, request: Any, handle: Handler, split: Split
) -> Any:
    joined = JoinedResponse(split)
    for part in split_request(request, split):
        response = handle(context, part.request)
        if isinstance(response, Awaitable):
            response = await response
        if not joined.add(response, part.continued):
            break
        await next_turn()
    return joined.response


def _is_large(response: Any) -> bool:
    """Whether it would take long to encode, by the number of things that it is about."""
    fields = getattr(response, "__dataclass_fields__", None)
    # Fetch and Produce have classes of their own, and as many parts as their requests.
    return fields is not None and any(
        len(value) > LOOP_ELEMENTS_MAX
        for name in fields
        if type(value := getattr(response, name)) is tuple
    )


def _answer_unserved(context: RequestContext) -> Answer:
    header = context.header
    if header.api_key != ApiKey.API_VERSIONS:
        raise UnsupportedVersionError(
            f"version is not served api_key={header.api_key} api_version={header.api_version}"
            f" client_id={header.client_id}"
        )
    response = api_versions.unsupported_version_response()
    return write_response(header.api_key, 0, header.correlation_id, response)
