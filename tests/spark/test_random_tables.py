"""Table and dead letters of random topics are what a consumer of committed records gets.

Each column of both is compared by the hash of all of its values, in the order of partitions and
offsets, after each of several runs. The oracle is in table_histories. DuckDB reads the files, and PyIceberg
the Iceberg tables too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

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
SEEDS = (1, 4, 5, 6, 7)
SOAK_SEEDS = range(100, 200)


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
    """By DuckDB. Of an Iceberg table the files of its snapshot: no column was renamed."""
    if shape.to == "iceberg":
        planned = load_table(lake, f"kafka.{shape.topic}{suffix}").scan().plan_files()
        files = [each.file.file_path.removeprefix("file://") for each in planned]
    else:
        files = [str(each) for each in (lake / f"{shape.topic}{suffix}").glob("*.parquet")]
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
    """Of each column."""
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
        scanned = rows_of(load_table(lake, f"kafka.{shape.topic}"))
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
