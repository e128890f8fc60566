"""Rows that Kafka has deleted leave the table: which files, and what is checked again before the
commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isotherm.errors import TableOvertakenError
from isotherm.spark.jobs.table_retention import LogStarts, delete_below, plan_retention
from isotherm.spark.tables.iceberg_table import IcebergTable
from isotherm.spark.tables.upkeep_plan import DataFile
from tests.unit.spark.tables.test_topic_tables import begun
from tests.unit.spark.tables.test_upkeep_plan import add_three, merge, opened, rows


def file(partitions: tuple[int, int] | None, offsets: tuple[int, int] | None) -> DataFile:
    return DataFile("file", 10, 1, partitions, offsets)


@pytest.mark.parametrize(
    ("partitions", "offsets", "expected"),
    [
        ((0, 0), (0, 9), "whole"),
        ((0, 0), (0, 10), "border"),
        ((0, 0), (10, 19), "stays"),
        ((1, 1), (0, 9), "stays"),
        # Partition 1, in between, has no log start in the plan.
        ((0, 2), (0, 4), "border"),
        ((2, 3), (0, 4), "whole"),
        ((2, 3), (0, 5), "border"),
        ((2, 3), (20, 30), "stays"),
        (None, (0, 9), "border"),
        ((0, 0), None, "border"),
    ],
)
def test_files_by_their_bounds(
    partitions: tuple[int, int] | None, offsets: tuple[int, int] | None, expected: str
) -> None:
    plan = plan_retention([file(partitions, offsets)], {0: 10, 2: 5, 3: 20})
    found = "whole" if plan.whole else "border" if plan.border else "stays"
    assert found == expected


def no_spark() -> Any:
    raise AssertionError("no file is on the border")


def test_rows_below_the_log_start_are_deleted(tmp_path: Path) -> None:
    table = add_three(opened(tmp_path), tmp_path)
    deleted = [
        delete_below(kept, lambda: LogStarts("id", {0: 3}), no_spark, "x") for kept in table.kept()
    ]
    assert deleted == [2, 1]
    assert rows(tmp_path) == [3, 4, 6, 7]
    assert rows(tmp_path, "_dead_letters") == [5, 8]
    again = add_three(opened(tmp_path), tmp_path)
    assert again.covered() == {0: 18}
    assert rows(tmp_path, "_dead_letters") == [5, 8, 11, 14, 17]
    assert delete_below(again.kept()[0], lambda: LogStarts("id", {0: 3}), no_spark, "x") == 0


@pytest.mark.parametrize("later", [LogStarts("id", {0: 2}), LogStarts("other", {0: 3})])
def test_topic_that_is_another_one_before_the_commit(tmp_path: Path, later: LogStarts) -> None:
    table = add_three(opened(tmp_path), tmp_path)
    starts = [LogStarts("id", {0: 3}), later]
    with pytest.raises(TableOvertakenError, match="nothing was deleted"):
        delete_below(table.kept()[0], lambda: starts.pop(0), no_spark, "x")
    assert rows(tmp_path) == [0, 1, 3, 4, 6, 7]


def test_files_that_were_merged_meanwhile_are_not_deleted(tmp_path: Path) -> None:
    table: IcebergTable = add_three(opened(tmp_path), tmp_path)

    def merged() -> LogStarts:
        """The second call comes between the reading of the files and the commit. Another program
        merges them then."""
        if len(asked) == 1:
            merge(opened_again.kept()[0], tmp_path)
        asked.append(1)
        return LogStarts("id", {0: 3})

    asked: list[int] = []
    opened_again = begun(opened(tmp_path))
    assert isinstance(opened_again, IcebergTable)
    kept = table.kept()[0]
    kept.read()
    with pytest.raises(TableOvertakenError, match="start the upkeep again"):
        delete_below(kept, merged, no_spark, "x")
    assert rows(tmp_path) == [0, 1, 3, 4, 6, 7]
