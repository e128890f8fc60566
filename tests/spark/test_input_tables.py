"""Delta and Iceberg tables as inputs of a load, without Spark's jars of them."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.errors import ConfigError, UnsupportedVersionError
from isotherm.spark.tables.input_tables import delta_frame, iceberg_frame
from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker
from oracle.consumed_records import consume_all

TIMEOUT_S = 300
EPOCH = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)


def rows_of(numbers: range) -> list[dict[str, Any]]:
    return [
        {
            "kind": None if n % 5 == 4 else f"k{n % 3}",
            "n": n,
            "at": EPOCH + datetime.timedelta(seconds=n),
            "day": datetime.date(2024, 1, 1 + n % 28),
            "price": Decimal(n) / 100,
            "tags": [f"t{n}", None],
            "inner": {"raw": bytes([n % 256])},
        }
        for n in numbers
    ]


SCHEMA = pa.schema(
    [
        pa.field("kind", pa.string()),
        pa.field("n", pa.int64()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("day", pa.date32()),
        pa.field("price", pa.decimal128(12, 2)),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("inner", pa.struct([pa.field("raw", pa.binary())])),
    ]
)


def table_of(numbers: range) -> pa.Table:
    return pa.Table.from_pylist(rows_of(numbers), schema=SCHEMA)


def collected(frame: Any) -> list[dict[str, Any]]:
    rows = frame.toArrow().to_pylist()
    return sorted(rows, key=lambda row: row["n"])


def delta_table(folder: Path) -> str:
    """A table with a partition, whose newest version lacks rows of its first one."""
    path = str(folder / "delta")
    write_deltalake(path, table_of(range(40)), partition_by=["kind"])
    write_deltalake(path, table_of(range(40, 60)), mode="append")
    DeltaTable(path).delete("n < 10")
    return path


def iceberg_table(folder: Path) -> SqlCatalog:
    catalog = SqlCatalog(
        "isotherm", uri=f"sqlite:///{folder}/catalog.db", warehouse=folder.as_uri()
    )
    catalog.create_namespace("lake")
    table = catalog.create_table("lake.rows", SCHEMA)
    table.append(table_of(range(40)))
    table.append(table_of(range(40, 60)))
    table.delete("n < 10")
    # Old files do not have the name.
    with table.update_schema() as update:
        update.rename_column("kind", "sort")
    return catalog


def test_delta_tables_are_read_as_they_are_now(spark: SparkSession, tmp_path: Path) -> None:
    path = delta_table(tmp_path)
    assert collected(delta_frame(spark, path, {})) == rows_of(range(10, 60))
    with pytest.raises(ConfigError, match="no such Delta table"):
        delta_frame(spark, str(tmp_path), {})
    DeltaTable(path).alter.set_table_properties({"delta.enableDeletionVectors": "true"})
    log = max(tmp_path.glob("delta/_delta_log/*.json"))
    protocol = {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["deletionVectors"],
            "writerFeatures": ["deletionVectors"],
        }
    }
    log.with_name(f"{int(log.stem) + 1:020}.json").write_text(json.dumps(protocol))
    with pytest.raises(UnsupportedVersionError, match="deletionVectors"):
        delta_frame(spark, path, {})


def test_iceberg_tables_are_read_as_they_are_now(spark: SparkSession, tmp_path: Path) -> None:
    catalog = iceberg_table(tmp_path)
    expected = [{"sort": row.pop("kind"), **row} for row in rows_of(range(10, 60))]
    settings = {"uri": f"sqlite:///{tmp_path}/catalog.db", "type": "sql"}
    for name, given in (
        ("lake.rows", settings),
        (catalog.load_table("lake.rows").metadata_location, {}),
    ):
        assert collected(iceberg_frame(spark, name, given)) == expected
    with pytest.raises(ConfigError, match="no such Iceberg table"):
        iceberg_frame(spark, "lake.other", settings)
    with pytest.raises(ConfigError, match="catalog of the Iceberg table is not named"):
        iceberg_frame(spark, "lake.rows", {})


def test_tables_are_loaded_by_the_command_line(spark: SparkSession, tmp_path: Path) -> None:
    assert spark.getActiveSession() is not None
    iceberg_table(tmp_path)
    inputs = {
        "delta": (delta_table(tmp_path), "key=kind", ()),
        "iceberg": (
            "lake.rows",
            "key=sort",
            ("--read-option", f"uri=sqlite:///{tmp_path}/catalog.db"),
        ),
    }
    with EmbeddedBroker(tmp_path / "broker") as broker:
        for topic, (path, key, options) in inputs.items():
            admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
            new = NewTopic(topic, 2, config=TIERED_TOPIC)
            admin.create_topics([new])[topic].result(TIMEOUT_S)
            given = ["pipeline", "load", topic, path, "--from", topic, *options, "--run"]
            given += ["-b", broker.bootstrap_servers, "--path", str(broker.directory / "bucket")]
            given += ["--column", key, "--column", "timestamp=at", "--value-format", "json"]
            done = CliRunner().invoke(app, given)
            assert done.exit_code == 0, (done.output, done.exception)
            records = sorted(
                consume_all(broker.bootstrap_servers, topic), key=lambda each: each.timestamp_ms
            )
            expected = rows_of(range(10, 60))
            assert [record.key and record.key.decode() for record in records] == [
                row["kind"] for row in expected
            ]
            assert [json.loads(record.value or b"")["n"] for record in records] == [
                row["n"] for row in expected
            ]
