"""The tables that kernels work on, and Numba's names for them. Compiles nothing.

Buffers are read-only uint8 arrays; rows of `BATCH` describe batches (isotherm.record.batch_header has the
format).
"""

# Numba types these functions by the signatures that they are compiled for.
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import numba
import numpy as np
from numba import types

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
        # Where the records lie: in the buffer, or in `unpacked` when `is_unpacked` is not 0.
        ("payload_start", np.int64),
        ("payload_end", np.int64),
        ("is_unpacked", np.int64),
    ]
)

# Where a record lies: `key_start` and `end` are positions in what its batch was decoded from.
PLACE = np.dtype(
    [
        ("offset", np.int64),
        # Of the batch with LogAppendTime.
        ("timestamp", np.int64),
        ("key_start", np.int64),
        ("end", np.int64),
        # Index of the row.
        ("batch", np.int32),
        # -1 for null.
        ("key_size", np.int32),
        ("value_size", np.int32),
        ("is_kept", np.int32),
    ]
)


def table_of(dtype):
    return types.Array(numba.from_dtype(dtype), 1, "C")


BYTES = types.Array(types.uint8, 1, "C", readonly=True)
BYTES_OUT = types.Array(types.uint8, 1, "C")
INT8_OUT = types.Array(types.int8, 1, "C")
INT32_OUT = types.Array(types.int32, 1, "C")
INT64_OUT = types.Array(types.int64, 1, "C")
BATCHES = table_of(BATCH)
PLACES = table_of(PLACE)
# Offsets, timestamps and timestamp types of records.
ROWS_OUT = types.Tuple((INT64_OUT, INT64_OUT, INT8_OUT))
