"""A compiled loop that locates the records of batches."""

# Numba types these functions by the signatures that they are compiled for.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,unreachable,var-annotated"

from __future__ import annotations

from isotherm.kernels import types
from isotherm.kernels.batch_fields import TIMESTAMP_TYPE_FLAG
from isotherm.kernels.kernel import kernel
from isotherm.kernels.record_reader import read_record
from isotherm.kernels.tables import BATCHES, BYTES, PLACES


@kernel(types.UniTuple(types.int64, 3)(BYTES, BYTES, BATCHES, PLACES))
def locate_records(data, unpacked, batches, places):
    """Fill `places` with the place of each record of `batches`, marked as kept.

    Returns row and index of a damaged record (or -1, -1), and the number of records.
    """
    count = 0
    for row_index in range(len(batches)):
        row = batches[row_index]
        source = unpacked if row.is_unpacked else data
        position = row.payload_start
        base_offset = row.base_offset
        base_timestamp = row.base_timestamp
        is_log_append_time = row.attributes & TIMESTAMP_TYPE_FLAG != 0
        for index in range(row.records_count):
            (
                is_damaged,
                position,
                timestamp_delta,
                offset_delta,
                key_start,
                key_size,
                _,
                value_size,
            ) = read_record(source, position, row.payload_end)[:8]
            if is_damaged or offset_delta < 0 or offset_delta > row.last_offset_delta:
                return row_index, index, 0
            place = places[count]
            place.offset = base_offset + offset_delta
            place.timestamp = (
                row.max_timestamp if is_log_append_time else base_timestamp + timestamp_delta
            )
            place.key_start = key_start
            place.end = position
            place.batch = row_index
            place.key_size = key_size
            place.value_size = value_size
            place.is_kept = 1
            count += 1
        # The records must fill the payload: bytes behind the last one belong to no record.
        if position != row.payload_end:
            return row_index, row.records_count, 0
    return -1, -1, count
