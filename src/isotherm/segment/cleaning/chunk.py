"""Whole batches that are being cleaned, of a local or a remote segment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from isotherm.record.batch import BatchHeader, read_batch_header
from isotherm.record.batch_header import CONTROL_FLAG, TRANSACTIONAL_FLAG
from isotherm.record.batch_table import byte_array, damaged, read_batch_table, unpack_records
from isotherm.record.control import ControlRecord, read_control_record
from isotherm.types import Offset

if TYPE_CHECKING:
    from collections.abc import Callable

    from isotherm.record.batch_table import (
        BatchTable,
        BoolArray,
        ByteArray,
        Int8Array,
        Int64Array,
    )
    from isotherm.record.varint import ReadBuffer

    DecideBatches: TypeAlias = Callable[[BatchTable], Int8Array]
    """What stays of each batch, as far as it is known without its records: UNDECIDED, KEEPS_NONE or
    KEEPS_ALL of isotherm.kernels.cleaner."""

# Bounds the decompressed records in memory. A single batch may exceed it.
DECODED_SIZE_MAX = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole batches with decompressed records: rows of `batches` point into `data` or `unpacked`.
    The records of `read_packed_chunk` are not decompressed.

    `records_count` keeps the original counts, since filtering sets some in `batches` to 0. Batches
    whose fate in `fates` is decided are not decompressed.
    """

    data: ReadBuffer
    unpacked: ByteArray
    batches: BatchTable
    records_count: Int64Array
    size: int
    fates: Int8Array

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
        """Row and header of each transactional batch and each control batch."""
        flags = self.batches["attributes"] & (TRANSACTIONAL_FLAG | CONTROL_FLAG)
        for row in np.flatnonzero(flags).tolist():
            yield row, read_batch_header(self.data, int(self.batches["position"][row]))

    def control_record(self, row: int, header: BatchHeader) -> ControlRecord | None:
        return read_control_record(self.data, int(self.batches["position"][row]), header)

    def unpacked_rows(self, rows: Int64Array) -> Iterator[tuple[Int64Array, Chunk]]:
        """Some of the batches with decompressed records, as many at once as may be in memory, and
        their rows. Raises CorruptRecordError for a malformed batch."""
        while len(rows):
            batches = self.batches[rows]
            unpacked, taken = unpack_records(self.data, batches, decoded_size_max=DECODED_SIZE_MAX)
            done, rows = rows[:taken], rows[taken:]
            counts, fates = self.records_count[done], self.fates[done]
            yield done, Chunk(self.data, unpacked, batches[:taken], counts, self.size, fates)

    def check_order(self, next_offset: Offset) -> None:
        """Raise CorruptRecordError unless the batches start at or above `next_offset`, in order.

        The CRC does not cover the base offset, so the order is the only check on it.
        """
        next_offsets = self.last_offsets + 1
        before = np.concatenate(([next_offset], next_offsets[:-1]))
        disordered = np.flatnonzero(self.batches["base_offset"] < before)
        if len(disordered):
            raise damaged(self.batches, int(disordered[0]), "batch begins before the last one ends")


def read_chunk(data: ReadBuffer, decide: DecideBatches | None = None) -> Chunk | None:
    """Read whole batches from the start of a buffer, as many as may be decompressed at once.

    None if the first batch is not whole. Raises CorruptRecordError for a malformed batch.
    """
    batches, size = read_batch_table(data)
    if not len(batches):
        return None
    fates = np.zeros(len(batches), dtype=np.int8) if decide is None else decide(batches)
    unpacked, taken = _unpack_undecided(data, batches, fates)
    if taken < len(batches):
        size = int(batches["position"][taken])
        batches, fates = batches[:taken], fates[:taken]
    return Chunk(data, unpacked, batches, batches["records_count"].copy(), size, fates)


def read_packed_chunk(data: ReadBuffer) -> Chunk | None:
    """Same as `read_chunk`, but all whole batches, and their records as they are stored."""
    batches, size = read_batch_table(data)
    if not len(batches):
        return None
    counts, fates = batches["records_count"].copy(), np.zeros(len(batches), dtype=np.int8)
    return Chunk(data, byte_array(b""), batches, counts, size, fates)


def _unpack_undecided(
    data: ReadBuffer, batches: BatchTable, fates: Int8Array
) -> tuple[ByteArray, int]:
    """Decompress batches in place of their rows, and return how many rows fit the limit."""
    rows = np.flatnonzero(fates == 0)
    if len(rows) == len(batches):
        return unpack_records(data, batches, decoded_size_max=DECODED_SIZE_MAX)
    undecided = batches[rows]
    unpacked, taken = unpack_records(data, undecided, decoded_size_max=DECODED_SIZE_MAX)
    batches[rows] = undecided
    return unpacked, len(batches) if taken == len(rows) else int(rows[taken])
