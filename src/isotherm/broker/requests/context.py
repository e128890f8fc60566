"""The context of a request handler: the request's surroundings and the broker's services.

A handler is `handle(context, request)`. It returns the response (made by `RequestContext.response`), or
an awaitable of it if it has to wait. `async def` is the usual form; a plain `def` is for hot paths that
mostly answer at once. Handlers run on the event loop thread and may do short local I/O. Work that takes
longer than an append (creating or deleting topics) goes through `BrokerServices.run_control`.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from isotherm.broker.access.principal import ANONYMOUS, Principal
from isotherm.broker.controller.topic_rules import no_charge
from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.errors import IsothermError, NotControllerError
from isotherm.protocol.api_keys import response_class
from isotherm.protocol.entities import entity_of, has_field

if TYPE_CHECKING:
    from isotherm.broker.access.authorizer import Authorizer
    from isotherm.broker.controller.controller import Controller
    from isotherm.broker.groups.group_coordinator import GroupCoordinator
    from isotherm.broker.metadata.cluster_metadata import ClusterMetadata
    from isotherm.broker.partitions.fetch_sessions import FetchSessionCache
    from isotherm.broker.partitions.replica_manager import ReplicaManager
    from isotherm.broker.replication.replication_quota import ReplicationQuota
    from isotherm.broker.startup.kernel_warm_up import KernelWarmUp
    from isotherm.broker.transactions.remote_admission import RemoteAdmission
    from isotherm.broker.transactions.transaction_coordinator import TransactionCoordinator
    from isotherm.broker.transactions.transaction_markers import TransactionMarkers
    from isotherm.clock import Clock
    from isotherm.config.broker import BrokerConfig
    from isotherm.metrics.broker_traffic import BrokerTraffic
    from isotherm.protocol.framing import RequestHeader
    from isotherm.remote.remote_log_manager import RemoteLogManager

Result = TypeVar("Result")

_NO_THROTTLE = datetime.timedelta()


class TopicCreationRequests(Protocol):
    """How a member of a cluster has topics created on demand."""

    def ask(self, context: RequestContext, names: Iterable[str]) -> None: ...


class HangUpError(IsothermError):
    """The connection must be closed, because there is no answer: a produce with acks=0 failed."""


@dataclass(slots=True, kw_only=True)
class BrokerServices:
    """The services that handlers share. One instance lives as long as the broker's listeners.

    `embedded_controller` is None in a member of a KRaft quorum: requests for a controller are passed on
    before they reach their handlers. `config` is the present configuration. It is replaced when dynamic keys change; all other fields
    are constant. `remote_admission` asks coordinators of other brokers; None without other brokers.

    `control_executor` has one thread. Changes of the cluster's metadata (Controller methods that
    write, and creating or deleting partitions) run there, one at a time and in order. Any thread may
    read `metadata.image`. `flush_executor` flushes logs before produce requests are answered.
    `leader_quota` bounds what replicas out of sync are sent; None without a bound.
    `authorizer` is None where access is not checked. `traffic` is marked on the event loop. `auto_creation` is None with the embedded controller.
    """

    config: BrokerConfig
    clock: Clock
    cluster_id: str
    endpoints: tuple[Endpoint, ...]
    metadata: ClusterMetadata
    embedded_controller: Controller | None
    replica_manager: ReplicaManager
    fetch_sessions: FetchSessionCache
    group_coordinator: GroupCoordinator
    transaction_coordinator: TransactionCoordinator
    transaction_markers: TransactionMarkers
    remote_admission: RemoteAdmission | None = None
    remote_log_manager: RemoteLogManager | None
    control_executor: Executor
    flush_executor: Executor
    kernels: KernelWarmUp
    traffic: BrokerTraffic
    leader_quota: ReplicationQuota | None = None
    auto_creation: TopicCreationRequests | None = None
    authorizer: Authorizer | None = None

    @property
    def controller(self) -> Controller:
        """The embedded controller. NotControllerError in a member of a quorum of other processes."""
        if self.embedded_controller is None:
            raise NotControllerError("the controllers of this cluster are other processes")
        return self.embedded_controller

    def endpoint(self, listener_name: str) -> Endpoint | None:
        """The advertised endpoint of the request's listener; None if it has none."""
        for endpoint in self.endpoints:
            if endpoint.listener_name == listener_name:
                return endpoint
        return None

    async def run_control(self, function: Callable[[], Result]) -> Result:
        """Run a metadata change on the control thread. Raises its error."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.control_executor, function)


class RequestContext(NamedTuple):
    """The surroundings of one request.

    `listener_name` is the listener of the connection. `arrived_s` is the monotonic time when the
    request had arrived completely. `is_large` requests may name thousands of items. `charge` is called
    with the number of partitions before they are created or deleted, and may raise
    ThrottlingQuotaExceededError.
    """

    services: BrokerServices
    header: RequestHeader
    client_address: str
    listener_name: str
    arrived_s: float = 0.0
    is_large: bool = False
    charge: Callable[[int], None] = no_charge
    principal: Principal = ANONYMOUS

    def response(self, fields: Mapping[str, Any]) -> Any:
        """The response in the request's version, from the fields of the newest version.

        Its throttle time is 0 unless `fields` has one: the client's quotas set it later.
        """
        response_type = response_class(self.header.api_key, self.header.api_version)
        if has_field(response_type, "throttle_time"):
            fields = {"throttle_time": _NO_THROTTLE, **fields}
        return entity_of(response_type, fields)
