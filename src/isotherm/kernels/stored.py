"""A compiled loop that checks the records of stored batches against the batches' headers."""

# Numba types these functions by the signatures that they are compiled for.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,unreachable,var-annotated"

from __future__ import annotations

import numpy as np

from isotherm.kernels import types
from isotherm.kernels.batch_fields import NO_TIMESTAMP
from isotherm.kernels.kernel import kernel
from isotherm.kernels.record_reader import has_max_timestamp_of_records, read_record
from isotherm.kernels.tables import BATCHES, BYTES

# Results of `find_wrong_batch`.
BATCHES_RIGHT = 0
RECORD_DAMAGED = 1
OFFSET_DELTA_WRONG = 2
MAX_TIMESTAMP_WRONG = 3


@kernel(types.UniTuple(types.int64, 5)(BYTES, BYTES, BATCHES, types.int64))
def find_wrong_batch(data, unpacked, batches, start):
    """The first batch, from row `start` on, whose records contradict its header.

    Records must have valid lengths, varints and counts. Offset deltas must rise and not exceed the
    last one; with as many records as offsets they must be 0, 1, 2, ... Without LogAppendTime the
    largest timestamp of the records must be the header's.

    Returns the verdict, the row, the index of the record, the wrong value, and the expected one:
    the least allowed offset delta, or the records' largest timestamp.
    """
    for row_index in range(start, len(batches)):
        row = batches[row_index]
        source = unpacked if row.is_unpacked else data
        position = row.payload_start
        # A cleaned batch has fewer records than offsets: its deltas have gaps.
        is_dense = row.records_count == row.last_offset_delta + 1
        next_delta = np.int64(0)
        largest = NO_TIMESTAMP
        for index in range(row.records_count):
            is_damaged, position, timestamp_delta, offset_delta = read_record(
                source, position, row.payload_end
            )[:4]
            if is_damaged:
                return RECORD_DAMAGED, row_index, index, 0, 0
            is_beyond = offset_delta > row.last_offset_delta
            if offset_delta < next_delta or is_beyond or (is_dense and offset_delta != next_delta):
                return OFFSET_DELTA_WRONG, row_index, index, offset_delta, next_delta
            next_delta = offset_delta + 1
            largest = max(largest, row.base_timestamp + timestamp_delta)
        if position != row.payload_end:
            return RECORD_DAMAGED, row_index, row.records_count, 0, 0
        if has_max_timestamp_of_records(row) and largest != row.max_timestamp:
            return MAX_TIMESTAMP_WRONG, row_index, -1, row.max_timestamp, largest
    return BATCHES_RIGHT, -1, -1, 0, 0
