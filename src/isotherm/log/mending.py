"""Rebuilds lost files of a closed segment: its indexes, and the producer snapshot at its end.

Both can be derived from the records. A start does the same for segments that it recovers
(log_loader). This is for a segment that is about to be copied: the copy would lack the files for
good.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence

from isotherm.errors import CorruptIndexError, CorruptRecordError, CorruptSnapshotError
from isotherm.log.batch_scan import SoundBatches
from isotherm.log.log_segment import LogSegment
from isotherm.log.partition_log import PartitionLog
from isotherm.log.producer_replay import apply_batches, rebuild_producers
from isotherm.log.producer_state import ProducerStateManager
from isotherm.record.batch import read_batch_header
from isotherm.record.batch_table import read_batch_table
from isotherm.record.control import ControlRecordType
from isotherm.record.control_table import marker_types
from isotherm.segment.file_names import CLEANED_SUFFIX
from isotherm.segment.offset_index import check_offset_index
from isotherm.segment.producer_snapshot import read_producer_snapshot
from isotherm.segment.time_index import check_time_index
from isotherm.segment.transaction_index import AbortedTransaction, read_transaction_index
from isotherm.types import Offset

_logger = logging.getLogger(__name__)

MARKER_READ_SIZE = 8 * 1024 * 1024


def mend_segment(log: PartitionLog, segment: LogSegment, end_offset: Offset) -> None:
    """Rebuild files that are missing or damaged. Valid files are not changed.

    The transaction index must name the aborts that the segment's markers show: the records are read
    for them, by columns. Raises OSError, and CorruptRecordError if the records cannot be read.
    """
    fault = _index_fault(log, segment)
    if fault:
        _logger.warning("indexes of a segment are made again path=%s: %s", segment.log_path, fault)
        _mend_indexes(log, segment)
        log.index_is_mended(segment)
    if not _snapshot_is_sound(log, end_offset):
        _logger.warning(
            "producer snapshot is made again partition=%s offset=%d",
            log.topic_partition,
            end_offset,
        )
        if end_offset in log.snapshots.offsets:
            log.snapshots.remove(end_offset)
        log.snapshots.take(_producers_at(log, end_offset))


def _index_fault(log: PartitionLog, segment: LogSegment) -> str:
    """Why the indexes must be made again; empty if they are valid."""
    fs, base = log.environment.cache.fs, segment.base_offset
    try:
        check_offset_index(fs.read_bytes(segment.offset_index_path), base)
        check_time_index(fs.read_bytes(segment.time_index_path), base)
        has_index = fs.exists(segment.transaction_index_path)
        index = fs.read_bytes(segment.transaction_index_path) if has_index else b""
        return _abort_fault(log, segment, read_transaction_index(index, base))
    except (FileNotFoundError, CorruptIndexError) as error:
        is_deleted = not fs.exists(segment.log_path)  # meanwhile
        return "" if is_deleted else str(error)


def _abort_fault(
    log: PartitionLog, segment: LogSegment, entries: Collection[AbortedTransaction]
) -> str:
    """An aborted transaction that the index lacks, as a fact; empty if there is none. An index with
    more entries than the records show may be right: compaction removes the records of an aborted
    transaction before its marker."""
    named = {entry.last_offset for entry in entries}
    if named.issuperset(_abort_marker_offsets(segment)):
        return ""
    # Some markers may rightly lack an entry: an aborted transaction without records has none. The
    # replay finds out.
    for _, all_aborted in _replay(log, segment):
        for aborted in all_aborted:
            if aborted.last_offset not in named:
                return (
                    "transaction index lacks an aborted transaction"
                    f" producer_id={aborted.producer_id} marker_offset={aborted.last_offset}"
                )
    return ""


def _abort_marker_offsets(segment: LogSegment) -> Iterator[Offset]:
    position = 0
    while position < segment.size_in_bytes:
        data = segment.read_bytes(position, MARKER_READ_SIZE)
        batches, end = read_batch_table(data)
        if not len(batches):
            data = segment.read_batch(position, read_batch_header(data, 0))
            batches, end = read_batch_table(data)
        if not len(batches):
            raise CorruptRecordError(
                f"batch is cut off path={segment.log_path} position={position}"
            )
        is_abort = marker_types(data, batches) == ControlRecordType.ABORT
        yield from batches["base_offset"][is_abort].tolist()
        position += end


def _replay(
    log: PartitionLog, segment: LogSegment
) -> Iterator[tuple[SoundBatches, list[AbortedTransaction]]]:
    """Yield the batches, each run with the transactions that it aborts."""
    producers = _producers_at(log, segment.base_offset)
    for sound in segment.scan_sound():
        yield sound, list(apply_batches(producers, sound))


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
    made.activate(log.config.segment_index_bytes, discard_indexes=True)
    for sound, all_aborted in _replay(log, segment):
        made.index_sound(sound, log.config.index_interval_bytes)
        for aborted in all_aborted:
            made.append_aborted_transaction(aborted)
    made.deactivate()
    # One by one: each is right by itself, so a crash between two renames does no harm.
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
    # The cache may have the old indexes.
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
    earlier: Sequence[LogSegment] = [
        segment for segment in log.segments() if segment.base_offset < offset
    ]
    # With time 0 no producer is expired: those that are expired now were active then.
    rebuild_producers(producers, log.snapshots, earlier, offset, now_ms=0)
    return producers
