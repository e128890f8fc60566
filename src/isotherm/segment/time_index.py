"""The time index of a segment (`.timeindex`): the offset to search from for a timestamp.

    | at | size | field                                                              |
    |----|------|--------------------------------------------------------------------|
    | 0  | 8    | largest timestamp so far in the segment, milliseconds (i64)        |
    | 8  | 4    | offset of the batch that has it, minus the base offset (i32)       |

Big-endian entries of 12 bytes. Timestamps rise strictly, offsets never fall. An all-zero entry is
read as the padding of a preallocated file: a real entry (timestamp 0, base offset) would give the
same lookup result. On roll and close Kafka adds a final entry with the segment's largest timestamp.
Source: Kafka TimeIndex.java.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from isotherm.errors import CorruptIndexError
from isotherm.segment.offset_index import RELATIVE_OFFSET_MAX, Buffer
from isotherm.types import NO_TIMESTAMP, Offset, TimestampMs

if TYPE_CHECKING:
    from isotherm.record.batch import BatchHeader

TIME_INDEX_ENTRY_SIZE = 12

_ENTRY = struct.Struct(">qi")
_TIMESTAMP = struct.Struct(">q4x")


class TimestampOffset(NamedTuple):
    timestamp_ms: TimestampMs
    offset: Offset


class SkippedBy:
    """The index entries that let a search for the first record of a time skip earlier batches,
    ascending.

    An index has no CRC: each entry must name the largest timestamp so far, and an offset of the
    batch that has it. The methods raise CorruptIndexError for an entry that the log contradicts:
    the search begins again without the index.
    """

    def __init__(self, entries: Iterable[TimestampOffset] = ()) -> None:
        self._left = deque(entries)

    def pass_batch(self, header: BatchHeader) -> None:
        """Call with each batch of the search, in order."""
        while self._left and self._left[0].offset <= header.last_offset:
            _check_named(self._left.popleft(), header)

    def end(self, header: BatchHeader | None = None) -> None:
        """End the search in the batch that has the record; None if no batch has it. An entry that
        is left has a lower time than the record, so its batch should have been passed."""
        if self._left:
            _check_named(self._left.popleft(), header)


def _check_named(entry: TimestampOffset, header: BatchHeader | None) -> None:
    is_there = header is not None and header.base_offset <= entry.offset <= header.last_offset
    if header is None or not is_there or header.max_timestamp != entry.timestamp_ms:
        batch = None if header is None else f"{header.base_offset}-{header.last_offset}"
        raise CorruptIndexError(
            f"time index entry leads to no batch of its time offset={entry.offset}"
            f" timestamp_ms={entry.timestamp_ms} batch={batch}"
        )


def time_index_entry_count(buffer: Buffer) -> int:
    """Number of entries before the padding. A trailing partial entry is not counted."""
    count = len(buffer) // TIME_INDEX_ENTRY_SIZE
    if count == 0 or _raw_entry_at(buffer, count - 1) != (0, 0):
        return count
    return bisect_left(range(count), True, key=lambda index: _raw_entry_at(buffer, index) == (0, 0))


def read_time_index(buffer: Buffer, base_offset: Offset) -> list[TimestampOffset]:
    """Decode a whole `.timeindex` file and check every entry.

    Raises CorruptIndexError with the entry; the caller rebuilds the index from the log.
    """
    check_time_index(buffer, base_offset)
    entries: list[TimestampOffset] = []
    previous = (NO_TIMESTAMP, 0)
    for index in range(time_index_entry_count(buffer)):
        timestamp, relative = _raw_entry_at(buffer, index)
        if timestamp <= previous[0] or relative < previous[1]:
            raise CorruptIndexError(
                f"time index entry does not rise base_offset={base_offset} entry={index}"
                f" timestamp_ms={timestamp} relative_offset={relative}"
            )
        entries.append(TimestampOffset(timestamp, base_offset + relative))
        previous = (timestamp, relative)
    return entries


def check_time_index(buffer: Buffer, base_offset: Offset) -> None:
    """Kafka's cheap sanity check: whole entries, the last not below the base offset or the first.

    Raises CorruptIndexError; the caller rebuilds or fetches the index again.
    """
    if len(buffer) % TIME_INDEX_ENTRY_SIZE != 0:
        raise CorruptIndexError(
            f"time index is not a whole number of entries base_offset={base_offset}"
            f" size={len(buffer)} entry_size={TIME_INDEX_ENTRY_SIZE}"
        )
    count = time_index_entry_count(buffer)
    if count == 0:
        return
    last = _entry_at(buffer, base_offset, count - 1)
    first_timestamp = _raw_entry_at(buffer, 0)[0]
    if last.offset < base_offset or last.timestamp_ms < first_timestamp:
        raise CorruptIndexError(
            "time index ends below its start"
            f" base_offset={base_offset} last_offset={last.offset}"
            f" first_timestamp_ms={first_timestamp} last_timestamp_ms={last.timestamp_ms}"
        )


def lookup_timestamp(
    buffer: Buffer, base_offset: Offset, target_ms: TimestampMs
) -> TimestampOffset:
    """The last entry with a timestamp of at most `target_ms`; (-1, base_offset) if there is none.

    No record before that offset has a larger timestamp than the entry, so the search for the first
    record at or after `target_ms` may start there.
    """
    return _entry_before(buffer, base_offset, _count_not_younger(buffer, target_ms))


def last_entries_before(
    buffer: Buffer, base_offset: Offset, target_ms: TimestampMs, count: int
) -> list[TimestampOffset]:
    """The last `count` entries with a timestamp below `target_ms`, fewer if there are fewer."""
    end = _count_not_younger(buffer, target_ms - 1)
    return [_entry_at(buffer, base_offset, index) for index in range(max(0, end - count), end)]


def last_time_index_entry(buffer: Buffer, base_offset: Offset) -> TimestampOffset:
    """The last entry; (-1, base_offset) if there is none."""
    return _entry_before(buffer, base_offset, time_index_entry_count(buffer))


def last_timestamp_ms(entries: Buffer) -> TimestampMs:
    """The timestamp of the last entry, -1 without one. The buffer must have no padding."""
    if not entries:
        return NO_TIMESTAMP
    timestamp: TimestampMs = _ENTRY.unpack_from(entries, len(entries) - TIME_INDEX_ENTRY_SIZE)[0]
    return timestamp


def truncated_time_index_size(buffer: Buffer, base_offset: Offset, offset: Offset) -> int:
    """Size in bytes of the index without its entries of `offset` and above."""
    relative = offset - base_offset
    count = bisect_left(
        range(time_index_entry_count(buffer)),
        relative,
        key=lambda index: _raw_entry_at(buffer, index)[1],
    )
    return count * TIME_INDEX_ENTRY_SIZE


def _count_not_younger(buffer: Buffer, target_ms: TimestampMs) -> int:
    size = time_index_entry_count(buffer) * TIME_INDEX_ENTRY_SIZE
    # The key returns tuples of one, and makes no Python call per step.
    key = partial(_TIMESTAMP.unpack_from, buffer)
    return bisect_right(range(0, size, TIME_INDEX_ENTRY_SIZE), (target_ms,), key=key)


def encode_time_index_entry(entry: TimestampOffset, base_offset: Offset) -> bytes:
    relative = entry.offset - base_offset
    assert 0 <= relative <= RELATIVE_OFFSET_MAX, (entry, base_offset)
    return _ENTRY.pack(entry.timestamp_ms, relative)


def encode_time_index(entries: Iterable[TimestampOffset], base_offset: Offset) -> bytes:
    """A whole `.timeindex` file, as it is after the segment was rolled (no padding)."""
    return b"".join(encode_time_index_entry(entry, base_offset) for entry in entries)


def _raw_entry_at(buffer: Buffer, index: int) -> tuple[TimestampMs, int]:
    timestamp, relative = _ENTRY.unpack_from(buffer, index * TIME_INDEX_ENTRY_SIZE)
    return timestamp, relative


def _entry_at(buffer: Buffer, base_offset: Offset, index: int) -> TimestampOffset:
    timestamp, relative = _raw_entry_at(buffer, index)
    return TimestampOffset(timestamp, base_offset + relative)


def _entry_before(buffer: Buffer, base_offset: Offset, index: int) -> TimestampOffset:
    if index:
        return _entry_at(buffer, base_offset, index - 1)
    return TimestampOffset(NO_TIMESTAMP, base_offset)
