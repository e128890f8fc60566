"""The context of a request handler: the properties of the request and the services of the broker.

A handler is `handle(context, request)`. It returns the response (made by
`RequestContext.response`), or an awaitable of it if it has to wait. `async def` is the usual form.
A plain `def` is for hot paths that mostly answer at once, because it costs no coroutine and no
task. Handlers run on the event loop thread and may do short local I/O. Work that takes longer than
an append (creating or deleting topics) goes through `BrokerServices.run_control`.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from isotherm.broker.coordinators.groups.group_coordinator import GroupCoordinator
from isotherm.broker.coordinators.shares.share_coordinator import ShareCoordinator
from isotherm.broker.coordinators.transactions.remote_admission import RemoteAdmission
from isotherm.broker.coordinators.transactions.transaction_coordinator import (
    TransactionCoordinator,
)
from isotherm.broker.coordinators.transactions.transaction_markers import TransactionMarkers
from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.metadata.access.principal import ANONYMOUS, Principal
from isotherm.broker.metadata.cluster_metadata import ClusterMetadata
from isotherm.broker.metadata.controller.controller import Controller
from isotherm.broker.metadata.controller.topic_rules import no_charge
from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.partitions.fetch_sessions import FetchSessionCache
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.partitions.replication.replication_quota import ReplicationQuota
from isotherm.broker.partitions.volumes import Volumes
from isotherm.broker.peers.tail_reader import TailReader
from isotherm.broker.server.net.answer_memory import AnswerMemory
from isotherm.broker.share_partitions.persister import Persister
from isotherm.broker.share_partitions.share_group_states import ShareGroupStates
from isotherm.broker.share_partitions.share_partition_manager import SharePartitionManager
from isotherm.broker.threads.kernel_warm_up import KernelWarmUp
from isotherm.clock import Clock
from isotherm.config.broker import BrokerConfig
from isotherm.errors import IsothermError, NotControllerError
from isotherm.metrics.broker_traffic import BrokerTraffic
from isotherm.protocol.api_keys import response_class
from isotherm.protocol.entities import entity_of, has_field
from isotherm.protocol.framing import RequestHeader
from isotherm.remote.remote_log_manager import RemoteLogManager

Result = TypeVar("Result")

_NO_THROTTLE = datetime.timedelta()


class TopicCreationRequests(Protocol):
    """Creates topics on demand in a member of a cluster."""

    def ask(self, context: RequestContext, names: Iterable[str]) -> None: ...


class ClientConnection(Hashable, Protocol):
    """The connection of a request. What it remembers of its requests is for their API alone."""

    repeated_requests: Any

    def when_closed(self, callback: Callable[[Any], None]) -> None:
        """Call `callback` when the connection is closed; once, if it is added twice."""


class HangUpError(IsothermError):
    """The connection must be closed, because there is no answer: a produce with acks=0 failed."""


@dataclass(slots=True, kw_only=True)
class BrokerServices:
    """The services that handlers share. One instance lives as long as the broker's listeners.

    `config` is the current configuration, which is replaced when dynamic keys change. All other
    fields are constant.

    - `embedded_controller`: None in a member of a KRaft quorum, where requests for the controller
      are forwarded before they reach their handlers.
    - `remote_admission`: asks transaction coordinators on other brokers; None without other
      brokers.
    - `control_executor`: has one thread, so that changes of the cluster's metadata (methods of
      Controller that write, and creating or deleting partitions) run one at a time and in order.
      Any thread may read `metadata.image`.
    - `answers`: how much an answer may hold while clients do not read theirs; event loop only.
    - `batch_executor`: checks and searches batches that would hold up the event loop.
    - `flush_executor`: flushes logs before produce requests are answered.
    - `leader_quota`: limits the bytes sent to out-of-sync replicas; None without a limit.
    - `authorizer`: None if access is not checked.
    - `traffic`: updated on the event loop only.
    - `auto_creation`: None with the embedded controller.
    - `volumes`: sizes of log directories' volumes; event loop only.
    - `is_replica`: this is a read replica in front of a cluster. `tail` reads what lies behind the
      remote tier; None if clients do.
    """

    config: BrokerConfig
    clock: Clock
    cluster_id: str
    endpoints: tuple[Endpoint, ...]
    metadata: ClusterMetadata
    embedded_controller: Controller | None
    replica_manager: ReplicaManager
    fetch_sessions: FetchSessionCache
    answers: AnswerMemory[Any]
    group_coordinator: GroupCoordinator
    transaction_coordinator: TransactionCoordinator
    share_coordinator: ShareCoordinator
    persister: Persister
    share_group_states: ShareGroupStates
    share_partitions: SharePartitionManager
    transaction_markers: TransactionMarkers
    remote_admission: RemoteAdmission | None = None
    remote_log_manager: RemoteLogManager | None
    control_executor: Executor
    batch_executor: Executor
    flush_executor: Executor
    kernels: KernelWarmUp
    traffic: BrokerTraffic
    leader_quota: ReplicationQuota | None = None
    auto_creation: TopicCreationRequests | None = None
    authorizer: Authorizer | None = None
    volumes: Volumes = field(default_factory=Volumes)
    is_replica: bool = False
    tail: TailReader | None = None

    @property
    def controller(self) -> Controller:
        """The embedded controller. Raises NotControllerError in a member of a KRaft quorum."""
        if self.embedded_controller is None:
            raise NotControllerError("the controllers of this cluster are other processes")
        return self.embedded_controller

    def endpoint(self, listener_name: str) -> Endpoint | None:
        """The advertised endpoint of a listener; None if the listener is not advertised."""
        for endpoint in self.endpoints:
            if endpoint.listener_name == listener_name:
                return endpoint
        return None

    async def run_control(self, function: Callable[[], Result]) -> Result:
        """Run a metadata change on the control thread. Raises its error."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.control_executor, function)


class RequestContext(NamedTuple):
    """The properties of one request.

    `listener_name` is the listener of its connection. `arrived_s` is the monotonic time at which
    the request had arrived completely. An `is_large` request may name thousands of items. `charge`
    is called with the number of partitions before they are created or deleted, and may raise
    ThrottlingQuotaExceededError. `connection` is None for a request of this broker itself.
    """

    services: BrokerServices
    header: RequestHeader
    client_address: str
    listener_name: str
    arrived_s: float = 0.0
    is_large: bool = False
    charge: Callable[[int], None] = no_charge
    principal: Principal = ANONYMOUS
    connection: ClientConnection | None = None

    @property
    def response_type(self) -> type[Any]:
        """The class of the response in the request's version."""
        return response_class(self.header.api_key, self.header.api_version)

    def response(self, fields: Mapping[str, Any]) -> Any:
        """The response in the request's version, from the fields of the newest version. Fields that
        the version lacks are dropped.

        The throttle time is 0 unless `fields` has one; quotas set it later.
        """
        response_type = self.response_type
        if has_field(response_type, "throttle_time"):
            fields = {"throttle_time": _NO_THROTTLE, **fields}
        return entity_of(response_type, fields)
