"""Tables and dead letters of random topics have the records that a read_committed consumer gets.

The test compares each column by the hash of its values, in the order of partitions and offsets,
after each of several runs. The oracle is in table_histories. DuckDB reads the files, and PyIceberg
also reads Iceberg tables. A frame of a table, the bucket after it and a broker's tail is compared
in the same way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession

import isotherm.spark
from isotherm.log.checkpoints import load_partition_metadata
from isotherm.log.fs import OsFileSystem
from isotherm.testing.embedded_broker import EmbeddedBroker
from tests.support.table_histories import (
    Row,
    Stored,
    TableHistory,
    TableShape,
    expected_row,
    serve_schemas,
)
from tests.support.topic_tables import load_table, rows_of, run_table

COLUMNS = ("partition", "offset", "timestamp", "timestampType", "headers", "key", "value")
# This seed makes the most records.
LONG = pytest.param(6, marks=pytest.mark.nightly)
SEEDS = (1, 4, 5, LONG, 7)
SOAK_SEEDS = range(100, 200)
TABLES = ("iceberg", "delta", "parquet")
SPANNED_SEEDS = (4, LONG)
SPANNED_SOAK_SEEDS = range(200, 300)


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    with serve_schemas() as url:
        yield url


def options_of(shape: TableShape, lake: Path, registry: str) -> list[str]:
    options = ["--to", shape.to, "--warehouse", str(lake)]
    options += ["--key", shape.key_format, "--value", shape.value_format]
    if shape.value_format == "avro":
        options += ["--registry", registry]
    if shape.with_gaps:
        options += ["-o", "failOnOffsetGaps=false"]
    if shape.records_per_task is not None:
        options += ["-o", f"maxRecordsPerPartition={shape.records_per_task}"]
    return options


def read_files(shape: TableShape, lake: Path, suffix: str) -> list[Row]:
    """Read a table's files with DuckDB; of an Iceberg table those of its snapshot (no column was
    renamed).
    """
    if shape.to == "iceberg":
        planned = load_table(lake, f"{shape.iceberg_name}{suffix}").scan().plan_files()
        files = [each.file.file_path.removeprefix("file://") for each in planned]
    else:
        files = [str(path) for path in (lake / f"{shape.topic}{suffix}").glob("*.parquet")]
    if not files:
        return []
    with duckdb.connect() as engine:
        read = engine.read_parquet(files, union_by_name=True)  # noqa: F841
        found = engine.sql('select * from read order by partition, "offset"')
        rows: list[Row] = found.to_arrow_table().to_pylist()
    return rows


def settled(value: Any) -> Any:
    """A field that a document lacks is null in the table."""
    if isinstance(value, dict):
        return {name: settled(value[name]) for name in sorted(value) if value[name] is not None}
    return [settled(each) for each in value] if isinstance(value, list) else value


def without_empty(rows: list[Row]) -> list[Row]:
    """PyIceberg's scan shows an empty list of structs where there is none (0.12)."""

    def changed(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: changed(inner) for name, inner in value.items()}
        return value or None if isinstance(value, list) else value

    return [{name: changed(row.get(name)) for name in COLUMNS} for row in rows]


def digests(rows: list[Row]) -> dict[str, str]:
    """The hash of each column's values."""
    return {
        name: hashlib.sha256(repr([settled(row.get(name)) for row in rows]).encode()).hexdigest()
        for name in COLUMNS
    }


def check_equal(found: list[Row], expected: list[Row]) -> None:
    if digests(found) == digests(expected):
        return
    for ours, theirs in zip(found, expected, strict=False):
        for name in COLUMNS:
            place = f"{name} of partition {theirs['partition']}, offset {theirs['offset']}"
            assert settled(ours.get(name)) == settled(theirs[name]), place
    assert len(found) == len(expected)


def check_is_topic(shape: TableShape, lake: Path, records: list[Stored]) -> None:
    expected: dict[bool, list[Row]] = {False: [], True: []}
    for record in records:
        row, is_dead = expected_row(record, shape.key_format, shape.value_format)
        expected[is_dead].append(row)
    rows, dead = (read_files(shape, lake, suffix) for suffix in ("", "_dead_letters"))
    check_equal(rows, expected[False])
    check_equal(dead, expected[True])
    if shape.to == "iceberg":
        scanned = rows_of(load_table(lake, shape.iceberg_name))
        check_equal(without_empty(scanned), without_empty(expected[False]))
    assert {row["topic"] for row in rows + dead} <= {shape.topic}
    assert all(row["reason"] for row in dead)


def check_history(directory: Path, seed: int, registry: str) -> None:
    shape = TableShape.of(seed)
    history, lake = TableHistory(directory / "topic", seed, shape), directory / "lake"
    for number in range(shape.runs):
        history.grow(ends=number == shape.runs - 1)
        run_table(shape.topic, history.bucket, *options_of(shape, lake, registry))
        check_is_topic(shape, lake, history.committed())
    assert history.committed()


@pytest.mark.parametrize("seed", SEEDS)
def test_table_and_dead_letters_are_what_a_consumer_gets(
    spark: SparkSession, registry: str, tmp_path: Path, seed: int
) -> None:
    del spark
    check_history(tmp_path, seed, registry)


@pytest.mark.soak
@pytest.mark.parametrize("seed", SOAK_SEEDS)
def test_hundred_tables_are_what_a_consumer_gets(
    spark: SparkSession, registry: str, tmp_path: Path, seed: int
) -> None:
    del spark
    check_history(tmp_path, seed, registry)


class Spanned:
    """A topic with its oldest records in a table, later ones in the bucket alone, and the last
    on a broker alone.
    """

    def __init__(self, directory: Path, seed: int, registry: str) -> None:
        self.shape = replace(TableShape.of(seed), to=TABLES[seed % len(TABLES)])
        self.lake, self._registry = directory / "lake", registry
        self._broker_folder, log_dir = directory / "broker", directory / "broker" / "log"
        with self._broker() as broker:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
            topic = NewTopic(
                self.shape.topic, self.shape.partitions, 1, config={"retention.ms": "-1"}
            )
            admin.create_topics([topic])[self.shape.topic].result(300)
        topic_id = load_partition_metadata(OsFileSystem(), log_dir / f"{self.shape.topic}-0")
        assert topic_id is not None
        self.history = TableHistory(directory / "topic", seed, self.shape, topic_id, one_epoch=True)
        self.history.grow(ends=False)
        self.run()
        self.history.grow(ends=False)
        self.history.grow(ends=seed % 4 < 3, copies=False)
        self.history.give_logs(log_dir)

    def _broker(self) -> EmbeddedBroker:
        return EmbeddedBroker(self._broker_folder)

    def run(self, *options: str) -> None:
        own = options_of(self.shape, self.lake, self._registry)
        run_table(self.shape.topic, self.history.bucket, *own, *options)

    def frame(self, spark: SparkSession, options: dict[str, object]) -> DataFrame:
        shape = self.shape
        options |= {"path": self.history.bucket.as_uri(), "metadata": "bucket"}
        options |= {"failOnOffsetGaps": not shape.with_gaps}
        if shape.records_per_task is not None:
            options |= {"maxRecordsPerPartition": shape.records_per_task}
        registry = self._registry if shape.value_format == "avro" else None
        place = {"to": shape.to, "warehouse": str(self.lake)}
        return isotherm.spark.topic(spark, shape.topic, options, registry=registry, **place)

    def check(self, spark: SparkSession) -> None:
        shape, records = self.shape, self.history.committed()
        with self._broker() as broker:
            server = broker.bootstrap_servers
            options: dict[str, object] = {"kafka.bootstrap.servers": server}
            history = self.frame(spark, {})
            assert 0 < history.count() < len(records)
            whole = self.frame(spark, options)
            check_frame(whole, records, shape)
            self.run("-b", server, "-o", "metadata=bucket")
            check_is_topic(shape, self.lake, records)
            # The frame has the same rows, although the table has all of them now.
            check_frame(whole, records, shape)
            check_frame(self.frame(spark, options), records, shape)


def check_frame(frame: DataFrame, records: list[Stored], shape: TableShape) -> None:
    table = frame.toArrow()
    found = sorted(table.to_pylist(), key=lambda row: (row["partition"], row["offset"]))
    decoded = [expected_row(record, shape.key_format, shape.value_format) for record in records]
    kind = table.schema.field("value").type
    check_equal(
        found,
        [row | {"value": known(row["value"], kind)} for row, is_dead in decoded if not is_dead],
    )
    assert {row["topic"] for row in found} == {shape.topic}


def known(value: Any, kind: pa.DataType) -> Any:
    """The part of a value that has columns."""
    if isinstance(value, dict) and isinstance(kind, pa.StructType):
        names = [field.name for field in kind]
        return {name: known(value[name], kind.field(name).type) for name in names if name in value}
    if isinstance(value, list) and isinstance(kind, pa.ListType):
        return [known(each, kind.value_type) for each in value]
    return value


@pytest.mark.parametrize("seed", SPANNED_SEEDS)
def test_table_bucket_and_tail_are_what_a_consumer_gets(
    spark: SparkSession, registry: str, tmp_path: Path, seed: int
) -> None:
    Spanned(tmp_path, seed, registry).check(spark)


@pytest.mark.soak
@pytest.mark.parametrize("seed", SPANNED_SOAK_SEEDS)
def test_hundred_tables_with_bucket_and_tail_are_what_a_consumer_gets(
    spark: SparkSession, registry: str, tmp_path: Path, seed: int
) -> None:
    Spanned(tmp_path, seed, registry).check(spark)
