"""A partition with its whole tier, in a folder and without threads.

Log, object store, index cache, metadata manager, tasks and reader are real. The clock is simulated,
the metadata topic is in memory, and a test can make the store fail.
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from isotherm.config.cleaner import CleanerConfig
from isotherm.config.definition import LONG_MAX
from isotherm.config.topic import TopicConfig
from isotherm.errors import IsothermError
from isotherm.log.cleaner.choice import plan_log_to_clean
from isotherm.log.cleaner.cleaner import Cleaner
from isotherm.log.environment import LogEnvironment
from isotherm.log.file_cache import FileCache
from isotherm.log.fs import File, OsFile, OsFileSystem
from isotherm.log.log_dir import LogDir, PartitionDirectory
from isotherm.log.log_loader import LogCheckpoints, load_log
from isotherm.log.log_read import FetchIsolation
from isotherm.log.partition_log import PartitionLog
from isotherm.metrics.broker_topic_metrics import BrokerTopicMetrics
from isotherm.metrics.registry import Metrics
from isotherm.record.batch import (
    CompressionType,
    Record,
    build_batch,
    iterate_batches,
    read_records,
)
from isotherm.remote.futures import done_future
from isotherm.remote.indexes.index_cache import DIRECTORY_NAME, RemoteIndexCache
from isotherm.remote.metadata.exclusive import exclusive_metadata
from isotherm.remote.metadata.topic.event_writer import KeyedMetadata
from isotherm.remote.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from isotherm.remote.metadata.topic_based_settings import TopicBasedSettings
from isotherm.remote.quota import QuotaWindows, RemoteQuota
from isotherm.remote.reading.read_ahead import ReadAhead, ReadAheadSettings
from isotherm.remote.reading.read_request import ReadRequest, RemoteRead
from isotherm.remote.reading.read_wait import ReadWait
from isotherm.remote.reading.remote_log_reader import RemoteLogReader
from isotherm.remote.remote_tier_metrics import RetentionShares
from isotherm.remote.scrub.rebuilt_transactions import TransactionIndexRebuild
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.remote.tasks.cleanup import RemoteMetadataCleanupManager, TierCleanupTarget
from isotherm.remote.tasks.copies_in_progress import CopiesInProgress
from isotherm.remote.tasks.copy import CopyTask
from isotherm.remote.tasks.expiration import ExpirationTask
from isotherm.remote.tasks.local_deletion import RemoteCopiesOfLog
from isotherm.remote.tasks.partition_deletion import delete_remote_partition
from isotherm.remote.tasks.tier import RemoteTierAccess
from isotherm.segment.offset_index import Buffer
from isotherm.testing.sim_clock import SimClock
from isotherm.types import LeaderEpoch, Offset, TopicIdPartition
from tests.support.faulty_store import FaultyStore
from tests.support.memory_metadata_topic import MemoryMetadataTopic

BROKER_ID = 0
SEGMENT_BYTES = 400
"""About four batches of one small record. Tests rely on small segments only, not on this size."""


class InlineExecutor(Executor):
    """Runs each submitted call at once, in the caller's thread."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except IsothermError as error:  # raised when the result is read
            future.set_exception(error)
        return future


class _VolatileFile(OsFile):
    def sync(self) -> None:
        """Do nothing: no test of the tiers simulates a power loss."""


class VolatileFileSystem(OsFileSystem):
    """The operating system's files without waiting for the disk, which takes most of the time."""

    def open_writable(self, path: Path) -> File:
        return _VolatileFile(path, os.O_RDWR | os.O_CREAT)

    def write_atomically(self, path: Path, data: Buffer) -> None:
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_bytes(data)
        self.rename(temporary, path)

    def sync_file(self, path: Path) -> None:
        """As above."""

    def sync_directory(self, path: Path) -> None:
        """As above."""


def deletion_at_once(tier: RemoteTierAccess, partition: TopicIdPartition) -> Future[None]:
    """Delete the partition's segments in the caller's thread, as `begin_deletion` of a
    TierCleanupTarget."""
    delete_remote_partition(tier, partition)
    return done_future()


def clean_closed_segments(log: PartitionLog, clock: SimClock, rng: random.Random) -> Offset:
    """One round of the cleaner over all closed segments of a log, which is compacted and not tiered
    meanwhile. Returns the end of what is clean."""
    kept = log.config
    compacted = replace(
        kept, remote_storage_enable=False, cleanup_policy=("compact",), delete_retention_ms=0
    )
    log.update_config(compacted)
    cleaned = Cleaner(CleanerConfig(), clock, rng, map_size=24_000).clean(
        log,
        plan_log_to_clean(log.view(), 0, compacted, clock.now_ms()),
        throttle=lambda _: None,
        check_abort=lambda: None,
    )
    for segment in log.segments():
        # A segment without records is as old as its file, which has the time of the real clock.
        os.utime(segment.log_path, (clock.now_ms() / 1000,) * 2)
    log.delete_marked_files(clock.now_ms() + kept.file_delete_delay_ms)
    log.update_config(kept)
    return cleaned.end_offset


class TieredPartition:
    """A partition with its tier.

    `restart` drops all state in memory and opens it again from the folder, the store and the
    metadata topic, as a broker does after a crash.
    """

    made: ClassVar[list[TieredPartition]] = []
    """All instances, for the fixture that scrubs buckets; it empties the list."""

    def __init__(
        self,
        directory: Path,
        *,
        seed: int = 0,
        clock: SimClock | None = None,
        read_ahead: ReadAheadSettings | None = None,
        metadata_level: int = 0,
        storage: RemoteStorageManager | None = None,
        **topic_config: Any,
    ) -> None:
        """Without `storage` the bucket is a folder."""
        self.made.append(self)
        self.damage_declared = ""
        self._directory = directory
        self._rng = random.Random(seed)
        self._read_ahead_settings = read_ahead or ReadAheadSettings(1 << 20)
        self._log_directory = directory / "flights-0"
        self._log_directory.mkdir(parents=True)
        self._config = replace(
            TopicConfig(
                remote_storage_enable=True,
                internal_segment_bytes=SEGMENT_BYTES,
                index_interval_bytes=1,
                retention_ms=-1,
                file_delete_delay_ms=0,
            ),
            **topic_config,
        )
        self.partition = TopicIdPartition(uuid.UUID(int=77), "flights", 0)
        self.leader_epoch = 0
        self.clock = clock or SimClock(auto_advance=True)
        self.bucket = directory / "bucket"
        self.store = FaultyStore(
            storage
            or ObjectStoreRemoteStorageManager(ObjectStoreSettings(url=self.bucket.as_uri())),
            clock=self.clock,
            rng=self._rng,
        )
        self.topic_exists = True
        self.tiered_again = False
        self.metadata_level = metadata_level
        self.metadata_topic = MemoryMetadataTopic(partition_count=3)
        self.audit_topic = MemoryMetadataTopic(partition_count=3)
        self.custom_metadata_size_max = 128
        self.cleaned_to: Offset = 0
        self._open()

    def _open(self) -> None:
        fs = VolatileFileSystem()
        environment = LogEnvironment(
            FileCache(fs), self.clock, self._rng, remote_storage_system_enable=True
        )
        self.log: PartitionLog = load_log(
            environment,
            PartitionDirectory(
                LogDir(self._directory), self._log_directory, self.partition.topic_partition
            ),
            self._config,
            topic_id=self.partition.topic_id,
            checkpoints=self._checkpoints(),
        )
        self.log.update_high_watermark(self.log.log_end_offset)
        self.metrics = Metrics()
        topic_metrics = BrokerTopicMetrics(self.metrics)
        topic_metrics.follow(self.partition.topic, self.partition.partition)
        self.metadata = TopicBasedRemoteLogMetadataManager(
            self.metadata_topic,
            clock=self.clock,
            metrics=self.metrics,
            keyed=KeyedMetadata(self.audit_topic, lambda _: self.metadata_level),
        )
        self.metadata.on_partition_leadership_changes([self.partition], ())
        self.metadata.poll()
        self.index_cache = RemoteIndexCache(
            self._directory / DIRECTORY_NAME,
            self.store,
            total_size_bytes=1 << 20,
            ttl_ms=-1,
            clock=self.clock,
            fs=fs,
            rebuild_transactions=TransactionIndexRebuild(self.store, self.metadata),
        )
        self.read_ahead = ReadAhead(
            self.store, self._read_ahead_settings, InlineExecutor(), self.clock
        )
        self.reader = RemoteLogReader(self.metadata, self.index_cache, self.read_ahead)
        self.tier = RemoteTierAccess(
            storage=self.store,
            metadata=self.metadata,
            exclusive=exclusive_metadata(self.metadata),
            index_cache=self.index_cache,
            copies=CopiesInProgress(),
            clock=self.clock,
            rng=self._rng,
            broker_id=BROKER_ID,
            metrics=topic_metrics,
            retention_shares=RetentionShares(self.metrics),
            copy_quota=RemoteQuota(LONG_MAX, QuotaWindows(1000, 11), self.clock),
            custom_metadata_size_max=lambda: self.custom_metadata_size_max,
            leader_epoch_of=self.leader_epoch_of,
            is_tiered=self.is_tiered_again,
        )
        self.log.remote_copies = RemoteCopiesOfLog(self.log, self.partition, self.tier)
        self.copy_task = CopyTask(self.log, self.partition, self.tier)
        self.expiration_task = ExpirationTask(self.log, self.partition, self.tier)

    def leader_epoch_of(self, _: TopicIdPartition) -> LeaderEpoch | None:
        return self.leader_epoch if self.topic_exists else None

    def is_tiered_again(self, _: TopicIdPartition) -> bool:
        """For deletions: tiering was turned off, and on again meanwhile."""
        return self.tiered_again

    def clean_up(self) -> None:
        """Run the cleanup manager once; nothing is too young for it."""
        RemoteMetadataCleanupManager(
            self.metadata_topic,
            TierCleanupTarget(
                self.tier,
                self.metadata,
                lambda partition: deletion_at_once(self.tier, partition),
                leads=lambda _: True,
                keeps=lambda _: True,
                is_alone=True,
            ),
            TopicBasedSettings(remote_log_metadata_cleanup_grace_ms=0),
            clock=self.clock,
            metrics=self.metrics,
        ).run()

    def _checkpoints(self) -> LogCheckpoints:
        if not hasattr(self, "log"):
            return LogCheckpoints()
        return LogCheckpoints(
            recovery_point=self.log.recovery_point,
            log_start_offset=self.log.log_start_offset,
            cleaned_to=self.cleaned_to,
        )

    def restart(self) -> None:
        self.index_cache.close()
        self.metadata.close()
        self.log.close()
        self._open()

    def append(
        self,
        *values: bytes,
        timestamp_ms: int | None = None,
        compression: CompressionType = CompressionType.NONE,
    ) -> Offset:
        """Append one batch of these values (keys None) and commit it; its first offset."""
        at_ms = self.clock.now_ms() if timestamp_ms is None else timestamp_ms
        records: Sequence[Any] = [(at_ms, None, value, ()) for value in values]
        return self.append_batch(build_batch(records, compression=compression))

    def append_batch(self, batch: bytearray, **options: Any) -> Offset:
        info = self.log.append_as_leader(
            batch, self.leader_epoch, now_ms=self.clock.now_ms(), **options
        )
        self.log.update_high_watermark(self.log.log_end_offset)
        return info.first_offset

    def update_config(self, **changes: Any) -> None:
        self._config = replace(self._config, **changes)
        self.log.update_config(self._config)

    def compact(self) -> None:
        """Clean the closed segments as the cleaner does while the topic is compacted, and not
        tiered: the values with an older key go in a first round, tombstones in a second one."""
        for _ in range(2):
            self.clock.advance(1000)
            self.cleaned_to = clean_closed_segments(self.log, self.clock, self._rng)

    def delete_local_segments(self) -> None:
        """Delete the local segments that are copied, as local.retention.bytes=0 would."""
        kept = self._config
        self.log.update_config(replace(kept, local_retention_bytes=0))
        self.log.delete_old_segments(self.clock.now_ms())
        self.log.update_config(kept)

    def read(
        self,
        offset: Offset,
        max_bytes: int = 1 << 20,
        *,
        isolation: FetchIsolation = FetchIsolation.HIGH_WATERMARK,
        min_one_message: bool = True,
        wait: ReadWait | None = None,
    ) -> RemoteRead:
        return self.reader.read(
            ReadRequest(
                self.log,
                self.partition,
                offset,
                max_bytes,
                isolation=isolation,
                min_one_message=min_one_message,
                wait=wait or ReadWait(),
            )
        )

    def read_bytes(self, offset: Offset, max_bytes: int = 1 << 20, **options: Any) -> memoryview:
        """The records of `read` in one piece."""
        return memoryview(b"".join(self.read(offset, max_bytes, **options).records))

    def read_values(self, offset: Offset, max_bytes: int = 1 << 20) -> list[bytes | None]:
        """Values of the remote tier from `offset`, in one read."""
        return [
            record.value
            for record in records_of(self.read_bytes(offset, max_bytes))
            if record.offset >= offset
        ]

    def read_all(self) -> dict[Offset, bytes | None]:
        """Every record from the log start to the log end, each from the tier that serves it."""
        found: dict[Offset, bytes | None] = {}
        offset = self.log.log_start_offset
        while offset < self.log.log_end_offset:
            if offset < self.log.local_log_start_offset:
                data = self.read_bytes(offset, 500)
            else:
                data = self.log.read(offset, 500).records
            records = [record for record in records_of(data) if record.offset >= offset]
            found.update((record.offset, record.value) for record in records)
            offset = records[-1].offset + 1
        return found

    def segments(self) -> list[RemoteLogSegmentMetadata]:
        return self.metadata.list_remote_log_segments(self.partition)

    def objects(self) -> dict[str, bytes]:
        """The stored bytes of every object in the bucket, by key."""
        return {
            path.relative_to(self.bucket).as_posix(): path.read_bytes()
            for path in self.bucket.rglob("*")
            if path.is_file()
        }

    def object_names(self) -> list[str]:
        return sorted(self.objects())


def records_of(data: memoryview) -> list[Record]:
    """Every record of consecutive whole batches."""
    records: list[Record] = []
    size = 0
    for position, header in iterate_batches(data):
        records += read_records(data, position, header)
        size = position + header.size_in_bytes
    assert size == len(data), "a read returned a partial batch"
    return records
