"""The offset index of a segment (`.index`): the position in the `.log` file to read from.

    | at | size | field                                             |
    |----|------|---------------------------------------------------|
    | 0  | 4    | offset minus the segment's base offset (i32)      |
    | 4  | 4    | position of the batch in the `.log` file (i32)    |

Big-endian entries of 8 bytes. Both fields rise strictly. The offset is the *last* of a batch, the
position is the batch's *start* (since Kafka 4.1). The first batch of a segment is never indexed, so
position 0 does not occur: zeros after the last entry are the padding of a preallocated file.
Source: Kafka OffsetIndex.java; KAFKA-806 for which batches get an entry.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple, TypeAlias

from isotherm.errors import CorruptIndexError
from isotherm.types import Offset, Position

Buffer: TypeAlias = bytes | bytearray | memoryview

OFFSET_INDEX_ENTRY_SIZE = 8
RELATIVE_OFFSET_MAX = 2**31 - 1

_ENTRY = struct.Struct(">ii")
# Single fields of an entry. Their `unpack_from` is the key of a bisect, so that a step of the
# search makes no Python call. The values are tuples of one.
_RELATIVE_OFFSET = struct.Struct(">i4x")
_POSITION = struct.Struct(">4xi")


class OffsetPosition(NamedTuple):
    offset: Offset
    position: Position


def offset_index_entry_count(buffer: Buffer) -> int:
    """Number of entries before the padding. A trailing partial entry is not counted."""
    count = len(buffer) // OFFSET_INDEX_ENTRY_SIZE
    # Only an active segment's index is padded, so one read of the last entry mostly answers.
    if count == 0 or _POSITION.unpack_from(buffer, (count - 1) * OFFSET_INDEX_ENTRY_SIZE)[0]:
        return count
    return bisect_left(range(count), True, key=lambda index: _position_at(buffer, index) == 0)


def _places(buffer: Buffer) -> range:
    """The positions of the entries before the padding."""
    end = len(buffer) - len(buffer) % OFFSET_INDEX_ENTRY_SIZE
    if end and not _POSITION.unpack_from(buffer, end - OFFSET_INDEX_ENTRY_SIZE)[0]:
        end = offset_index_entry_count(buffer) * OFFSET_INDEX_ENTRY_SIZE
    return range(0, end, OFFSET_INDEX_ENTRY_SIZE)


def read_offset_index(buffer: Buffer, base_offset: Offset) -> list[OffsetPosition]:
    """Decode a whole `.index` file and check every entry.

    Raises CorruptIndexError with the entry; the caller rebuilds the index from the log.
    """
    check_offset_index(buffer, base_offset)
    entries: list[OffsetPosition] = []
    previous = (-1, 0)
    for index in range(offset_index_entry_count(buffer)):
        relative, position = _ENTRY.unpack_from(buffer, index * OFFSET_INDEX_ENTRY_SIZE)
        if relative <= previous[0] or position <= previous[1]:
            raise CorruptIndexError(
                f"offset index entry does not rise base_offset={base_offset} entry={index}"
                f" relative_offset={relative} position={position}"
            )
        entries.append(OffsetPosition(base_offset + relative, position))
        previous = (relative, position)
    return entries


def check_offset_index(buffer: Buffer, base_offset: Offset) -> None:
    """Kafka's cheap sanity check: whole entries, last offset not below the base offset.

    Raises CorruptIndexError; the caller rebuilds or fetches the index again.
    """
    if len(buffer) % OFFSET_INDEX_ENTRY_SIZE != 0:
        raise CorruptIndexError(
            f"offset index is not a whole number of entries base_offset={base_offset}"
            f" size={len(buffer)} entry_size={OFFSET_INDEX_ENTRY_SIZE}"
        )
    last = last_offset_index_entry(buffer, base_offset)
    if last.offset < base_offset:
        raise CorruptIndexError(
            "offset index ends below the segment's base offset"
            f" base_offset={base_offset} last_offset={last.offset}"
        )


def lookup_offset(buffer: Buffer, base_offset: Offset, target: Offset) -> OffsetPosition:
    """The last entry with an offset of at most `target`; (base_offset, 0) when there is none.

    Reading the `.log` from that position on finds the batch that holds `target`.
    """
    if not buffer:
        return OffsetPosition(base_offset, 0)
    # A search in a large segment takes up to thirty steps, each of which would be a Python call.
    relative, read = (target - base_offset,), partial(_RELATIVE_OFFSET.unpack_from, buffer)
    index = bisect_right(_places(buffer), relative, key=read)
    return _entry_before(buffer, base_offset, index)


def lookup_range(
    buffer: Buffer, base_offset: Offset, target: Offset, size: int
) -> tuple[Position, Position]:
    """The positions to scan from for a read of `size` bytes: to its first batch, which holds
    `target`, and to its last one. Both are positions of entries, or 0."""
    if not buffer:
        return 0, 0
    places, read_position = _places(buffer), partial(_POSITION.unpack_from, buffer)
    relative, read_offset = (target - base_offset,), partial(_RELATIVE_OFFSET.unpack_from, buffer)
    index = bisect_right(places, relative, key=read_offset)
    (start,) = read_position(places[index - 1]) if index else (0,)
    if index == len(places):  # most readers are at the end
        return start, start
    index = bisect_right(places, (start + size,), lo=index, key=read_position)
    (last,) = read_position(places[index - 1]) if index else (0,)
    return start, last


def position_before(buffer: Buffer, position: Position) -> Position:
    """The position of the last entry at or below `position`; 0 if there is none."""
    places = _places(buffer)
    index = bisect_right(places, (position,), key=partial(_POSITION.unpack_from, buffer))
    return _position_at(buffer, index - 1) if index else 0


def fetch_upper_bound(
    buffer: Buffer, base_offset: Offset, start: OffsetPosition, size: int
) -> OffsetPosition | None:
    """The first entry at or after byte `start.position + size`; None when the index ends before.

    Its offset is above every offset that a read of `size` bytes from `start` can return.
    """
    places, end = _places(buffer), (start.position + size,)
    index = bisect_left(places, end, key=partial(_POSITION.unpack_from, buffer))
    return _entry_at(buffer, base_offset, index) if index < len(places) else None


def last_offset_index_entry(buffer: Buffer, base_offset: Offset) -> OffsetPosition:
    """The last entry; (base_offset, 0) if there is none."""
    return _entry_before(buffer, base_offset, offset_index_entry_count(buffer))


def truncated_offset_index_size(buffer: Buffer, base_offset: Offset, offset: Offset) -> int:
    """Size in bytes of the index without its entries of `offset` and above."""
    relative = offset - base_offset
    places = _places(buffer)
    count = bisect_left(places, (relative,), key=partial(_RELATIVE_OFFSET.unpack_from, buffer))
    return count * OFFSET_INDEX_ENTRY_SIZE


def encode_offset_index_entry(entry: OffsetPosition, base_offset: Offset) -> bytes:
    """One entry. Its relative offset is within 0..RELATIVE_OFFSET_MAX: the log rolls before."""
    relative = entry.offset - base_offset
    assert 0 <= relative <= RELATIVE_OFFSET_MAX, (entry, base_offset)
    return _ENTRY.pack(relative, entry.position)


def encode_offset_index(entries: Iterable[OffsetPosition], base_offset: Offset) -> bytes:
    """A whole `.index` file, as it is after the segment was rolled (no padding)."""
    return b"".join(encode_offset_index_entry(entry, base_offset) for entry in entries)


def _position_at(buffer: Buffer, index: int) -> Position:
    position: int = _POSITION.unpack_from(buffer, index * OFFSET_INDEX_ENTRY_SIZE)[0]
    return position


def _entry_at(buffer: Buffer, base_offset: Offset, index: int) -> OffsetPosition:
    relative, position = _ENTRY.unpack_from(buffer, index * OFFSET_INDEX_ENTRY_SIZE)
    return OffsetPosition(base_offset + relative, position)


def _entry_before(buffer: Buffer, base_offset: Offset, index: int) -> OffsetPosition:
    if not index:
        return OffsetPosition(base_offset, 0)
    relative, position = _ENTRY.unpack_from(buffer, (index - 1) * OFFSET_INDEX_ENTRY_SIZE)
    return OffsetPosition(base_offset + relative, position)
