"""Rebuilds lost files of a closed segment: its indexes, and the producer snapshot at its end.

Both can be derived from the records. A start does the same for segments that it recovers (log_loader).
This is for a segment that is about to be copied: the copy would lack the files for good.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from isotherm.errors import CorruptIndexError, CorruptSnapshotError
from isotherm.log.environment import LogEnvironment
from isotherm.log.log_segment import LogSegment
from isotherm.log.partition_log import PartitionLog
from isotherm.log.producer_replay import rebuild_producers
from isotherm.log.producer_state import ProducerStateManager
from isotherm.segment.file_names import CLEANED_SUFFIX
from isotherm.segment.offset_index import check_offset_index
from isotherm.segment.producer_snapshot import read_producer_snapshot
from isotherm.segment.time_index import check_time_index
from isotherm.types import Offset

_logger = logging.getLogger(__name__)


def mend_segment(log: PartitionLog, segment: LogSegment, end_offset: Offset) -> None:
    """Rebuild files that are missing or damaged. Valid files are not changed.

    A missing transaction index is only noticed if another index is missing too, as most segments
    have none. Raises OSError, and CorruptRecordError if the records cannot be read.
    """
    if _indexes_are_damaged(log.environment, segment):
        _mend_indexes(log, segment)
    if not _snapshot_is_sound(log, end_offset):
        _logger.warning(
            "producer snapshot is made again partition=%s offset=%d",
            log.topic_partition,
            end_offset,
        )
        if end_offset in log.snapshots.offsets:
            log.snapshots.remove(end_offset)
        log.snapshots.take(_producers_at(log, end_offset))


def _indexes_are_damaged(environment: LogEnvironment, segment: LogSegment) -> bool:
    fs, base = environment.cache.fs, segment.base_offset
    try:
        check_offset_index(fs.read_bytes(segment.offset_index_path), base)
        check_time_index(fs.read_bytes(segment.time_index_path), base)
        segment.aborted_transactions()
    except (FileNotFoundError, CorruptIndexError) as error:
        if not fs.exists(segment.log_path):
            return False  # deleted meanwhile
        _logger.warning("indexes of a segment are made again path=%s: %s", segment.log_path, error)
        return True
    return False


def _mend_indexes(log: PartitionLog, segment: LogSegment) -> None:
    """Rebuild under names that a start would remove, then rename."""
    environment, fs = log.environment, log.environment.cache.fs
    made = LogSegment(
        environment.cache,
        segment.directory,
        segment.base_offset,
        now_ms=environment.clock.now_ms(),
        temporary_suffix=CLEANED_SUFFIX,
    )
    producers = _producers_at(log, segment.base_offset)
    made.activate(log.config.segment_index_bytes, discard_indexes=True)
    for position, header in segment.scan_verified():
        made.index_batch(header, position, log.config.index_interval_bytes)
        if header.has_producer_id:
            batch = segment.read_batch(position, header) if header.is_control else b""
            aborted = producers.apply(header, batch, 0)
            if aborted is not None:
                made.append_aborted_transaction(aborted)
    made.deactivate()
    for source, target in (
        (made.offset_index_path, segment.offset_index_path),
        (made.time_index_path, segment.time_index_path),
        (made.transaction_index_path, segment.transaction_index_path),
    ):
        if fs.exists(source):
            fs.sync_file(source)
            fs.rename(source, target)
        else:
            fs.remove(target)
    made.delete_files()
    segment.release_files()


def _snapshot_is_sound(log: PartitionLog, offset: Offset) -> bool:
    if offset not in log.snapshots.offsets:
        return False
    try:
        read_producer_snapshot(log.environment.cache.fs.read_bytes(log.snapshots.path(offset)))
    except (FileNotFoundError, CorruptSnapshotError):
        return False
    return True


def _producers_at(log: PartitionLog, offset: Offset) -> ProducerStateManager:
    """The producers at this offset, as far as the local files show them."""
    environment = log.environment
    producers = ProducerStateManager(log.topic_partition, environment.producer_id_expiration_ms)
    earlier: Sequence[LogSegment] = [each for each in log.segments() if each.base_offset < offset]
    # With time 0 no producer is expired: those that are expired now were active then.
    rebuild_producers(producers, log.snapshots, earlier, offset, now_ms=0)
    return producers
