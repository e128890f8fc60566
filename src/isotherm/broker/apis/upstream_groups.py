"""Groups of clients that see the read replica as their only broker: it says that it coordinates
each group, and passes their requests on to the group's real coordinator.

A client that knew the real coordinator would ask it for metadata too, and go on reading there
(docs/decisions/0274). The real coordinator sees the replica as the client: by its address, its
client id and its rights.

    FindCoordinator   the replica; the real coordinator is looked up again
    ListGroups        all brokers. The error of one is the answer, so that no list lacks a group.
    others            the real coordinator. Its NOT_COORDINATOR lets the client ask here again.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.peers.upstream_client import UpstreamClient, UpstreamPool
from isotherm.broker.server.requests.authorized_operations import group_operations
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Api, Handler, with_handlers
from isotherm.client.cluster_client import ClusterClient
from isotherm.client.node_address import NodeAddress
from isotherm.errors import CoordinatorNotAvailableError, RetriableError
from isotherm.protocol.api_keys import ApiKey

GROUP = 0
COORDINATORS_MAX = 10_000
"""Groups whose coordinator is remembered. Another look-up costs a request."""
JOINS_MAX = 256
"""Members that join at once: each waits for the others on a connection of its own."""
REQUESTS_MAX = 32
JOIN_TIMEOUT_S = 1800.0
"""The longest rebalance: Kafka's group.max.session.timeout.ms."""


class _Several(NamedTuple):
    """The fields with groups in a request and in its response, and the name of one of them."""

    in_request: str
    in_response: str
    name_of: Callable[[Any], str] = str


_SEVERAL: Mapping[int, _Several] = {
    ApiKey.CONSUMER_GROUP_DESCRIBE: _Several("group_ids", "groups"),
    ApiKey.DELETE_GROUPS: _Several("groups_names", "results"),
    ApiKey.DESCRIBE_GROUPS: _Several("groups", "groups"),
    ApiKey.OFFSET_FETCH: _Several("groups", "groups", lambda group: str(group.group_id)),
}
_ONE = (
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_DELETE,
)
_JOINS = (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)


class UpstreamGroups:
    """Event loop thread only, but for `close`."""

    def __init__(self, upstream: UpstreamClient) -> None:
        self._upstream = upstream
        self._coordinators: OrderedDict[str, NodeAddress] = OrderedDict()
        self._joins = UpstreamPool(upstream, "joins", JOINS_MAX, request_timeout_s=JOIN_TIMEOUT_S)
        self._requests = UpstreamPool(upstream, "groups", REQUESTS_MAX)

    def apis(self, apis: Mapping[int, Api]) -> Mapping[int, Api]:
        handlers: dict[int, Handler] = {
            ApiKey.FIND_COORDINATOR: self._find,
            ApiKey.LIST_GROUPS: self._list,
            **{int(key): self._pass_on for key in _ONE},
            **{int(key): self._join for key in _JOINS},
            **{int(key): self._pass_on_several for key in _SEVERAL},
        }
        return with_handlers(apis, handlers)

    def close(self) -> None:
        self._joins.close()
        self._requests.close()

    async def _find(self, context: RequestContext, request: Any) -> Any:
        keys = getattr(request, "coordinator_keys", None) or (request.key,)
        if getattr(request, "key_type", GROUP) != GROUP:
            return await _answered(self._requests, lambda client: client.pass_on_to_any(request))
        own = context.services.endpoint(context.listener_name)
        answers = []
        for key in keys:
            self._coordinators.pop(str(key), None)
            code = ErrorCode.none
            try:
                await self._coordinator(str(key))
            except CoordinatorNotAvailableError:
                code = ErrorCode.coordinator_not_available
            is_here = code is ErrorCode.none and own is not None
            answers.append(
                {
                    "key": key,
                    "error_code": code,
                    "error_message": None,
                    "node_id": context.services.config.node_id if is_here else -1,
                    "host": own.host if is_here and own is not None else "",
                    "port": own.port if is_here and own is not None else -1,
                }
            )
        if hasattr(request, "coordinator_keys"):
            return context.response({"coordinators": answers})
        answers[0].pop("key")
        return context.response(answers[0])

    async def _list(self, context: RequestContext, request: Any) -> Any:
        answers = [
            await _answered(self._requests, _passing(address, request))
            for address in self._upstream.addresses.values()
        ]
        if not answers:
            raise CoordinatorNotAvailableError("the cluster has named no broker yet")
        for answer in answers:
            if answer.error_code is not ErrorCode.none:
                # Without that broker's groups the list would seem to be whole.
                return answer
        groups = tuple(group for answer in answers for group in answer.groups)
        return dataclasses.replace(answers[0], groups=groups)

    async def _join(self, context: RequestContext, request: Any) -> Any:
        return await self._passed_on(request, str(request.group_id), self._joins)

    async def _pass_on(self, context: RequestContext, request: Any) -> Any:
        return await self._passed_on(request, str(request.group_id), self._requests)

    async def _passed_on(self, request: Any, group: str, pool: UpstreamPool) -> Any:
        address = await self._coordinator(group)
        return await _answered(pool, _passing(address, request))

    async def _pass_on_several(self, context: RequestContext, request: Any) -> Any:
        several = _SEVERAL[context.header.api_key]
        if not hasattr(request, several.in_request):
            # OffsetFetch before version 8.
            return await self._passed_on(request, str(request.group_id), self._requests)
        by_coordinator: dict[NodeAddress, list[Any]] = defaultdict(list)
        for group in getattr(request, several.in_request):
            by_coordinator[await self._coordinator(several.name_of(group))].append(group)
        answers = []
        for address, groups in by_coordinator.items():
            part = dataclasses.replace(request, **{several.in_request: tuple(groups)})
            answers.append(await _answered(self._requests, _passing(address, part)))
        if not answers:
            return context.response({several.in_response: ()})
        described = {
            str(group.group_id): group
            for answer in answers
            for group in getattr(answer, several.in_response)
        }
        # In the order of the request: the checks around this handler rely on it.
        names = dict.fromkeys(map(several.name_of, getattr(request, several.in_request)))
        joined = tuple(described[name] for name in names if name in described)
        if getattr(request, "include_authorized_operations", False):
            joined = tuple(_with_operations(context, group) for group in joined)
        return dataclasses.replace(answers[0], **{several.in_response: joined})

    async def _coordinator(self, group: str) -> NodeAddress:
        address = self._coordinators.get(group)
        if address is not None:
            return address
        fields = {"key": group, "key_type": GROUP, "coordinator_keys": (group,)}

        def ask(client: ClusterClient) -> Any:
            return client.ask_any(ApiKey.FIND_COORDINATOR, fields, newest=4, oldest=4)

        (coordinator,) = (await _answered(self._requests, ask)).coordinators
        if coordinator.error_code is not ErrorCode.none:
            raise CoordinatorNotAvailableError(
                f"the cluster names no coordinator group={group}"
                f" reason={coordinator.error_code.name}"
            )
        address = NodeAddress(str(coordinator.host), int(coordinator.port))
        self._coordinators[group] = address
        if len(self._coordinators) > COORDINATORS_MAX:
            self._coordinators.popitem(last=False)
        return address


async def _answered(pool: UpstreamPool, ask: Callable[[ClusterClient], Any]) -> Any:
    """The answer of the cluster. Raises CoordinatorNotAvailableError if it is away: each client
    then looks the coordinator up again, until it is back."""
    try:
        return await pool.run(ask)
    except RetriableError as error:
        raise CoordinatorNotAvailableError(f"the cluster does not answer: {error}") from error


def _passing(address: NodeAddress, request: Any) -> Callable[[ClusterClient], Any]:
    return lambda client: client.pass_on(address, request)


def _with_operations(context: RequestContext, group: Any) -> Any:
    """What the client may do with a described group. The cluster has told what the replica may."""
    if group.error_code is not ErrorCode.none:
        return group
    operations = group_operations(context, str(group.group_id))
    return dataclasses.replace(
        group, authorized_operations=type(group.authorized_operations)(operations)
    )
