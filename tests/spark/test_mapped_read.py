"""isotherm.spark.read gives the same rows as the source under each of its options for speed."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

import isotherm.spark
from isotherm.errors import ConfigError
from isotherm.types import TopicIdPartition

TARGET = 20_000


def daemon_and_pyspark(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A row: the command of the worker's parent, and the file of its PySpark."""
    import pyspark

    for _ in batches:
        command = Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\0")
        yield pa.RecordBatch.from_arrays(
            [pa.array([" ".join(command)]), pa.array([pyspark.__file__])], ["daemon", "pyspark"]
        )


@pytest.fixture
def options(flights) -> dict[str, object]:
    return {
        "path": flights.folder.as_uri(),
        "subscribe": "flights",
        "includeHeaders": True,
        "targetBytesPerTask": TARGET,
    }


@pytest.fixture
def source(spark: SparkSession, options) -> DataFrame:
    texts = {name: str(value) for name, value in options.items()}
    return spark.read.format("isotherm").options(**texts).load()


def listed(frame: DataFrame) -> list[str]:
    return sorted(map(repr, frame.collect()))


def test_rows_schema_and_tasks_are_those_of_the_source(
    spark: SparkSession, options, source: DataFrame
) -> None:
    frame = isotherm.spark.read(spark, options)
    assert frame.schema == source.schema
    assert frame.rdd.getNumPartitions() == source.rdd.getNumPartitions() > 1
    assert listed(frame) == listed(source)


@pytest.mark.parametrize(
    ("columns", "sizes"),
    [
        (["offset"], {"batchBytes": 1024}),
        (["timestampType", "topic", "partition"], {"fetchBytes": 65536}),
        (["partition", "offset", "timestamp"], {"fetchBytes": 65536, "batchBytes": 2000}),
        (["value", "offset", "key"], {"batchBytes": 3000, "fetchAhead": 1}),
        (["headers"], {"batchBytes": 1024}),
    ],
    ids=lambda value: ",".join(value),
)
def test_fewer_columns_and_other_sizes_give_the_same_rows(
    spark: SparkSession, options, source: DataFrame, columns: list[str], sizes: dict[str, int]
) -> None:
    frame = isotherm.spark.read(spark, {**options, **sizes, "columns": ",".join(columns)})
    assert frame.columns == columns
    assert listed(frame) == listed(source.select(*columns))


def test_a_frame_can_be_used_twice_and_joined_with_itself(spark: SparkSession, options) -> None:
    frame = isotherm.spark.read(spark, {**options, "columns": "partition,offset"})
    first = frame.where("partition = 1")
    assert first.count() * 3 == frame.count()
    assert frame.union(first).distinct().count() == frame.count()
    assert frame.join(first, ["partition", "offset"]).count() == first.count()
    assert len(frame.limit(5).collect()) == 5


def test_nothing_to_read_gives_no_rows(spark: SparkSession, options) -> None:
    nothing = {**options, "endingOffsets": '{"flights":{"0":0,"1":0,"2":0}}'}
    assert isotherm.spark.read(spark, nothing).collect() == []


def test_wrong_options_are_refused_before_anything_runs(spark: SparkSession, options) -> None:
    with pytest.raises(ConfigError, match="subscribe"):
        isotherm.spark.read(spark, {**options, "subscribee": "flights"})
    with pytest.raises(ConfigError, match="nearest=key"):
        isotherm.spark.read(spark, {**options, "columns": "keys"})


def test_damage_names_the_object(spark: SparkSession, tier) -> None:
    segment = tier.add(TopicIdPartition(uuid.UUID(int=5), "broken", 0), range(50))
    tier.log_path(segment).write_bytes(bytes(segment.segment_size_in_bytes))
    frame = isotherm.spark.read(spark, {"path": tier.folder.as_uri(), "subscribe": "broken"})
    with pytest.raises(
        PythonException, match=r"SegmentReadError.*topic=broken partition=0.*segment="
    ):
        frame.collect()


def test_workers_of_a_local_session_are_forked_from_our_daemon(spark: SparkSession) -> None:
    mapped = spark.range(0, 1, 1, 1).mapInArrow(daemon_and_pyspark, "daemon string, pyspark string")
    [(daemon, pyspark)] = mapped.collect()
    assert "isotherm.spark.worker_daemon pyspark.worker" in daemon
    assert ".zip" not in pyspark
