"""A compiled loop that creates the index entries of rewritten segments.

See `isotherm.kernels` for the rules of kernels.
"""

# Numba types these functions by the signatures that they are compiled for.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,unreachable"

from __future__ import annotations

import numpy as np

from isotherm.kernels import types
from isotherm.kernels.filter import WRITTEN
from isotherm.kernels.kernel import kernel
from isotherm.kernels.tables import table_of

# The state of `index_batches` between its calls for one segment.
INDEXING = np.dtype(
    [
        ("base_offset", np.int64),
        ("position", np.int64),
        ("size_since_entry", np.int64),
        ("largest_timestamp", np.int64),
        ("offset_of_largest", np.int64),
        ("last_indexed_timestamp", np.int64),
    ]
)

_ENTRIES_OUT = types.Array(types.int64, 2, "C")
_WRITTEN = table_of(WRITTEN)
_INDEXING = table_of(INDEXING)


@kernel(
    types.UniTuple(types.int64, 2)(
        *(_WRITTEN, _INDEXING, types.int64, _ENTRIES_OUT, _ENTRIES_OUT),
    )
)
def index_batches(batches, indexing, index_interval, offset_entries, time_entries):
    """The index entries of batches that are appended to a segment, according to KAFKA-806.

    Same as `LogSegment.index_batch`. Entries are (relative offset, position) and (timestamp,
    relative offset). Returns the number of each.
    """
    state = indexing[0]
    offset_count = 0
    time_count = 0
    for index in range(len(batches)):
        batch = batches[index]
        relative_offset = batch.last_offset - state.base_offset
        if batch.max_timestamp > state.largest_timestamp:
            state.largest_timestamp = batch.max_timestamp
            state.offset_of_largest = relative_offset
        # Before the batch's own size is added: an entry points to the batch after the interval,
        # and the first batch of a segment never gets one.
        if state.size_since_entry > index_interval:
            offset_entries[offset_count, 0] = relative_offset
            offset_entries[offset_count, 1] = state.position
            offset_count += 1
            if state.largest_timestamp > state.last_indexed_timestamp:
                time_entries[time_count, 0] = state.largest_timestamp
                time_entries[time_count, 1] = state.offset_of_largest
                time_count += 1
                state.last_indexed_timestamp = state.largest_timestamp
            state.size_since_entry = 0
        state.size_since_entry += batch.size
        state.position += batch.size
    return offset_count, time_count
