"""A compiled grouping of equal rows, in one pass and without a sort.

See `isotherm.kernels` for the rules of kernels.
"""

# Numba types these functions by the signatures that they are compiled for.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,unreachable"

from __future__ import annotations

import numpy as np

from isotherm.kernels import types
from isotherm.kernels.kernel import kernel
from isotherm.kernels.parts import inlined
from isotherm.kernels.tables import INT32_OUT, INT64_OUT

# A caller with fewer columns passes one of them again. More columns would cost every caller a
# comparison per row.
COLUMNS = 5

# Probes for each row, on average. Only ids that were chosen to collide need this many, and without
# a bound they would take time by the square of their number. The caller sorts these.
_PROBES_MAX = 32

# Strided, so that the columns of a table of rows need no copies.
_COLUMN = types.Array(types.int64, 1, "A", readonly=True)
_ROWS = types.Array(types.int64, 1, "C", readonly=True)
# 2^64 divided by the golden ratio: it spreads close values over all bits.
_ODD_FACTOR = np.uint64(0x9E3779B97F4A7C15)


@inlined
def _hash(columns, row):
    """The hash of a row. Its low bits choose the slot, and depend on all bits of the row."""
    mixed = np.uint64(0)
    for column in columns:
        mixed = (mixed ^ np.uint64(column[row])) * _ODD_FACTOR
        mixed ^= mixed >> np.uint64(32)
    return np.int64(mixed)


@inlined
def _are_equal(columns, row, other):
    for column in columns:  # noqa: SIM110 - Numba knows no generators
        if column[row] != column[other]:
            return False
    return True


@kernel(
    types.int64(types.UniTuple(_COLUMN, COLUMNS), _ROWS, INT32_OUT, INT32_OUT, *(INT64_OUT,) * 2)
)
def group_rows(columns, rows, slots, groups, ordered, starts):
    """Group the rows with equal columns. `ordered` gets the rows, group by group, and `starts` the
    place in `ordered` at which each group begins. Groups are in the order of their first rows, and
    the rows of a group in the order of `rows`.

    `slots` is the hash table. Its items are -1, and their number is a power of two above the number
    of rows. Returns the number of groups, or -1 if too many hashes collide; the content of
    `ordered` and `starts` is undefined then.
    """
    mask = len(slots) - 1
    count = np.int64(0)
    probes_left = (len(rows) + 1) * _PROBES_MAX
    # A slot has the number of a group. Until the last loop `ordered` has the first row of each
    # group, and `starts` its number of rows.
    for index in range(len(rows)):
        row = rows[index]
        slot = _hash(columns, row) & mask
        while slots[slot] >= 0 and not _are_equal(columns, row, ordered[slots[slot]]):
            slot = (slot + 1) & mask
            probes_left -= 1
            if probes_left < 0:
                return np.int64(-1)
        if slots[slot] < 0:
            slots[slot] = count
            ordered[count] = row
            starts[count] = 0
            count += 1
        groups[index] = slots[slot]
        starts[slots[slot]] += 1
    end = np.int64(0)
    for number in range(count):
        end += starts[number]
        starts[number] = end
    # From the last row back, each row takes the last free place of its group. So `starts` ends as
    # the start of each group, and a group keeps the order of `rows`.
    for index in range(len(rows) - 1, -1, -1):
        group = groups[index]
        starts[group] -= 1
        ordered[starts[group]] = rows[index]
    return count
