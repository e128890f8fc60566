"""A cluster of one broker, with the controller in the same process. See ClusterSide."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from isotherm.broker.coordinators.coordinator_elections import (
    TransactionPeers,
    embedded_topic_creator,
    no_transaction_peers,
)
from isotherm.broker.coordinators.shares.share_coordinator import ShareCoordinator
from isotherm.broker.coordinators.transactions.transaction_markers import TransactionMarkers
from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.metadata.access.scram_changes import Refused, ScramUpsertion
from isotherm.broker.metadata.controller.controller import Controller
from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.metadata.internal_topics import TopicCreator
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.partitions.replica_roles import NoFetchers
from isotherm.broker.partitions.replication.cluster_view import ClusterView
from isotherm.broker.server.requests.guarding import guarded_apis
from isotherm.broker.server.requests.served_api import Api
from isotherm.broker.share_partitions.share_peers import SharePeers, no_share_peers
from isotherm.broker.startup.local_tier import LocalTier
from isotherm.broker.surroundings import Surroundings
from isotherm.broker.tier.remote_tier import OwnMetadata, embedded_metadata
from isotherm.remote.tasks.tier import RemoteTierAccess
from isotherm.types import ProducerId, TopicIdPartition


class EmbeddedCluster:
    inter_broker_listener = ""

    def __init__(self, local_tier: LocalTier, surroundings: Surroundings) -> None:
        self.log_manager, self._controller, self.cluster_id = local_tier
        self._surroundings = surroundings

    @property
    def metadata(self) -> Controller:
        return self._controller

    @property
    def embedded_controller(self) -> Controller:
        return self._controller

    @property
    def partitions_removed_last(self) -> Sequence[TopicIdPartition]:
        return self._controller.partitions_removed_last

    def give_up(self) -> None:
        """Do nothing: the start waits for no other process."""

    def register(self, endpoints: Sequence[Endpoint]) -> None:
        self._controller.register_broker(endpoints)

    def view(self) -> ClusterView:
        return ClusterView(self._controller.broker_config.node_id, self._surroundings.clock)

    def open_fetchers(self, replica_manager: ReplicaManager) -> NoFetchers:
        return NoFetchers()

    def follow_tier(self, tier: RemoteTierAccess) -> None:
        """Do nothing: this broker follows no partition."""

    def own_metadata(
        self,
        replica_manager: ReplicaManager,
        control_executor: ThreadPoolExecutor,
    ) -> OwnMetadata:
        return embedded_metadata(
            self._controller,
            replica_manager,
            self._controller.broker_config,
            self._surroundings,
            run_control=control_executor.submit,
        )

    def topic_creator(self, control_executor: ThreadPoolExecutor) -> TopicCreator:
        return embedded_topic_creator(self._controller, control_executor)

    def new_producer_id(
        self, control_executor: ThreadPoolExecutor
    ) -> Callable[[], Awaitable[ProducerId]]:
        loop, generate = asyncio.get_running_loop(), self._controller.generate_producer_id
        return lambda: loop.run_in_executor(control_executor, generate)

    def transaction_peers(self, markers: TransactionMarkers) -> TransactionPeers:
        return no_transaction_peers(self._controller, markers)

    def share_peers(self, shares: ShareCoordinator, replica_manager: ReplicaManager) -> SharePeers:
        return no_share_peers(self._controller, shares, replica_manager)

    def apis(self, apis: Mapping[int, Api], authorizer: Authorizer | None) -> Mapping[int, Api]:
        return guarded_apis(apis, authorizer)

    def auto_creation(self) -> None:
        """None: topics are created while the client waits."""

    async def record_credential(
        self, control_executor: ThreadPoolExecutor, upsertion: ScramUpsertion
    ) -> Refused | None:
        results = await asyncio.get_running_loop().run_in_executor(
            control_executor, self._controller.alter_scram_credentials, (), (upsertion,)
        )
        return results[upsertion.name]

    async def begin(self, control_executor: ThreadPoolExecutor) -> None:
        """Do nothing: the registration has unfenced the broker."""

    async def leave(self) -> None:
        """Do nothing: no other broker could lead."""

    def end_changes(self) -> None:
        """Do nothing: only requests change the metadata, and they have been drained."""

    def note_log_dir_failure(self, path: Path) -> None:
        """Do nothing: the metadata has no directories, and the broker itself takes the
        partitions offline.
        """

    def close(self) -> None:
        self.log_manager.shutdown()
