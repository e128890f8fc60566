"""Searches one batch for a record by its timestamp, in bounded memory: a client chooses how many
records a batch has, and how large they are when decompressed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from isotherm.errors import CorruptRecordError, InvalidRecordError
from isotherm.record.batch import read_payload, read_record_times
from isotherm.record.batch_header import HEADER_SIZE, BatchHeader
from isotherm.record.compression import DECOMPRESSED_SIZE_MAX
from isotherm.record.decompression_memory import (
    DECOMPRESSION_MEMORY,
    DecompressionMemory,
    decompression_size,
)
from isotherm.record.record_faults import places_of_records

if TYPE_CHECKING:
    from isotherm.record.varint import ReadBuffer
    from isotherm.types import Offset, TimestampMs

# Python takes some microseconds and 300 bytes for each record. More are left to the kernels, which
# a process may not have loaded yet.
PYTHON_RECORDS_MAX = 10_000


def find_record(
    batch: ReadBuffer,
    header: BatchHeader,
    timestamp_ms: TimestampMs,
    start_offset: Offset,
    memory: DecompressionMemory = DECOMPRESSION_MEMORY,
) -> tuple[TimestampMs, Offset] | None:
    """Timestamp and offset of the first record of a batch at or above `start_offset` with this
    timestamp or a later one.

    Waits until its records may be decompressed, so not for an event loop. Raises CorruptRecordError
    for damage in the records that it has read.
    """
    size = decompression_size(header, memoryview(batch)[HEADER_SIZE:], DECOMPRESSED_SIZE_MAX)
    with memory.hold(size):
        if header.records_count <= PYTHON_RECORDS_MAX:
            return _find_in_python(batch, header, timestamp_ms, start_offset)
        return _find_by_kernel(batch, header, timestamp_ms, start_offset)


def _find_in_python(
    batch: ReadBuffer, header: BatchHeader, timestamp_ms: TimestampMs, start_offset: Offset
) -> tuple[TimestampMs, Offset] | None:
    for found_ms, offset in read_record_times(batch, 0, header):
        if found_ms >= timestamp_ms and offset >= start_offset:
            return found_ms, offset
    return None


def _find_by_kernel(
    batch: ReadBuffer, header: BatchHeader, timestamp_ms: TimestampMs, start_offset: Offset
) -> tuple[TimestampMs, Offset] | None:
    payload = read_payload(batch, 0, header)
    try:
        for places in places_of_records(payload, header):
            is_match = (places["timestamp"] >= timestamp_ms) & (places["offset"] >= start_offset)
            if is_match.any():
                first = places[int(np.argmax(is_match))]
                return int(first["timestamp"]), int(first["offset"])
    except InvalidRecordError as error:
        raise CorruptRecordError(*error.args) from error
    return None
