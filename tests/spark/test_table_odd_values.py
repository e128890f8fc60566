"""Rare values, through `isotherm pipeline table` and back by Spark: large ones, wide ones, and
fields with names that differ in case only. Also a locked catalog, and a table that other programs
change.
"""

from __future__ import annotations

import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pytest
from pyiceberg.types import DoubleType
from pyspark.sql import SparkSession

import isotherm.spark
from isotherm.errors import RemoteStorageError
from isotherm.record.batch import CompressionType, NewRecord, build_batch
from isotherm.spark.tables.iceberg_table import IcebergTable
from isotherm.spark.tables.topic_table import TableCommit
from tests.spark.conftest import Tier
from tests.spark.test_table import OWNER, without_nulls
from tests.support import table_histories
from tests.support.topic_tables import load_table, rows_of, run_table

SIZE = 10_000_000
FIELDS = [f"field_{n}" for n in range(2000)]
SCHEMA_ID = 400
SCHEMA = {
    "type": "record",
    "name": "Wide",
    "fields": [{"name": name, "type": ["null", "long"], "default": None} for name in FIELDS],
}


def put(tier: Tier, values: list[bytes | None], *, start: int = 0) -> None:
    """Add a segment with a batch for each value."""
    tier.maker.tier(
        OWNER,
        [
            build_batch(
                [NewRecord(1_700_000_000_000, None, value)],
                base_offset=offset,
                compression=CompressionType.ZSTD,
            )
            for offset, value in enumerate(values, start)
        ],
    )


def values_of(spark: SparkSession, tier: Tier, lake: Path, **more: Any) -> dict[int, Any]:
    """The values by offset, from the frame of table and bucket."""
    options = {"path": tier.folder.as_uri()}
    frame = isotherm.spark.topic(spark, "prices", options, warehouse=str(lake), **more)
    rows = frame.select("offset", "value").toArrow().to_pylist()
    return {row["offset"]: without_nulls(row["value"]) for row in rows}


def test_values_of_ten_megabytes(spark: SparkSession, tier: Tier, tmp_path: Path) -> None:
    large = [{"n": n, "text": str(n) * SIZE} for n in range(3)]
    texts: list[bytes | None] = [json.dumps(each).encode() for each in large]
    dead = b'{"n": "' + b"x" * SIZE + b'"}'
    put(tier, [*texts[:2], dead])
    done = run_table("prices", tier.folder, "--value", "json", "--warehouse", str(tmp_path))
    assert (done["rows"], done["dead_letters"]) == (2, 1)
    (letter,) = rows_of(load_table(tmp_path, "kafka.prices_dead_letters"))
    assert letter["value"] == dead
    assert len(letter["reason"]) < 300
    put(tier, [dead, texts[2]], start=3)
    assert values_of(spark, tier, tmp_path) == {0: large[0], 1: large[1], 4: large[2]}


@pytest.mark.soak
def test_two_thousand_columns(
    spark: SparkSession, tier: Tier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(table_histories.SCHEMAS, SCHEMA_ID, SCHEMA)
    rows: list[dict[str, int]] = [dict.fromkeys(FIELDS, 2**40), {FIELDS[7]: 7}, {FIELDS[-1]: 1}]
    parsed = fastavro.parse_schema(SCHEMA)

    def avro(row: dict[str, int]) -> bytes:
        written = io.BytesIO()
        fastavro.schemaless_writer(written, parsed, row)
        return b"\0" + SCHEMA_ID.to_bytes(4, "big") + written.getvalue()

    # Keys are JSON and values Avro: both columns have so many fields.
    keys = [json.dumps(row).encode() for row in rows]
    records = [
        NewRecord(1_700_000_000_000, key, avro(row)) for key, row in zip(keys, rows, strict=True)
    ]
    tier.maker.tier(OWNER, [build_batch(records[:2], base_offset=0)])
    with table_histories.serve_schemas() as registry:
        done = run_table(
            "prices", tier.folder, "--key", "json", "--value", "avro", "--registry", registry,
            "--warehouse", str(tmp_path),
        )  # fmt: skip
        assert (done["rows"], done["dead_letters"]) == (2, 0)
        tier.maker.tier(OWNER, [build_batch(records[2:], base_offset=2)])
        frame = isotherm.spark.topic(
            spark,
            "prices",
            {"path": tier.folder.as_uri()},
            warehouse=str(tmp_path),
            registry=registry,
        )
        found = sorted(frame.toArrow().to_pylist(), key=lambda row: row["offset"])
    assert [without_nulls(row["key"]) for row in found] == rows
    assert [without_nulls(row["value"]) for row in found] == rows
    assert frame.selectExpr("sum(value.field_7)").first() == (2**40 + 7,)


@pytest.mark.parametrize("to", ["iceberg", "delta", "parquet"])
def test_names_that_differ_in_case_only(
    spark: SparkSession, tier: Tier, tmp_path: Path, to: str
) -> None:
    options = ("--to", to, "--value", "json", "--warehouse", str(tmp_path))
    put(tier, [b'{"id": 1}', b'{"ID": 2}', b'{"id": 3, "Id": 4}', b'{"ID": null}'])
    done = run_table("prices", tier.folder, *options)
    assert (done["rows"], done["dead_letters"]) == (2, 2)
    put(tier, [b'{"iD": 5}', b'{"id": 6, "new": 1}', b'{"New": 2}'], start=4)
    done = run_table("prices", tier.folder, *options)
    assert (done["rows"], done["dead_letters"]) == (1, 2)
    put(tier, [b'{"Id": 7}', b'{"id": 8}'], start=7)
    found = values_of(spark, tier, tmp_path, to=to)
    assert found == {0: {"id": 1}, 3: {}, 5: {"id": 6, "new": 1}, 8: {"id": 8}}
    with duckdb.connect() as engine:
        files = tmp_path.rglob("*dead_letters/**/*.parquet")
        read = engine.read_parquet([str(file) for file in files])  # noqa: F841
        letters = engine.sql(
            'select "offset", value, reason from read order by "offset"'
        ).fetchall()
    assert letters == [
        (offset, value, f"value: field {name} differs in case only from {first}")
        for offset, value, name, first in [
            (1, b'{"ID": 2}', "ID", "id"),
            (2, b'{"id": 3, "Id": 4}', "Id", "id"),
            (4, b'{"iD": 5}', "iD", "id"),
            (6, b'{"New": 2}', "New", "new"),
        ]
    ]


@pytest.mark.parametrize("to", ["iceberg", "delta", "parquet"])
def test_numbers_are_stored_as_they_were_sent_or_dead(
    spark: SparkSession, tier: Tier, tmp_path: Path, to: str
) -> None:
    options = ("--to", to, "--value", "json", "--warehouse", str(tmp_path))
    sent: list[bytes | None] = [
        b'{"id": 1201234567890123457, "price": 1.5, "in": {"n": [9007199254740993]}}',
        b'{"id": 1201234567890123458, "price": 0.30000000000000004}',
        b'{"id": 1.5}',
        b'{"price": 0.1234567890123456789}',
        b'{"id": 123456789012345678901234567890}',
        b'{"price": 9007199254740993}',
        b'{"in": {"n": [1, 0.5]}}',
        b'{"price": NaN}',
        b'{"new": [9007199254740993, 0.5]}',
        b'{"price": 100000000000000000000, "in": {"n": [9223372036854775807, null]}}',
    ]
    put(tier, sent[:6])
    done = run_table("prices", tier.folder, *options)
    assert (done["rows"], done["dead_letters"]) == (2, 4)
    put(tier, sent[6:9], start=6)
    done = run_table("prices", tier.folder, *options)
    assert (done["rows"], done["dead_letters"]) == (0, 3)
    # The frame has the last one from the bucket.
    put(tier, sent[9:], start=9)
    assert values_of(spark, tier, tmp_path, to=to) == {
        0: {"id": 1201234567890123457, "price": 1.5, "in": {"n": [2**53 + 1]}},
        1: {"id": 1201234567890123458, "price": 0.30000000000000004},
        9: {"price": 1e20, "in": {"n": [2**63 - 1, None]}},
    }


def test_a_locked_catalog_and_changes_by_others(
    spark: SparkSession, tier: Tier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del spark
    file = tmp_path / "catalog.db"
    options = ["--value", "json", "--warehouse", str(tmp_path), "--to-option", "type=sql"]
    options += ["--to-option", f"uri=sqlite:///{file}?timeout=0"]
    put(tier, [b'{"n": 0}', b"{"])
    run_table("prices", tier.folder, *options)
    put(tier, [b'{"n": 2, "new": 1}', b"{"], start=2)
    commit = IcebergTable.commit

    def locked(table: IcebergTable, made: TableCommit) -> None:
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            commit(table, made)

    with monkeypatch.context() as patched:
        patched.setattr(IcebergTable, "commit", locked)
        with pytest.raises(RemoteStorageError, match="cannot be written: the catalog fails"):
            run_table("prices", tier.folder, *options)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(RemoteStorageError, match="the catalog fails"):
            run_table("prices", tier.folder, *options)
    table = load_table(tmp_path, "kafka.prices")
    assert [row["offset"] for row in rows_of(table)] == [0]

    # Others add a column, and a row while a run is under way.
    with table.update_schema() as update:
        update.add_column("price", DoubleType())

    def beside(ours: IcebergTable, made: TableCommit) -> None:
        theirs = load_table(tmp_path, "kafka.prices")
        theirs.append(theirs.scan(row_filter="offset = 0").to_arrow())
        commit(ours, made)

    with monkeypatch.context() as patched:
        patched.setattr(IcebergTable, "commit", beside)
        run_table("prices", tier.folder, *options)
    rows = rows_of(load_table(tmp_path, "kafka.prices"))
    assert [(row["offset"], without_nulls(row["value"]), row["price"]) for row in rows] == [
        (0, {"n": 0}, None),
        (0, {"n": 0}, None),
        (2, {"n": 2, "new": 1}, None),
    ]
    dead = rows_of(load_table(tmp_path, "kafka.prices_dead_letters"))
    assert [row["offset"] for row in dead] == [1, 3]
