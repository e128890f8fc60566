"""Loading a partition's directory: finish or undo what a crash cut off, recover, open.

After an unclean stop every segment from the recovery point on is read in full: its batches are
checked, the file is cut at the first bad one (what follows a torn write was never acknowledged
as flushed), its indexes and the producer state are rebuilt. Source: Kafka LogLoader.java.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from isotherm.config.topic import TopicConfig
from isotherm.errors import CorruptIndexError, CorruptRecordError
from isotherm.log.batch_scan import scan_batches
from isotherm.log.environment import LogEnvironment
from isotherm.log.fs import FileSystem
from isotherm.log.leader_epoch_cache import LeaderEpochCache
from isotherm.log.log_dir import LogDir
from isotherm.log.log_segment import LogSegment
from isotherm.log.partition_log import PartitionLog
from isotherm.log.producer_replay import rebuild_producers
from isotherm.log.producer_snapshots import ProducerSnapshots
from isotherm.log.producer_state import ProducerStateManager
from isotherm.log.recovery import (
    first_segment_to_recover,
    loaded_log_start_offset,
    plan_leftovers,
    plan_segment_files,
    plan_swaps,
)
from isotherm.log.tiering import is_remote_log_enabled
from isotherm.segment.file_names import (
    LEADER_EPOCH_CHECKPOINT_NAME,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    segment_file_name,
)
from isotherm.types import Offset, TimestampMs, TopicPartition

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogCheckpoints:
    """What the log directory's checkpoint files say of one log. Defaults: a log never seen."""

    recovery_point: Offset = 0
    log_start_offset: Offset = 0
    high_watermark: Offset = 0
    clean_shutdown: bool = False


class _RecoveredSegment(NamedTuple):
    base_offset: Offset
    next_offset: Offset
    cut_size: int


def load_log(
    environment: LogEnvironment,
    log_dir: LogDir,
    directory: Path,
    topic_partition: TopicPartition,
    config: TopicConfig,
    *,
    topic_id: uuid.UUID | None = None,
    checkpoints: LogCheckpoints = LogCheckpoints(),
) -> PartitionLog:
    """Open the log in `directory`, which exists; an empty one becomes an empty log.

    Raises LogDirFailedError when the disk fails, CorruptCheckpointError for a damaged
    leader-epoch checkpoint. Damaged batches are cut off, not raised.
    """
    loader = _LogLoader(environment, directory, topic_partition, config, checkpoints)
    with log_dir.errors_fail_it(f"load {topic_partition}"):
        return loader.load(log_dir, topic_id)


class _LogLoader:
    def __init__(
        self,
        environment: LogEnvironment,
        directory: Path,
        topic_partition: TopicPartition,
        config: TopicConfig,
        checkpoints: LogCheckpoints,
    ) -> None:
        self._environment = environment
        self._fs: FileSystem = environment.cache.fs
        self._directory = directory
        self._topic_partition = topic_partition
        self._config = config
        self._checkpoints = checkpoints
        # Whether a segment was recovered, which also takes and removes snapshots.
        self._has_recovered = False
        # Whether offsets may be missing between batches, as compaction leaves them.
        self._is_sparse = config.compacts
        self._now_ms: TimestampMs = environment.clock.now_ms()
        self._producers = ProducerStateManager(
            topic_partition, environment.producer_id_expiration_ms
        )

    def load(self, log_dir: LogDir, topic_id: uuid.UUID | None) -> PartitionLog:
        names = self._finish_replacements()
        epochs = LeaderEpochCache(self._fs, self._directory / LEADER_EPOCH_CHECKPOINT_NAME)
        segments = self._load_segments(names, epochs)
        if self._has_recovered:
            names = self._fs.list_names(self._directory)
        snapshots = ProducerSnapshots(self._fs, self._directory, names)
        segments, log_end_offset = self._open_end(segments, epochs)
        remote_log_enabled = is_remote_log_enabled(
            self._topic_partition.topic,
            self._config,
            system_enabled=self._environment.remote_storage_system_enable,
        )
        log_start_offset = loaded_log_start_offset(
            self._checkpoints.log_start_offset,
            segments[0].base_offset,
            remote_log_enabled=remote_log_enabled,
        )
        epochs.truncate_from_end(log_end_offset)
        epochs.truncate_from_start(self._checkpoints.log_start_offset)
        epochs.flush(log_end_offset)
        self._load_producers(snapshots, segments, log_end_offset)
        recovery_point = log_end_offset
        if not self._checkpoints.clean_shutdown:
            recovery_point = min(self._checkpoints.recovery_point, log_end_offset)
        log = PartitionLog(
            self._environment,
            log_dir,
            self._directory,
            self._topic_partition,
            topic_id,
            self._config,
            segments=segments,
            log_start_offset=log_start_offset,
            log_end_offset=log_end_offset,
            recovery_point=recovery_point,
            leader_epochs=epochs,
            producers=self._producers,
            snapshots=snapshots,
        )
        log.update_high_watermark(self._checkpoints.high_watermark)
        return log

    def _finish_replacements(self) -> list[str]:
        """The names in the directory afterwards."""
        names = self._fs.list_names(self._directory)
        leftovers = plan_leftovers(names)
        if not leftovers.deletions and not any(name.endswith(SWAP_SUFFIX) for name in names):
            return names
        self._remove(leftovers.deletions)
        ranges = [(base, self._swap_next_offset(base)) for base in leftovers.swap_base_offsets]
        swaps = plan_swaps(self._fs.list_names(self._directory), ranges)
        self._remove(swaps.deletions)
        for source, target in swaps.renames:
            self._fs.rename(self._directory / source, self._directory / target)
        self._fs.sync_directory(self._directory)
        return self._fs.list_names(self._directory)

    def _swap_next_offset(self, base_offset: Offset) -> Offset:
        path = self._directory / segment_file_name(base_offset, LOG_SUFFIX, SWAP_SUFFIX)
        file = self._fs.open_readable(path)
        next_offset = base_offset
        for span in scan_batches(file, 0, file.size()):
            next_offset = span.last_offset + 1
        return next_offset

    def _load_segments(self, names: list[str], epochs: LeaderEpochCache) -> list[LogSegment]:
        files = plan_segment_files(names)
        self._remove(files.deletions)
        segments = [self._segment(base) for base in files.base_offsets]
        first = first_segment_to_recover(
            files.base_offsets,
            self._checkpoints.recovery_point,
            clean_shutdown=self._checkpoints.clean_shutdown,
        )
        for segment in segments[:first]:
            base_offset = segment.base_offset
            if base_offset in files.without_offset_index or (
                base_offset in files.with_transaction_index and _is_damaged(segment)
            ):
                self._recover(segment, epochs)
        recovered: list[_RecoveredSegment] = []
        for segment in segments[first:]:
            recovered.append(self._recover(segment, epochs))
            if recovered[-1].cut_size > 0:
                break
        self._report_gaps(recovered)
        kept = first + len(recovered)
        self._delete(segments[kept:])
        return segments[:kept]

    def _report_gaps(self, recovered: list[_RecoveredSegment]) -> None:
        """Say which offsets a power failure took from the middle of the log.

        The file of a new segment may reach the disk without the end of the one before. What
        follows is kept, as in Kafka: it is sound, and in a log that was compacted once, or whose
        checkpoint was lost, a gap may be no loss at all (docs/decisions/0013).
        """
        if self._is_sparse:
            return
        for earlier, later in pairwise(recovered):
            if later.base_offset > earlier.next_offset:
                logger.error(
                    "records are missing after an unclean stop partition=%s"
                    " first_missing_offset=%d next_offset=%d",
                    self._topic_partition,
                    earlier.next_offset,
                    later.base_offset,
                )

    def _recover(self, segment: LogSegment, epochs: LeaderEpochCache) -> _RecoveredSegment:
        """Rebuild a segment's indexes from its log, and cut it at the first damaged batch."""
        self._has_recovered = True
        snapshots = ProducerSnapshots(self._fs, self._directory)
        producers = ProducerStateManager(
            self._topic_partition, self._environment.producer_id_expiration_ms
        )
        earlier = [
            self._segment(base)
            for base in plan_segment_files(self._fs.list_names(self._directory)).base_offsets
            if base < segment.base_offset
        ]
        rebuild_producers(producers, snapshots, earlier, segment.base_offset, self._now_ms)
        segment.activate(self._config.segment_index_bytes, discard_indexes=True)
        size, next_offset = self._index_sound_batches(segment, epochs, producers)
        cut_size = segment.size_in_bytes - size
        if cut_size > 0:
            segment.cut_file(size)
        segment.deactivate()
        segment.sync()
        producers.map_end_offset = next_offset
        snapshots.remove_where_above(next_offset)
        snapshots.take(producers)
        return _RecoveredSegment(segment.base_offset, next_offset, cut_size)

    def _index_sound_batches(
        self, segment: LogSegment, epochs: LeaderEpochCache, producers: ProducerStateManager
    ) -> tuple[int, Offset]:
        """Take in the batches up to the first damaged one: their size, and the offset after."""
        size, next_offset = 0, segment.base_offset
        try:
            for position, header in segment.scan_verified():
                if header.base_offset < next_offset or not segment.offset_fits(header.last_offset):
                    logger.warning(
                        "log is cut at an offset that cannot be path=%s position=%d"
                        " base_offset=%d expected_min=%d",
                        segment.log_path,
                        position,
                        header.base_offset,
                        next_offset,
                    )
                    break
                self._is_sparse |= (
                    header.base_offset > next_offset
                    or header.records_count <= header.last_offset_delta
                )
                segment.index_batch(header, position, self._config.index_interval_bytes)
                latest = epochs.latest
                known = -1 if latest is None else latest.epoch
                if header.partition_leader_epoch > known:
                    epochs.assign(header.partition_leader_epoch, header.base_offset)
                if header.has_producer_id:
                    batch = segment.read_batch(position, header) if header.is_control else b""
                    aborted = producers.apply(header, batch, 0)
                    if aborted is not None:
                        segment.append_aborted_transaction(aborted)
                size, next_offset = position + header.size_in_bytes, header.next_offset
        except CorruptRecordError as error:
            logger.warning("log is cut path=%s position=%d: %s", segment.log_path, size, error)
        return size, next_offset

    def _open_end(
        self, segments: list[LogSegment], epochs: LeaderEpochCache
    ) -> tuple[list[LogSegment], Offset]:
        """The segments with the last one active, and the log end offset."""
        log_start_offset = self._checkpoints.log_start_offset
        if segments:
            log_end_offset = segments[-1].read_next_offset()
            if log_end_offset < log_start_offset:
                logger.warning(
                    "log ends below its start and begins anew there partition=%s"
                    " log_end_offset=%d log_start_offset=%d",
                    self._topic_partition,
                    log_end_offset,
                    log_start_offset,
                )
                self._delete(segments)
                epochs.clear()
                segments = []
        if not segments:
            segments = [self._segment(log_start_offset)]
            log_end_offset = log_start_offset
        segments[-1].activate(self._config.segment_index_bytes)
        return segments, log_end_offset

    def _load_producers(
        self, snapshots: ProducerSnapshots, segments: list[LogSegment], log_end_offset: Offset
    ) -> None:
        snapshots.remove_where_above(log_end_offset)
        snapshots.remove_strays({segment.base_offset for segment in segments})
        if not snapshots.offsets and self._checkpoints.clean_shutdown:
            # No snapshot although all is well: there has never been a producer with an id.
            for offset in [*(segment.base_offset for segment in segments[-2:]), log_end_offset]:
                self._producers.map_end_offset = offset
                snapshots.take(self._producers)
            return
        rebuild_producers(self._producers, snapshots, segments, log_end_offset, self._now_ms)
        snapshots.take(self._producers)

    def _segment(self, base_offset: Offset) -> LogSegment:
        return LogSegment(
            self._environment.cache, self._directory, base_offset, now_ms=self._now_ms
        )

    def _delete(self, segments: list[LogSegment]) -> None:
        # Newest first, so that a crash in between leaves no hole.
        for segment in reversed(segments):
            segment.delete_files()
        if segments:
            # Another crash must not bring them back beside what is appended from now on.
            self._fs.sync_directory(self._directory)

    def _remove(self, names: tuple[str, ...]) -> None:
        for name in names:
            self._fs.remove(self._directory / name)


def _is_damaged(segment: LogSegment) -> bool:
    """Whether the transaction index is; offset and time indexes are trusted, as in Kafka."""
    try:
        segment.aborted_transactions()
    except CorruptIndexError as error:
        logger.warning("transaction index is rebuilt path=%s: %s", segment.log_path, error)
        return True
    return False
