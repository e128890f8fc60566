"""The interface between a broker's parts and its cluster. `node.py` assembles the same parts in
both modes.

    embedded_cluster.py   the controller is in this process, and every partition has one replica
                          here
    member_cluster.py     the controllers are other processes, replicas are on other brokers

The order of calls is `register`; `view` and `open_fetchers` for the partitions; `own_metadata` for
the remote tier; the rest for requests; `begin` when everything can serve; and `leave` before a
stop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from isotherm.broker.coordinators.coordinator_elections import TransactionPeers
from isotherm.broker.coordinators.shares.share_coordinator import ShareCoordinator
from isotherm.broker.coordinators.transactions.transaction_markers import TransactionMarkers
from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.metadata.access.scram_changes import Refused, ScramUpsertion
from isotherm.broker.metadata.cluster_metadata import ClusterMetadata
from isotherm.broker.metadata.controller.controller import Controller
from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.metadata.internal_topics import TopicCreator
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.partitions.replica_roles import ReplicaFetchers
from isotherm.broker.partitions.replication.cluster_view import ClusterView
from isotherm.broker.server.requests.context import TopicCreationRequests
from isotherm.broker.server.requests.served_api import Api
from isotherm.broker.share_partitions.share_peers import SharePeers
from isotherm.broker.tier.remote_tier import OwnMetadata
from isotherm.log.log_manager import LogManager
from isotherm.remote.tasks.tier import RemoteTierAccess
from isotherm.types import ProducerId, TopicIdPartition


class ClusterSide(Protocol):
    """Opened on the control thread, with the logs loaded. `close` closes them."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def log_manager(self) -> LogManager: ...

    @property
    def metadata(self) -> ClusterMetadata: ...

    @property
    def embedded_controller(self) -> Controller | None: ...

    @property
    def inter_broker_listener(self) -> str: ...

    @property
    def partitions_removed_last(self) -> Sequence[TopicIdPartition]:
        """Tiered partitions of topics that the last records before a stop deleted. The deletion of
        their remote segments may not have begun."""

    def give_up(self) -> None:
        """Abort the start: end its waits with an error. Any thread."""

    def register(self, endpoints: Sequence[Endpoint]) -> None:
        """Register this start with the controller. Blocks. Raises IsothermError with the cause."""

    def view(self) -> ClusterView: ...

    def open_fetchers(self, replica_manager: ReplicaManager) -> ReplicaFetchers:
        """The fetchers of followed partitions. The caller stops them."""

    def follow_tier(self, tier: RemoteTierAccess) -> None:
        """Let followed partitions start behind the remote segments of this tier."""

    def own_metadata(
        self,
        replica_manager: ReplicaManager,
        control_executor: ThreadPoolExecutor,
    ) -> OwnMetadata: ...

    def topic_creator(self, control_executor: ThreadPoolExecutor) -> TopicCreator: ...

    def new_producer_id(
        self, control_executor: ThreadPoolExecutor
    ) -> Callable[[], Awaitable[ProducerId]]: ...

    def transaction_peers(self, markers: TransactionMarkers) -> TransactionPeers:
        """Event loop thread only. The caller stops it."""

    def share_peers(self, shares: ShareCoordinator, replica_manager: ReplicaManager) -> SharePeers:
        """Event loop thread only. The caller stops it."""

    def apis(self, apis: Mapping[int, Api], authorizer: Authorizer | None) -> Mapping[int, Api]:
        """`apis` as they are served here: with their checks, if there is an authorizer, and with
        what another process answers passed on to it."""

    def auto_creation(self) -> TopicCreationRequests | None: ...

    async def record_credential(
        self, control_executor: ThreadPoolExecutor, upsertion: ScramUpsertion
    ) -> Refused | None:
        """Let the controller record a SCRAM credential.

        Raises IsothermError if it does not answer.
        """

    async def begin(self, control_executor: ThreadPoolExecutor) -> None:
        """Report that this broker can serve; returns when the controller has unfenced it. Raises
        IsothermError."""

    async def leave(self) -> None:
        """Move leaderships away before a stop, while requests are still served. Bounded in time."""

    def end_changes(self) -> None:
        """After the return no listener of the metadata is called.

        Must not be called on the control thread.
        """

    def note_log_dir_failure(self, path: Path) -> None:
        """Report that a log directory is offline. Any thread."""

    def close(self) -> None:
        """Close the logs, mark the clean stop, and end the membership."""
