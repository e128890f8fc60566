"""A broker's remote tier with its local logs, on the durable state. A crash drops it.

It wires the same parts as isotherm.broker.tier.remote_tier and
isotherm.broker.partitions.replica_manager do.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from isotherm.broker.surroundings import Surroundings
from isotherm.broker.threads.background import PeriodicTask
from isotherm.broker.tier.remote_metadata_topics import MetadataLevels
from isotherm.broker.tier.remote_metadata_upgrade import MetadataUpgrade
from isotherm.broker.tier.remote_metadata_upkeep import (
    RemoteMetadataUpkeep,
    UpkeepTasks,
)
from isotherm.config.cleaner import CleanerConfig
from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.config.topic import TopicConfig
from isotherm.errors import LogCleaningAbortedError
from isotherm.log.cleaner.choice import LogToClean, plan_log_to_clean
from isotherm.log.cleaner.cleaner import Cleaner
from isotherm.log.environment import LogEnvironment, StartedLog
from isotherm.log.file_cache import FileCache
from isotherm.log.log_dir import LogDir, PartitionDirectory
from isotherm.log.log_loader import LogCheckpoints, load_log
from isotherm.log.log_read import FetchIsolation
from isotherm.log.partition_log import PartitionLog
from isotherm.metrics.registry import Metrics
from isotherm.record.batch import build_batch, iterate_batches
from isotherm.remote.indexes.index_cache import DIRECTORY_NAME, RemoteIndexCache
from isotherm.remote.metadata.topic.event_writer import KeyedMetadata
from isotherm.remote.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from isotherm.remote.metadata.topic_based_settings import TopicBasedSettings
from isotherm.remote.reading.read_request import ReadRequest
from isotherm.remote.reading.read_wait import ReadWait
from isotherm.remote.remote_log_manager import RemoteLogManager
from isotherm.remote.rewriting.finisher import RewriteFinisher, TierReplacementTarget
from isotherm.remote.rewriting.journal import RewriteJournals
from isotherm.remote.tasks.copy import CopyTask
from isotherm.remote.tasks.expiration import ExpirationTask
from isotherm.remote.tasks.pending_deletions import PendingDeletions
from isotherm.remote.tasks.tier import RemoteTierAccess
from isotherm.types import Offset, TopicIdPartition
from tests.support.schedules.cooperative import ScheduledClock, ScheduledThreads
from tests.support.schedules.durable import (
    Cluster,
    Faults,
    HostedPartition,
    ScheduledFileSystem,
    ScheduledObjects,
    ScheduledStorage,
    ScheduledTopic,
)
from tests.support.schedules.scheduler import Scheduler
from tests.support.tiered_partition import BROKER_ID, records_of

SEGMENT_BYTES = 300
"""About three batches of one small record."""
SETTINGS = TopicBasedSettings(
    remote_log_metadata_poll_interval_ms=5_000,
    remote_log_metadata_cleanup_interval_ms=20_000,
    remote_log_metadata_cleanup_grace_ms=30_000,
    remote_log_rewrite_check_interval_ms=15_000,
)
TASKS = RemoteLogManagerConfig(
    remote_log_manager_task_interval_ms=4_000,
    remote_log_manager_copier_thread_pool_size=2,
    remote_log_manager_expiration_thread_pool_size=2,
    remote_log_reader_threads=2,
)
RETENTION_INTERVAL_S = 3.0

MetadataManager = type[TopicBasedRemoteLogMetadataManager]


@dataclass(slots=True)
class Durable:
    """The durable state, from which the next process starts."""

    run: Scheduler
    directory: Path
    faults: Faults
    rng: random.Random
    objects: ScheduledObjects
    metadata_topic: ScheduledTopic
    audit_topic: ScheduledTopic
    cluster: Cluster
    on_local_delete: Callable[[], None] = lambda: None
    metadata_manager: MetadataManager = TopicBasedRemoteLogMetadataManager
    acknowledged: Callable[[TopicIdPartition, Offset, Offset, int], None] = field(
        default=lambda partition, first, end, size: None
    )
    on_clean: Callable[[TopicIdPartition, LogToClean], None] = field(
        default=lambda partition, to_clean: None
    )

    @classmethod
    def empty(
        cls, run: Scheduler, directory: Path, rng: random.Random, *, level: int, partitions: int = 1
    ) -> Durable:
        faults = Faults(rng)
        return cls(
            run,
            directory,
            faults,
            rng,
            ScheduledObjects(run, faults),
            ScheduledTopic(run, faults, "metadata", partitions),
            ScheduledTopic(run, faults, "audit", partitions),
            Cluster(feature_level=level, is_compacted=level > 0, metadata_partitions=partitions),
        )

    def folder(self, partition: TopicIdPartition) -> Path:
        """The folder of a partition.

        Each incarnation of a topic has its own: the broker renames a deleted one's.
        """
        return self.directory / f"{partition.topic}.{partition.topic_id.int}-{partition.partition}"


class _LogFiles(ScheduledFileSystem):
    def __init__(self, durable: Durable) -> None:
        super().__init__(durable.run)
        self._durable = durable

    def rename(self, source: Path, target: Path) -> None:
        if source.suffix == ".log":
            self._durable.on_local_delete()
        super().rename(source, target)


class BrokerProcess:
    """A broker's process.

    It is created in one of its own threads, or by the driver before a schedule begins.
    """

    def __init__(self, durable: Durable) -> None:
        self.durable = durable
        self._run = durable.run
        self.clock = ScheduledClock(durable.run)
        self.rng = random.Random(durable.rng.getrandbits(64))
        self._fs = _LogFiles(durable)
        self.cluster = durable.cluster
        self.logs: dict[TopicIdPartition, PartitionLog] = {}
        self._environment = LogEnvironment(
            FileCache(self._fs),
            self.clock,
            self.rng,
            remote_storage_system_enable=True,
            checkpoint_log_start=self._checkpoint_log_start,
        )
        # A restarted broker is elected again, under a new leader epoch.
        for partition in self.cluster.partitions.values():
            partition.leader_epoch += 1
            self._open_log(partition)
        self.metrics = Metrics()
        self.storage = ScheduledStorage(durable.objects)
        controller: Any = self.cluster
        levels = MetadataLevels(controller)
        self.metadata = durable.metadata_manager(
            durable.metadata_topic,
            clock=self.clock,
            metrics=self.metrics,
            settings=SETTINGS,
            keyed=KeyedMetadata(durable.audit_topic, levels.level),
        )
        self.manager = RemoteLogManager(
            TASKS,
            broker_id=BROKER_ID,
            storage=self.storage,
            metadata=self.metadata,
            index_cache=RemoteIndexCache(
                durable.directory / DIRECTORY_NAME,
                self.storage,
                total_size_bytes=1 << 20,
                ttl_ms=-1,
                clock=self.clock,
                fs=self._fs,
            ),
            pending_deletions=PendingDeletions(durable.directory, self._fs),
            leader_epoch_of=self.cluster.leader_epoch,
            is_tiered=lambda _: False,  # a partition is deleted with its topic only
            clock=self.clock,
            rng=self.rng,
            metrics=self.metrics,
            threads=ScheduledThreads(),
        )
        topic: Any = durable.metadata_topic
        self.upgrade = MetadataUpgrade(
            controller,
            levels,
            topic,
            self.metadata,
            SETTINGS,
            run_control=_run_control,
            clock=self.clock,
        )
        config: Any = SimpleNamespace(remote=TASKS, log_initial_task_delay_ms=1_000, node_id=0)
        tasks = UpkeepTasks(
            self.manager,
            config,
            SETTINGS,
            Surroundings(clock=self.clock, metrics=self.metrics),
            is_alone=True,
        )
        self.upkeep = RemoteMetadataUpkeep(
            [
                tasks.cleanup(topic, self.metadata, lambda _: True),
                tasks.upgrade(self.upgrade),
                *tasks.rewriting(self.storage, self.metadata, lambda _: frozenset()),
            ]
        )
        self._finisher = self._new_finisher(self.manager.tier, self.metadata, is_alone=True)
        self._tasks: list[PeriodicTask] = []
        # As in LogCleanerManager: the logs that are cleaned, and those whose round is to end.
        self._cleaning: set[TopicIdPartition] = set()
        self._aborted: set[TopicIdPartition] = set()

    def start(self) -> None:
        """Start the tasks that a broker runs by itself."""
        self.metadata.start()
        self.manager.resume_deletions(self.cluster.removed_last)
        self.manager.on_leadership_change(self.logs.values())
        self.upkeep.start()
        for name, tick in (
            ("log-retention", self.delete_old_segments),
            ("log-checkpoint", self.checkpoint),
        ):
            task = PeriodicTask(
                name,
                tick,
                self.clock,
                initial_delay_s=0.5,
                interval_s=RETENTION_INTERVAL_S,
            )
            task.start()
            self._tasks.append(task)

    def stop(self) -> None:
        """Stop cleanly, with checkpoints and the marker of a clean shutdown."""
        self.upkeep.stop()
        self.manager.close(60)
        for task in self._tasks:
            task.stop()
        for partition in self.logs:
            self._abort_cleaning(partition)
        for partition, log in self.logs.items():
            log.close()
            self._checkpoint(partition, log)
            self.cluster.partitions[partition].is_clean = True

    def release(self) -> None:
        """Close the files of a process that has ended."""
        for log in self.logs.values():
            for segment in log.segments():
                segment.release_files()

    def _leads(self, partition: TopicIdPartition) -> bool:
        """Whether this process leads a partition, by the cluster's metadata: scenarios run tasks
        without the manager.
        """
        return self.manager.tier.leader_epoch_of(partition) is not None

    # ---- logs

    def _open_log(self, hosted: HostedPartition) -> PartitionLog:
        folder = self.durable.folder(hosted.id)
        folder.mkdir(exist_ok=True)
        log = load_log(
            self._environment,
            PartitionDirectory(LogDir(self.durable.directory), folder, hosted.id.topic_partition),
            hosted.config,
            topic_id=hosted.id.topic_id,
            checkpoints=LogCheckpoints(
                recovery_point=hosted.recovery_point,
                log_start_offset=hosted.log_start_offset,
                clean_shutdown=hosted.is_clean,
                cleaned_to=hosted.cleaned_to,
            ),
        )
        hosted.is_clean = False
        log.update_high_watermark(log.log_end_offset)
        self.logs[hosted.id] = log
        return log

    def delete_old_segments(self) -> None:
        for partition, log in list(self.logs.items()):
            # As in LogCleanerManager.logs_for_retention: the cleaner deletes those of other logs.
            if not log.config.compacts and partition not in self._cleaning:
                log.delete_old_segments(self.clock.now_ms())
            log.delete_marked_files(self.clock.now_ms())

    def checkpoint(self) -> None:
        for partition, log in list(self.logs.items()):
            log.flush(closed_segments_only=True)
            self._checkpoint(partition, log)

    def _checkpoint(self, partition: TopicIdPartition, log: PartitionLog) -> None:
        hosted = self.cluster.partitions.get(partition)
        if hosted is not None:
            self._run.point("checkpoint")
            hosted.recovery_point = log.recovery_point
            self._store_log_start(hosted, log)

    def _checkpoint_log_start(self, log: StartedLog) -> None:
        """Checkpoint the log start as LogManager does, but of this log alone."""
        for partition, each in list(self.logs.items()):
            if each is log and (hosted := self.cluster.partitions.get(partition)) is not None:
                self._run.point("checkpoint log start")
                self._store_log_start(hosted, log)

    def _store_log_start(self, hosted: HostedPartition, log: StartedLog) -> None:
        hosted.log_start_offset = log.log_start_offset
        log.log_start_is_durable(hosted.log_start_offset)

    # ---- requests of clients

    def append(self, partition: TopicIdPartition, count: int) -> None:
        """Append `count` batches of one record, which has its offset in its value.

        Each is acknowledged separately.
        """
        log, hosted = self.logs.get(partition), self.cluster.partitions.get(partition)
        if log is None or hosted is None:
            return
        for _ in range(count):
            now_ms, offset = self.clock.now_ms(), log.log_end_offset
            record = (now_ms, key_of(offset), value_of(partition, offset), ())
            batch: Any = build_batch([record])
            info = log.append_as_leader(batch, hosted.leader_epoch, now_ms=now_ms)
            assert info.first_offset == offset, "there is one producer"
            log.update_high_watermark(log.log_end_offset)
            self.durable.acknowledged(partition, offset, log.log_end_offset, len(batch))

    def create(self, partition: TopicIdPartition, config: TopicConfig) -> None:
        self._run.point("cluster metadata")
        hosted = self.cluster.partitions[partition] = HostedPartition(partition, config)
        log = self._open_log(hosted)
        if log.remote_log_enabled:
            self.manager.on_leadership_change([log])

    def remove(self, partition: TopicIdPartition) -> None:
        """Delete a partition as ReplicaManager.remove_topic does."""
        self._run.point("cluster metadata")
        del self.cluster.partitions[partition]
        self.cluster.removed_last = [partition]
        self._run.point("stop partitions")
        self._abort_cleaning(partition)
        log = self.logs.pop(partition)
        if log.remote_log_enabled:
            self.manager.stop_partitions([partition], delete_remote=True)
        log.abandon()

    def update_config(self, partition: TopicIdPartition, **changes: Any) -> None:
        """Change a topic's configuration as ReplicaManager.update_config does."""
        hosted, log = self.cluster.partitions[partition], self.logs[partition]
        self._run.point("cluster metadata")
        hosted.config = replace(hosted.config, **changes)
        self._run.point("log config")
        was_tiered, was_compacted = log.remote_log_enabled, log.config.compacts
        log.update_config(hosted.config)
        if was_compacted and not log.config.compacts:
            self._abort_cleaning(partition)
        if log.remote_log_enabled and not was_tiered:
            self.manager.on_leadership_change([log])
        elif was_tiered and not log.remote_log_enabled:
            self.manager.stop_partitions([partition], delete_remote=True)
            log.maybe_increment_log_start_offset(log.local_log_start_offset)

    def clean(self, partition: TopicIdPartition) -> None:
        """Roll the log, so that all of it is dirty, and clean it, as a CleanerWorker does."""
        log, hosted = self.logs.get(partition), self.cluster.partitions.get(partition)
        if log is None or hosted is None or not log.config.compacts or partition in self._cleaning:
            return
        self._cleaning.add(partition)
        self._aborted.discard(partition)
        try:
            log.roll()
            to_clean = plan_log_to_clean(
                log.view(), hosted.cleaned_to, log.config, self.clock.now_ms()
            )
            if to_clean.total_size:
                self.durable.on_clean(partition, to_clean)
                cleaner = Cleaner(CleanerConfig(), self.clock, random.Random(0), map_size=2400)
                cleaned = cleaner.clean(
                    log,
                    to_clean,
                    throttle=lambda _: self._run.point("clean"),
                    check_abort=lambda: self._check_cleaning(partition),
                )
                self._run.point("checkpoint cleaner")
                self._check_cleaning(partition)
                hosted.cleaned_to = max(hosted.cleaned_to, cleaned.end_offset)
            log.delete_old_segments(self.clock.now_ms())
        except LogCleaningAbortedError as error:
            self._run.tell(str(error))
        finally:
            self._cleaning.discard(partition)

    def _check_cleaning(self, partition: TopicIdPartition) -> None:
        if partition in self._aborted:
            raise LogCleaningAbortedError(f"cleaning is aborted partition={partition}")

    def _abort_cleaning(self, partition: TopicIdPartition) -> None:
        """End the round of a log and wait for its end, as LogCleanerManager.abort does."""
        self._aborted.add(partition)
        self._run.block(lambda: partition not in self._cleaning, "end of the cleaning")

    def read_all(self, partition: TopicIdPartition) -> dict[Offset, bytes | None]:
        """Read everything as a consumer does, each time from the end of the last answer."""
        log = self.logs[partition]
        found: dict[Offset, bytes | None] = {}
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            if offset < log.local_log_start_offset:
                read = self.manager.readers.read(
                    ReadRequest(
                        log,
                        partition,
                        offset,
                        10_000,
                        isolation=FetchIsolation.HIGH_WATERMARK,
                        min_one_message=True,
                        wait=ReadWait(),
                    )
                ).result()
                data = memoryview(b"".join(read.records))
            else:
                data = log.read(offset, 10_000).records
            for record in records_of(data):
                if record.offset >= offset:
                    assert record.offset not in found, f"doubled offset={record.offset}"
                    found[record.offset] = record.value
            ends = [header.next_offset for _, header in iterate_batches(data)]
            if not ends:
                break  # a consumer gets no further
            offset = ends[-1]
        return found

    # ---- single tasks, for schedules of two of them

    def copy_task(self, partition: TopicIdPartition) -> CopyTask:
        return CopyTask(self.logs[partition], partition, self.manager.tier)

    def expiration_task(self, partition: TopicIdPartition) -> ExpirationTask:
        return ExpirationTask(self.logs[partition], partition, self.manager.tier)

    def finish_compactions(self) -> None:
        self._finisher.run()

    def deposed_leader(self, partition: TopicIdPartition) -> RewriteFinisher:
        """The compactions of a deposed leader that does not know it.

        It has a metadata manager of its own on the same topics, which has not read anything yet.
        """
        metadata = self.durable.metadata_manager(
            self.durable.metadata_topic,
            clock=self.clock,
            metrics=Metrics(),
            settings=SETTINGS,
            keyed=KeyedMetadata(self.durable.audit_topic, lambda _: self.cluster.feature_level),
        )
        metadata.on_partition_leadership_changes([partition], ())
        metadata.poll()
        tier = replace(self.manager.tier, metadata=metadata, exclusive=metadata)
        return self._new_finisher(tier, metadata, is_alone=False)

    def _new_finisher(
        self,
        tier: RemoteTierAccess,
        metadata: TopicBasedRemoteLogMetadataManager,
        *,
        is_alone: bool,
    ) -> RewriteFinisher:
        journals: Any = self.durable.objects
        return RewriteFinisher(
            RewriteJournals(journals, self.storage.root_directory),
            self.storage,
            TierReplacementTarget(tier, metadata, self._leads),
            abandoned_after_ms=SETTINGS.remote_log_metadata_cleanup_grace_ms,
            is_alone=is_alone,
            clock=self.clock,
            metrics=self.metrics,
        )


def value_of(partition: TopicIdPartition, offset: Offset) -> bytes:
    return b"%d-%06d" % (partition.topic_id.int, offset)


def key_of(offset: Offset) -> bytes:
    """One of a few keys. Equal ones lie near one another and far apart."""
    return b"key-%d" % (offset * offset // 3 % 7)


def _run_control(change: Callable[[], None]) -> Future[None]:
    future: Future[None] = Future()
    change()
    future.set_result(None)
    return future
