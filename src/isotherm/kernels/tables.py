"""The tables of kernels, and their types. Compiles nothing.

Buffers are read-only uint8 arrays. Rows of `BATCH` describe batches (for the format see
isotherm.record.batch_header).
"""

# Numba types these functions by the signatures that they are compiled for.
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import numpy as np

from isotherm.kernels import types

BATCH = np.dtype(
    [
        ("position", np.int64),
        ("size", np.int64),
        ("base_offset", np.int64),
        ("last_offset_delta", np.int64),
        ("base_timestamp", np.int64),
        ("max_timestamp", np.int64),
        ("producer_id", np.int64),
        ("crc", np.int64),
        ("attributes", np.int64),
        ("records_count", np.int64),
        # Position of the records: in the buffer, or in `unpacked` if `is_unpacked` is not 0.
        ("payload_start", np.int64),
        ("payload_end", np.int64),
        ("is_unpacked", np.int64),
    ]
)

# The place of a record. `key_start` and `end` are positions in its batch's decoded payload.
PLACE = np.dtype(
    [
        ("offset", np.int64),
        # The record's own timestamp; in a batch with LogAppendTime the batch's maximum timestamp.
        ("timestamp", np.int64),
        ("key_start", np.int64),
        ("end", np.int64),
        # Index of the batch's row.
        ("batch", np.int32),
        # -1 for null.
        ("key_size", np.int32),
        ("value_size", np.int32),
        ("is_kept", np.int32),
    ]
)


def table_of(dtype):
    return types.Array(dtype, 1, "C")


BYTES = types.Array(types.uint8, 1, "C", readonly=True)
BYTES_OUT = types.Array(types.uint8, 1, "C")
INT8_OUT = types.Array(types.int8, 1, "C")
INT32_OUT = types.Array(types.int32, 1, "C")
INT64_OUT = types.Array(types.int64, 1, "C")
BATCHES = table_of(BATCH)
PLACES = table_of(PLACE)
# Offsets, timestamps and timestamp types of records.
ROWS_OUT = types.Tuple((INT64_OUT, INT64_OUT, INT8_OUT))
