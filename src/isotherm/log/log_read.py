"""Reads a log by offset and by timestamp, from a snapshot of it.

These functions hold no lock: segments only grow, and a segment that retention deletes meanwhile
stays readable for file.delete.delay.ms.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from typing import NamedTuple, Protocol

from isotherm.errors import OffsetOutOfRangeError
from isotherm.log.log_segment import LogSegment, TimestampAndOffset
from isotherm.segment.transaction_index import (
    AbortedTransaction,
    collect_aborted_transactions,
)
from isotherm.types import Offset, Position, TimestampMs, TopicPartition

EMPTY_RECORDS = memoryview(b"")
_BASE_OFFSET = attrgetter("base_offset")


class FetchIsolation(enum.Enum):
    """The end of the readable offsets: for followers, consumers, and read_committed consumers."""

    LOG_END = "log_end"
    HIGH_WATERMARK = "high_watermark"
    TXN_COMMITTED = "txn_committed"


class LogRead(NamedTuple):
    """The result of a read: whole batches, of which the first may start below the offset.

    `end_offset` is the end of the readable offsets. aborted_transactions is None unless the read
    was TXN_COMMITTED. It may have transactions that overlap none of the records.
    """

    records: memoryview
    start_offset_segment_base: Offset
    position: Position
    high_watermark: Offset
    last_stable_offset: Offset
    log_start_offset: Offset
    log_end_offset: Offset
    end_offset: Offset
    aborted_transactions: list[AbortedTransaction] | None


class LogView(NamedTuple):
    """A log at one moment. `segments` ascend; active_size is the size of the last one then."""

    topic_partition: TopicPartition
    segments: Sequence[LogSegment]
    active_size: int
    log_start_offset: Offset
    local_log_start_offset: Offset
    log_end_offset: Offset
    high_watermark: Offset
    last_stable_offset: Offset

    def segment_end_offset(self, index: int) -> Offset:
        following = index + 1
        if following < len(self.segments):
            return self.segments[following].base_offset
        return self.log_end_offset

    def segment_size(self, index: int) -> int:
        is_last = index + 1 == len(self.segments)
        return self.active_size if is_last else self.segments[index].size_in_bytes


class _Based(Protocol):
    @property
    def base_offset(self) -> Offset: ...


def floor_index(segments: Sequence[_Based], offset: Offset) -> int:
    """Index of the last segment with a base of at most `offset`; -1 if there is none."""
    return bisect_right(segments, offset, key=_BASE_OFFSET) - 1


def read_log(
    view: LogView,
    start_offset: Offset,
    max_bytes: int,
    isolation: FetchIsolation,
    *,
    min_one_message: bool,
) -> LogRead | None:
    """Batches of one segment, from the one that contains `start_offset` on.

    At most `max_bytes`, but at least the first batch if `min_one_message`. Empty at the end of the
    offsets that `isolation` allows. None if `start_offset` is outside [local log start, log end],
    or retention has deleted its segment since the view was taken.
    """
    if not view.local_log_start_offset <= start_offset <= view.log_end_offset:
        return None
    is_committed = isolation is FetchIsolation.TXN_COMMITTED
    if isolation is FetchIsolation.HIGH_WATERMARK:
        end_offset = view.high_watermark
    else:
        end_offset = view.last_stable_offset if is_committed else view.log_end_offset
    records, position, segment_base = EMPTY_RECORDS, 0, start_offset
    aborted: list[AbortedTransaction] | None = [] if is_committed else None
    last = len(view.segments) - 1
    first = last
    if start_offset < view.segments[last].base_offset:  # most readers are at the end
        first = floor_index(view.segments, start_offset)
    try:
        for index in range(first, last + 1):
            segment = view.segments[index]
            if start_offset >= end_offset or segment.base_offset >= end_offset:
                break
            if index == last and end_offset == view.log_end_offset:  # most reads
                end_position = view.active_size
            else:
                end_position = _end_position(view, index, end_offset)
            read = segment.read(
                start_offset,
                max_bytes,
                end_position,
                min_one_message=min_one_message,
                needs_upper_bound=is_committed,
            )
            if read is None:  # compaction has emptied the segment's end
                continue
            records, position, segment_base = read.records, read.position, segment.base_offset
            if is_committed:
                upper_bound = read.upper_bound_offset or view.segment_end_offset(index)
                aborted = aborted_transactions(view.segments[index:], start_offset, upper_bound)
            break
    except FileNotFoundError:
        return None
    return LogRead(
        records,
        segment_base,
        position,
        view.high_watermark,
        view.last_stable_offset,
        view.log_start_offset,
        view.log_end_offset,
        end_offset,
        aborted,
    )


def aborted_transactions(
    segments: Sequence[LogSegment], fetch_offset: Offset, upper_bound_offset: Offset
) -> list[AbortedTransaction]:
    """Aborted transactions in these segments that overlap [fetch_offset, upper_bound_offset)."""
    transactions: list[AbortedTransaction] = []
    # A transaction is in the index of the segment with its marker, which may come after that of
    # its records.
    for segment in segments:
        aborted, complete = collect_aborted_transactions(
            segment.aborted_transactions(), fetch_offset, upper_bound_offset
        )
        transactions += aborted
        if complete:
            break
    return transactions


def offset_for_timestamp(view: LogView, timestamp_ms: TimestampMs) -> TimestampAndOffset | None:
    """The first local record with this timestamp or a later one; None if there is none."""
    for segment in view.segments:
        # Deleted meanwhile: its records are not local any more.
        with suppress(FileNotFoundError):
            if segment.size_in_bytes > 0 and segment.largest_timestamp_ms >= timestamp_ms:
                record = segment.find_offset_by_timestamp(timestamp_ms, view.local_log_start_offset)
                if record is not None:
                    return record
    return None


def offset_of_largest_timestamp(view: LogView) -> TimestampAndOffset | None:
    """The first local record with the largest timestamp; None if no record has a timestamp."""
    segment = max(view.segments, key=lambda segment: segment.largest_timestamp.timestamp_ms)
    with suppress(FileNotFoundError):
        return segment.find_offset_of_largest_timestamp()
    return None


def _end_position(view: LogView, index: int, end_offset: Offset) -> Position:
    if end_offset >= view.segment_end_offset(index):
        return view.segment_size(index)
    batch = view.segments[index].find_batch(end_offset, view.segment_size(index))
    return view.segment_size(index) if batch is None else batch.position


def out_of_range(view: LogView, offset: Offset) -> OffsetOutOfRangeError:
    """The error for an offset that `read_log` cannot read."""
    return OffsetOutOfRangeError(
        f"offset is outside the local log partition={view.topic_partition} offset={offset}"
        f" local_log_start_offset={view.local_log_start_offset}"
        f" log_end_offset={view.log_end_offset}"
    )
