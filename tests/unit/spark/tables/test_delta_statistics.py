"""Bounds and counts of a file for Delta's log. No row lies outside the bounds."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from isotherm.spark.tables.delta_statistics import COLUMNS_MAX, file_statistics


def statistics_of(table: pa.Table, **options: Any) -> dict[str, Any]:
    target = io.BytesIO()
    parquet.write_table(table, target, **options)
    return file_statistics(parquet.ParquetFile(io.BytesIO(target.getvalue())).metadata)


def test_bounds_over_row_groups_and_inside_of_structs() -> None:
    table = pa.table(
        {
            "n": [3, None, 1, 7],
            "value": [{"x": 5, "when": date(2024, 2, 29), "texts": ["a"]}, None, None, None],
        }
    )
    assert statistics_of(table, row_group_size=2) == {
        "numRecords": 4,
        "nullCount": {"n": 1, "value": {"x": 3, "when": 3}},
        "minValues": {"n": 1, "value": {"x": 5, "when": "2024-02-29"}},
        "maxValues": {"n": 7, "value": {"x": 5, "when": "2024-02-29"}},
    }


def test_times_are_rounded_away_from_the_rows() -> None:
    times = [datetime(2024, 1, 1, 0, 0, 0, 1001, UTC), datetime(2024, 1, 1, 0, 0, 0, 2001, UTC)]
    zoned = pa.array(times, pa.timestamp("us", "UTC"))
    table = pa.table({"zoned": zoned, "local": zoned.cast(pa.timestamp("us"))})
    found = statistics_of(table)
    assert found["minValues"] == {
        "zoned": "2024-01-01T00:00:00.001Z",
        "local": "2024-01-01T00:00:00.001",
    }
    assert found["maxValues"] == {
        "zoned": "2024-01-01T00:00:00.003Z",
        "local": "2024-01-01T00:00:00.003",
    }


def test_what_delta_cannot_write_has_no_bounds() -> None:
    table = pa.table(
        {
            "double": [float("nan"), 1.0],
            "late": pa.array([0, 2**62], pa.timestamp("us", "UTC")),
            "text": ["a", "b"],
            "flag": [True, False],
            "nothing": pa.array([None, None], pa.int64()),
        }
    )
    found = statistics_of(table)
    assert found.keys() == {"numRecords", "nullCount"}
    assert found["nullCount"] == {"double": 0, "late": 0, "text": 0, "flag": 0, "nothing": 2}


def test_files_of_many_columns_and_of_none() -> None:
    many = pa.table({f"c{n}": [n] for n in range(COLUMNS_MAX + 5)})
    assert len(statistics_of(many)["minValues"]) == COLUMNS_MAX
    assert statistics_of(many.slice(0, 0)) == {"numRecords": 0}
