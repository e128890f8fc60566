"""Finds the first record of a tiered log that is not older than a time.

The time index of a segment gives the start of the search. It has no CRC, so its entries are
compared with their batches. If the index is wrong, the segment is searched from its start.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterable
from contextlib import closing

from isotherm.errors import (
    CorruptIndexError,
    UnreadableDataError,
)
from isotherm.record.batch import BatchHeader
from isotherm.record.columns import decode_columns
from isotherm.remote.history.holes import Gaps
from isotherm.remote.segment_metadata import IndexType
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.segment.time_index import SkippedBy, TimestampOffset, read_time_index
from isotherm.spark.plan.planning import SegmentPiece, SegmentRead
from isotherm.spark.reading.read_errors import named
from isotherm.spark.reading.readers import batches_of
from isotherm.types import NO_TIMESTAMP, Offset, TimestampMs

_logger = logging.getLogger(__name__)


def first_offset_not_before(
    pieces: Iterable[SegmentPiece],
    storage: RemoteStorageManager,
    timestamp_ms: TimestampMs,
    *,
    gaps: Gaps = Gaps.REFUSED,
) -> Offset | None:
    """The first offset in `pieces` whose record, or marker, is not older than `timestamp_ms`.

    Fetches the indexes of the first segment that is new enough, and its records from the indexed
    position on. Later segments are read only if that one has no such record. The records are
    verified like those of a query. Raises SegmentReadError.
    """
    passed_over: SegmentPiece | None = None
    for piece in (*pieces, None):
        if piece is not None and piece.segment.max_timestamp_ms < timestamp_ms:
            passed_over = piece
            continue
        # The metadata may be wrong, so the last segment that it calls too old is checked too.
        for young in filter(None, (passed_over, piece)):
            whole = SegmentRead(young.segment, young.start_offset, young.end_offset)
            if young is passed_over and not _may_be_young(whole, storage, timestamp_ms):
                continue
            place = _first_young_offset(whole, storage, timestamp_ms, gaps)
            if place is not None:
                return place
        passed_over = None
    return None


def _may_be_young(
    whole: SegmentRead, storage: RemoteStorageManager, timestamp_ms: TimestampMs
) -> bool:
    entries = _time_entries(whole, storage)
    return not entries or entries[-1].timestamp_ms >= timestamp_ms


def _first_young_offset(
    whole: SegmentRead, storage: RemoteStorageManager, timestamp_ms: TimestampMs, gaps: Gaps
) -> Offset | None:
    segment = whole.segment
    entries = [TimestampOffset(NO_TIMESTAMP, segment.start_offset), *_time_entries(whole, storage)]
    # Take only strictly older entries: one with the same time may be that of a later record.
    count = bisect_left(entries, timestamp_ms, key=lambda entry: entry.timestamp_ms)
    # Start one entry earlier than needed. If an entry is wrong and passes the checks, it is wrong
    # by little, and the entry before it is right.
    hints = entries[:count][-2:]
    start = max(whole.start_offset, hints[0].offset if hints else 0)
    # A record of that time lies at or before the next entry's offset, unless the piece begins
    # later.
    end = whole.end_offset
    cut = max(start, min(entries[count].offset + 1, end) if count < len(entries) else end)
    try:
        skipped_by = SkippedBy(hints if start > whole.start_offset else ())
        place = _first_young_record(whole.of(start, cut), storage, timestamp_ms, gaps, skipped_by)
    except CorruptIndexError as error:
        _logger.warning("looked up without the time index: %s", error)
        return _first_young_record(whole, storage, timestamp_ms, gaps, SkippedBy())
    if place is None:
        place = _first_young_record(whole.of(cut, end), storage, timestamp_ms, gaps, SkippedBy())
    return place


def _time_entries(whole: SegmentRead, storage: RemoteStorageManager) -> list[TimestampOffset]:
    """The entries of a time index. Empty if it cannot be used, so that the segment is searched from
    its start."""
    with named(whole):
        try:
            index = storage.fetch_index(whole.segment, IndexType.TIMESTAMP)
            return read_time_index(index, whole.segment.start_offset)
        except UnreadableDataError as error:
            _logger.warning("looked up without the time index: %s", error)
            return []


def _first_young_record(
    read: SegmentRead,
    storage: RemoteStorageManager,
    timestamp_ms: TimestampMs,
    gaps: Gaps,
    skipped_by: SkippedBy,
) -> Offset | None:
    """As `first_offset_not_before`, for one read. Raises CorruptIndexError if a batch contradicts
    the time index."""
    if read.start_offset >= read.end_offset:
        skipped_by.end()
        return None
    with closing(batches_of(read, storage, gaps)) as batches:
        for header, batch in batches:
            skipped_by.pass_batch(header)
            if header.max_timestamp >= timestamp_ms and header.last_offset >= read.start_offset:
                offset = _young_offset_in(read, header, batch, timestamp_ms)
                if offset is not None:
                    skipped_by.end(header)
                    return offset
    skipped_by.end()
    return None


def _young_offset_in(
    read: SegmentRead, header: BatchHeader, batch: memoryview, timestamp_ms: TimestampMs
) -> Offset | None:
    # A marker counts with its own time, as in a Kafka broker's ListOffsets.
    if header.is_control:
        return header.base_offset
    with named(read):
        columns = decode_columns(
            batch,
            offset_range=(read.start_offset, read.end_offset),
            columns=frozenset({"timestamp"}),
        )
    assert columns.timestamp_ms is not None
    young = (columns.timestamp_ms >= timestamp_ms).nonzero()[0]
    return int(columns.offset[young[0]]) if len(young) else None
