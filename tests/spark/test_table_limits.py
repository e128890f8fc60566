"""Values at the limits of their types, through `isotherm pipeline table` and back by PyIceberg,
delta-rs, DuckDB and Spark: each is in the table as it was sent, or its record is a dead letter. No
record stops a run.

The expected values are those of tests/unit/spark/tables/test_avro_values.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import parquet
from pyspark.sql import SparkSession

from isotherm.record.batch import NewRecord, build_batch
from tests.spark.conftest import Tier
from tests.spark.test_table import OWNER
from tests.support import table_histories
from tests.support.topic_tables import Row, load_table, rows_of, run_table
from tests.unit.spark.tables.test_avro_values import TIMES, Unfit, cell, logical, shown, written

KEY_ID, VALUE_ID = 501, 502
YEAR_1_S, YEAR_10000_S = -62_135_596_800, 253_402_300_800
NAN, INFINITY = float("nan"), float("inf")
TIMESTAMPS_MS = [1_700_000_000_000, -1, YEAR_1_S * 1000, YEAR_10000_S * 1000 - 1]
LOST_TIMESTAMPS_MS = [
    YEAR_1_S * 1000 - 1, YEAR_10000_S * 1000, 1_700_000_000_000_000, 2**63 - 1, -(2**62),
]  # fmt: skip


def ends(bits: int) -> list[int]:
    return [-(2 ** (bits - 1)), -1, 0, 2**53 + 1, 2 ** (bits - 1) - 1][:: 1 if bits > 53 else 2]


def decimals(*numbers: int) -> list[bytes]:
    return [n.to_bytes(n.bit_length() // 8 + 1, "big", signed=True) for n in numbers]


def times(units: int) -> tuple[list[int], list[int]]:
    first, end = YEAR_1_S * units, YEAR_10000_S * units
    return [first, -1, 0, end - 1], [first - 1, end, 2**63 - 1, -(2**63)]


# Schema, values that a column can have, and others.
LEAVES: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "int": ("int", ends(32), []),
    "long": ("long", ends(64), []),
    "double": ("double", [-0.0, 0.0, NAN, INFINITY, -INFINITY, 5e-324, 0.1], []),
    "bytes": ("bytes", [b"", b"\0", b"\xff" * 20, b"x" * 5000], []),
    "text": ("string", ["", "\0", "\U0010ffff" * 20, "x" * 5000, "ü"], []),
    "date": (logical("int", "date"), [-719_162, 0, 2_932_896], [-719_163, 2_932_897, -(2**31)]),
    "decimal": (
        {**logical("bytes", "decimal"), "precision": 38, "scale": 10},
        decimals(0, -1, 10**38 - 1, 1 - 10**38),
        decimals(10**38, -(10**38), 10**40, 2**128),
    ),
    "small": (
        {**logical("bytes", "decimal"), "precision": 4, "scale": 1},
        decimals(0, 9999, -9999),
        decimals(10_000, 123_456),
    ),
    **{
        name.replace("-", "_"): (logical("long", name), *times(units))
        for name, units in TIMES.items()
    },
}  # fmt: skip
FIELDS = [
    {"name": name, "type": {"type": "array", "items": leaf} if name == "date" else leaf}
    for name, (leaf, _, _) in LEAVES.items()
]
OTHER = {"type": "record", "name": "Other", "fields": [{"name": "x", "type": "long"}]}
VALUE = {
    "type": "record",
    "name": "Value",
    "fields": [
        *FIELDS,
        {"name": "entries", "type": {"type": "map", "values": "double"}},
        {"name": "any", "type": ["null", "long", OTHER]},
    ],
}
KEY = {
    "type": "record",
    "name": "Key",
    "fields": [
        {"name": "number", "type": "double"},
        {"name": "entries", "type": {"type": "map", "values": "double"}},
        {"name": "at", "type": logical("long", "timestamp-micros")},
    ],
}


def value_of(number: int, lost: tuple[str, Any] | None = None) -> dict[str, Any]:
    """The value of a record: with each leaf's values in turn, and with `lost` one that no column
    has.
    """
    chosen = {name: good[number % len(good)] for name, (_, good, _) in LEAVES.items()}
    if lost is not None:
        chosen[lost[0]] = lost[1]
    chosen["date"] = [0, chosen["date"]]
    any_of = [None, 2**63 - 1, ("Other", {"x": -(2**63)})]
    entries = {"": -0.0, "\0": NAN, str(number): 1.0}
    return {**chosen, "entries": entries, "any": any_of[number % 3]}


def key_of(number: int) -> dict[str, Any]:
    """One of some keys. A few of them are equal in SQL."""
    doubles = [-0.0, 0.0, NAN, 1.0]
    entries = [{"a": 0.0, "b": 1.0}, {"b": 1.0, "a": 0.0}, {"a": -0.0, "b": 1.0}, {}]
    micros = [YEAR_1_S * 10**6, YEAR_10000_S * 10**6 - 1]
    return {
        "number": doubles[number % 4],
        "entries": entries[number // 2 % 4],
        "at": micros[number % 2],
    }


def framed(schema_id: int, schema: Any, value: Any) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + written(schema, value)


def records() -> list[tuple[int, Any, Any]]:
    """Time, key and value of each record."""
    made = [(TIMESTAMPS_MS[n % len(TIMESTAMPS_MS)], key_of(n), value_of(n)) for n in range(24)]
    made += [(each, key_of(0), value_of(0)) for each in LOST_TIMESTAMPS_MS]
    lost = [(name, each) for name, (_, _, bad) in LEAVES.items() for each in bad]
    made += [(0, key_of(n), value_of(n, each)) for n, each in enumerate(lost)]
    too_late = {**key_of(0), "at": YEAR_10000_S * 10**6}
    return [*made, (0, too_late, value_of(0)), *made[:10]]


def expected(made: list[tuple[int, Any, Any]], *, newest: bool) -> tuple[dict[int, Any], set[int]]:
    """The rows by their offsets, and the offsets of dead letters."""
    rows: dict[int, Any] = {}
    dead = set()
    offsets: dict[str, int] = {}
    for offset, (timestamp_ms, key, value) in enumerate(made):
        try:
            row = cell(KEY, key), shown(ordered(cell(VALUE, value)))
        except Unfit:
            dead.add(offset)
            continue
        if timestamp_ms in LOST_TIMESTAMPS_MS:
            dead.add(offset)
            continue
        shown_key = shown(ordered(row[0]))
        if newest:
            rows.pop(offsets.get(repr(shown_key), -1), None)
        offsets[repr(shown_key)] = offset
        rows[offset] = (timestamp_ms, shown_key, row[1])
    return rows, dead


def ordered(value: Any) -> Any:
    """The value with entries of maps as a list, by key."""
    if isinstance(value, dict):
        return {
            name: sorted(map(tuple, dict(inner).items())) if name == "entries" else ordered(inner)
            for name, inner in value.items()
        }
    return value


def by_offset(table: pa.Table) -> dict[int, Any]:
    milliseconds = [row // 1000 for row in table.column("timestamp").cast("int64").to_pylist()]
    return {
        row["offset"]: (time, *(shown(ordered(row[name])) for name in ("key", "value")))
        for time, row in zip(milliseconds, table.to_pylist(), strict=True)
    }


def read(lake: Path, to: str) -> tuple[pa.Table, list[Path], list[Row]]:
    """The rows by the format's own reader, the files, and the dead letters."""
    if to == "iceberg":
        table = load_table(lake, "kafka.prices")
        files = [file.file.file_path for file in table.scan().plan_files()]
        dead = rows_of(load_table(lake, "kafka.prices_dead_letters"))
        return table.scan().to_arrow(), [Path(file.removeprefix("file://")) for file in files], dead
    if to == "delta":
        own = DeltaTable(lake / "prices")
        paths = [lake / "prices" / file for file in own.to_pyarrow_dataset().files]
        letters = DeltaTable(lake / "prices_dead_letters").to_pyarrow_table().to_pylist()
        return own.to_pyarrow_table(), paths, letters
    paths = list((lake / "prices").rglob("timestamp_day=*/*.parquet"))
    with duckdb.connect() as engine:
        rows = engine.read_parquet([str(path) for path in paths], union_by_name=True)
        letters = parquet.read_table(lake / "prices_dead_letters").to_pylist()
        return rows.to_arrow_table(), paths, letters


@pytest.mark.parametrize(
    ("to", "mode", "by"),
    [("iceberg", "latest", "day"), ("delta", "latest", "hour"), ("parquet", "append", "day")],
)
def test_values_come_back_or_are_dead_letters(
    spark: SparkSession,
    tier: Tier,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    to: str,
    mode: str,
    by: str,
) -> None:
    monkeypatch.setitem(table_histories.SCHEMAS, KEY_ID, KEY)
    monkeypatch.setitem(table_histories.SCHEMAS, VALUE_ID, VALUE)
    made = records()
    sent = [
        NewRecord(time, framed(KEY_ID, KEY, key), framed(VALUE_ID, VALUE, value))
        for time, key, value in made
    ]
    half = len(sent) // 2
    tier.maker.tier(
        OWNER, [build_batch([each], base_offset=n) for n, each in enumerate(sent[:half])]
    )
    options = ["--to", to, "--mode", mode, "--partition-by", by, "--warehouse", str(tmp_path)]
    options += ["--key", "avro", "--value", "avro"]
    with table_histories.serve_schemas() as registry:
        options += ["--registry", registry]
        run_table("prices", tier.folder, *options)
        tier.maker.tier(
            OWNER, [build_batch([each], base_offset=n) for n, each in enumerate(sent[half:], half)]
        )
        run_table("prices", tier.folder, *options)
    rows, dead = expected(made, newest=mode == "latest")
    found, files, letters = read(tmp_path, to)
    assert by_offset(found) == rows
    frame = spark.read.parquet(*map(str, files)).select("offset", "timestamp", "key", "value")
    assert by_offset(frame.toArrow()) == rows
    assert {letter["offset"] for letter in letters} == dead
    for letter in letters:
        own = sent[letter["offset"]]
        assert (letter["key"], letter["value"]) == (own.key, own.value)
        assert letter["reason"].partition(" ")[0] in ("the", "key:", "value:")
