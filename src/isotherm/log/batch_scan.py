"""Scans of the batches in a `.log` file.

`find_batch` trusts the file and reads a few header bytes per batch, to find a start position.
`scan_verified_batches` trusts nothing and reads everything, for recovery.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from isotherm.errors import CorruptRecordError
from isotherm.log.fs import File
from isotherm.record.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    read_batch_header,
    verify_batch_crc,
)
from isotherm.segment.offset_index import Buffer
from isotherm.types import Offset, Position

# One page: with the default index interval the wanted batch is usually in the first window.
SCAN_WINDOW_SIZE = 4096
RECOVERY_READ_SIZE = 1024 * 1024

# base offset (0), length (8), last offset delta (23)
_SPAN = struct.Struct(">qi11xi")
_SIZE = struct.Struct(">8xi")


class BatchSpan(NamedTuple):
    position: Position
    size: int
    base_offset: Offset
    last_offset: Offset

    @property
    def end_position(self) -> Position:
        return self.position + self.size


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
            if len(window) < _SPAN.size:
                break
        base_offset, length, delta = _SPAN.unpack_from(window, position - window_position)
        size = length + LOG_OVERHEAD
        if size < HEADER_SIZE:
            raise _impossible_length(length, position)
        if position + size > end_position:
            break
        if base_offset + delta >= offset:
            return BatchSpan(position, size, base_offset, base_offset + delta)
        position += size
    return None


def scan_headers(
    file: File, position: Position, end_position: Position
) -> Iterator[tuple[Position, BatchHeader]]:
    """Position and header of each batch that lies wholly in [position, end_position). `position` is a
    batch's start.

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


def whole_batches_size(data: Buffer, start: int) -> int:
    """Size of `data` without a trailing partial batch. A batch starts at byte `start`."""
    while start + LOG_OVERHEAD <= len(data):
        (length,) = _SIZE.unpack_from(data, start)
        size = length + LOG_OVERHEAD
        if size < HEADER_SIZE:
            raise _impossible_length(length, start)
        if start + size > len(data):
            break
        start += size
    return start


def scan_verified_batches(file: File, size: int) -> Iterator[tuple[Position, BatchHeader]]:
    """Every batch from the start of a file of `size` bytes, with its CRC checked.

    Raises CorruptRecordError at the first batch that is damaged or cut off. Batches that were
    yielded before are valid.
    """
    position = 0
    window, window_position = b"", 0
    while position < size:
        at = position - window_position
        if at + HEADER_SIZE > len(window):
            window, window_position, at = file.read_at(position, RECOVERY_READ_SIZE), position, 0
        header = read_batch_header(window, at)
        if position + header.size_in_bytes > size:
            raise CorruptRecordError(
                f"batch is cut off position={position} size={header.size_in_bytes} file_size={size}"
            )
        # A batch larger than the window is read as a whole, since its CRC covers all of it.
        if at + header.size_in_bytes > len(window):
            read_size = max(RECOVERY_READ_SIZE, header.size_in_bytes)
            window, window_position, at = file.read_at(position, read_size), position, 0
        verify_batch_crc(window, at, header)
        yield position, header
        position += header.size_in_bytes


def _impossible_length(length: int, position: Position) -> CorruptRecordError:
    return CorruptRecordError(
        f"batch length cannot be position={position} length={length}"
        f" length_min={HEADER_SIZE - LOG_OVERHEAD}"
    )
