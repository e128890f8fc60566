"""A read replica: a broker's node without a log of its own. It serves the tiered history of topics
to clients, and changes neither the cluster nor the bucket (docs/decisions/0272).
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

from isotherm.broker.cluster.bucket_cluster import BucketCluster
from isotherm.broker.cluster.cluster_side import ClusterSide
from isotherm.broker.cluster.replica_cluster import ReplicaCluster
from isotherm.broker.cluster.replica_settings import ReplicaSettings
from isotherm.broker.cluster.upstream_cluster import UpstreamCluster
from isotherm.broker.node import REMOTE_CLOSE_TIMEOUT_S, BrokerNode
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.partitions.replica_roles import ReplicaRoles
from isotherm.broker.server.requests.context import BrokerServices
from isotherm.broker.surroundings import Surroundings
from isotherm.broker.tier.replica_tier import open_replica_tier
from isotherm.broker.tier.scratch_files import ScratchFileSystem
from isotherm.config.broker import BrokerConfig
from isotherm.remote.remote_log_manager import RemoteLogManager


class ReplicaNode(BrokerNode):
    """See BrokerNode. `config.log_dirs` is a scratch folder that the caller removes."""

    def __init__(
        self,
        config: BrokerConfig,
        settings: ReplicaSettings,
        surroundings: Surroundings | None = None,
    ) -> None:
        super().__init__(config, surroundings or Surroundings(fs=ScratchFileSystem()))
        self._settings = settings
        self._replica: ReplicaCluster

    def _open_cluster(self) -> ClusterSide:
        config, surroundings, settings = self._config, self._surroundings, self._settings
        if settings.upstream is None:
            self._replica = BucketCluster(config, surroundings, settings)
        else:
            self._replica = UpstreamCluster(config, surroundings, settings, settings.upstream)
        self._cluster = self._replica
        if self._is_given_up:
            self._replica.give_up()
        self._replica.open()
        return self._replica

    def _open_remote_tier(
        self,
        started: contextlib.AsyncExitStack,
        cluster: ClusterSide,
        replica_manager: ReplicaManager,
        roles: ReplicaRoles,
        control_executor: ThreadPoolExecutor,
    ) -> RemoteLogManager:
        replica = self._replica
        remote_log_manager = open_replica_tier(
            self._config, replica.storage, replica.tier_metadata, self._surroundings
        )
        started.push_async_callback(
            self._loop.run_in_executor, None, remote_log_manager.close, REMOTE_CLOSE_TIMEOUT_S
        )
        replica.begin_histories(replica_manager, control_executor)
        return remote_log_manager

    def _open_services(
        self,
        cluster: ClusterSide,
        replica_manager: ReplicaManager,
        remote_log_manager: RemoteLogManager | None,
        control_executor: ThreadPoolExecutor,
        flush_executor: ThreadPoolExecutor,
    ) -> BrokerServices:
        services = super()._open_services(
            cluster, replica_manager, remote_log_manager, control_executor, flush_executor
        )
        services.is_replica = isinstance(self._replica, UpstreamCluster)
        services.tail = self._replica.tail_reader()
        return services

    async def stop(self) -> None:
        await super().stop()
        if self.services.tail is not None:
            await self._loop.run_in_executor(None, self.services.tail.close)
