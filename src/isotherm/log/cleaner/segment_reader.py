"""A segment read in chunks of whole batches, for both passes of the cleaner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from isotherm.errors import CorruptRecordError
from isotherm.log.log_segment import LogSegment
from isotherm.record.batch import HEADER_SIZE, BatchHeader, read_batch_header
from isotherm.record.batch_header import CONTROL_FLAG, TRANSACTIONAL_FLAG
from isotherm.record.batch_table import (
    byte_array,
    damaged,
    read_batch_table,
    unpack_records,
)
from isotherm.record.control import ControlRecord, read_control_record
from isotherm.types import Position

if TYPE_CHECKING:
    from isotherm.record.batch_table import BatchTable, BoolArray, ByteArray, Int64Array

# Decompressed records held at once; a single batch may unfold to more.
DECODED_SIZE_MAX = 16 * 1024 * 1024

Throttle: TypeAlias = Callable[[int], None]
"""Called with bytes read, and written; may block. May raise LogCleaningAbortedError."""
CheckAbort: TypeAlias = Callable[[], None]
"""LogCleaningAbortedError when the log is wanted for something else."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole batches, their records decompressed: rows of `batches` point into `data` or
    `unpacked`. `records_count` keeps what the rows said when it is changed there."""

    data: bytes
    unpacked: ByteArray
    batches: BatchTable
    records_count: Int64Array
    size: int

    @property
    def array(self) -> ByteArray:
        return byte_array(self.data)

    @property
    def last_offsets(self) -> Int64Array:
        last: Int64Array = self.batches["base_offset"] + self.batches["last_offset_delta"]
        return last

    @property
    def is_control(self) -> BoolArray:
        flagged: BoolArray = self.batches["attributes"] & CONTROL_FLAG != 0
        return flagged

    def transactional_headers(self) -> Iterator[tuple[int, BatchHeader]]:
        """Row and header of each batch of a transaction, and of each control batch."""
        flags = self.batches["attributes"] & (TRANSACTIONAL_FLAG | CONTROL_FLAG)
        for row in np.flatnonzero(flags).tolist():
            yield row, read_batch_header(self.data, int(self.batches["position"][row]))

    def control_record(self, row: int, header: BatchHeader) -> ControlRecord | None:
        return read_control_record(self.data, int(self.batches["position"][row]), header)


class SegmentReader:
    def __init__(self, read_size: int, throttle: Throttle, check_abort: CheckAbort) -> None:
        """`read_size` is the size of a read; a batch that is larger is read as a whole."""
        self._read_size = max(read_size, HEADER_SIZE)
        self._throttle = throttle
        self._check_abort = check_abort

    def chunks(self, segment: LogSegment, position: Position) -> Iterator[Chunk]:
        """All batches from one at `position` on.

        Raises CorruptRecordError at a batch that cannot be, or that is cut off by the end.
        """
        next_offset = segment.base_offset
        while position < segment.size_in_bytes:
            self._check_abort()
            chunk = self._read_chunk(segment, position)
            self._throttle(len(chunk.data))
            _check_order(chunk.batches, next_offset)
            next_offset = int(chunk.last_offsets[-1]) + 1
            position += chunk.size
            yield chunk

    def _read_chunk(self, segment: LogSegment, position: Position) -> Chunk:
        size_left = segment.size_in_bytes - position
        data = segment.read_bytes(position, min(self._read_size, size_left))
        batches, size = read_batch_table(data)
        if not len(batches):
            header = read_batch_header(data) if len(data) >= HEADER_SIZE else None
            if header is None or header.size_in_bytes > size_left:
                raise CorruptRecordError(
                    f"batch is cut off path={segment.log_path} position={position}"
                    f" size_left={size_left}"
                )
            data = segment.read_bytes(position, header.size_in_bytes)
            batches, size = read_batch_table(data)
        unpacked, taken = unpack_records(data, batches, decoded_size_max=DECODED_SIZE_MAX)
        if taken < len(batches):
            size = int(batches["position"][taken])
            batches = batches[:taken]
        return Chunk(data, unpacked, batches, batches["records_count"].copy(), size)


def _check_order(batches: BatchTable, next_offset: int) -> None:
    # The CRC does not cover the base offset; its order is all that can be checked.
    next_offsets = batches["base_offset"] + batches["last_offset_delta"] + 1
    before = np.concatenate(([next_offset], next_offsets[:-1]))
    disordered = np.flatnonzero(batches["base_offset"] < before)
    if len(disordered):
        raise damaged(batches, int(disordered[0]), "batch begins before the last one ends")
