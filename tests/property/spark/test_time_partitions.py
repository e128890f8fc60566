"""Partitions of rows by hour or day. The oracle is PyIceberg's transforms, with which readers of
the table filter."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.transforms import DayTransform, HourTransform
from pyiceberg.types import TimestamptzType

from isotherm.errors import ConfigError
from isotherm.spark.arrow_rows import TIMESTAMP_MS_MAX
from isotherm.spark.tables.time_partitions import (
    DAY,
    HOUR,
    NO_PARTITIONS,
    check_partition_by,
    folder_of,
    partition_column,
    partition_values,
    split_by_time,
)

TRANSFORMS = {HOUR: HourTransform(), DAY: DayTransform()}
YEAR_1_US, YEAR_9999_US = (
    int(np.datetime64(text, "us").astype(np.int64)) for text in ("0001-01-01", "9999-12-31T23:59")
)
around = st.integers(-3, 3).flatmap(
    lambda day: st.sampled_from([-1, 0, 1]).map(lambda off: day * 86_400_000_000 + off)
)
moments = st.lists(around | st.integers(YEAR_1_US, YEAR_9999_US), min_size=1, max_size=40)


def batch_of(microseconds: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array(range(len(microseconds)), pa.int64()),
            pa.array(microseconds, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        ],
        names=["offset", "timestamp"],
    )


@given(moments, st.sampled_from([HOUR, DAY]))
def test_each_row_is_once_in_the_partition_that_iceberg_gives_it(
    microseconds: list[int], unit: str
) -> None:
    batch = batch_of(microseconds)
    transform = TRANSFORMS[unit].transform(TimestamptzType())
    expected: dict[str, list[int]] = {}
    for offset, moment in enumerate(microseconds):
        value = TRANSFORMS[unit].to_human_string(TimestamptzType(), transform(moment))
        expected.setdefault(f"timestamp_{unit}={value}/", []).append(offset)
    found = {
        folder: rows.column("offset").to_pylist() for folder, rows in split_by_time(batch, unit)
    }
    assert found == expected
    for folder in found:
        file = f"file:///lake/prices/data/{folder}x-1.parquet"
        assert folder_of(file) == folder
        column = partition_column(unit)
        assert partition_values(file) == {column: folder.removeprefix(f"{column}=")[:-1]}


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("unit", [HOUR, DAY])
def test_the_furthest_times_have_a_partition(sign: int, unit: str) -> None:
    moment = sign * TIMESTAMP_MS_MAX * 1000
    ((folder, rows),) = split_by_time(batch_of([moment]), unit)
    assert rows.num_rows == 1
    assert folder_of(f"{folder}x") == folder


def test_without_partitions_the_batch_is_as_it_was() -> None:
    batch = batch_of([0, 86_400_000_000])
    ((folder, rows),) = split_by_time(batch, NO_PARTITIONS)
    assert folder == ""
    assert rows is batch
    assert list(split_by_time(batch.slice(0, 0), DAY)) == []
    file = "file:///lake/timestamp_day=old/prices/x-1.parquet"
    assert (folder_of(file), partition_values(file)) == ("", {})


def test_a_batch_of_one_partition_is_not_copied() -> None:
    batch = batch_of([5, 1, 7])
    ((_, rows),) = split_by_time(batch, DAY)
    assert rows is batch


def test_other_units_are_refused() -> None:
    for known in (NO_PARTITIONS, HOUR, DAY):
        check_partition_by(known)
    with pytest.raises(ConfigError, match="value=week known=none,hour,day"):
        check_partition_by("week")
