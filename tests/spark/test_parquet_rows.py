"""Rows straight from Parquet files, against the same files read by Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

import isotherm.spark
from isotherm.spark.jobs import parquet_rows
from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker
from oracle.consumed_records import consume_all

NOW_MS = 1_700_000_000_000
TIMEOUT_S = 300


def column_of(*values: Any, kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind)


def write(path: Path, value: pa.DataType, timestamp: pa.DataType, times: list[int | None]) -> None:
    count = len(times)
    table = pa.table(
        {
            "key": column_of(None, *(b"k%d" % n for n in range(1, count)), kind=pa.binary()),
            "value": column_of(*(f"v{n}" for n in range(count - 1)), None, kind=value),
            "timestamp": pa.array(times, pa.int64()).cast(timestamp),
            "other": pa.array(range(count)),
        }
    )
    pq.write_table(table, path, row_group_size=3)


@pytest.mark.parametrize(
    ("value", "timestamp"),
    [
        (pa.string(), pa.timestamp("us", "UTC")),
        (pa.binary(), pa.timestamp("ms")),
        (pa.string(), pa.int64()),
    ],
)
def test_rows_are_those_that_spark_reads(
    spark: SparkSession, tmp_path: Path, value: pa.DataType, timestamp: pa.DataType
) -> None:
    folder = tmp_path / "with a blank"
    folder.mkdir()
    write(folder / "1.parquet", value, timestamp, [5, None, -1, -1001, 1_600_000_000_123_456, 7, 8])
    write(folder / "2.parquet", value, timestamp, [1999])
    frame = spark.read.parquet(str(folder))
    tasks = parquet_rows.tasks_of(frame)
    numbers = pa.RecordBatch.from_pydict({"id": list(range(len(tasks)))})
    batches = parquet_rows.read(tasks, frame.columns, NOW_MS, iter([numbers]))
    found = [
        (row["key"], row["value"], row["timestamp"], row["timestamp_type"], row["place"])
        for batch in batches
        for row in batch.to_pylist()
    ]
    time = sql.col("timestamp")
    if not pa.types.is_int64(timestamp):
        time = sql.unix_millis(time.cast("timestamp"))
    time = sql.coalesce(time, sql.lit(NOW_MS))
    rows = frame.select("key", sql.col("value").cast("binary"), time.alias("time")).collect()
    wanted = [
        (row.key and bytes(row.key), row.value and bytes(row.value), row.time, 0, row.time)
        for row in rows
    ]
    assert len(found) == 8
    assert sorted(found, key=repr) == sorted(wanted, key=repr)


def test_what_spark_has_to_compute_is_left_to_it(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    write(path, pa.string(), pa.timestamp("us", "UTC"), [1, 2, 3, 4])
    frame = spark.read.parquet(str(path))
    assert parquet_rows.tasks_of(frame.drop("other"))
    for other in (
        frame.where("key IS NOT NULL"),
        frame.limit(2),
        frame.withColumn("value", sql.upper("value")),
        frame.select(sql.col("key").alias("value")),
        frame.withColumnRenamed("value", "Value"),
        frame.withColumn("headers", sql.lit(None)),
        spark.read.schema("value string, timestamp long").parquet(str(path)),
        spark.createDataFrame([("v",)], "value string"),
    ):
        assert not parquet_rows.tasks_of(other)
    # The key of the folder's name comes before that in the file.
    folder = tmp_path / "partitioned" / "key=abc"
    folder.mkdir(parents=True)
    write(folder / "rows.parquet", pa.string(), pa.timestamp("us", "UTC"), [1, 2])
    assert not parquet_rows.tasks_of(spark.read.parquet(str(folder.parent)))


def test_a_load_of_files_is_consumed(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    times: list[int | None] = [NOW_MS + (n * 7919) % 1000 for n in range(1000)]
    write(path, pa.string(), pa.timestamp("ms"), times)
    frame = spark.read.parquet(str(path))
    assert parquet_rows.tasks_of(frame)
    with EmbeddedBroker(tmp_path / "broker") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic("loaded", 3, config=TIERED_TOPIC)])["loaded"].result(
            TIMEOUT_S
        )
        options = {
            "path": str(broker.directory / "bucket"),
            "kafka.bootstrap.servers": broker.bootstrap_servers,
        }
        isotherm.spark.write_history(frame, "loaded", options, wait_s=TIMEOUT_S)
        records = consume_all(broker.bootstrap_servers, "loaded")
    expected = [
        (key, None if value is None else value.encode(), time)
        for key, value, time in zip(
            *(pq.read_table(path)[name].to_pylist() for name in ("key", "value")),
            times,
            strict=True,
        )
    ]
    found = [(record.key, record.value, record.timestamp_ms) for record in records]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    for number in range(3):
        mine = [record.timestamp_ms for record in records if record.partition == number]
        assert mine == sorted(mine)


def test_rows_of_one_value_are_read_some_at_a_time(spark: SparkSession, tmp_path: Path) -> None:
    value, count = b"v" * 2000, 20_000
    table = pa.table({"value": pa.array([value]).take(pa.array([0] * count))})
    pq.write_table(table, tmp_path / "1.parquet")
    frame = spark.read.parquet(str(tmp_path / "1.parquet"))
    tasks = parquet_rows.tasks_of(frame)
    numbers = pa.RecordBatch.from_pydict({"id": list(range(len(tasks)))})
    batches = list(parquet_rows.read(tasks, frame.columns, NOW_MS, iter([numbers])))
    assert sum(len(batch) for batch in batches) == count
    # In the file the value is once. As rows it would be 40 MB.
    assert max(batch["value"].nbytes for batch in batches) < 20_000_000
