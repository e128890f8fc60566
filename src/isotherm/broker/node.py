"""A whole broker in one process: what is made in which order, and taken down in the reverse.

    ports bound -> log dirs locked, identity -> metadata log, controller -> logs loaded ->
    partitions led -> remote tier -> background work -> requests served

A failure on the way undoes what was done before it, and names the thing that failed. A stop is the
same way back: requests are drained, background work and remote tasks stopped, logs flushed and
checkpointed, the stop marked as clean, the directories unlocked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import signal
import threading
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import uvloop

from isotherm.broker.background import PeriodicTask
from isotherm.broker.context import BrokerServices, Endpoint
from isotherm.broker.controller.controller import Controller, MetadataChange
from isotherm.broker.controller.image import TopicImage
from isotherm.broker.controller.metadata_log import METADATA_LOG_CONFIG, METADATA_TOPIC_ID
from isotherm.broker.dispatch import Dispatcher
from isotherm.broker.fetch_sessions import FetchSessionCache
from isotherm.broker.groups.group_coordinator import GroupCoordinator
from isotherm.broker.groups.offsets_topic import OffsetsTopic
from isotherm.broker.groups.shards import GroupShards
from isotherm.broker.identity import establish_identity
from isotherm.broker.led_partitions import lead_partitions
from isotherm.broker.purgatory import Purgatory
from isotherm.broker.quotas import ClientQuotaManager
from isotherm.broker.remote_tier import open_remote_log_manager
from isotherm.broker.replica_manager import ReplicaManager
from isotherm.broker.server import Server, listener_texts
from isotherm.broker.transactions.transaction_coordinator import TransactionCoordinator
from isotherm.broker.transactions.transaction_log import TransactionLog
from isotherm.broker.transactions.transaction_markers import TransactionMarkers
from isotherm.clock import Clock, SystemClock
from isotherm.config.broker import BrokerConfig
from isotherm.errors import LogDirFailedError
from isotherm.log.fs import FileSystem, OsFileSystem
from isotherm.log.log_manager import LogManager
from isotherm.metrics.registry import Metrics
from isotherm.record.columns import load_kernels
from isotherm.remote.remote_log_manager import RemoteLogManager
from isotherm.types import TopicPartition, uuid_to_text

logger = logging.getLogger(__name__)

# How long a stop waits for clients to take the answers they are owed; Kafka's supervisors kill a
# broker that takes much longer than this in all.
DRAIN_TIMEOUT_S = 2.0

# How late after file.delete.delay.ms a file may go; Kafka has no key for it either.
FILE_DELETION_INTERVAL_MS = 1000


class BrokerNode:
    """`start` and `stop` belong to one event loop, which serves the network in between."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        fs: FileSystem | None = None,
    ) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._rng = rng or random.SystemRandom()
        self._fs = fs or OsFileSystem()
        self._started = contextlib.AsyncExitStack()
        self.metrics = Metrics()
        self.endpoints: tuple[Endpoint, ...] = ()
        self.services: BrokerServices

    async def start(self) -> None:
        """Serve requests when it returns. Raises IsothermError naming what is in the way."""
        async with contextlib.AsyncExitStack() as started:
            await self._start(started)
            self._started = started.pop_all()

    async def stop(self) -> None:
        """In order, as the module says; afterwards the data can be opened again. Idempotent."""
        await self._started.aclose()

    async def _start(self, started: contextlib.AsyncExitStack) -> None:
        server = Server(self._config, asyncio.get_running_loop())
        started.push_async_callback(server.stop, 0)
        self.endpoints = await server.bind()
        log_manager, controller, cluster_id = self._open_logs(started)
        # What was set while an earlier start ran holds on.
        self._config = controller.broker_config
        server.update_config(self._config)
        log_manager.update_config(self._config)
        control_executor = ThreadPoolExecutor(1, thread_name_prefix="isotherm-control")
        started.callback(control_executor.shutdown)
        purgatory = Purgatory[TopicPartition](
            asyncio.get_running_loop(), operations_max=self._config.delayed_operations_max
        )
        replica_manager = ReplicaManager(log_manager, purgatory)
        controller.register_broker(self.endpoints)
        lead_partitions(controller, replica_manager)
        remote_log_manager = self._open_remote_tier(started, controller, replica_manager)
        self._start_background_work(started, log_manager)
        group_coordinator = self._open_group_coordinator(
            controller, replica_manager, control_executor
        )
        transaction_markers = TransactionMarkers(replica_manager, self._clock, group_coordinator)
        transaction_coordinator = self._open_transaction_coordinator(
            controller, replica_manager, transaction_markers, control_executor
        )
        transaction_coordinator.start(group_coordinator.wait_until_loaded())
        self.services = BrokerServices(
            config=self._config,
            clock=self._clock,
            cluster_id=cluster_id,
            endpoints=self.endpoints,
            controller=controller,
            replica_manager=replica_manager,
            fetch_sessions=FetchSessionCache(
                self._rng,
                slots_max=self._config.max_incremental_fetch_session_cache_slots,
                eviction_ms=self._config.min_incremental_fetch_session_eviction_ms,
                partitions_max=self._config.incremental_fetch_session_cache_partitions_max,
            ),
            group_coordinator=group_coordinator,
            transaction_coordinator=transaction_coordinator,
            transaction_markers=transaction_markers,
            remote_log_manager=remote_log_manager,
            control_executor=control_executor,
        )
        controller.add_listener(
            lambda change: self._reconfigure(change, server, log_manager, remote_log_manager)
        )
        started.push_async_callback(self._drain, server, purgatory)
        quotas = self._open_quotas(controller)
        await server.serve(Dispatcher(self.services, quotas=quotas))
        # Half a second of imports that the first produced batch would otherwise wait for.
        threading.Thread(target=load_kernels, name="isotherm-warm-up", daemon=True).start()
        logger.info(
            "broker serves node_id=%d cluster_id=%s listeners=%s",
            self._config.node_id,
            cluster_id,
            listener_texts(self.endpoints),
        )

    def _open_quotas(self, controller: Controller) -> ClientQuotaManager:
        loop = asyncio.get_running_loop()
        quotas = ClientQuotaManager(
            self._clock,
            window_ms=self._config.quota_window_size_seconds * 1000,
            window_count=self._config.quota_window_num,
        )
        quotas.update(controller.image.client_quotas)

        def follow(change: MetadataChange) -> None:
            if change.quotas_changed:
                loop.call_soon_threadsafe(quotas.update, change.image.client_quotas)

        controller.add_listener(follow)
        return quotas

    def _reconfigure(
        self,
        change: MetadataChange,
        server: Server,
        log_manager: LogManager,
        remote_log_manager: RemoteLogManager | None,
    ) -> None:
        config = change.broker_config
        if config is None:
            return
        self.services.config = config
        server.update_config(config)
        log_manager.update_config(config)
        if remote_log_manager is not None:
            remote_log_manager.update_config(config.remote)

    async def _drain(self, server: Server, purgatory: Purgatory[TopicPartition]) -> None:
        logger.info("broker stops node_id=%d", self._config.node_id)
        purgatory.expire_all()
        await self.services.transaction_coordinator.stop()
        await self.services.group_coordinator.stop()
        await server.stop(DRAIN_TIMEOUT_S)

    def _open_logs(self, started: contextlib.AsyncExitStack) -> tuple[LogManager, Controller, str]:
        config = self._config

        # The controller needs the metadata log, which the log manager opens; the configurations
        # of the other logs come from the controller.
        log_manager = LogManager(
            config.log_dirs,
            config=config,
            topic_config_for=lambda topic: controller.topic_config(topic),
            clock=self._clock,
            fs=self._fs,
            rng=self._rng,
        )
        started.callback(log_manager.shutdown)
        metadata_log = log_manager.open_metadata_log(METADATA_LOG_CONFIG, METADATA_TOPIC_ID)
        live_dirs = [log_dir.path for log_dir in log_manager.live_log_dirs()]
        cluster_id = establish_identity(self._fs, live_dirs, config.node_id, self._new_id)
        controller = Controller(metadata_log, config=config, clock=self._clock, new_id=self._new_id)
        log_manager.startup()
        _refuse_to_replace_offline_logs(log_manager, controller.image.topics_by_name.values())
        return log_manager, controller, cluster_id

    def _new_id(self) -> uuid.UUID:
        """A random id whose text does not look like an option on a command line, as in Kafka."""
        while True:
            new_id = uuid.UUID(int=self._rng.getrandbits(128), version=4)
            if not uuid_to_text(new_id).startswith("-"):
                return new_id

    def _open_remote_tier(
        self,
        started: contextlib.AsyncExitStack,
        controller: Controller,
        replica_manager: ReplicaManager,
    ) -> RemoteLogManager | None:
        if not self._config.remote.remote_log_storage_system_enable:
            return None
        remote_log_manager = open_remote_log_manager(
            self._config,
            controller,
            replica_manager,
            clock=self._clock,
            rng=self._rng,
            fs=self._fs,
            metrics=self.metrics,
        )
        started.callback(remote_log_manager.close)
        return remote_log_manager

    def _open_group_coordinator(
        self,
        controller: Controller,
        replica_manager: ReplicaManager,
        control_executor: ThreadPoolExecutor,
    ) -> GroupCoordinator:
        loop = asyncio.get_running_loop()
        config = self._config.groups
        shards = GroupShards(
            OffsetsTopic(config, controller, replica_manager, self._clock),
            config,
            self._clock,
            lambda change: loop.run_in_executor(control_executor, change),
        )
        coordinator = GroupCoordinator(config, shards, lambda: controller.image, self._rng, loop)
        coordinator.start()

        def follow(change: MetadataChange) -> None:
            if change.deleted:
                names = [topic.name for topic in change.deleted]
                loop.call_soon_threadsafe(coordinator.topics_deleted, names)

        controller.add_listener(follow)
        return coordinator

    def _open_transaction_coordinator(
        self,
        controller: Controller,
        replica_manager: ReplicaManager,
        markers: TransactionMarkers,
        control_executor: ThreadPoolExecutor,
    ) -> TransactionCoordinator:
        loop = asyncio.get_running_loop()
        config = self._config.transactions
        return TransactionCoordinator(
            config,
            TransactionLog(config, controller, replica_manager, self._clock),
            markers,
            clock=self._clock,
            run_control=lambda change: loop.run_in_executor(control_executor, change),
            new_producer_id=lambda: loop.run_in_executor(
                control_executor, controller.generate_producer_id
            ),
        )

    def _start_background_work(
        self, started: contextlib.AsyncExitStack, log_manager: LogManager
    ) -> None:
        config = self._config
        ticks: dict[str, tuple[Callable[[], object], int]] = {
            "log-retention": (
                log_manager.delete_expired_segments,
                config.log_retention_check_interval_ms,
            ),
            "log-flusher": (log_manager.flush_dirty_logs, config.log_flush_scheduler_interval_ms),
            "log-checkpoint": (
                partial(_flush_and_checkpoint, log_manager),
                min(
                    config.log_flush_offset_checkpoint_interval_ms,
                    config.log_flush_start_offset_checkpoint_interval_ms,
                ),
            ),
            "log-file-deletion": (log_manager.delete_marked_files, FILE_DELETION_INTERVAL_MS),
        }
        for name, (tick, interval_ms) in ticks.items():
            task = PeriodicTask(
                f"isotherm-{name}",
                tick,
                self._clock,
                initial_delay_s=config.log_initial_task_delay_ms / 1000,
                interval_s=interval_ms / 1000,
            )
            task.start()
            started.callback(task.stop)


def _flush_and_checkpoint(log_manager: LogManager) -> None:
    """Kafka flushes a segment when it is rolled. Here that waits for the next checkpoint, which
    is what would tell a recovery of it."""
    log_manager.flush_closed_segments()
    log_manager.checkpoint()


def _refuse_to_replace_offline_logs(log_manager: LogManager, topics: Iterable[TopicImage]) -> None:
    """A partition without a log may have it in a directory that is offline: a new, empty log
    would hide its records. LogDirFailedError names both."""
    offline = log_manager.offline_log_dirs()
    if not offline:
        return
    missing = [
        TopicPartition(topic.name, each.partition)
        for topic in topics
        for each in topic.partitions
        if log_manager.log(TopicPartition(topic.name, each.partition)) is None
    ]
    if missing:
        raise LogDirFailedError(
            "partitions have no log while a log directory is offline: repair the directory, or"
            " take it out of log.dirs if its data is lost"
            f" log_dirs={','.join(str(log_dir.path) for log_dir in offline)}"
            f" partitions={','.join(str(partition) for partition in missing[:10])}"
            f" count={len(missing)}"
        )


def run(config: BrokerConfig) -> None:
    """Serve until SIGTERM or SIGINT, then stop in order."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config))


async def _serve(config: BrokerConfig) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    node = BrokerNode(config)
    await node.start()
    try:
        await stopping.wait()
    finally:
        await node.stop()
