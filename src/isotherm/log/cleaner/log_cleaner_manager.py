"""Tracks which logs are being cleaned, which are paused, and their checkpoints.

    free ───── begin_filthiest ──► cleaning ── done_cleaning ──► free, checkpoint written
      │                              │ pause: the round is aborted, the caller waits for its end
      └── pause ──► paused(n) ◄──────┘ done_cleaning, checkpoint not written
                       └── resume n times ──► free

While a log is cleaned, no other thread may remove its segments: deletion, truncation and retention
hold a pause meanwhile. Source: Kafka LogCleanerManager.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from isotherm.clock import Clock
from isotherm.errors import CorruptCheckpointError, LogCleaningAbortedError, LogDirFailedError
from isotherm.log.checkpoints import encode_offset_checkpoint, load_offset_checkpoint
from isotherm.log.cleaner.choice import LogToClean, first_dirty_offset, plan_log_to_clean
from isotherm.log.fs import FileSystem
from isotherm.log.log_dir import LogDir
from isotherm.log.partition_log import PartitionLog
from isotherm.segment.file_names import CLEANER_OFFSET_CHECKPOINT_NAME
from isotherm.types import Offset, TimestampMs, TopicPartition

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Cleaning:
    """A log that one cleaner thread has reserved, until `done_cleaning`."""

    log: PartitionLog
    to_clean: LogToClean
    aborted: threading.Event = field(default_factory=threading.Event)

    def check_abort(self) -> None:
        """Raise LogCleaningAbortedError if a pause or a stop was requested."""
        if self.aborted.is_set():
            raise LogCleaningAbortedError(
                f"cleaning is aborted partition={self.log.topic_partition}"
            )


class LogCleanerManager:
    """Thread-safe. Its lock is taken before the lock of a log or of the log manager, never after.
    `logs` is called under it. A log is paused before it is deleted, so no plan uses a deleted log.
    """

    def __init__(
        self, logs: Callable[[], Sequence[PartitionLog]], *, clock: Clock, fs: FileSystem
    ) -> None:
        self._logs = logs
        self._clock = clock
        self._checkpoints = CleanerCheckpoints(fs)
        self._lock = threading.RLock()
        self._ended = threading.Condition(self._lock)
        self._cleaning: dict[TopicPartition, Cleaning | None] = {}
        self._pauses: Counter[TopicPartition] = Counter()
        self._uncleanable: set[PartitionLog] = set()
        self._accepts = True
        self._last_run_ms = clock.now_ms()
        self.max_dirty_ratio = 0.0
        """The highest ratio of all cleanable logs when `begin_filthiest` last ran."""
        self.compaction_delay_ms_max = 0
        """The longest delay of all cleanable logs when `begin_filthiest` last ran."""

    # ---- for cleaner threads

    def begin_filthiest(self) -> Cleaning | None:
        """Reserve the log with the highest dirty ratio, of those that must be cleaned."""
        with self._lock:
            logs = self._logs()
            self._last_run_ms = self._clock.now_ms()
            # Deleted logs are dropped. A topic that is created again has a new log.
            self._uncleanable.intersection_update(logs)
            dirty = [
                Cleaning(log, to_clean)
                for log in logs
                if self._is_free(log) and (to_clean := self._plan(log)) is not None
            ]
            ratios = [cleaning.to_clean.cleanable_ratio for cleaning in dirty]
            self.max_dirty_ratio = max(ratios, default=0.0)
            delays = [cleaning.to_clean.compaction_delay_ms for cleaning in dirty]
            self.compaction_delay_ms_max = max(delays, default=0)
            due = [
                cleaning
                for cleaning in dirty
                if cleaning.to_clean.must_be_cleaned(cleaning.log.config.min_cleanable_dirty_ratio)
            ]
            if not due:
                return None
            filthiest = max(due, key=lambda log: log.to_clean.cleanable_ratio)
            self._cleaning[filthiest.log.topic_partition] = filthiest
            return filthiest

    def done_cleaning(self, cleaning: Cleaning, end_offset: Offset) -> None:
        """Release the log. It is clean below `end_offset`, unless the round was aborted."""
        log = cleaning.log
        with self._lock:
            # A pause comes before a truncation or deletion, which may invalidate `end_offset`.
            if not cleaning.aborted.is_set():
                self._save_checkpoint(log, end_offset)
            self._end([log.topic_partition])

    def mark_uncleanable(self, log: PartitionLog) -> None:
        """Exclude the log from cleaning, since the same error would come back in every round."""
        with self._lock:
            self._uncleanable.add(log)

    @contextmanager
    def deletable_logs(self) -> Iterator[list[PartitionLog]]:
        """Every free compacted log, reserved for retention while the context lasts.

        This includes logs without cleanup.policy=delete: their segments below the log start are
        deleted too.
        """
        with self._lock:
            deletable = [log for log in self._logs() if self._is_free(log)]
            for log in deletable:
                # None: retention has no abort. A pause waits for its end.
                self._cleaning[log.topic_partition] = None
        try:
            yield deletable
        finally:
            with self._lock:
                self._end(log.topic_partition for log in deletable)

    def stop(self) -> None:
        """Abort all rounds and start none until `allow`. Does not wait."""
        with self._lock:
            self._accepts = False
            for cleaning in self._cleaning.values():
                if cleaning is not None:
                    cleaning.aborted.set()

    def allow(self) -> None:
        with self._lock:
            self._accepts = True

    # ---- for threads that change logs otherwise

    @contextmanager
    def paused(self, topic_partition: TopicPartition) -> Iterator[None]:
        """Abort the cleaning of a log, wait for its end, and prevent the next round.

        The caller must not hold a lock that a cleaner thread may need.
        """
        with self._lock:
            self._pauses[topic_partition] += 1
            cleaning = self._cleaning.get(topic_partition)
            if cleaning is not None:
                cleaning.aborted.set()
            # The round checks for the abort at each chunk, so this takes as long as one buffer.
            self._ended.wait_for(lambda: topic_partition not in self._cleaning)
        try:
            yield
        finally:
            self._resume([topic_partition])

    def abort(self, topic_partition: TopicPartition) -> None:
        """Abort the cleaning of a log. A new round may start at once, from the log's new state."""
        with self.paused(topic_partition):
            pass

    @contextmanager
    def logs_for_retention(self, logs: Iterable[PartitionLog]) -> Iterator[list[PartitionLog]]:
        """Those of `logs` that are not compacted. None is cleaned while the context lasts, even if
        its configuration changes. (For compacted logs see `deletable_logs`.)"""
        with self._lock:
            retained = [
                log
                for log in logs
                # A round may still run on a log whose policy has just ceased to be compact.
                if not log.config.compacts and log.topic_partition not in self._cleaning
            ]
            self._pauses.update(log.topic_partition for log in retained)
        try:
            yield retained
        finally:
            self._resume(log.topic_partition for log in retained)

    def forget(self, log: PartitionLog) -> None:
        """Remove the checkpoint of a deleted log."""
        with self._lock:
            self._save_checkpoint(log, None)

    def move_checkpoint(self, source: PartitionLog, log: PartitionLog) -> None:
        """`log` is `source` in another directory. Call within `paused`."""
        with self._lock:
            checkpoint = self.cleaner_checkpoint(source)
            if checkpoint is not None:
                # A crash between the two writes costs a repeated round.
                self._save_checkpoint(source, None)
                self._save_checkpoint(log, checkpoint)

    def truncate_checkpoint(self, log: PartitionLog, offset: Offset) -> None:
        """Lower the checkpoint to `offset` if it is above. Call within `paused`."""
        with self._lock:
            checkpoint = self.cleaner_checkpoint(log)
            if checkpoint is not None and checkpoint > offset:
                self._save_checkpoint(log, offset)

    # ---- views

    def cleaner_checkpoint(self, log: PartitionLog) -> Offset | None:
        """The offset below which the log is clean; None if it was never cleaned."""
        with self._lock:
            return self._checkpoints.offset(log.log_dir, log.topic_partition)

    def uncleanable_logs(self, log_dir: LogDir) -> list[PartitionLog]:
        with self._lock:
            there = self._uncleanable.intersection(self._logs())
            return [log for log in there if log.log_dir is log_dir]

    def uncleanable_size(self, log_dir: LogDir) -> int:
        """Cleanable bytes of the logs that are marked as uncleanable."""
        with self._lock:
            # A paused log may be about to be deleted, together with its files.
            still = [
                log
                for log in self.uncleanable_logs(log_dir)
                if self._pauses[log.topic_partition] == 0
            ]
            planned = [self._plan(log) for log in still]
        return sum(to_clean.cleanable_size for to_clean in planned if to_clean is not None)

    def ms_since_last_run(self, now_ms: TimestampMs) -> int:
        return now_ms - self._last_run_ms

    # ---- under the lock

    def _is_free(self, log: PartitionLog) -> bool:
        return (
            self._accepts
            and log.config.compacts
            and log.log_dir.is_online
            and log.topic_partition not in self._cleaning
            and self._pauses[log.topic_partition] == 0
            and log not in self._uncleanable
        )

    def _plan(self, log: PartitionLog) -> LogToClean | None:
        """The part of the log to clean. None without closed segments or if the directory fails."""
        try:
            view = log.view()
            checkpoint = self.cleaner_checkpoint(log)
            first_dirty = first_dirty_offset(view, checkpoint)
            if checkpoint is not None and first_dirty != checkpoint:
                # Retention moves the log start past the checkpoint: expected, so no warning.
                if not (log.config.deletes and checkpoint < first_dirty):
                    logger.warning(
                        "cleaner's checkpoint lies outside the log partition=%s checkpoint=%d"
                        " log_start_offset=%d log_end_offset=%d",
                        log.topic_partition,
                        checkpoint,
                        view.log_start_offset,
                        view.log_end_offset,
                    )
                self._save_checkpoint(log, first_dirty)
            with log.log_dir.errors_fail_it("plan the cleaning"):
                to_clean = plan_log_to_clean(view, first_dirty, log.config, self._clock.now_ms())
        except LogDirFailedError:
            logger.exception("log cannot be checked for cleaning log=%r", log)
            return None
        return to_clean if to_clean.total_size > 0 else None

    def _save_checkpoint(self, log: PartitionLog, offset: Offset | None) -> None:
        existing = {partition_log.topic_partition for partition_log in self._logs()}
        try:
            self._checkpoints.save(log.log_dir, log.topic_partition, offset, existing)
        except LogDirFailedError:
            logger.exception("cleaner's checkpoint is not written log=%r", log)

    def _end(self, topic_partitions: Iterable[TopicPartition]) -> None:
        for topic_partition in topic_partitions:
            del self._cleaning[topic_partition]
        self._ended.notify_all()

    def _resume(self, topic_partitions: Iterable[TopicPartition]) -> None:
        with self._lock:
            self._pauses.subtract(topic_partitions)
            # Drops zero counts: the counter must not grow with deleted partitions.
            self._pauses = +self._pauses


class CleanerCheckpoints:
    """The files `cleaner-offset-checkpoint`: up to which offset each log of a directory is clean.

    Each is read once. If an entry is lost, the next round of that log repeats the work of earlier
    ones; nothing else depends on it. Not thread-safe. Source: Kafka
    LogCleanerManager.updateCheckpoints, OffsetCheckpointFile.

    Raises LogDirFailedError if a directory is offline or goes offline.
    """

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._offsets: dict[LogDir, dict[TopicPartition, Offset]] = {}

    def offset(self, log_dir: LogDir, topic_partition: TopicPartition) -> Offset | None:
        return self._of(log_dir).get(topic_partition)

    def save(
        self,
        log_dir: LogDir,
        topic_partition: TopicPartition,
        offset: Offset | None,
        existing: Container[TopicPartition],
    ) -> None:
        """Set one entry, or remove it (None). Also removes entries of logs that do not exist."""
        before = self._of(log_dir)
        offsets = {
            partition: clean_offset
            for partition, clean_offset in before.items()
            if partition in existing and partition != topic_partition
        }
        if offset is not None:
            offsets[topic_partition] = offset
        if offsets != before:
            # Before the write: if that fails, the directory is offline, and the file is read again
            # by the next process.
            self._offsets[log_dir] = offsets
            with log_dir.errors_fail_it("checkpoint the cleaner"):
                path = log_dir.path / CLEANER_OFFSET_CHECKPOINT_NAME
                self._fs.write_atomically(path, encode_offset_checkpoint(offsets))

    def _of(self, log_dir: LogDir) -> dict[TopicPartition, Offset]:
        if log_dir not in self._offsets:
            with log_dir.errors_fail_it("read the cleaner's checkpoint"):
                self._offsets[log_dir] = self._read(log_dir)
        return self._offsets[log_dir]

    def _read(self, log_dir: LogDir) -> dict[TopicPartition, Offset]:
        path = log_dir.path / CLEANER_OFFSET_CHECKPOINT_NAME
        try:
            return load_offset_checkpoint(self._fs, path)
        except CorruptCheckpointError as error:
            logger.warning("checkpoint is ignored path=%s: %s", path, error)
            return {}
