"""FindCoordinator (key 10).

Versions  0-6. 1 key type, throttle time · 3 flexible · 4 several keys in one request, with an
          answer for each · 5 and 6 new key types.
Behaviour The coordinator of a group or transactional id is the leader of its partition of
          `__consumer_offsets` or `__transaction_state`. It is returned with its endpoint on the
          request's listener; without one the answer is COORDINATOR_NOT_AVAILABLE. In a cluster a
          missing topic is then created, and the client retries. With the embedded controller this
          broker is the coordinator of everything, even before the topic exists. Brokers ask for the
          coordinators of share partitions (key type 2, group:topic id:partition). An unknown key
          type gets INVALID_REQUEST. librdkafka turns lz4 off if this API is missing.
Not done  -
KIPs      98 · 699 batched keys · 932 share partitions
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.coordinator_partition import coordinator_partition
from isotherm.broker.coordinators.groups.offsets_topic import OFFSETS_TOPIC
from isotherm.broker.coordinators.shares.share_state_records import (
    SHARE_STATE_TOPIC,
    SharePartitionKey,
)
from isotherm.broker.coordinators.transactions.transaction_log import TRANSACTION_STATE_TOPIC
from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.metadata.image import NO_LEADER, TopicImage
from isotherm.broker.server.requests.access_checks import Check, Denial, TypeBy
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.errors import InvalidRequestError
from isotherm.protocol.api_keys import ApiKey, VersionRange
from isotherm.types import BrokerId

if TYPE_CHECKING:
    from isotherm.broker.coordinators.groups.group_coordinator import GroupCoordinator
    from isotherm.broker.coordinators.shares.share_coordinator import ShareCoordinator
    from isotherm.broker.coordinators.transactions.transaction_coordinator import (
        TransactionCoordinator,
    )

FIRST_KEY_TYPE_VERSION = 1
FIRST_BATCHED_VERSION = 4
FIRST_SHARE_VERSION = 6
GROUP, TRANSACTION, SHARE = 0, 1, 2
TOPICS = {
    GROUP: OFFSETS_TOPIC,
    TRANSACTION: TRANSACTION_STATE_TOPIC,
    SHARE: SHARE_STATE_TOPIC,
}

_NO_NODE: dict[str, Any] = {"error_message": None, "node_id": NO_LEADER, "host": "", "port": -1}


async def handle(context: RequestContext, request: Any) -> Any:
    version = context.header.api_version
    key_type = request.key_type if version >= FIRST_KEY_TYPE_VERSION else GROUP
    if key_type not in TOPICS or (key_type == SHARE and version < FIRST_SHARE_VERSION):
        message = f"unknown coordinator type key_type={key_type}"
        return API.refuse(context, request, ErrorCode.invalid_request, message)
    if key_type == SHARE:
        return await _share_coordinators(context, request)
    await _ensure_topic(context, key_type)
    if version < FIRST_BATCHED_VERSION:
        return context.response(_fields(context, TOPICS[key_type], request.key))
    coordinators = [
        {"key": key, **_fields(context, TOPICS[key_type], key)} for key in request.coordinator_keys
    ]
    return context.response({"coordinators": coordinators})


async def _share_coordinators(context: RequestContext, request: Any) -> Any:
    authorizer = context.services.authorizer
    if authorizer and not authorizer.allows_cluster(context, Operation.CLUSTER_ACTION):
        return API.refuse(context, request, ErrorCode.cluster_authorization_failed)
    keys = [_share_key(text) for text in request.coordinator_keys]
    if any(keys):
        await _ensure_topic(context, SHARE)
    coordinators = [
        {"key": text, **_share_fields(context, key)}
        for text, key in zip(request.coordinator_keys, keys, strict=True)
    ]
    return context.response({"coordinators": coordinators})


def _share_key(text: str) -> str | None:
    try:
        return SharePartitionKey.parse(text).coordinator_key
    except InvalidRequestError:
        return None


def _share_fields(context: RequestContext, key: str | None) -> dict[str, Any]:
    if key is None:
        return _NO_NODE | {"error_code": ErrorCode.invalid_request}
    return _fields(context, SHARE_STATE_TOPIC, key)


async def _ensure_topic(context: RequestContext, key_type: int) -> None:
    """Ask the cluster's controller to create a missing topic; see `TopicCreator`."""
    services = context.services
    if services.embedded_controller is not None or TOPICS[key_type] in _topics(context):
        return
    coordinators: Mapping[int, GroupCoordinator | TransactionCoordinator | ShareCoordinator] = {
        GROUP: services.group_coordinator,
        TRANSACTION: services.transaction_coordinator,
        SHARE: services.share_coordinator,
    }
    await coordinators[key_type].ensure_topic()


def _topics(context: RequestContext) -> Mapping[str, TopicImage]:
    return context.services.metadata.image.topics_by_name


def _fields(context: RequestContext, topic_name: str, key: str) -> dict[str, Any]:
    node_id = _coordinator_of(context, topic_name, key)
    endpoint = _endpoint(context, node_id)
    if endpoint is None:
        return _NO_NODE | {"error_code": ErrorCode.coordinator_not_available}
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "node_id": node_id,
        "host": endpoint.host,
        "port": endpoint.port,
    }


def _coordinator_of(context: RequestContext, topic_name: str, key: str) -> BrokerId:
    services = context.services
    if services.embedded_controller is not None:
        return services.config.node_id
    topic = _topics(context).get(topic_name)
    if topic is None:
        return NO_LEADER
    return topic.partitions[coordinator_partition(key, len(topic.partitions))].leader


def _endpoint(context: RequestContext, node_id: BrokerId) -> Endpoint | None:
    services = context.services
    if node_id == services.config.node_id:
        return services.endpoint(context.listener_name)
    broker = services.metadata.image.brokers.get(node_id)
    if broker is None or broker.fenced:
        return None
    return broker.endpoint(context.listener_name)


_RESOURCE_TYPES = {GROUP: ResourceType.GROUP, TRANSACTION: ResourceType.TRANSACTIONAL_ID}


API = Api(
    ApiKey.FIND_COORDINATOR,
    VersionRange(0, 6),
    handle,
    access=Access(
        [
            Check(
                Operation.DESCRIBE,
                TypeBy("key_type", _RESOURCE_TYPES, default=GROUP),
                ["coordinator_keys", "key"],
                Denial.REFUSES_ITEM,
            )
        ]
    ),
    items=(Items(("coordinator_keys",), ("coordinators",), named="key"),),
    fixed={"node_id": -1, "port": -1},
)
