"""The log of one partition: its segments, its offsets, and all operations on them.

Invariants:
- Segments ascend without overlap. There is at least one, and the last one is active.
- log_start_offset <= local_log_start_offset <= high_watermark <= log_end_offset. (The high
  watermark is raised with the log start.)
- Everything below recovery_point is durable.

Every public method may be called from any thread. One lock serializes changes. Reads take it only
for a snapshot. `flush` and retention release it while the disk works: producers, and with them the
broker's event loop, would otherwise wait for it.
Source: Kafka UnifiedLog.java, LocalLog.java.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

from isotherm.config.topic import TopicConfig
from isotherm.errors import (
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    UnexpectedAppendOffsetError,
)
from isotherm.log.append import (
    AppendInfo,
    check_producers,
    too_large_for_a_segment,
)
from isotherm.log.deletion_queue import DeletionQueue
from isotherm.log.environment import LogEnvironment
from isotherm.log.follower_records import (
    NOTHING_APPENDED,
    FollowerAppendInfo,
    FollowerRecords,
    check_follower_records,
)
from isotherm.log.leader_epoch_cache import LeaderEpochCache
from isotherm.log.log_dir import PartitionDirectory
from isotherm.log.log_read import (
    FetchIsolation,
    LogRead,
    LogView,
    offset_for_timestamp,
    offset_of_largest_timestamp,
    out_of_range,
    read_log,
)
from isotherm.log.log_segment import LogSegment, TimestampAndOffset
from isotherm.log.log_segments import LogSegments
from isotherm.log.producer_replay import rebuild_producers
from isotherm.log.producer_snapshots import ProducerSnapshots
from isotherm.log.producer_state import ProducerStateManager
from isotherm.log.retention import (
    DeletedSegment,
    RemoteCopies,
    RetentionState,
    deleted_segments,
    plan_retention,
    plan_without_copies,
    retention_due_ms,
)
from isotherm.log.segment_swap import swap_segments
from isotherm.log.tiering import is_remote_log_enabled
from isotherm.log.transaction_index_checkpoint import TransactionIndexCheckpoint
from isotherm.record.batch import BatchHeader
from isotherm.record.batch_header import OFFSET_MAX
from isotherm.record.validation import AppendOrigin, CheckedBatch, validate_and_assign_offsets
from isotherm.segment.leader_epoch_checkpoint import EpochEntry
from isotherm.segment.offset_index import RELATIVE_OFFSET_MAX
from isotherm.segment.producer_snapshot import LastRecord, ProducerSnapshotEntry
from isotherm.types import (
    NO_TIMESTAMP,
    UNKNOWN_OFFSET,
    LeaderEpoch,
    Offset,
    Position,
    ProducerId,
    TimestampMs,
    make_tuple,
)


class TierTasks(Protocol):
    """The tasks of the remote tier that depend on a log."""

    def log_changed(self) -> None:
        """Called with the log's lock held, so it does not wait."""


class LoadedLog(NamedTuple):
    """The content of a log's directory. The last segment is active."""

    segments: Sequence[LogSegment]
    log_start_offset: Offset
    durable_log_start_offset: Offset
    log_end_offset: Offset
    recovery_point: Offset
    leader_epochs: LeaderEpochCache
    producers: ProducerStateManager
    snapshots: ProducerSnapshots
    transaction_indexes: TransactionIndexCheckpoint


def _not_noticed() -> None:
    """The `on_moved` of a log whose readers poll it."""


class PartitionLog:
    def __init__(
        self,
        environment: LogEnvironment,
        place: PartitionDirectory,
        topic_id: uuid.UUID | None,
        config: TopicConfig,
        loaded: LoadedLog,
    ) -> None:
        """Called by `log_loader.load_log`."""
        self.place = place
        # Apart, too: every append and read uses them.
        self.log_dir, self.directory, self.topic_partition = place
        self.topic_id = topic_id
        self.config = config
        self.leader_epochs = loaded.leader_epochs
        self.producers = loaded.producers
        self.environment = environment
        self._segments = LogSegments(
            environment, self.directory, loaded.segments, config, loaded.transaction_indexes
        )
        self.snapshots = loaded.snapshots
        self._log_start_offset = loaded.log_start_offset
        self._durable_log_start_offset = loaded.durable_log_start_offset
        self._log_end_offset = loaded.log_end_offset
        self._high_watermark = loaded.log_start_offset
        self._recovery_point = loaded.recovery_point
        # The lowest end that an imminent truncation may leave; OFFSET_MAX if there is none.
        self._truncated_from: Offset = OFFSET_MAX
        self._log_start_after_truncation: Offset | None = None
        self._highest_offset_in_remote_storage = UNKNOWN_OFFSET
        self.remote_copies: RemoteCopies | None = None
        """Asked before a local segment is deleted because the remote tier has it."""
        self.tier_tasks: TierTasks | None = None
        """Told of the first change after a `watch`."""
        self.removals = 0
        """Grows when records are dropped other than by retention: earlier copies of the files do
        not match the log any more."""
        self.on_moved: Callable[[], None] = _not_noticed
        """Called with the lock held after the log start was raised or records were truncated.
        Appends and the high watermark have callers that know of them."""
        self._deletions = DeletionQueue(environment.cache.fs, loaded.snapshots)
        self._last_flush_ms = environment.clock.now_ms()
        # Whether a background task has looked at the log since its last change.
        self._is_watched = False
        self._is_closed = False
        self._lock = threading.RLock()
        self._flush_lock = threading.Lock()

    def __repr__(self) -> str:
        return (
            f"PartitionLog({self.topic_partition}, start={self._log_start_offset},"
            f" end={self._log_end_offset}, segments={len(self._segments.all)})"
        )

    # ---- changes

    def watch(self) -> None:
        """Tell the background tasks of the next change: in `environment.work`, and `tier_tasks`. A
        task calls this before it looks at the log, so that it misses no change."""
        self._is_watched = True

    def _changed(self) -> None:
        """Call it with the lock held, after a change of offsets, segments or configuration."""
        if self._is_watched:
            self._is_watched = False
            self.environment.work.changed(self.topic_partition)
            if self.tier_tasks is not None:
                self.tier_tasks.log_changed()

    # ---- offsets

    @property
    def log_start_offset(self) -> Offset:
        """The first offset that a consumer can read, in either tier."""
        return self._log_start_offset

    @property
    def log_start_offset_to_store(self) -> Offset:
        """The log start for the next process (`about_to_truncate`)."""
        after = self._log_start_after_truncation
        return self._log_start_offset if after is None else after

    @property
    def durable_log_start_offset(self) -> Offset:
        """The lowest log start that is possible after a crash; not above the log start.

        In a tiered log, nothing above it is deleted for being below the log start. After a crash
        the log would start lower, and the offsets between the tiers would be in neither.
        """
        return min(self._durable_log_start_offset, self._log_start_offset)

    @property
    def local_log_start_offset(self) -> Offset:
        """The first offset on the local disk."""
        return max(self._log_start_offset, self._segments.first_base_offset)

    @property
    def log_end_offset(self) -> Offset:
        """The offset of the next record."""
        return self._log_end_offset

    @property
    def high_watermark(self) -> Offset:
        return self._high_watermark

    @property
    def last_stable_offset(self) -> Offset:
        """All transactions below it, and below the high watermark, have ended. Never below the log
        start, which may have passed the first records of an open transaction."""
        with self._lock:
            unstable = self.producers.first_unstable_offset
            if unstable is None:
                return self._high_watermark
            return min(self._high_watermark, max(unstable, self._log_start_offset))

    @property
    def recovery_point(self) -> Offset:
        """Everything below it is durable, and stays in the log if a crash cuts a truncation off."""
        return min(self._recovery_point, self._truncated_from)

    @property
    def highest_offset_in_remote_storage(self) -> Offset:
        """Inclusive; -1 while it is unknown."""
        return self._highest_offset_in_remote_storage

    @property
    def remote_log_enabled(self) -> bool:
        return is_remote_log_enabled(
            self.topic_partition.topic,
            self.config,
            system_enabled=self.environment.remote_storage_system_enable,
        )

    @property
    def size_in_bytes(self) -> int:
        """Size of the local `.log` files."""
        return self._segments.size_in_bytes

    def segments(self) -> tuple[LogSegment, ...]:
        """A snapshot, ascending; the last one is active."""
        return self._segments.all

    def view(self) -> LogView:
        # Every read begins here. Fields take fewer calls than properties.
        with self._lock:
            segments, unstable = self._segments.all, self.producers.first_unstable_offset
            high_watermark, start = self._high_watermark, self._log_start_offset
            return LogView(
                self.topic_partition,
                segments,
                segments[-1].size_in_bytes,
                start,
                max(start, segments[0].base_offset),
                self._log_end_offset,
                high_watermark,
                # As `last_stable_offset`.
                high_watermark if unstable is None else min(high_watermark, max(unstable, start)),
            )

    # ---- appending

    def append_as_leader(
        self,
        records: bytearray | memoryview,
        leader_epoch: LeaderEpoch,
        *,
        now_ms: TimestampMs,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        commits: bool = False,
        header: BatchHeader | None = None,
        checked: CheckedBatch | None = None,
    ) -> AppendInfo:
        """Check a request's batches, assign offsets (in place) and append them, all or none.

        `header` is that of a client's batch, if it has been read. `checked` is the result of
        `check_batch` for them, if their checks were made before. With `commits` they are below the
        high watermark: no other replica has to have them.

        A duplicate batch of an idempotent producer is not appended: the result has the offsets of
        the first one. Not durable before `flush`, which the caller calls (Kafka flushes here).

        Raises the RejectedErrors of `record.validation`, and InvalidProducerEpochError and
        OutOfOrderSequenceError, with nothing appended. Raises LogDirFailedError if the disk fails.
        """
        with self._lock:
            if self._is_closed or self.log_dir.failure is not None:
                self._check_usable()
            try:
                return self._append(records, leader_epoch, now_ms, origin, commits, header, checked)
            except OSError as error:
                raise self.log_dir.failed_by(error, "append") from error

    def _append(
        self,
        records: bytearray | memoryview,
        leader_epoch: LeaderEpoch,
        now_ms: TimestampMs,
        origin: AppendOrigin,
        commits: bool,
        header: BatchHeader | None,
        checked: CheckedBatch | None,
    ) -> AppendInfo:
        config, first_offset = self.config, self._log_end_offset
        validated = validate_and_assign_offsets(
            records,
            self.topic_partition,
            config=config,
            next_offset=first_offset,
            leader_epoch=leader_epoch,
            now_ms=now_ms,
            origin=origin,
            header=header,
            checked=checked,
        )
        batches, producers = validated.producer_batches, self.producers
        # Everything that can refuse the records comes before the first write: all of a request's
        # batches are appended, or none.
        if batches:
            duplicate = check_producers(producers, batches, validated.records, origin)
            if duplicate is not None:
                return AppendInfo.of_duplicate(
                    duplicate,
                    self._log_start_offset,
                    stamps_records=config.stamps_records,
                    needs_flush=self._needs_flush,
                )
        if len(validated.records) > config.effective_segment_bytes:
            raise too_large_for_a_segment(self.topic_partition, validated, config)
        epochs = self.leader_epochs.entries
        # `assign` makes the same comparison. Here it saves its call for each append but the first
        # one of an epoch (docs/decisions/0136).
        if leader_epoch >= 0 and not (epochs and epochs[-1].epoch == leader_epoch):
            # Assigned first, so that no reader finds a record without its epoch.
            self.leader_epochs.assign(leader_epoch, first_offset)
        segment = self._segments.all[-1]
        if segment.roll_reason(validated, config, self._segments.jitter_ms, now_ms) is not None:
            segment = self._roll(now_ms)
        segment.append(validated.records, validated.batch_headers, config.index_interval_bytes)
        # After the write: `log_end_offset` is read without the lock, and must not promise records
        # that are not in the segment yet.
        end_offset = self._log_end_offset = validated.last_offset + 1
        if batches:
            self._apply_to_producers(batches, validated.records)
        producers.map_end_offset = end_offset
        # As `update_high_watermark`, within the lock that is held already.
        if commits:
            self._high_watermark = end_offset
            if producers.first_unstable_offset is not None:
                producers.on_high_watermark(end_offset)
        if self._is_watched:
            self._changed()
        return make_tuple(
            AppendInfo,
            (
                first_offset,
                validated.last_offset,
                validated.max_timestamp,
                now_ms if config.stamps_records else NO_TIMESTAMP,
                self._log_start_offset,
                False,  # no duplicate
                end_offset - self._recovery_point >= config.flush_messages,
            ),
        )

    @property
    def _needs_flush(self) -> bool:
        return self._log_end_offset - self._recovery_point >= self.config.flush_messages

    def begin_epoch(self, leader_epoch: LeaderEpoch) -> None:
        """Record that `leader_epoch` starts at the log end, before its first append. No effect if
        it is known from there or a lower offset."""
        with self._lock:
            self.leader_epochs.assign(leader_epoch, self._log_end_offset)
            self._changed()

    def append_as_follower(
        self, records: memoryview, leader_epoch: LeaderEpoch
    ) -> FollowerAppendInfo:
        """Append the batches of a leader as they are. `leader_epoch` is that of the fetch request.

        See `check_follower_records` for what is checked and left out, and what it raises. Raises
        UnexpectedAppendOffsetError if they begin below the log end. Nothing is appended then. Only
        one thread fetches for a log.
        """
        # Without the lock: the CRCs of a whole answer take long, and every read takes the lock.
        checked = check_follower_records(records, leader_epoch, self.topic_partition)
        if not len(checked.batches):
            return NOTHING_APPENDED
        with self._lock, self._errors_fail_dir("append"):
            if checked.first_offset < self._log_end_offset:
                raise UnexpectedAppendOffsetError(
                    f"fetched batches begin below the log end partition={self.topic_partition}"
                    f" base_offset={checked.first_offset} log_end_offset={self._log_end_offset}"
                    f" log_start_offset={self._log_start_offset}",
                    checked.first_offset,
                    checked.last_offset,
                )
            # All are read before one is written: a marker that cannot be read stops the append.
            pieces = [
                (piece, piece.producer_batches())
                for piece in checked.pieces(self.config.effective_segment_bytes)
            ]
            # Assigned first, so that no reader finds a record without its epoch.
            for epoch, offset in checked.starts_of_epochs():
                self.leader_epochs.assign(epoch, offset)
            now_ms = self.environment.clock.now_ms()
            for piece, producer_batches in pieces:
                self._append_piece(piece, producer_batches, now_ms)
            return FollowerAppendInfo(
                checked.first_offset,
                checked.last_offset,
                int(checked.epochs[-1]),
                len(checked.records),
                self._needs_flush,
            )

    def _append_piece(
        self,
        piece: FollowerRecords,
        producer_batches: Iterable[tuple[Position, BatchHeader]],
        now_ms: TimestampMs,
    ) -> None:
        config, segment = self.config, self._segments.active
        if segment.roll_reason(piece, config, self._segments.jitter_ms, now_ms) is not None:
            # Compaction may have left more offsets out than the indexes of a segment can span.
            is_far = piece.last_offset - self._log_end_offset > RELATIVE_OFFSET_MAX
            segment = self._roll(now_ms, piece.first_offset if is_far else None)
        segment.append_batches(piece.records, piece.written(), config.index_interval_bytes)
        self._log_end_offset = piece.last_offset + 1
        self._apply_to_producers(producer_batches, piece.records)
        self.producers.map_end_offset = self._log_end_offset
        self._changed()

    def _apply_to_producers(
        self, batches: Iterable[tuple[Position, BatchHeader]], records: memoryview
    ) -> None:
        for position, header in batches:
            aborted = self.producers.apply(header, records, position)
            if aborted is not None:
                self._segments.active.append_aborted_transaction(aborted)

    # ---- reading

    def read(
        self,
        start_offset: Offset,
        max_bytes: int,
        *,
        isolation: FetchIsolation = FetchIsolation.LOG_END,
        min_one_message: bool = True,
    ) -> LogRead:
        """See `read_local`. Raises OffsetOutOfRangeError for an offset of the remote tier too."""
        read = self.read_local(
            start_offset, max_bytes, isolation=isolation, min_one_message=min_one_message
        )
        if read is None:
            raise out_of_range(self.view(), start_offset)
        return read

    def read_local(
        self,
        start_offset: Offset,
        max_bytes: int,
        *,
        isolation: FetchIsolation,
        min_one_message: bool,
    ) -> LogRead | None:
        """See `log_read.read_log`. None if only the remote tier should have the offset. Raises
        OffsetOutOfRangeError for an offset that neither tier should have."""
        if self._is_closed or self.log_dir.failure is not None:
            self._check_usable()
        view = self.view()
        try:
            read = read_log(
                view, start_offset, max_bytes, isolation, min_one_message=min_one_message
            )
        except OSError as error:
            raise self.log_dir.failed_by(error, "read") from error
        # As it is now: retention may have moved the local log start during the read.
        if read is None and not (
            self.remote_log_enabled
            and self._log_start_offset <= start_offset < self.local_log_start_offset
        ):
            raise out_of_range(view, start_offset)
        return read

    def ends_for_consumers(self, offset: Offset) -> bool:
        """Whether consumers of either isolation would read nothing from `offset` on, because
        all that they may read ends there. False if that is not sure without a read."""
        return (
            offset == self._high_watermark
            and self.producers.first_unstable_offset is None
            and not self._is_closed
            and self.log_dir.failure is None
        )

    def offset_for_timestamp(self, timestamp_ms: TimestampMs) -> TimestampAndOffset | None:
        """See `log_read.offset_for_timestamp`."""
        with self._errors_fail_dir("look up a timestamp"):
            return offset_for_timestamp(self.view(), timestamp_ms)

    def max_timestamp_offset(self) -> TimestampAndOffset | None:
        """See `log_read.offset_of_largest_timestamp`."""
        with self._errors_fail_dir("look up a timestamp"):
            return offset_of_largest_timestamp(self.view())

    # ---- moving offsets

    def update_high_watermark(self, offset: Offset) -> Offset:
        """Set it, limited to [local log start, log end]; returns its new value. Only committed
        records leave the local disk, so a lower one is out of date."""
        with self._lock:
            high_watermark = min(max(offset, self.local_log_start_offset), self._log_end_offset)
            if high_watermark != self._high_watermark:
                self._high_watermark = high_watermark
                self._changed()
            self.producers.on_high_watermark(high_watermark)
            return high_watermark

    def maybe_increment_log_start_offset(self, offset: Offset) -> bool:
        """Raise the log start; returns whether it moved. Retention deletes the segments below.

        Raises OffsetOutOfRangeError above the high watermark.
        """
        with self._lock, self._errors_fail_dir("raise the log start"):
            if offset > self._high_watermark:
                raise OffsetOutOfRangeError(
                    "log start cannot be above the high watermark"
                    f" partition={self.topic_partition} offset={offset}"
                    f" high_watermark={self._high_watermark}"
                )
            if offset <= self._log_start_offset:
                return False
            self._raise_log_start(offset)
            return True

    def _raise_log_start(self, offset: Offset) -> None:
        self._log_start_offset = offset
        self._high_watermark = max(self._high_watermark, offset)
        self.leader_epochs.truncate_from_start(offset)
        self.producers.on_log_start_offset(offset)
        self._changed()
        self.on_moved()

    def log_start_is_durable(self, offset: Offset) -> None:
        """Note that the log start was written: after a crash the log starts at `offset` or
        above."""
        with self._lock:
            self._durable_log_start_offset = offset
            self.leader_epochs.forget_below(offset)

    def make_log_start_durable(self) -> None:
        """Write the log start before segments below it are deleted. Call it without a lock.

        Writes the checkpoint of all logs of the directory, unless another call has done so. Raises
        LogDirFailedError, and NotLeaderOrFollowerError if the log is closed meanwhile.
        """
        # Read once: the log start may move while the checkpoint is written.
        log_start_offset = self._log_start_offset
        if log_start_offset <= self._durable_log_start_offset:
            return
        with self._errors_fail_dir("checkpoint the log start"):
            self.environment.checkpoint_log_start(self)
        if self._durable_log_start_offset < log_start_offset:
            raise NotLeaderOrFollowerError(f"log is closed partition={self.topic_partition}")

    def update_highest_offset_in_remote_storage(self, offset: Offset) -> None:
        """Raise it: local segments that end at or below may be deleted. Lower values are ignored,
        and any value while the log is not tiered."""
        with self._lock:
            if not self.remote_log_enabled:
                return
            if offset > self._highest_offset_in_remote_storage:
                self._highest_offset_in_remote_storage = offset
                self._changed()

    def update_config(self, config: TopicConfig) -> None:
        """Apply a topic's configuration.

        When tiering ends, the remote segments are deleted, so the highest remote offset is reset.
        When it starts again, the log is copied anew before local retention deletes segments.
        """
        with self._lock:
            was_tiered = self.remote_log_enabled
            self.config = config
            if not self.remote_log_enabled:
                self._highest_offset_in_remote_storage = UNKNOWN_OFFSET
            elif not was_tiered:
                # Until now the base of the first segment was the log start after a crash.
                self._durable_log_start_offset = 0
            self._changed()
        if self.remote_log_enabled:
            self.make_log_start_durable()

    # ---- rolling and flushing

    def roll(self) -> None:
        """Close the active segment and start a new one. No effect if the active one is empty."""
        with self._lock, self._errors_fail_dir("roll"):
            if self._segments.active.size_in_bytes > 0:
                self._roll(self.environment.clock.now_ms())

    def _roll(self, now_ms: TimestampMs, base_offset: Offset | None = None) -> LogSegment:
        """The new segment. `base_offset` is its start if it is above the log end."""
        base_offset = self._log_end_offset if base_offset is None else base_offset
        # The snapshot gets its name from it: that of the segment that begins here.
        self.producers.map_end_offset = base_offset
        # A snapshot at each segment's start: recovery and copies to the remote tier need it.
        self.snapshots.take(self.producers)
        self._segments.roll(base_offset, self.config, now_ms)
        self._changed()
        return self._segments.active

    def flush(self, *, closed_segments_only: bool = False) -> None:
        """Make the log durable up to its end, or up to the active segment's base."""
        with self._flush_lock, self._errors_fail_dir("flush"):
            with self._lock:
                active = self._segments.active
                end_offset = active.base_offset if closed_segments_only else self._log_end_offset
                removals = self.removals
            self._flush(active, end_offset, removals)

    def _flush(self, active: LogSegment, end_offset: Offset, removals: int) -> bool:
        """Call it under the flush lock, which is taken before any other, never after.

        True if the names in the log's directory are durable now.
        """
        with self._lock:
            start_offset = self._recovery_point
            segments = self._segments.from_offset(start_offset)
        if end_offset <= start_offset:
            return False
        for segment in segments:
            if segment.base_offset < end_offset:
                segment.sync()
        self.snapshots.sync(start_offset)
        with self._lock:
            if self.removals != removals:
                return False  # truncated meanwhile: `end_offset` and its epochs are of an older log
            names_are_durable = self.leader_epochs.flush(end_offset)
        self._segments.transaction_indexes.store()
        # New file names, as in Kafka.
        if not names_are_durable and segments[-1].base_offset >= start_offset:
            self.environment.cache.fs.sync_directory(self.directory)
            names_are_durable = True
        with self._lock:
            if self.removals != removals:
                # A truncation has set a lower recovery point, at or below the new log end.
                return names_are_durable
            if active is not self._segments.active:
                # Rolled meanwhile: the roll wrote its final index entry after the sync.
                end_offset = min(end_offset, active.base_offset)
            # Last: recovery reads nothing below this point, so all of it must be durable by now.
            self._recovery_point = max(self._recovery_point, end_offset)
            self._last_flush_ms = self.environment.clock.now_ms()
        self.environment.work.checkpoint.note(self.topic_partition)
        return names_are_durable

    def maybe_flush(self, now_ms: TimestampMs) -> None:
        """Flush the log if flush.ms has passed, else closed segments only."""
        self.flush(closed_segments_only=now_ms - self._last_flush_ms < self.config.flush_ms)

    @property
    def flush_due_ms(self) -> TimestampMs | None:
        """When flush.ms passes; None if the log is durable up to its end."""
        if self._recovery_point >= self._log_end_offset:
            return None
        return self._last_flush_ms + self.config.flush_ms

    # ---- retention

    def delete_old_segments(
        self, now_ms: TimestampMs, *, erased_end_offset: Offset = 0
    ) -> list[DeletedSegment]:
        """Apply retention to the local segments; returns the deleted ones, oldest first. Those of a
        tiered log with records below `erased_end_offset` go too, once they are copied.

        Their files are renamed to `.deleted`. `delete_marked_files` removes them when
        file.delete.delay.ms has passed.
        """
        if self.remote_log_enabled:
            self._raise_log_start_first(now_ms)
        with self._deletions.lock, self._errors_fail_dir("delete old segments"):
            with self._lock:
                state = self._retention_state(erased_end_offset)
                plan = plan_retention(state, self.config, now_ms)
                count = len(plan.deletions)
                if plan.roll_active or count == len(self._segments.all):
                    self._roll(now_ms)
            if not count:
                return []
            # Flush first: after a crash the deleted batches are not there to recover epochs from.
            self.leader_epochs.flush()
            # Asked without the log's lock, since it may take long. The context keeps the remote
            # segments from being deleted until the local ones are removed.
            held_remotely = state.held_remotely(self.remote_copies, self.config, count)
            with held_remotely as held_end_offset, self._lock:
                # Planned again under the lock: the log may have changed while it was released.
                state = self._retention_state(erased_end_offset).confirmed(held_end_offset)
                # At most the `count` segments that the remote tier was asked about.
                deletions = plan_retention(state, self.config, now_ms).deletions[:count]
                doomed = self._segments.remove_first(len(deletions))
                first_base = self._segments.first_base_offset
                # A tiered log keeps its start: the remote tier still has the removed offsets.
                if not self.remote_log_enabled and first_base > self._log_start_offset:
                    self._raise_log_start(first_base)
                self._changed()
            # Renamed without the log's lock, for which appends would wait. Readers with an older
            # view read the `.deleted` files.
            self._mark_for_deletion(doomed, now_ms)
            # Stores the epochs without those that the durable log start has cut off.
            self.leader_epochs.flush()
            return deleted_segments(doomed, deletions)

    def _raise_log_start_first(self, now_ms: TimestampMs) -> None:
        """In a tiered log, make the log start durable before segments below it are deleted.

        Local segments that are never copied leave a gap when they are deleted. So the log start is
        raised above them first.
        """
        if self.config.remote_log_copy_disable:
            with self._lock, self._errors_fail_dir("raise the log start"):
                count = len(self._segments.all)
                state = self._retention_state()
                deleted, start = plan_without_copies(state, self.config, now_ms)
                if deleted == count:
                    self._roll(now_ms)
                if start > self._log_start_offset:
                    self._raise_log_start(start)
        self.make_log_start_durable()

    def _retention_state(self, erased_end_offset: Offset = 0) -> RetentionState:
        state = RetentionState.of(
            self.view(),
            self._highest_offset_in_remote_storage,
            self.durable_log_start_offset if self.remote_log_enabled else self._log_start_offset,
            remote_log_enabled=self.remote_log_enabled,
        )
        return replace(state, erased_end_offset=erased_end_offset)

    def retention_due_ms(self) -> TimestampMs | None:
        """When `delete_old_segments` or `remove_expired_producers` may next have work, if the log
        does not change; None if time alone makes nothing due. A compacted log has no retention of
        its own (`LogManager.delete_expired_segments`). Raises LogDirFailedError."""
        with self._lock, self._errors_fail_dir("plan retention"):
            times_ms = [self.producers.expiration_due_ms]
            if not self.config.compacts:
                times_ms.append(retention_due_ms(self._retention_state(), self.config))
        return min((time_ms for time_ms in times_ms if time_ms is not None), default=None)

    def _mark_for_deletion(self, segments: Sequence[LogSegment], now_ms: TimestampMs) -> None:
        self._mark(segments, due_ms=now_ms + self.config.file_delete_delay_ms)

    def _mark(
        self,
        segments: Sequence[LogSegment],
        *,
        due_ms: TimestampMs,
        reused_base_offsets: Collection[Offset] = (),
    ) -> None:
        self._deletions.mark(segments, due_ms, reused_base_offsets=reused_base_offsets)
        self.environment.work.file_deletion.note(self.topic_partition, due_ms)

    def replace_segments(self, old: Sequence[LogSegment], new: Sequence[LogSegment]) -> None:
        """Replace adjacent segments by finished `.cleaned` ones (`segment_swap`).

        Raises LogCleaningAbortedError, with nothing changed, if they are not in the log any more.
        """
        with self._deletions.lock, self._lock, self._errors_fail_dir("replace segments"):
            # With the log's lock until the list is replaced: in between it does not match the file
            # names.
            self._segments.check_replaceable(old)
            fs, now_ms = self.environment.cache.fs, self.environment.clock.now_ms()
            due_ms = now_ms + self.config.file_delete_delay_ms
            swap_segments(fs, self.directory, old, new, partial(self._mark, due_ms=due_ms))
            self.removals += 1
            self._segments.replace(old, new)
            self._changed()
            self._segments.transaction_indexes.store()

    def index_is_mended(self, segment: LogSegment) -> None:
        """Note that the index files of a closed segment were rebuilt."""
        with self._lock, self._errors_fail_dir("read a mended index"):
            self._segments.transaction_indexes.read_again(segment)

    def last_records_of_producers(self) -> dict[ProducerId, LastRecord]:
        with self._lock:
            return self.producers.last_records()

    def has_files_below(self, offset: Offset) -> bool:
        """Whether a segment that begins below the offset is on disk, or its files wait for
        file.delete.delay.ms."""
        with self._deletions.lock, self._lock:
            first_base = self._segments.first_base_offset
            return first_base < offset or self._deletions.has_below(offset)

    def delete_marked_files(self, now_ms: TimestampMs) -> TimestampMs | None:
        """Remove the files that were marked file.delete.delay.ms ago; returns when the next ones
        are due."""
        with self._deletions.lock, self._errors_fail_dir("delete files"):
            self._deletions.delete_due(now_ms)
            return self._deletions.next_due_ms

    def remove_expired_producers(self, now_ms: TimestampMs) -> None:
        with self._lock:
            self.producers.remove_expired(now_ms)

    # ---- truncating and closing

    @contextmanager
    def about_to_truncate(
        self, offset: Offset, log_start_offset: Offset | None = None
    ) -> Iterator[None]:
        """A block in which checkpoints hold at every point where a crash may stop the truncation.

        `recovery_point` is as low as the log end may become: a log that ends below its recovery
        point would count as damaged. `log_start_offset` is the log's new start if every record
        goes; `offset` is UNKNOWN_OFFSET then. The caller writes the checkpoints before it
        truncates.
        """
        with self._lock:
            base_offset = self._segments.from_offset(offset)[0].base_offset
            # 0 if every segment goes: recovery then reads all segments that a crash has left.
            self._truncated_from = base_offset if base_offset <= offset else 0
            self._log_start_after_truncation = log_start_offset
        try:
            yield
        finally:
            self._truncated_from = OFFSET_MAX
            self._log_start_after_truncation = None

    def truncate_to(self, offset: Offset) -> None:
        """Drop the records at `offset` and above. A batch that contains it is dropped as a whole.

        Durable on return: records that return after a crash would overlap later ones. An `offset`
        below the log start lowers that, too: a leader's log ended there.
        """
        with self._deletions.lock, self._lock, self._errors_fail_dir("truncate"):
            # No record to drop, but an epoch may have been assigned without records.
            if offset >= self._log_end_offset:
                self.leader_epochs.truncate_from_end(self._log_end_offset)
                self.on_moved()
                return
            if self._segments.first_base_offset > offset:
                # Records below `offset` are in the remote tier, and so are their leader epochs.
                epochs = [e for e in self.leader_epochs.entries if e.start_offset < offset]
                self._begin_anew(offset, min(self._log_start_offset, offset), epochs)
                return
            # Newest first, and the cut at last, so that a crash in between leaves no gap.
            doomed = self._segments.beyond(offset)[::-1]
            now_ms = self.environment.clock.now_ms()
            self._mark_for_deletion(doomed, now_ms)
            self._segments.truncate_to(offset, self.config, now_ms)
            # The batch that contained `offset` may have started below the log start.
            self._log_start_offset = min(self._log_start_offset, offset)
            self._set_end(max(self._log_start_offset, self._segments.active.read_next_offset()))

    def truncate_fully_and_start_at(
        self,
        offset: Offset,
        *,
        log_start_offset: Offset | None = None,
        leader_epochs: Sequence[EpochEntry] = (),
        producers: Sequence[ProducerSnapshotEntry] | None = None,
    ) -> None:
        """Drop every record; the next one gets `offset`, which may be above the old log end.

        The log starts there too, unless the remote tier has records from `log_start_offset` on.
        Then `leader_epochs` is the lineage up to `offset`, and `producers` the state of the
        producers at `offset`. Durable on return.
        """
        with self._deletions.lock, self._lock, self._errors_fail_dir("truncate"):
            start_offset = offset if log_start_offset is None else log_start_offset
            self._begin_anew(offset, start_offset, leader_epochs, producers)

    def _begin_anew(
        self,
        offset: Offset,
        log_start_offset: Offset,
        leader_epochs: Sequence[EpochEntry] = (),
        producers: Sequence[ProducerSnapshotEntry] | None = None,
    ) -> None:
        now_ms = self.environment.clock.now_ms()
        # Newest first, so that a crash in between leaves no gap.
        self._mark_for_deletion(self._segments.all[::-1], now_ms)
        # Synced before the epochs change. A crash must neither leave new epochs beside old batches
        # nor a new segment beside old epochs. In between the log is empty and has no epochs.
        self.environment.cache.fs.sync_directory(self.directory)
        self.leader_epochs.restore(leader_epochs)
        self._segments.begin_anew(offset, self.config, now_ms)
        self.environment.cache.fs.sync_directory(self.directory)
        self._log_start_offset = log_start_offset
        # As in Kafka: records below are committed. They are in the remote tier, or the leader has
        # deleted them.
        self._high_watermark = offset
        self.leader_epochs.truncate_from_start(log_start_offset)
        self.snapshots.remove_where_above(-1)
        if producers is not None:
            self.snapshots.put(offset, producers)
            self.snapshots.sync(offset)
        self._set_end(offset)

    def _set_end(self, end_offset: Offset) -> None:
        self.removals += 1
        self._log_end_offset = end_offset
        self._recovery_point = min(self._recovery_point, end_offset)
        self._high_watermark = min(self._high_watermark, end_offset)
        self.leader_epochs.truncate_from_end(end_offset)
        # Their state includes producers of the dropped batches.
        self.snapshots.remove_where_above(end_offset)
        now_ms = self.environment.clock.now_ms()
        rebuild_producers(self.producers, self.snapshots, self._segments.all, end_offset, now_ms)
        # The replay has met the markers of ended transactions again. The high watermark may stay
        # where it is, and then nothing else drops those below it.
        self.producers.on_high_watermark(self._high_watermark)
        self._segments.active.sync()
        self.environment.cache.fs.sync_directory(self.directory)
        self._changed()
        self.on_moved()

    def close(self) -> None:
        """Make everything durable, with the final index entries, so that loading needs no recovery.

        Later calls raise NotLeaderOrFollowerError. Idempotent.
        """
        with self._flush_lock, self._deletions.lock, self._lock:
            if self._is_closed:
                return
            with self._errors_fail_dir("close"):
                active = self._segments.active
                self.snapshots.take(self.producers)
                active.deactivate()
                self._segments.transaction_indexes.follow(self._segments.all)
                self._segments.transaction_indexes.store()
                has_new_files = self.snapshots.unsynced(self._recovery_point) or active.is_dirty
                if has_new_files:
                    # Synced even if the log is flushed: these files have just been written.
                    active.sync()
                    self.snapshots.sync(self._recovery_point)
                names_are_durable = self._flush(active, self._log_end_offset, self.removals)
                if has_new_files and not names_are_durable:
                    self.environment.cache.fs.sync_directory(self.directory)
            self._is_closed = True

    def abandon(self) -> None:
        """Close without writing: the directory is deleted or offline. Idempotent."""
        with self._flush_lock, self._deletions.lock, self._lock:
            self._is_closed = True
            for segment in self._segments.all:
                segment.release_files()

    def _errors_fail_dir(self, action: str) -> AbstractContextManager[None]:
        self._check_usable()
        return self.log_dir.errors_fail_it(action)

    def _check_usable(self) -> None:
        if self._is_closed:
            raise NotLeaderOrFollowerError(f"log is closed partition={self.topic_partition}")
        self.log_dir.check_online()
