"""Spark with the jars of Iceberg and Delta reads the tables: the same rows, types and null counts
as PyIceberg, delta-rs, Polars, DuckDB and the input.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import parquet, types

from isotherm.record.batch import NewRecord, build_batch
from isotherm.types import TopicIdPartition
from oracle.jars import OracleUnavailableError
from oracle.spark_tables import query_by_spark
from tests.spark.conftest import Tier, make_tier
from tests.support import table_histories
from tests.support.topic_tables import Row, load_table, run_table

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.usefixtures("spark")]

TOPIC = "events"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIMES_MS = (-1, 0, 253_402_300_799_999, 1_700_000_000_123)
DAY_MS = 86_400_000
FIRST_ID, LATER_ID, UNKNOWN_ID = 500, 501, 599


def optional(kind: Any) -> Any:
    return ["null", kind]


def logical(kind: str, name: str, **more: Any) -> Any:
    return {"type": kind, "logicalType": name, **more}


FIELDS: dict[str, Any] = {
    "n": optional("int"),
    "eur": optional(logical("bytes", "decimal", precision=20, scale=2)),
    "is": optional("boolean"),
    "day": optional(logical("int", "date")),
    "at": optional(logical("long", "timestamp-micros")),
    "local": optional(logical("long", "local-timestamp-micros")),
    "raw": optional("bytes"),
    "ratio": optional("double"),
    "tags": optional({"type": "array", "items": optional("string")}),
    "marks": optional({"type": "map", "values": "long"}),
    "lines": optional(
        {
            "type": "array",
            "items": {
                "type": "record",
                "name": "Line",
                "fields": [{"name": "sku", "type": optional("string")}],
            },
        }
    ),
}
LATER_FIELDS = {**FIELDS, "n": optional("long"), "city": optional("string")}


def schema_of(name: str, fields: dict[str, Any]) -> Any:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": field, "type": kind} for field, kind in fields.items()],
    }


SCHEMAS = {FIRST_ID: schema_of("First", FIELDS), LATER_ID: schema_of("Later", LATER_FIELDS)}


def value_of(number: int, schema_id: int) -> Row:
    """A value. Each field is null in some rows, and all fields are null in one."""
    made = {
        "n": number if schema_id == FIRST_ID else 2**40 + number,
        "eur": Decimal(number * 101 - 2000) / 100,
        "is": number % 2 == 0,
        "day": date(1969, 12, 30) + timedelta(days=number),
        "at": EPOCH + timedelta(microseconds=number - 5),
        "local": datetime(2024, 2, 29, 23, 59, 59, number),  # noqa: DTZ001 - local it is
        "raw": bytes([0, 255, number]),
        "ratio": -0.5 * number,
        "tags": ["ü€𝄞", None][: number % 3],
        "marks": {"a": number, "": -number},
        "lines": [{"sku": "x"}, {"sku": None}][: number % 3],
        "city": "Zürich",
    }
    names = LATER_FIELDS if schema_id == LATER_ID else FIELDS
    return {
        name: None if (number + place) % 5 == 0 or number == 17 else made[name]
        for place, name in enumerate(names)
    }


def avro(schema_id: int, value: Row) -> bytes:
    written = io.BytesIO(b"\0" + schema_id.to_bytes(4, "big"))
    written.seek(5)
    fastavro.schemaless_writer(written, fastavro.parse_schema(SCHEMAS[schema_id]), value)
    return written.getvalue()


def expected_row(partition: int, offset: int, record: NewRecord, value: Row | None) -> Row:
    if value is not None:
        marks = value["marks"]
        value = {**value, "city": value.get("city"), "marks": marks and list(marks.items())}
    headers = [{"key": key, "value": each} for key, each in record.headers]
    return {
        "topic": TOPIC,
        "partition": partition,
        "offset": offset,
        "timestamp": EPOCH + timedelta(milliseconds=record.timestamp_ms),
        "timestampType": 0,
        "headers": headers or None,
        "key": None if record.key is None else record.key.decode(),
        "value": value,
    }


class Topic:
    """A topic's bucket, and the expected rows of its table."""

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.rows: list[Row] = []
        self.dead: list[tuple[int, int, bytes]] = []
        self._ends = {0: 0, 1: 0}

    def put(self, schema_id: int) -> None:
        for partition in (0, 1):
            start = self._ends[partition]
            owner = TopicIdPartition(uuid.UUID(int=9), TOPIC, partition)
            records = [self._record(partition, start + n, schema_id) for n in range(30)]
            self.tier.maker.tier(owner, [build_batch(records, base_offset=start)])
            self._ends[partition] += len(records)

    def _record(self, partition: int, offset: int, schema_id: int) -> NewRecord:
        number = offset % 30
        value = None if number == 11 else value_of(number, schema_id)
        payload = None if value is None else avro(schema_id, value)
        if number == 13:
            payload = b"\0" + UNKNOWN_ID.to_bytes(4, "big")
        record = NewRecord(
            TIMES_MS[offset] if offset < len(TIMES_MS) else TIMES_MS[-1] + number % 3 * DAY_MS,
            None if number % 3 == 0 else f"schlüssel-{number}".encode(),
            payload,
            (("a", b"\0\xff"), ("a", None)) if number % 4 == 0 else (),
        )
        if number == 13 and payload is not None:
            self.dead.append((partition, offset, payload))
        else:
            self.rows.append(expected_row(partition, offset, record, value))
        return record

    def expected(self) -> list[Row]:
        return sorted(self.rows, key=_place)


def _place(row: Row) -> tuple[int, int]:
    return row["partition"], row["offset"]


def kind_of(kind: pa.DataType) -> Any:
    """A type without the names of elements and the sizes of offsets, in which readers differ."""
    if isinstance(kind, pa.StructType):
        return {field.name: kind_of(field.type) for field in kind}
    if types.is_map(kind):
        return ("map", kind_of(kind.key_type), kind_of(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind):
        return [kind_of(kind.value_type)]
    if types.is_timestamp(kind):
        return "timestamptz" if kind.tz else "timestamp"
    return str(kind).removeprefix("large_")


def kinds_of(table: pa.Table) -> dict[str, Any]:
    return {field.name: kind_of(field.type) for field in table.schema}


def rows_in(table: pa.Table) -> list[Row]:
    return sorted(table.to_pylist(), key=_place)


def by_duckdb(files: list[str]) -> list[Row]:
    with duckdb.connect() as engine:
        read = engine.read_parquet(files, union_by_name=True)  # noqa: F841
        found: pa.Table = engine.sql("select * from read").to_arrow_table()
    return rows_in(found)


COLUMNS = ("headers", "key", "value", "value.n", "value.eur", "value.tags", "value.city")
COUNTS = ", ".join(
    [
        "count(*) AS n",
        *(f"count({name}) AS `{name}`" for name in COLUMNS),
        "min(offset) AS first",
        "max(timestamp) AS newest",
        "min(value.day) AS day",
    ]
)


def counts(rows: list[Row]) -> Row:
    """The expected result of COUNTS."""

    def inner(row: Row, path: str) -> Any:
        found: Any = row
        for name in path.split("."):
            found = None if found is None else found[name]
        return found

    found: Row = {"n": len(rows)}
    found |= {name: sum(inner(row, name) is not None for row in rows) for name in COLUMNS}
    days = [day for row in rows if (day := inner(row, "value.day")) is not None]
    newest = max(row["timestamp"] for row in rows)
    return found | {"first": min(row["offset"] for row in rows), "newest": newest, "day": min(days)}


def check(
    expected: list[Row],
    found: dict[str, pa.Table],
    name: str,
    others: list[pa.Table],
    files: list[str],
) -> None:
    """Compare Spark's answers about a table with other engines' answers, and with DuckDB's from
    its files.
    """
    for table in (found[name], *others):
        assert kinds_of(table) == kinds_of(found[name])
        # PyIceberg's scan shows an empty list of structs where there is none (0.12).
        assert without_empty(rows_in(table)) == without_empty(expected)
    assert rows_in(found[name]) == expected
    # The partition column is in Delta's log, not in the files.
    names = [each for each in expected[0] if each != "timestamp_day"]
    assert [pick(row, names) for row in by_duckdb(files)] == [pick(row, names) for row in expected]
    (counted,) = found[f"{name}-counts"].to_pylist()
    assert counted == counts(expected)
    some = [_place(row) for row in expected if is_chosen(row)]
    assert sorted(map(_place, found[f"{name}-some"].to_pylist())) == some
    assert some


def pick(row: Row, names: list[str]) -> Row:
    return {name: row[name] for name in names}


def without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_empty(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [without_empty(each) for each in value] or None
    return value


WHERE = "timestamp > '2023-11-15' AND timestamp < '2023-11-16' AND value.n >= 3"


def is_chosen(row: Row) -> bool:
    """Whether WHERE selects the row."""
    number = (row["value"] or {}).get("n")
    return row["timestamp"].date() == date(2023, 11, 15) and number is not None and number >= 3


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patched:
        for schema_id, schema in SCHEMAS.items():
            patched.setitem(table_histories.SCHEMAS, schema_id, schema)
        with table_histories.serve_schemas() as url:
            yield url


def ask_spark(lake: Path, folder: Path) -> dict[str, pa.Table]:
    """Spark's answers about both tables in the lake."""
    tables = {
        "iceberg": f"isotherm.kafka.{TOPIC}",
        "delta": f"delta.`{(lake / TOPIC).as_uri()}`",
        "iceberg-dead": f"isotherm.kafka.{TOPIC}_dead_letters",
        "delta-dead": f"delta.`{(lake / f'{TOPIC}_dead_letters').as_uri()}`",
    }
    queries = {name: f"SELECT * FROM {table}" for name, table in tables.items()}
    queries |= {
        f"{name}-counts": f"SELECT {COUNTS} FROM {tables[name]}" for name in ("iceberg", "delta")
    }
    queries |= {
        f"{name}-some": f"SELECT partition, offset FROM {tables[name]} WHERE {WHERE}"
        for name in ("iceberg", "delta")
    }
    queries["nulls"] = (
        "SELECT sum(record_count) AS rows, sum(readable_metrics.key.null_value_count) AS key,"
        " sum(readable_metrics.`value.n`.null_value_count) AS `value.n`"
        f" FROM {tables['iceberg']}.files"
    )
    queries["properties"] = (
        f"SELECT summary FROM {tables['iceberg']}.snapshots ORDER BY committed_at"
    )
    settings = {
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.isotherm": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.isotherm.type": "jdbc",
        "spark.sql.catalog.isotherm.uri": f"jdbc:sqlite:{lake / 'catalog.db'}",
        "spark.sql.catalog.isotherm.warehouse": lake.as_uri(),
    }
    folder.mkdir()
    try:
        files = query_by_spark(settings, queries, folder)
    except OracleUnavailableError as error:
        pytest.skip(str(error))
    return {name: parquet.read_table(file) for name, file in files.items()}


def check_tables(topic: Topic, lake: Path, found: dict[str, pa.Table]) -> None:
    expected = topic.expected()
    opened, delta = load_table(lake, f"kafka.{TOPIC}"), DeltaTable(lake / TOPIC)
    in_iceberg = [file.file.file_path for file in opened.scan().plan_files()]
    in_delta = delta.get_add_actions(flatten=True)["path"].to_pylist()
    check(
        expected,
        found,
        "iceberg",
        [opened.scan().to_arrow(), pl.scan_iceberg(opened).collect().to_arrow()],
        [each.removeprefix("file://") for each in in_iceberg],
    )
    check(
        [{**row, "timestamp_day": row["timestamp"].strftime("%Y-%m-%d")} for row in expected],
        found,
        "delta",
        [delta.to_pyarrow_table(), pl.read_delta(str(lake / TOPIC)).to_arrow()],
        [str(lake / TOPIC / each) for each in in_delta],
    )
    for name in ("iceberg", "delta"):
        letters = rows_in(found[f"{name}-dead"])
        assert [(*_place(row), row["value"]) for row in letters] == sorted(topic.dead)
    (nulls,) = found["nulls"].to_pylist()
    assert nulls["rows"] == len(expected)
    assert nulls["key"] == sum(row["key"] is None for row in expected)
    assert nulls["value.n"] == sum(
        not row["value"] or row["value"]["n"] is None for row in expected
    )
    assert all(
        "isotherm.offsets" in dict(row["summary"]) for row in found["properties"].to_pylist()
    )


@pytest.mark.nightly
def test_rows_types_and_nulls_are_what_every_reader_gets(
    registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without it Polars warns that its own planner is not installed.
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    topic = Topic(make_tier(tmp_path))
    lake = tmp_path / "lake"
    options = ["--key", "string", "--value", "avro", "--registry", registry]
    options += ["--warehouse", str(lake), "--partition-by", "day"]
    for schema_id in (FIRST_ID, LATER_ID):
        topic.put(schema_id)
        for to in ("iceberg", "delta"):
            run_table(TOPIC, topic.tier.folder, *options, "--to", to)
    check_tables(topic, lake, ask_spark(lake, tmp_path / "answers"))
