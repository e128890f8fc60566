"""Rows are grouped as a dictionary groups them, whatever their hashes are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.kernels import grouping
from isotherm.remote.metadata.folding.lives import grouped

TABLE = np.dtype([(name, np.int64) for name in "abc"])
# Few values, so that rows are equal; neighbours and extremes, because single bits decide the hash.
NUMBERS = st.sampled_from([0, 1, 2, 1 << 32, -1, -(2**63), 2**63 - 1])


def table_of(rows: list[tuple[int, int, int]]) -> list[np.ndarray]:
    table = np.array(rows, TABLE)
    return [table["a"], table["b"], np.ascontiguousarray(table["c"])]


def by_dictionary(rows: list[int], columns: list[np.ndarray]) -> list[list[int]]:
    groups: dict[tuple[int, ...], list[int]] = {}
    for row in rows:
        groups.setdefault(tuple(int(column[row]) for column in columns), []).append(row)
    return list(groups.values())


def as_lists(found: tuple[np.ndarray, np.ndarray]) -> list[list[int]]:
    ordered, starts = found
    return [part.tolist() for part in np.split(ordered, starts[1:])] if len(starts) else []


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=60), st.data())
def test_rows_are_grouped_as_by_a_dictionary(
    rows: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    columns = table_of(rows)
    numbers = data.draw(st.lists(st.sampled_from(range(len(rows))), unique=True)) if rows else []
    chosen = np.array(sorted(numbers), np.int64)
    expected = by_dictionary(chosen.tolist(), columns)
    assert as_lists(grouped(chosen, *columns)) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "group_rows", lambda *_: -1)  # as if too many hashes collided
        assert as_lists(grouped(chosen, *columns)) == expected


def slot_of(value: int, slots_count: int) -> int:
    """The slot in which the kernel puts a row. It is the only slot filled."""
    column = np.array([value], np.int64)
    slots, groups = np.full(slots_count, -1, np.int32), np.empty(1, np.int32)
    out = np.empty(1, np.int64), np.empty(1, np.int64)
    rows = np.zeros(1, np.int64)
    assert grouping.group_rows((column,) * grouping.COLUMNS, rows, slots, groups, *out) == 1
    return int(np.flatnonzero(slots == 0)[0])


def test_rows_whose_hashes_were_made_to_collide_are_grouped_all_the_same() -> None:
    count, slots_count = 100, 256
    same = [value for value in range(200 * slots_count) if slot_of(value, slots_count) == 7][:count]
    assert len(same) == count
    column = np.array(same + same[:9], np.int64)
    rows = np.arange(len(column))
    out = np.empty(len(column), np.int64), np.empty(len(column), np.int64)
    slots, groups = np.full(slots_count, -1, np.int32), np.empty(len(column), np.int32)
    assert grouping.group_rows((column,) * grouping.COLUMNS, rows, slots, groups, *out) == -1
    assert as_lists(grouped(rows, column)) == by_dictionary(rows.tolist(), [column])
