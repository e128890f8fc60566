"""A compiled loop that validates the records of a produced batch."""

# Numba types these functions by the signatures that they are compiled for.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,unreachable,var-annotated"

from __future__ import annotations

from isotherm.kernels import types
from isotherm.kernels.batch_fields import NO_TIMESTAMP
from isotherm.kernels.kernel import kernel
from isotherm.kernels.record_reader import read_record
from isotherm.kernels.tables import BYTES

# Results of `check_records`.
RECORDS_VALID = 0
RECORD_DAMAGED = 1
OFFSET_NOT_CONSECUTIVE = 2
KEY_MISSING = 3
TIMESTAMP_OUT_OF_RANGE = 4


@kernel(
    types.UniTuple(types.int64, 3)(
        *(BYTES, types.int64, types.int64),
        *(types.boolean, types.int64, types.int64),
    )
)
def check_records(
    payload,
    records_count,
    base_timestamp,
    key_required,
    timestamp_min,
    timestamp_max,
):
    """Check the records of one produced batch. Offset deltas must be 0, 1, 2, ...

    Timestamps other than -1 must lie in [timestamp_min, timestamp_max].

    Returns the verdict, the index of the record at fault, and a timestamp: the largest one, or
    the one that is out of range.
    """
    position = 0
    largest_timestamp = NO_TIMESTAMP
    for index in range(records_count):
        is_damaged, position, timestamp_delta, offset_delta, _, key_size = read_record(
            payload, position, len(payload)
        )[:6]
        if is_damaged:
            return RECORD_DAMAGED, index, 0
        if offset_delta != index:
            return OFFSET_NOT_CONSECUTIVE, index, 0
        if key_required and key_size < 0:
            return KEY_MISSING, index, 0
        timestamp = base_timestamp + timestamp_delta
        if timestamp != NO_TIMESTAMP and not timestamp_min <= timestamp <= timestamp_max:
            return TIMESTAMP_OUT_OF_RANGE, index, timestamp
        largest_timestamp = max(largest_timestamp, timestamp)
    # The records must fill the payload: bytes behind the last one belong to no record.
    if position != len(payload):
        return RECORD_DAMAGED, records_count, 0
    return RECORDS_VALID, -1, largest_timestamp
