"""Scans of the batches in a `.log` file.

`find_batch` trusts the file and reads a few header bytes per batch, to find a start position.
`scan_sound_batches` trusts nothing and reads everything, for recovery: without Python per batch,
since each may have a single record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from isotherm.errors import CorruptRecordError
from isotherm.log.fs import File
from isotherm.record.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    read_batch_header,
)
from isotherm.record.batch_table import leader_epochs, read_sound_batches
from isotherm.segment.offset_index import RELATIVE_OFFSET_MAX, Buffer
from isotherm.types import Offset, Position

if TYPE_CHECKING:
    from isotherm.record.batch_table import BatchTable, BoolArray, Int64Array

# One page: with the default index interval the wanted batch is usually in the first window.
SCAN_WINDOW_SIZE = 4096
RECOVERY_READ_SIZE = 1024 * 1024

# base offset (0), length (8), last offset delta (23)
_SPAN = struct.Struct(">qi11xi")


class BatchSpan(NamedTuple):
    position: Position
    size: int
    base_offset: Offset
    last_offset: Offset

    @property
    def end_position(self) -> Position:
        return self.position + self.size


def impossible_length(length: int, position: Position) -> CorruptRecordError:
    return CorruptRecordError(
        f"batch length cannot be position={position} length={length}"
        f" length_min={HEADER_SIZE - LOG_OVERHEAD}"
    )


def find_batch(
    file: File, position: Position, end_position: Position, offset: Offset
) -> BatchSpan | None:
    """The first of the batches wholly in [position, end_position) that ends at `offset` or above.
    `position` is a batch's start.

    Raises CorruptRecordError at a batch with an impossible length.
    """
    window, window_position = b"", position
    while position + HEADER_SIZE <= end_position:
        # Only these header bytes are needed of a batch. Its records are skipped, not read.
        if position + _SPAN.size > window_position + len(window):
            window, window_position = file.read_at(position, SCAN_WINDOW_SIZE), position
            # The log was truncated after the caller's look at its size.
            if len(window) < _SPAN.size:
                break
        base_offset, length, delta = _SPAN.unpack_from(window, position - window_position)
        size = length + LOG_OVERHEAD
        if size < HEADER_SIZE:
            raise impossible_length(length, position)
        if position + size > end_position:
            break
        if base_offset + delta >= offset:
            return BatchSpan(position, size, base_offset, base_offset + delta)
        position += size
    return None


def scan_headers(
    file: File, position: Position, end_position: Position
) -> Iterator[tuple[Position, BatchHeader]]:
    """Position and header of each batch that lies wholly in [position, end_position). `position` is
    a batch's start.

    Raises CorruptRecordError at a batch with an impossible length.
    """
    window, window_position = b"", position
    while position + HEADER_SIZE <= end_position:
        if position + HEADER_SIZE > window_position + len(window):
            window, window_position = file.read_at(position, SCAN_WINDOW_SIZE), position
        header = read_batch_header(window, position - window_position)
        if position + header.size_in_bytes > end_position:
            return
        yield position, header
        position += header.size_in_bytes


def begins_with_batch(data: Buffer, base_offset: Offset) -> bool:
    """Whether a whole batch of this base offset is at the start of `data`, which has at least
    HEADER_SIZE bytes."""
    first_offset, length, _ = _SPAN.unpack_from(data)
    return bool(first_offset == base_offset and HEADER_SIZE <= length + LOG_OVERHEAD <= len(data))


class SoundBatches(NamedTuple):
    """Batches whose CRC is right. `data` is from `position` of the file on; positions in the table
    are in `data`."""

    position: Position
    data: bytes
    batches: BatchTable

    def header(self, row: int) -> BatchHeader:
        return read_batch_header(self.data, int(self.batches["position"][row]))

    def epoch_starts(self) -> Iterator[BatchHeader]:
        """The header of the first batch, and of each one whose leader epoch differs from that of
        the batch before."""
        epochs = leader_epochs(self.data, self.batches)
        for row in (0, *(np.flatnonzero(np.diff(epochs)) + 1).tolist()):
            yield self.header(row)

    @property
    def next_offsets(self) -> Int64Array:
        """The offset after each batch."""
        ends: Int64Array = self.batches["base_offset"] + self.batches["last_offset_delta"] + 1
        return ends

    @property
    def end_position(self) -> Position:
        """Position in the file after the last batch. The table must not be empty."""
        last = self.batches[-1]
        return self.position + int(last["position"] + last["size"])

    def before(self, is_wrong: BoolArray) -> SoundBatches:
        """The batches before the first that is wrong."""
        count = int(np.argmax(is_wrong)) if is_wrong.any() else len(self.batches)
        return self._replace(batches=self.batches[:count])

    def starts_below(self, next_offset: Offset) -> BoolArray:
        """Whether each batch begins below the end of the one before it; see `expected_starts`."""
        is_below: BoolArray = self.batches["base_offset"] < self.expected_starts(next_offset)
        return is_below

    def possible(self, base_offset: Offset, next_offset: Offset) -> SoundBatches:
        """The batches before the first whose offset cannot be: below the end of the batch before
        it, or too far above `base_offset`, that of the segment, for an index.

        The CRC does not cover a batch's base offset. A damaged one shows only by the offsets around
        it.
        """
        is_far = self.next_offsets - 1 - base_offset > RELATIVE_OFFSET_MAX
        return self.before(self.starts_below(next_offset) | is_far)

    def expected_starts(self, next_offset: Offset) -> Int64Array:
        """The end of the batch before each batch; `next_offset` is the end before the first."""
        return np.concatenate([[next_offset], self.next_offsets[:-1]])


def scan_sound_batches(file: File, size: int, *, verify_crc: bool = True) -> Iterator[SoundBatches]:
    """All batches from the start of a file of `size` bytes, many at a time.

    Raises CorruptRecordError at the first batch that is damaged, without `verify_crc` in its
    header, or cut off. Batches that were yielded before are valid.
    """
    position = 0
    while position < size:
        data = file.read_at(position, min(RECOVERY_READ_SIZE, size - position))
        batches, end, fault = read_sound_batches(data, verify_crc=verify_crc)
        if not len(batches) and fault is None:
            # A batch larger than that is read as a whole, since its CRC covers all of it.
            header = read_batch_header(data)
            if position + header.size_in_bytes > size:
                raise CorruptRecordError(
                    f"batch is cut off position={position} size={header.size_in_bytes}"
                    f" file_size={size}"
                )
            data = file.read_at(position, header.size_in_bytes)
            batches, end, fault = read_sound_batches(data, verify_crc=verify_crc)
        if len(batches):
            yield SoundBatches(position, data, batches)
        if fault is not None:
            raise CorruptRecordError(f"{fault} file_position={position + end}") from fault
        position += end
