"""A compiled loop over the heads of records: their offsets and timestamps, and no byte of the rest.

See `isotherm.record.column_kernels` for how kernels are written here and why. Numba's cache notices
changes of this file alone, so it reads its own varints.
"""

# Numba types these functions by the signatures that they are compiled for.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg"

from __future__ import annotations

import numba
import numpy as np
from numba import types
from numba.extending import register_jitable

from isotherm.record.column_kernels import BATCH

_LOG_APPEND_TIME_FLAG = 8
_VARINT_SIZE_MAX = 5
_VARLONG_SIZE_MAX = 10

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_BATCHES = types.Array(numba.from_dtype(BATCH), 1, "C")
_ROWS_OUT = types.Tuple(
    (
        types.Array(types.int64, 1, "C"),
        types.Array(types.int64, 1, "C"),
        types.Array(types.int8, 1, "C"),
    )
)


@register_jitable(forceinline=True)
def _read_varint(data, position, end, size_max):
    """Zigzag integer of at most `size_max` bytes, and the next position: end + 1 if damaged."""
    raw = np.uint64(0)
    shift = np.uint64(0)
    for index in range(size_max):
        if position + index >= end:
            return np.int64(0), end + 1
        byte = np.uint64(data[position + index])
        raw |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), (
                position + index + 1
            )
        shift += np.uint64(7)
    return np.int64(0), end + 1


@numba.njit(
    [
        types.UniTuple(types.int64, 3)(
            *(_BYTES, _BYTES, _BATCHES, types.int64, types.int64, _ROWS_OUT)
        )
    ],
    cache=True,
    nogil=True,
)
def decode_heads(data, unpacked, batches, offset_start, offset_end, rows):
    """Decode offset and timestamp of the records of `batches` in [offset_start, offset_end).

    As `decode_records` of isotherm.record.column_kernels where no other column is wanted; what
    follows a record's offset is passed over unread.

    Returns row and index of a damaged record (or -1, -1), and the number of records decoded.
    """
    offsets, timestamps, timestamp_types = rows
    count = 0
    for row_index in range(len(batches)):
        row = batches[row_index]
        source = unpacked if row.is_unpacked else data
        position = row.payload_start
        payload_end = row.payload_end
        is_log_append_time = row.attributes & _LOG_APPEND_TIME_FLAG != 0
        for index in range(row.records_count):
            size, start = _read_varint(source, position, payload_end, _VARINT_SIZE_MAX)
            if size < 0 or size > payload_end - start:
                return row_index, index, 0
            end = start + size
            timestamp_delta, position = _read_varint(source, start + 1, end, _VARLONG_SIZE_MAX)
            offset_delta, position = _read_varint(source, position, end, _VARINT_SIZE_MAX)
            if position > end or offset_delta < 0 or offset_delta > row.last_offset_delta:
                return row_index, index, 0
            position = end
            offset = row.base_offset + offset_delta
            if offset < offset_start or offset >= offset_end:
                continue
            offsets[count] = offset
            timestamp = row.base_timestamp + timestamp_delta
            timestamps[count] = row.max_timestamp if is_log_append_time else timestamp
            timestamp_types[count] = is_log_append_time
            count += 1
        if position != payload_end:
            return row_index, row.records_count, 0
    return -1, -1, count
