"""Loads a partition's directory: completes or undoes what a crash interrupted, recovers, opens.

After an unclean stop every segment from the recovery point on is read in full. Its batches are
checked, the file is truncated at the first bad one (batches after a torn write were never flushed),
and its indexes and the producer state are rebuilt. Source: Kafka LogLoader.java.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from isotherm.config.topic import TopicConfig
from isotherm.errors import (
    CorruptIndexError,
    CorruptLogError,
    CorruptRecordError,
)
from isotherm.log.batch_scan import SoundBatches
from isotherm.log.environment import LogEnvironment
from isotherm.log.epoch_recovery import EpochRecovery
from isotherm.log.fs import FileSystem
from isotherm.log.log_dir import PartitionDirectory
from isotherm.log.log_segment import LogSegment
from isotherm.log.lost_offsets import (
    RecoveredSegment,
    report_gaps,
    report_recovery,
    were_any_compacted,
)
from isotherm.log.offline_logs import GIVE_UP_HINT
from isotherm.log.partition_log import LoadedLog, PartitionLog
from isotherm.log.producer_replay import apply_batches, rebuild_producers
from isotherm.log.producer_snapshots import ProducerSnapshots
from isotherm.log.producer_state import ProducerStateManager
from isotherm.log.recovery import (
    SegmentFilesPlan,
    first_segment_to_recover,
    loaded_log_start_offset,
    plan_segment_files,
)
from isotherm.log.segment_check import check_segment
from isotherm.log.segment_split import (
    SegmentOverflowError,
    overflows,
    plan_split,
    split_segment,
)
from isotherm.log.segment_swap import finish_swaps
from isotherm.log.tiering import is_remote_log_enabled
from isotherm.log.transaction_index_checkpoint import TransactionIndexCheckpoint
from isotherm.segment.file_names import TRANSACTION_INDEX_CHECKPOINT_NAME
from isotherm.types import Offset, TimestampMs

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogCheckpoints:
    """The offsets of one log in the directory's checkpoint files. The defaults are for a new
    log."""

    recovery_point: Offset = 0
    log_start_offset: Offset = 0
    high_watermark: Offset = 0
    clean_shutdown: bool = False
    knows_log_start: bool = True
    """False if the file with the log start offsets is lost."""
    cleaned_to: Offset = 0
    """The end of what the cleaner has cleaned, also long ago. Offsets that are missing below it
    were removed by the cleaner, which makes a log durable before it cleans it."""


def load_log(
    environment: LogEnvironment,
    directory: PartitionDirectory,
    config: TopicConfig,
    *,
    topic_id: uuid.UUID | None = None,
    checkpoints: LogCheckpoints = LogCheckpoints(),
) -> PartitionLog:
    """Open the log in `directory`, which exists. An empty directory becomes an empty log.

    Lost or damaged files that can be derived from the batches are rebuilt. Batches that were not
    flushed are truncated at the first damage. Raises LogDirFailedError if the disk fails, and
    CorruptDataError if flushed data is damaged: its files are not changed then.
    """
    with directory.log_dir.errors_fail_it(f"load {directory.topic_partition}"):
        while True:
            loader = _LogLoader(environment, directory, config, checkpoints)
            try:
                return loader.load(topic_id)
            except SegmentOverflowError as overflow:
                # Ends: each turn leaves one such segment fewer.
                split_segment(environment.cache, overflow.segment, overflow.plan)


class _LogLoader:
    def __init__(
        self,
        environment: LogEnvironment,
        place: PartitionDirectory,
        config: TopicConfig,
        checkpoints: LogCheckpoints,
    ) -> None:
        _, directory, topic_partition = place
        self._environment = environment
        self._fs: FileSystem = environment.cache.fs
        self._place = place
        self._directory = directory
        self._topic_partition = topic_partition
        self._config = config
        self._checkpoints = checkpoints
        # The base of the segment that was recovered last. Recovery also writes and removes
        # snapshots.
        self._recovered_base: Offset | None = None
        # Whether offsets may be missing between batches, as after compaction.
        self._is_sparse = config.compacts
        self._remote_log_enabled = is_remote_log_enabled(
            topic_partition.topic,
            config,
            system_enabled=environment.remote_storage_system_enable,
        )
        self._now_ms: TimestampMs = environment.clock.now_ms()
        self._epochs = EpochRecovery(self._fs, directory)
        # The state at the end of the segment that was recovered last; empty if none was.
        self._producers = self._new_producers()

    def load(self, topic_id: uuid.UUID | None) -> PartitionLog:
        names = finish_swaps(self._fs, self._directory)
        self._transaction_indexes = TransactionIndexCheckpoint(
            self._fs, self._directory, is_stored=TRANSACTION_INDEX_CHECKPOINT_NAME in names
        )
        ends = self._load_segments(names)
        epochs = self._epochs.epochs
        if self._recovered_base is not None:
            # Listed again only then: a start lists each directory once.
            names = self._fs.list_names(self._directory)
        # A recovery may have written some of them.
        are_durable = self._checkpoints.clean_shutdown and self._recovered_base is None
        snapshots = ProducerSnapshots(self._fs, self._directory, names, are_durable=are_durable)
        log_start_offset = self._log_start_offset(ends)
        with_index = plan_segment_files(names).with_transaction_index
        segments, log_end_offset = self._open_end(ends, log_start_offset, with_index)
        # A crash may have lost unflushed batches of these epochs, and the log start may have moved.
        epochs.truncate_from_end(log_end_offset)
        epochs.truncate_from_start(log_start_offset)
        epochs.forget_below(log_start_offset)
        epochs.flush(log_end_offset)
        self._load_producers(snapshots, segments, log_start_offset, log_end_offset)
        self._transaction_indexes.begin(segments[:-1], with_index)
        if self._recovered_base is not None:
            self._transaction_indexes.store()
        # A clean stop has flushed the log to its end.
        recovery_point = log_end_offset
        if not self._checkpoints.clean_shutdown:
            recovery_point = min(self._checkpoints.recovery_point, log_end_offset)
        log = PartitionLog(
            self._environment,
            self._place,
            topic_id,
            self._config,
            LoadedLog(
                segments,
                log_start_offset=loaded_log_start_offset(
                    log_start_offset,
                    segments[0].base_offset,
                    remote_log_enabled=self._remote_log_enabled,
                ),
                durable_log_start_offset=log_start_offset,
                log_end_offset=log_end_offset,
                recovery_point=recovery_point,
                leader_epochs=epochs,
                producers=self._producers,
                snapshots=snapshots,
                transaction_indexes=self._transaction_indexes,
            ),
        )
        # Limited to the log: an unflushed end may be lost.
        log.update_high_watermark(self._checkpoints.high_watermark)
        return log

    def _log_start_offset(self, ends: Sequence[RecoveredSegment]) -> Offset:
        """The log start. If its checkpoint is lost, the start of the first epoch, which every flush
        cuts to the log start."""
        if self._checkpoints.knows_log_start:
            return self._checkpoints.log_start_offset
        base_offset = ends[0].segment.base_offset if ends else 0
        first = self._epochs.epochs.earliest
        log_start_offset = base_offset if first is None else first.start_offset
        if log_start_offset != base_offset:
            logger.warning(
                "log start offset is lost and taken from the leader epochs partition=%s"
                " log_start_offset=%d",
                self._topic_partition,
                log_start_offset,
            )
        return log_start_offset

    def _load_segments(self, names: list[str]) -> list[RecoveredSegment]:
        files = plan_segment_files(names)
        if files.lost:
            raise CorruptLogError(
                "the log file of a segment is lost, though it has an index"
                f" file={self._directory / files.lost[0]}",
                GIVE_UP_HINT,
            )
        segments = [self._segment(base) for base in files.base_offsets]
        first = first_segment_to_recover(
            files.base_offsets,
            self._checkpoints.recovery_point,
            clean_shutdown=self._checkpoints.clean_shutdown,
        )
        ends = self._check_flushed(files, segments, first)
        # Before the recovery of later segments: epochs are noted in the order of the log.
        self._epochs.read(segments[:first])
        for segment in segments[first:]:
            ends.append(self._recover(segment))
            if ends[-1].cut_size > 0:
                # The later segments follow lost records, so none of them may stay.
                break
        dropped = segments[len(ends) :]
        if ends and not self._checkpoints.clean_shutdown:
            report_recovery(
                self._topic_partition,
                ends[-1],
                dropped,
                recovery_point=self._checkpoints.recovery_point,
                high_watermark=self._checkpoints.high_watermark,
            )
        end_offset = ends[-1].next_offset if ends else 0
        if not (ends and ends[-1].cut_size):
            # One that ends below its start lacks none of its records, and is emptied (`_open_end`).
            # A truncation leaves it so if the log start lies in the batch that it drops.
            end_offset = max(end_offset, self._checkpoints.log_start_offset)
        self._check_end(end_offset)
        if self._remote_log_enabled and segments:
            has_log_start = self._checkpoints.knows_log_start
            self._epochs.check_known_from(
                self._checkpoints.log_start_offset if has_log_start else None,
                segments[0].base_offset,
                ends[-1].next_offset,
            )
        # After all checks: if the log turns out to be damaged, its files must be unchanged.
        self._delete(dropped)
        if not self._is_sparse:
            report_gaps(self._topic_partition, ends, cleaned_to=self._checkpoints.cleaned_to)
        return ends

    def _check_flushed(
        self, files: SegmentFilesPlan, segments: Sequence[LogSegment], count: int
    ) -> list[RecoveredSegment]:
        """Check the first `count` segments, which were flushed. Damaged indexes are rebuilt.

        Raises CorruptLogError if a segment itself is damaged.
        """
        checked = []
        for index, segment in enumerate(segments[:count]):
            following = segments[index + 1].base_offset if index + 1 < len(segments) else None
            known_end = self._checkpoints.recovery_point or None
            next_offset, fault = check_segment(self._fs, segment, following, following or known_end)
            if overflows(segment.base_offset, next_offset):
                raise SegmentOverflowError(segment, plan_split(segment.scan_sound()))
            if not fault:
                has_index = segment.base_offset in files.with_transaction_index
                fault = self._transaction_index_fault(segment, has_index=has_index)
            if fault:
                logger.warning(
                    "indexes are made again from the log file=%s reason='%s'",
                    segment.log_path,
                    fault,
                )
                checked.append(self._recover(segment, is_flushed=True))
            else:
                checked.append(RecoveredSegment(segment, next_offset, 0))
        return checked

    def _transaction_index_fault(self, segment: LogSegment, *, has_index: bool) -> str:
        index = segment.transaction_index if has_index else b""
        fault = self._transaction_indexes.fault(segment.base_offset, index)
        return fault or (_transaction_index_fault(segment) if has_index else "")

    def _check_end(self, log_end_offset: Offset) -> None:
        """Raise CorruptLogError if the log ends below the recovery point: flushed records are
        lost."""
        if log_end_offset < self._checkpoints.recovery_point:
            raise CorruptLogError(
                f"flushed records are missing dir={self._directory}"
                f" first_lost_offset={log_end_offset}"
                f" recovery_point={self._checkpoints.recovery_point}",
                GIVE_UP_HINT,
            )

    def _recover(self, segment: LogSegment, *, is_flushed: bool = False) -> RecoveredSegment:
        """Rebuild a segment's indexes from its log, and truncate it at the first damaged batch.

        Later snapshots are removed if the segment was not flushed: they may include lost batches.
        """
        # Listed anew for each segment: the recovery of the one before has written a snapshot.
        snapshots = ProducerSnapshots(self._fs, self._directory)
        producers = self._producers_before(segment, snapshots)
        segment.activate(self._config.segment_index_bytes, discard_indexes=True)
        size, next_offset = self._index_sound_batches(segment, producers)
        cut_size = segment.size_in_bytes - size
        if cut_size > 0:
            # Checked before anything changes: flushed records are never truncated.
            self._check_end(next_offset)
            segment.cut_file(size)
        segment.deactivate()
        segment.sync()
        producers.map_end_offset = next_offset
        if not is_flushed:
            snapshots.remove_where_above(next_offset)
        snapshots.take(producers)
        self._producers, self._recovered_base = producers, segment.base_offset
        return RecoveredSegment(segment, next_offset, cut_size)

    def _producers_before(
        self, segment: LogSegment, snapshots: ProducerSnapshots
    ) -> ProducerStateManager:
        """The state at the base of a segment that is to be recovered.

        It is that at the end of the segment before, if that one was recovered: a snapshot has the
        last batch of each producer only (docs/decisions/0197).
        """
        names = self._fs.list_names(self._directory)
        bases = plan_segment_files(names).base_offsets
        earlier = [self._segment(base) for base in bases if base < segment.base_offset]
        if earlier and earlier[-1].base_offset == self._recovered_base:
            return self._producers
        producers = self._new_producers()
        rebuild_producers(producers, snapshots, earlier, segment.base_offset, self._now_ms)
        return producers

    def _new_producers(self) -> ProducerStateManager:
        return ProducerStateManager(
            self._topic_partition,
            self._environment.producer_id_expiration_ms,
            self._environment.producer_ids_max,
        )

    def _index_sound_batches(
        self, segment: LogSegment, producers: ProducerStateManager
    ) -> tuple[int, Offset]:
        """Index the batches up to the first damaged one; returns their size and the next offset."""
        size, next_offset = 0, segment.base_offset
        try:
            for sound in segment.scan_sound():
                possible = sound.possible(segment.base_offset, next_offset)
                count = len(possible.batches)
                if count:
                    self._is_sparse |= were_any_compacted(possible, next_offset)
                    self._index_batches(segment, producers, possible)
                    size, next_offset = possible.end_position, int(possible.next_offsets[-1])
                if count < len(sound.batches):
                    self._check_overflow(segment, sound, count)
                    logger.warning(
                        "log is truncated at an impossible offset path=%s position=%d"
                        " base_offset=%d expected_min=%d",
                        segment.log_path,
                        size,
                        sound.batches["base_offset"][count],
                        next_offset,
                    )
                    break
        except CorruptRecordError as error:
            logger.warning(
                "log is truncated path=%s position=%d: %s", segment.log_path, size, error
            )
        return size, next_offset

    def _check_overflow(self, segment: LogSegment, sound: SoundBatches, row: int) -> None:
        """Raise SegmentOverflowError if the batch in `row` is one of a segment that can be split.

        The log file is as it was then; the load that follows makes its indexes again.
        """
        if overflows(segment.base_offset, int(sound.next_offsets[row])):
            plan = plan_split(segment.scan_sound())
            if sound.position + int(sound.batches["position"][row]) < plan.sound_end:
                segment.release_files()
                raise SegmentOverflowError(segment, plan)

    def _index_batches(
        self, segment: LogSegment, producers: ProducerStateManager, sound: SoundBatches
    ) -> None:
        segment.index_sound(sound, self._config.index_interval_bytes)
        for header in sound.epoch_starts():
            self._epochs.note(header)
        for aborted in apply_batches(producers, sound):
            segment.append_aborted_transaction(aborted)

    def _open_end(
        self,
        ends: Sequence[RecoveredSegment],
        log_start_offset: Offset,
        with_transaction_index: Collection[Offset],
    ) -> tuple[list[LogSegment], Offset]:
        """The segments, with the last one active, and the log end offset."""
        segments = [end.segment for end in ends]
        if ends:
            log_end_offset = ends[-1].next_offset
            # As in Kafka's LogLoader. The log start is written to its checkpoint also while the
            # records around it are not flushed, and a follower's log may begin anew above its old
            # end.
            if log_end_offset < log_start_offset:
                logger.warning(
                    "log ends below its start and is emptied partition=%s"
                    " log_end_offset=%d log_start_offset=%d",
                    self._topic_partition,
                    log_end_offset,
                    log_start_offset,
                )
                self._delete(segments)
                self._epochs.epochs.clear()
                segments = []
        if not segments:
            segments = [self._segment(log_start_offset)]
            log_end_offset = log_start_offset
        last = segments[-1]
        last.activate(
            self._config.segment_index_bytes,
            has_transaction_index=last.base_offset in with_transaction_index,
        )
        return segments, log_end_offset

    def _load_producers(
        self,
        snapshots: ProducerSnapshots,
        segments: list[LogSegment],
        log_start_offset: Offset,
        log_end_offset: Offset,
    ) -> None:
        snapshots.remove_where_above(log_end_offset)
        snapshots.remove_strays({segment.base_offset for segment in segments})
        is_lost = self._checkpoints.clean_shutdown and log_end_offset not in snapshots.offsets
        if is_lost and log_end_offset > log_start_offset:
            logger.warning(
                "producer snapshot is lost and made again from the log file=%s",
                snapshots.path(log_end_offset),
            )
        # As in Kafka: a later truncation finds a snapshot near the end, and need not scan the log.
        bases = [] if snapshots.offsets else [segment.base_offset for segment in segments[-2:]]
        # The recovery of the last segment has the state of the log end, with the last batches of
        # each producer, to answer repeated ones. A snapshot has the last one only
        # (docs/decisions/0197).
        is_replayed = (
            self._recovered_base is not None and self._producers.map_end_offset == log_end_offset
        )
        for offset in bases if is_replayed else [*bases, log_end_offset]:
            producers = self._new_producers()
            rebuild_producers(producers, snapshots, segments, offset, self._now_ms)
            snapshots.take(producers)
        if is_replayed:
            self._producers.remove_expired(self._now_ms)
            snapshots.take(self._producers)
        else:
            self._producers = producers

    def _segment(self, base_offset: Offset) -> LogSegment:
        return LogSegment(
            self._environment.cache, self._directory, base_offset, now_ms=self._now_ms
        )

    def _delete(self, segments: list[LogSegment]) -> None:
        # Newest first, so that a crash in between leaves no gap.
        for segment in reversed(segments):
            segment.delete_files()
        if segments:
            # A later crash must not restore them beside newly appended segments.
            self._fs.sync_directory(self._directory)


def _transaction_index_fault(segment: LogSegment) -> str:
    """The reason to rebuild the index; empty if it is valid. The file is created with its first
    entry, so an empty file is wrong."""
    try:
        entries = segment.aborted_transactions()
    except CorruptIndexError as error:
        return str(error)
    if not entries:
        return "transaction index is empty"
    # A transaction ends with its marker, which lies after its records.
    is_sound = all(entry.first_offset < entry.last_offset for entry in entries)
    return "" if is_sound else "a transaction ends where it begins"
