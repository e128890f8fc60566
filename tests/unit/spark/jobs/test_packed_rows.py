"""Rows in pieces, against sorting all rows at once."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.record.encode import Partitioner
from isotherm.spark.jobs import packed_rows

ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(-5, 20)), min_size=1, max_size=60)


def batch_of(rows: list[tuple[int, int]], first: int, *, has_ties: bool) -> pa.RecordBatch:
    """A batch of (partition, place); the value is the number of the row in the input."""
    numbers = range(first, first + len(rows))
    columns: dict[str, Any] = {
        "key": pa.nulls(len(rows), pa.binary()),
        "value": pa.array([b"%d" % number for number in numbers], pa.binary()),
        "timestamp": pa.array([place for _, place in rows], pa.int64()),
        "timestamp_type": pa.array([0] * len(rows), pa.int32()),
        "place": pa.array([place for _, place in rows], pa.int64()),
        "partition": pa.array([partition for partition, _ in rows], pa.int32()),
    }
    if has_ties:
        columns["tie"] = pa.array([-number for number in numbers], pa.int64())
    return pa.RecordBatch.from_pydict(columns)


@given(
    st.lists(ROWS, min_size=1, max_size=6),
    st.lists(st.integers(-6, 21), max_size=4, unique=True).map(sorted),
    st.integers(1, 3000),
    st.integers(1, 3000),
    st.booleans(),
    st.booleans(),
)
def test_ranges_have_their_rows_in_order(
    inputs: list[list[tuple[int, int]]],
    bounds: list[int],
    pack_bytes: int,
    joined_bytes: int,
    has_ties: bool,
    in_files: bool,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check_ranges(
            inputs,
            bounds,
            pack_bytes,
            joined_bytes,
            folder if in_files else None,
            has_ties=has_ties,
        )


def check_ranges(
    inputs: list[list[tuple[int, int]]],
    bounds: list[int],
    pack_bytes: int,
    joined_bytes: int,
    folder: str | None,
    *,
    has_ties: bool,
) -> None:
    batches, numbered = [], []
    for rows in inputs:
        batches.append(batch_of(rows, len(numbered), has_ties=has_ties))
        numbered += rows
    packed_rows.PACK_BYTES, before = pack_bytes, packed_rows.PACK_BYTES
    try:
        packed = list(packed_rows.pack(Partitioner.COLUMN, 3, 1, folder, iter(batches)))
    finally:
        packed_rows.PACK_BYTES = before
    each = len(bounds) + 1
    first_ranges = {partition: (partition * each, tuple(bounds)) for partition in range(3)}
    tasks = [number % 2 for number in range(3 * each)]
    pieces = defaultdict(list)
    for split in packed_rows.split(first_ranges, tasks, iter(packed), with_data=True):
        for row in split.to_pylist():
            assert row["task"] == tasks[row["range"]]
            pieces[row["range"]].append((row["row"], row["data"]))
    found: dict[int, list[int]] = defaultdict(list)
    for number in sorted(pieces):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(packed_rows, "JOINED_BYTES_MAX", joined_bytes)
            batches = list(packed_rows.in_order([data for _, data in sorted(pieces[number])]))
        for rows_of_range in batches:
            # Joined parts may have bitmaps of nulls that a part without nulls lacks.
            bitmaps = rows_of_range.num_columns * (len(rows_of_range) // 8 + 1)
            assert len(rows_of_range) == 1 or rows_of_range.nbytes <= joined_bytes + bitmaps
            found[number // each] += [int(value) for value in rows_of_range["value"].to_pylist()]
    expected: dict[int, list[int]] = defaultdict(list)
    order = sorted(
        range(len(numbered)),
        key=lambda n: (numbered[n][1], -n if has_ties else n),
    )
    for number in order:
        expected[numbered[number][0]].append(number)
    assert found == expected
    counted = packed_rows.split(first_ranges, tasks, iter(packed), with_data=False)
    assert sum(sum(batch["records"].to_pylist()) for batch in counted) == len(numbered)


def test_a_packed_row_says_what_is_wrong_with_its_records() -> None:
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    names = pa.array([None, [{"key": None, "value": b""}], [{"key": "h", "value": None}]], headers)
    rows = batch_of([(1, 5), (1, -7), (1, 3)], 0, has_ties=False).append_column("headers", names)
    (packed,) = packed_rows.pack(Partitioner.COLUMN, 3, 1, None, iter([rows]))
    (row,) = packed.to_pylist()
    assert (row["partition"], row["records"], row["first_ms"], row["last_ms"]) == (1, 3, -7, 5)
    assert (row["wrong_times"], row["nameless"]) == (1, 1)
