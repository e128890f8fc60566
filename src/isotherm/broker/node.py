"""A whole broker in one process: starts its components in order, and stops them in reverse.

    ports bound -> log dirs locked, identity -> metadata log, controller -> logs loaded ->
    partitions led -> remote tier -> background tasks -> requests served

If a step fails, the earlier ones are undone, and the error names the cause. A stop does the same:
it drains requests, stops background and remote tasks, flushes and checkpoints the logs, marks the
clean shutdown, and unlocks the directories.

If a log directory fails while the broker runs, only its partitions go offline. Without the
directory of the cluster's metadata, which is the first one by default, the broker has failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from isotherm.broker.apis.api_register import APIS
from isotherm.broker.cluster.cluster_side import ClusterSide
from isotherm.broker.cluster.embedded_cluster import EmbeddedCluster
from isotherm.broker.coordinators.coordinator_elections import (
    TransactionPeers,
    open_group_coordinator,
    open_share_coordinator,
    open_transaction_coordinator,
)
from isotherm.broker.coordinators.coordinator_metrics import CoordinatorMetrics
from isotherm.broker.coordinators.transactions.transaction_markers import TransactionMarkers
from isotherm.broker.metadata.access.authorizer import configured_authorizer
from isotherm.broker.metadata.cluster_metadata import ClusterMetadata, MetadataChange
from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.partitions.cleaner_threads import start_log_cleaner
from isotherm.broker.partitions.fetch_sessions import FetchSessionCache
from isotherm.broker.partitions.purgatory import Purgatory
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.partitions.replica_metrics import FetcherMetrics, ReplicaMetrics
from isotherm.broker.partitions.replica_roles import ReplicaRoles
from isotherm.broker.partitions.replication.configured_quotas import (
    leader_quota,
    log_dir_move_quota,
)
from isotherm.broker.server.authentication.sasl_gate import SaslGate
from isotherm.broker.server.authentication.sasl_listeners import (
    check_sasl,
    sasl_settings,
    serves_scram,
)
from isotherm.broker.server.authentication.unknown_users import keep_secret
from isotherm.broker.server.dispatch.dispatch import Dispatcher
from isotherm.broker.server.net.metrics_endpoint import MetricsEndpoint
from isotherm.broker.server.net.server import NewGate, Server, listener_texts
from isotherm.broker.server.requests.context import BrokerServices
from isotherm.broker.server.requests.quotas import ClientQuotaManager
from isotherm.broker.share_partitions.share_group_states import ShareGroupStates
from isotherm.broker.share_partitions.share_metrics import ShareMetrics
from isotherm.broker.share_partitions.share_partition_manager import (
    ResetLookUp,
    SharePartitionManager,
)
from isotherm.broker.share_partitions.share_peers import SharePeers
from isotherm.broker.share_partitions.share_sessions import ShareSessionCache
from isotherm.broker.startup.local_tier import open_local_tier
from isotherm.broker.surroundings import Surroundings
from isotherm.broker.threads.background import start_log_tasks
from isotherm.broker.threads.bounded_stop import stop_within
from isotherm.broker.threads.kernel_warm_up import KernelCompilation, KernelWarmUp
from isotherm.broker.tier.remote_tier import open_remote_tier
from isotherm.config.broker import BrokerConfig
from isotherm.errors import ConfigError
from isotherm.log.log_dir import LogDir
from isotherm.log.log_manager import LogManager
from isotherm.metrics.broker_traffic import BrokerTraffic
from isotherm.remote.remote_log_manager import RemoteLogManager

if TYPE_CHECKING:
    from isotherm.broker.server.authentication.oauth_listeners import TokenListener

logger = logging.getLogger(__name__)

# How long a stop waits for clients to read their responses. It is short, because supervisors kill a
# broker whose stop takes too long in total.
DRAIN_TIMEOUT_S = 2.0

# How long a stop waits for running tasks of the remote tier. Copying a segment may take minutes.
REMOTE_CLOSE_TIMEOUT_S = 1.5
UPKEEP_STOP_TIMEOUT_S = 0.5

# How long a change of the configuration waits until listeners use the new keys.
RENEWAL_TIMEOUT_S = 60.0

# How many logs of a directory are flushed at the same time for waiting producers. A disk accepts
# the next flush while it works on one.
FLUSHES_PER_LOG_DIR = 2

# Threads that check and search batches that would hold up the event loop. Compiled loops and codecs
# hold no interpreter lock, so one thread is enough for a core, and a second for a client that comes
# meanwhile.
BATCH_THREADS = 2


class BrokerNode:
    """A broker. Call `start` and `stop` on one event loop, which serves the network in between.

    After `start`, `failed` completes when the broker cannot serve anything any more. Then stop it.
    """

    def __init__(
        self,
        config: BrokerConfig,
        surroundings: Surroundings | None = None,
    ) -> None:
        self._config = config
        self._surroundings = surroundings or Surroundings()
        self._clock = self._surroundings.clock
        self._started = contextlib.AsyncExitStack()
        self._traffic = BrokerTraffic()
        self.metrics = self._surroundings.metrics
        self.metrics.registry.register(self._traffic)
        self.endpoints: tuple[Endpoint, ...] = ()
        self.metrics_port: int | None = None
        self.services: BrokerServices
        self.failed: asyncio.Future[None]
        self._loop: asyncio.AbstractEventLoop
        self._server: Server
        self._metrics_endpoint: MetricsEndpoint | None = None
        self._kernels: KernelWarmUp
        self._transaction_peers: TransactionPeers
        self._share_peers: SharePeers
        self._share_group_states: ShareGroupStates
        self._is_serving = False
        self._is_given_up = False
        self._cluster: ClusterSide | None = None

    def give_up_start(self) -> None:
        """Make a `start` that waits for remote controllers raise an error soon."""
        self._is_given_up = True
        if self._cluster is not None:
            self._cluster.give_up()

    async def start(self) -> None:
        """Start the broker.

        It serves requests when this returns. Raises IsothermError with the cause.
        """
        self._loop = asyncio.get_running_loop()
        self.failed = self._loop.create_future()
        async with contextlib.AsyncExitStack() as started:
            await self._start(started)
            self._started = started.pop_all()

    async def stop(self) -> None:
        """Stop in order (see the module).

        Afterwards another broker can open the data. Idempotent.
        """
        await self._started.aclose()

    async def reload(self, reread: BrokerConfig) -> None:
        """Apply the dynamic keys of a configuration. Other changed keys are logged.

        Raises ConfigError, with nothing changed, if the configuration is invalid.
        """
        services = self.services
        reloaded = await services.run_control(
            lambda: services.metadata.reload_broker_config(reread)
        )
        # Also without a changed key, because key files may have new content under the same names.
        await self._server.renew_keys()
        if self._metrics_endpoint is not None:
            await self._metrics_endpoint.renew(services.metadata.broker_config)
        logger.info("configuration is reloaded applied=%s", ",".join(reloaded.applied))
        if reloaded.need_restart:
            logger.warning(
                "changed keys take effect after a restart keys=%s", ",".join(reloaded.need_restart)
            )

    async def _start(self, started: contextlib.AsyncExitStack) -> None:
        self._kernels = KernelWarmUp()
        tokens = check_sasl(self._config, self._clock)
        await self._read_token_keys(started, tokens)
        server = self._server = Server(self._config, self._loop, self._clock)
        # Each step registers its undo at once, so a failure undoes exactly the completed steps.
        started.push_async_callback(server.stop, 0)
        self.endpoints = await server.bind()
        control_executor = ThreadPoolExecutor(1, thread_name_prefix="isotherm-control")
        started.callback(control_executor.shutdown)
        cluster = await self._loop.run_in_executor(control_executor, self._open_cluster)
        # In a thread, because it waits for the threads of a cluster member.
        started.push_async_callback(self._loop.run_in_executor, None, cluster.close)
        log_manager, metadata = cluster.log_manager, cluster.metadata
        # The server was bound with the configuration file alone. Stored dynamic settings apply from
        # here on.
        self._config = metadata.broker_config
        server.update_config(self._config)
        await server.renew_keys()
        log_manager.update_config(self._config)
        purgatory = Purgatory[Hashable](
            self._loop, operations_max=self._config.delayed_operations_max
        )
        replica_manager, roles = await self._open_replicas(
            started, cluster, purgatory, control_executor
        )
        # The registration of a new cluster stores settings of all brokers.
        self._config = metadata.broker_config
        remote_log_manager = self._open_remote_tier(
            started, cluster, replica_manager, roles, control_executor
        )
        for task in start_log_tasks(self._config, log_manager, self._clock):
            started.callback(task.stop)
        self._start_cleaner(started, metadata, log_manager)
        flush_executor = ThreadPoolExecutor(
            FLUSHES_PER_LOG_DIR * len(self._config.log_dirs), thread_name_prefix="isotherm-flush"
        )
        started.callback(flush_executor.shutdown)
        self.services = self._open_services(
            cluster, replica_manager, remote_log_manager, control_executor, flush_executor
        )
        started.callback(self.services.batch_executor.shutdown, cancel_futures=True)
        metadata.add_listener(
            lambda change: self._reconfigure(change, server, log_manager, remote_log_manager)
        )
        started.push_async_callback(self._loop.run_in_executor, None, cluster.end_changes)
        # Registered after all components that requests use, so that a stop drains first.
        started.push_async_callback(self._drain, server, purgatory)
        quotas = self._open_quotas(metadata, server)
        self._is_serving = True
        apis = cluster.apis(APIS, self.services.authorizer)
        dispatcher = Dispatcher(self.services, apis, quotas=quotas)
        self.metrics.registry.register(dispatcher.metrics)
        self.metrics.registry.register(server.loop_watch)
        await self._serve_metrics(started)
        # A stop runs it before the drain, so that leaderships move while requests are still
        # answered.
        started.push_async_callback(cluster.leave)
        await cluster.begin(control_executor)
        if serves_scram(self._config):
            record = partial(cluster.record_credential, control_executor)
            await keep_secret(metadata.image.scram_credentials, record)
        await server.serve(dispatcher, self._gates(metadata, tokens))
        compilation = KernelCompilation()
        started.callback(compilation.stop)
        # Last, so that compiling does not compete with the start for the CPU.
        compilation.start()
        logger.info(
            "broker serves node_id=%d cluster_id=%s listeners=%s",
            self._config.node_id,
            cluster.cluster_id,
            listener_texts(self.endpoints),
        )

    async def _open_replicas(
        self,
        started: contextlib.AsyncExitStack,
        cluster: ClusterSide,
        purgatory: Purgatory[Hashable],
        control_executor: ThreadPoolExecutor,
    ) -> tuple[ReplicaManager, ReplicaRoles]:
        """Open this broker's replicas. From here on they are fetched, led and moved."""
        view = cluster.view()
        replica_manager = ReplicaManager(cluster.log_manager, purgatory, view)
        self.metrics.registry.register(ReplicaMetrics(replica_manager, view.isr_counts))
        await self._loop.run_in_executor(control_executor, cluster.register, self.endpoints)
        fetchers = cluster.open_fetchers(replica_manager)
        self.metrics.registry.register(FetcherMetrics(fetchers))
        started.push_async_callback(self._loop.run_in_executor, None, fetchers.stop)
        roles = ReplicaRoles(
            self._config.node_id,
            cluster.metadata,
            replica_manager,
            fetchers,
            inter_broker_listener=cluster.inter_broker_listener,
        )
        roles.start()
        moves = replica_manager.start_moves(
            control_executor.submit,
            log_dir_move_quota(cluster.metadata, self._clock),
            self._clock,
            thread_count=self._config.alter_log_dirs_threads,
        )
        started.push_async_callback(self._loop.run_in_executor, None, moves.stop)
        return replica_manager, roles

    def _open_services(
        self,
        cluster: ClusterSide,
        replica_manager: ReplicaManager,
        remote_log_manager: RemoteLogManager | None,
        control_executor: ThreadPoolExecutor,
        flush_executor: ThreadPoolExecutor,
    ) -> BrokerServices:
        create_topic = cluster.topic_creator(control_executor)
        group_coordinator = open_group_coordinator(
            self._config,
            cluster.metadata,
            replica_manager,
            create_topic,
            self._surroundings,
        )
        transaction_markers = TransactionMarkers(replica_manager, self._clock, group_coordinator)
        self._transaction_peers = cluster.transaction_peers(transaction_markers)
        transaction_coordinator = open_transaction_coordinator(
            self._config,
            cluster.metadata,
            replica_manager,
            create_topic,
            self._transaction_peers.markers,
            cluster.new_producer_id(control_executor),
            clock=self._clock,
        )
        share_coordinator = open_share_coordinator(
            self._config, cluster.metadata, replica_manager, create_topic, self._clock
        )
        self._share_peers = cluster.share_peers(share_coordinator, replica_manager)
        self._share_group_states = ShareGroupStates(
            group_coordinator, self._share_peers, cluster.metadata
        )
        self.metrics.registry.register(
            CoordinatorMetrics(
                group_coordinator, transaction_coordinator, share_coordinator, self._clock
            )
        )
        batch_executor = ThreadPoolExecutor(BATCH_THREADS, thread_name_prefix="isotherm-batches")
        return BrokerServices(
            config=self._config,
            clock=self._clock,
            cluster_id=cluster.cluster_id,
            endpoints=self.endpoints,
            metadata=cluster.metadata,
            embedded_controller=cluster.embedded_controller,
            replica_manager=replica_manager,
            fetch_sessions=FetchSessionCache(
                self._surroundings.rng,
                slots_max=self._config.max_incremental_fetch_session_cache_slots,
                eviction_ms=self._config.min_incremental_fetch_session_eviction_ms,
                partitions_max=self._config.incremental_fetch_session_cache_partitions_max,
            ),
            answers=self._server.answers,
            group_coordinator=group_coordinator,
            transaction_coordinator=transaction_coordinator,
            share_coordinator=share_coordinator,
            persister=self._share_peers.persister,
            share_group_states=self._share_group_states,
            share_partitions=self._open_share_partitions(
                cluster.metadata, replica_manager, remote_log_manager, batch_executor
            ),
            transaction_markers=transaction_markers,
            remote_admission=self._transaction_peers.admission,
            remote_log_manager=remote_log_manager,
            control_executor=control_executor,
            batch_executor=batch_executor,
            flush_executor=flush_executor,
            kernels=self._kernels,
            traffic=self._traffic,
            leader_quota=None
            if self._config.has_embedded_controller
            else leader_quota(cluster.metadata, self._clock),
            auto_creation=cluster.auto_creation(),
            authorizer=configured_authorizer(self._config.security, cluster.metadata),
        )

    def _open_share_partitions(
        self,
        metadata: ClusterMetadata,
        replica_manager: ReplicaManager,
        remote_log_manager: RemoteLogManager | None,
        executor: ThreadPoolExecutor,
    ) -> SharePartitionManager:
        manager = SharePartitionManager(
            replica_manager,
            self._share_peers.persister,
            metadata,
            ShareSessionCache(
                sessions_max=self._config.groups.group_share_max_share_sessions,
                partitions_max=self._config.incremental_fetch_session_cache_partitions_max,
            ),
            ResetLookUp(
                None if remote_log_manager is None else remote_log_manager.readers,
                executor,
                self._config.remote.remote_list_offsets_request_timeout_ms / 1000,
            ),
            self._clock,
        )
        metadata.add_listener(manager.follow)
        self.metrics.registry.register(ShareMetrics(manager))
        return manager

    def _start_cleaner(
        self,
        started: contextlib.AsyncExitStack,
        metadata: ClusterMetadata,
        log_manager: LogManager,
    ) -> None:
        if not self._config.cleaner.log_cleaner_enable:
            return
        threads = start_log_cleaner(self._config.cleaner, log_manager, self._surroundings)
        # In a thread, because it waits until running rounds have ended.
        started.push_async_callback(self._loop.run_in_executor, None, threads.stop)
        metadata.add_listener(threads.follow)

    def _open_cluster(self) -> ClusterSide:
        if self._config.has_embedded_controller:
            local_tier = open_local_tier(
                self._config, self._surroundings, on_log_dir_failure=self._on_log_dir_failure
            )
            self._cluster = EmbeddedCluster(local_tier, self._surroundings)
        else:
            # Imported on use: only a cluster member needs the code that connects to other brokers.
            from isotherm.broker.cluster.member_cluster import MemberCluster

            self._cluster = member = MemberCluster(
                self._config,
                self._surroundings,
                on_log_dir_failure=self._on_log_dir_failure,
                on_failure=self._on_lost_membership,
            )
            if self._is_given_up:
                member.give_up()
            member.open()
        return self._cluster

    def _on_lost_membership(self, error: Exception) -> None:
        """Called on any thread."""
        self._loop.call_soon_threadsafe(self._fail, f"its membership has ended reason='{error}'")

    def _fail(self, reason: str) -> None:
        if not self.failed.done():
            logger.critical("broker has failed, %s", reason)
            self.failed.set_result(None)

    def _on_log_dir_failure(self, log_dir: LogDir) -> None:
        """Hand the failure to the event loop.

        Called on any thread, perhaps with a log's lock held.
        """
        self._loop.call_soon_threadsafe(self._take_offline, log_dir)

    def _take_offline(self, log_dir: LogDir) -> None:
        if not self._is_serving or self.failed.done():
            return  # `start` raises the failure itself, and a failed broker stops anyway.
        replica_manager = self.services.replica_manager
        assert self._cluster is not None, "it serves"
        self._cluster.note_log_dir_failure(log_dir.path)
        if self._cluster.log_manager.metadata_log_dir.is_online:
            self._loop.run_in_executor(
                self.services.control_executor, replica_manager.take_offline, log_dir
            )
        else:
            self._fail(f"without its metadata log dir={log_dir.path}")

    async def _serve_metrics(self, started: contextlib.AsyncExitStack) -> None:
        if self._config.prometheus_listener is not None:
            endpoint = MetricsEndpoint(self.metrics.registry, self._config, self._clock)
            self._metrics_endpoint = endpoint
            await endpoint.start()
            started.push_async_callback(endpoint.stop)
            self.metrics_port = endpoint.port

    async def _read_token_keys(
        self, started: contextlib.AsyncExitStack, tokens: Mapping[str, TokenListener]
    ) -> None:
        for token in tokens.values():
            started.push_async_callback(self._loop.run_in_executor, None, token.keys.stop)
            await self._loop.run_in_executor(None, token.keys.start)

    def _gates(
        self, metadata: ClusterMetadata, tokens: Mapping[str, TokenListener]
    ) -> dict[str, NewGate]:
        gates: dict[str, NewGate] = {}
        for listener in self._config.listener_layout.brokers:
            settings = sasl_settings(self._config, listener, metadata, tokens)
            if settings is not None:
                gates[listener.name] = partial(
                    SaslGate, settings, clock=self._clock, loop=self._loop
                )
        return gates

    def _open_quotas(self, metadata: ClusterMetadata, server: Server) -> ClientQuotaManager:
        quotas = ClientQuotaManager(
            self._clock,
            window_ms=self._config.quota_window_size_seconds * 1000,
            window_count=self._config.quota_window_num,
            mutation_window_s=self._config.controller_quota_window_num
            * self._config.controller_quota_window_size_seconds,
        )
        connection_quota = server.connection_quota
        quotas.update(metadata.image.client_quotas)
        connection_quota.update(metadata.image.client_quotas)

        def follow(change: MetadataChange) -> None:
            if change.quotas_changed:
                now = change.image.client_quotas
                self._loop.call_soon_threadsafe(quotas.update, now)
                self._loop.call_soon_threadsafe(connection_quota.update, now)

        metadata.add_listener(follow)
        return quotas

    def _reconfigure(
        self,
        change: MetadataChange,
        server: Server,
        log_manager: LogManager,
        remote_log_manager: RemoteLogManager | None,
    ) -> None:
        for topic in change.deleted:
            self._loop.call_soon_threadsafe(self._traffic.forget, topic.name)
        config = change.broker_config
        if config is None:
            return
        self.services.config = config
        server.update_config(config)
        if server.has_keys:
            self._renew_keys(server)
        log_manager.update_config(config)
        if remote_log_manager is not None:
            remote_log_manager.update_config(config.remote)

    def _renew_keys(self, server: Server) -> None:
        """Use the new keys before the request that altered the configuration is answered.

        Control thread only.
        """
        renewal = asyncio.run_coroutine_threadsafe(server.renew_keys(), self._loop)
        try:
            renewal.result(RENEWAL_TIMEOUT_S)
        except (ConfigError, TimeoutError):
            # The change was checked before. The files have changed since, or another broker checked
            # its own.
            logger.exception("keys and certificates are unchanged")

    async def _drain(self, server: Server, purgatory: Purgatory[Hashable]) -> None:
        logger.info("broker stops node_id=%d", self._config.node_id)
        # First, so that waiting fetches are answered while their connections exist.
        purgatory.expire_all()
        await self.services.transaction_coordinator.stop()
        await self.services.group_coordinator.stop()
        await self.services.share_partitions.stop()
        await self._share_group_states.stop()
        await self._share_peers.stop()
        await self.services.share_coordinator.stop()
        await self._transaction_peers.stop()
        await server.stop(DRAIN_TIMEOUT_S)

    def _open_remote_tier(
        self,
        started: contextlib.AsyncExitStack,
        cluster: ClusterSide,
        replica_manager: ReplicaManager,
        roles: ReplicaRoles,
        control_executor: ThreadPoolExecutor,
    ) -> RemoteLogManager | None:
        if not self._config.remote.remote_log_storage_system_enable:
            return None
        remote_log_manager, upkeep = open_remote_tier(
            self._config,
            cluster.cluster_id,
            cluster.metadata,
            replica_manager,
            self._surroundings,
            open_own_metadata=lambda: cluster.own_metadata(replica_manager, control_executor),
            partitions_removed_last=cluster.partitions_removed_last,
            roles=roles,
            run_control=control_executor.submit,
        )
        cluster.follow_tier(remote_log_manager.tier)
        # In a thread, because it waits for running copies while requests are still answered.
        started.push_async_callback(
            self._loop.run_in_executor, None, remote_log_manager.close, REMOTE_CLOSE_TIMEOUT_S
        )
        started.push_async_callback(
            self._loop.run_in_executor,
            None,
            stop_within,
            UPKEEP_STOP_TIMEOUT_S,
            "remote-metadata-upkeep",
            upkeep.stop,
        )
        return remote_log_manager
