"""A compiled loop over the first fields of records: offsets and timestamps only.

See `isotherm.kernels` for the rules of kernels.
"""

# Numba types these functions by the signatures that they are compiled for.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,unreachable"

from __future__ import annotations

from isotherm.kernels import types
from isotherm.kernels.batch_fields import TIMESTAMP_TYPE_FLAG
from isotherm.kernels.kernel import kernel
from isotherm.kernels.raw_memory import put_at
from isotherm.kernels.record_reader import (
    NO_DELTA,
    is_wrong_max_timestamp,
    read_varint,
    read_varlong,
)
from isotherm.kernels.tables import BATCHES, BYTES, ROWS_OUT


@kernel(
    types.UniTuple(types.int64, 3)(*(BYTES, BYTES, BATCHES, types.int64, types.int64, ROWS_OUT))
)
def decode_heads(data, unpacked, batches, offset_start, offset_end, rows):
    """Decode offset and timestamp of the records of `batches` in [offset_start, offset_end).

    Like `decode_records` of isotherm.kernels.columns without other columns. The fields after a
    record's offset are skipped, not read.

    Returns the row and the index of a damaged record (-1 and -1 for none; the index is -1 if the
    batch's max timestamp differs from its records'), and the number of decoded records.
    """
    offsets, timestamps, timestamp_types = rows
    count = 0
    for row_index in range(len(batches)):
        row = batches[row_index]
        source = unpacked if row.is_unpacked else data
        position = row.payload_start
        payload_end = row.payload_end
        base_offset = row.base_offset
        last_offset_delta = row.last_offset_delta
        base_timestamp = row.base_timestamp
        max_timestamp = row.max_timestamp
        is_log_append_time = row.attributes & TIMESTAMP_TYPE_FLAG != 0
        largest_delta = NO_DELTA
        for index in range(row.records_count):
            size, start = read_varint(source, position, payload_end)
            if size < 0 or size > payload_end - start:
                return row_index, index, 0
            end = start + size
            timestamp_delta, position = read_varlong(source, start + 1, end)
            offset_delta, position = read_varint(source, position, end)
            if position > end or offset_delta < 0 or offset_delta > last_offset_delta:
                return row_index, index, 0
            largest_delta = max(largest_delta, timestamp_delta)
            # The record's size gives the next position, whatever its other fields contain.
            position = end
            offset = base_offset + offset_delta
            if offset < offset_start or offset >= offset_end:
                continue
            put_at(offsets, count, offset)
            timestamp = base_timestamp + timestamp_delta
            put_at(timestamps, count, max_timestamp if is_log_append_time else timestamp)
            put_at(timestamp_types, count, is_log_append_time)
            count += 1
        if position != payload_end:
            return row_index, row.records_count, 0
        if is_wrong_max_timestamp(row, largest_delta):
            return row_index, -1, 0
    return -1, -1, count
