"""A run of whole batches on its way through the cleaner: of a local segment, or of a remote one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from isotherm.record.batch import BatchHeader, read_batch_header
from isotherm.record.batch_header import CONTROL_FLAG, TRANSACTIONAL_FLAG
from isotherm.record.batch_table import byte_array, damaged, read_batch_table, unpack_records
from isotherm.record.control import ControlRecord, read_control_record
from isotherm.types import Offset

if TYPE_CHECKING:
    from isotherm.record.batch_table import BatchTable, BoolArray, ByteArray, Int64Array
    from isotherm.record.varint import ReadBuffer

# Decompressed records held at once; a single batch may unfold to more.
DECODED_SIZE_MAX = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole batches, their records decompressed: rows of `batches` point into `data` or
    `unpacked`. `records_count` keeps what the rows said when it is changed there."""

    data: ReadBuffer
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

    def check_order(self, next_offset: Offset) -> None:
        """CorruptRecordError unless these batches begin at `next_offset` or above, and rise: the
        CRC does not cover the base offset, so its order is all that can be checked."""
        next_offsets = self.last_offsets + 1
        before = np.concatenate(([next_offset], next_offsets[:-1]))
        disordered = np.flatnonzero(self.batches["base_offset"] < before)
        if len(disordered):
            raise damaged(self.batches, int(disordered[0]), "batch begins before the last one ends")


def read_chunk(data: ReadBuffer) -> Chunk | None:
    """The whole batches from the start of a buffer, or as many as may be unpacked at once; None
    when the first one is not whole. CorruptRecordError for a batch that cannot be."""
    batches, size = read_batch_table(data)
    if not len(batches):
        return None
    unpacked, taken = unpack_records(data, batches, decoded_size_max=DECODED_SIZE_MAX)
    if taken < len(batches):
        size = int(batches["position"][taken])
        batches = batches[:taken]
    return Chunk(data, unpacked, batches, batches["records_count"].copy(), size)
