"""`isotherm pipeline table --mode latest`: the table is the newest value of each key.

The model is a dict to which the records are applied in order.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import isotherm.spark
from isotherm.errors import ConfigError
from isotherm.record.batch import NewRecord, build_batch
from isotherm.spark.tables.delta_table import DeltaTopicTable
from isotherm.spark.tables.iceberg_table import IcebergTable
from isotherm.spark.tables.topic_table import TopicTable
from tests.spark.conftest import Tier
from tests.spark.test_table import OTHER, OWNER, without_nulls
from tests.support.topic_tables import Row, load_table, rows_of, run_table

TABLES: dict[str, Any] = {"iceberg": IcebergTable, "delta": DeltaTopicTable}
Model = dict[tuple[int, str], Any]


class Killed(BaseException):
    """The run ends here."""


class History:
    """Records of two partitions, and the newest value of each key."""

    def __init__(self, seed: int) -> None:
        self.newest: Model = {}
        self.lost: set[tuple[int, int]] = set()
        self._rng = Random(seed)
        self._ends = {0: 0, 1: 0}

    def put(self, tier: Tier, fields: str) -> None:
        """Add some records with values that have some of these fields."""
        for owner in (OWNER, OTHER):
            start = self._ends[owner.partition]
            count = self._rng.randint(1, 40)
            records = [self._record(owner.partition, start + n, fields) for n in range(count)]
            self._ends[owner.partition] += count
            tier.maker.tier(owner, [build_batch(records, base_offset=start)])

    def _record(self, partition: int, offset: int, fields: str) -> NewRecord:
        key = self._rng.choice([None, "a", "b", "c", "d", "ü", *map(str, range(20))])
        found = {name: offset for name in fields if self._rng.random() < 0.7}
        value = self._rng.choice([b"{", None, *[json.dumps(found).encode()] * 6])
        if key is None or value == b"{":
            self.lost.add((partition, offset))
        elif value is None:
            self.newest.pop((partition, key), None)
        else:
            self.newest[partition, key] = (offset, found)
        return NewRecord(1_700_000_000_000 + offset, key and key.encode(), value)


def all_rows(lake: Path, to: str, suffix: str = "") -> list[Row]:
    if to == "iceberg":
        return rows_of(load_table(lake, f"kafka.prices{suffix}"))
    found: list[Row] = DeltaTable(lake / f"prices{suffix}").to_pyarrow_table().to_pylist()
    return found


def newest_in(lake: Path, to: str) -> Model:
    rows = all_rows(lake, to)
    found = {
        (row["partition"], row["key"]): (row["offset"], without_nulls(row["value"])) for row in rows
    }
    assert len(found) == len(rows)
    return found


def dead_in(lake: Path, to: str) -> set[tuple[int, int]]:
    rows = all_rows(lake, to, "_dead_letters")
    places = {(row["partition"], row["offset"]) for row in rows}
    assert len(places) == len(rows)
    return places


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(("seed", "to"), [(1, "iceberg"), (2, "delta")])
def test_table_is_the_newest_value_of_each_key_through_kills(
    tier: Tier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, to: str
) -> None:
    lake = tmp_path / "lake"
    options = ("--mode", "latest", "--key", "string", "--value", "json", "--warehouse", str(lake),
               "--to", to)  # fmt: skip
    opened = TABLES[to]
    history = History(seed)

    def killed(*_: object, **__: object) -> None:
        raise Killed

    history.put(tier, "xy")
    run_table("prices", tier.folder, *options)
    assert newest_in(lake, to) == history.newest
    for at, fields in (("commit", "xyz"), ("settle", "zw")):
        history.put(tier, fields)
        with monkeypatch.context() as patched:
            if at == "settle":
                # A run with nothing to complete asks once, after its commit.
                patched.setattr(opened, "settle", _killed_after_commit(patched, opened))
            else:
                patched.setattr(opened, "commit", killed)
            with pytest.raises(Killed):
                run_table("prices", tier.folder, *options)
        run_table("prices", tier.folder, *options)
        assert newest_in(lake, to) == history.newest
        assert dead_in(lake, to) == history.lost
    assert run_table("prices", tier.folder, *options)["offsets"] == 0


def _killed_after_commit(patched: pytest.MonkeyPatch, opened: Any) -> Any:
    commit, settle = opened.commit, opened.settle
    committed: list[object] = []

    def noted(self: TopicTable, made: Any) -> None:
        commit(self, made)
        committed.append(made)

    def killed(self: TopicTable) -> None:
        if committed:
            raise Killed
        settle(self)

    patched.setattr(opened, "commit", noted)
    return killed


@pytest.mark.usefixtures("spark")
def test_columns_and_rows_of_others_stay(tier: Tier, tmp_path: Path) -> None:
    """Only files with superseded rows are replaced; the new files keep all columns."""
    options = ("--mode", "latest", "--value", "json", "--warehouse", str(tmp_path))

    def put(start: int, keys: str) -> None:
        records = [
            NewRecord(5, key.encode(), b'{"n": %d}' % n) for n, key in enumerate(keys, start)
        ]
        tier.maker.tier(OWNER, [build_batch(records, base_offset=start)])

    put(0, "ab")
    run_table("prices", tier.folder, *options)
    put(2, "cd")
    run_table("prices", tier.folder, *options)
    theirs = load_table(tmp_path, "kafka.prices")
    with theirs.update_schema() as update:
        update.union_by_name(pa.schema([("note", pa.string())]))
    rows = theirs.scan().to_arrow()
    notes = pa.array([f"note {key.decode()}" for key in rows["key"].to_pylist()])
    theirs.overwrite(rows.set_column(rows.schema.get_field_index("note"), "note", notes))
    put(4, "ea")
    run_table("prices", tier.folder, *options)
    rows = rows_of(load_table(tmp_path, "kafka.prices"))
    found = sorted((row["key"], row["value"]["n"], row["note"]) for row in rows)
    assert found == [
        (b"a", 5, None),
        (b"b", 1, "note b"),
        (b"c", 2, "note c"),
        (b"d", 3, "note d"),
        (b"e", 4, None),
    ]
    before = load_table(tmp_path, "kafka.prices").inspect.files()["file_path"].to_pylist()
    put(6, "f")
    run_table("prices", tier.folder, *options)
    after = load_table(tmp_path, "kafka.prices").inspect.files()["file_path"].to_pylist()
    assert set(after) > set(before)


@pytest.mark.usefixtures("spark")
def test_change_events_of_debezium_are_rows(tier: Tier, tmp_path: Path) -> None:
    options = ("--mode", "latest", "--value", "json", "--warehouse", str(tmp_path))

    def put(start: int, *events: tuple[str, str, Any]) -> None:
        records = [
            NewRecord(
                5, key.encode(), json.dumps({"op": op, "after": after, "before": None}).encode()
            )
            for key, op, after in events
        ]
        tier.maker.tier(OWNER, [build_batch(records, base_offset=start)])

    put(0, ("a", "r", {"id": 1}), ("b", "c", {"id": 2}), ("c", "c", {"id": 3}), ("x", "t", None))
    first = run_table("prices", tier.folder, *options, "--unwrap", "debezium")
    assert (first["rows"], first["dead_letters"]) == (3, 1)
    put(
        4,
        ("a", "u", {"id": 1, "name": "Ann"}),
        ("b", "d", None),
        ("c", "d", None),
        ("c", "c", {"id": 4}),
    )
    run_table("prices", tier.folder, *options, "--unwrap", "debezium")
    rows = rows_of(load_table(tmp_path, "kafka.prices"))
    assert [(row["key"], without_nulls(row["value"])) for row in rows] == [
        (b"a", {"id": 1, "name": "Ann"}),
        (b"c", {"id": 4}),
    ]
    with pytest.raises(ConfigError, match="option=--unwrap its_value=debezium value=none"):
        run_table("prices", tier.folder, *options)


def test_what_cannot_be_is_named(spark: SparkSession, tier: Tier, tmp_path: Path) -> None:
    tier.maker.tier(OWNER, [build_batch([NewRecord(5, b"k", b"v")], base_offset=0)])
    options = ("--warehouse", str(tmp_path))
    with pytest.raises(ConfigError, match="option=--mode value=newest known=append,latest"):
        run_table("prices", tier.folder, *options, "--mode", "newest")
    with pytest.raises(ConfigError, match="a folder cannot have newest values"):
        run_table("prices", tier.folder, *options, "--mode", "latest", "--to", "parquet")
    run_table("prices", tier.folder, *options, "--mode", "latest")
    with pytest.raises(ConfigError, match="option=--mode its_value=latest value=append"):
        run_table("prices", tier.folder, *options)
    with pytest.raises(ConfigError, match="the table has the newest values only"):
        isotherm.spark.topic(spark, "prices", {"path": str(tier.folder)}, warehouse=str(tmp_path))


def test_keys_that_are_large_numbers_stay_apart(tier: Tier, tmp_path: Path) -> None:
    keys = [b'{"id":1201234567890123457}', b'{"id":1201234567890123458}', b'{"id":1.5}']
    records = [NewRecord(1_700_000_000_000, key, str(n).encode()) for n, key in enumerate(keys * 2)]
    tier.maker.tier(OWNER, [build_batch(records, base_offset=0)])
    lake = str(tmp_path)
    options = ("--key", "json", "--value", "string", "--mode", "latest", "--warehouse", lake)
    done = run_table("prices", tier.folder, *options)
    assert (done["rows"], done["dead_letters"]) == (4, 2)
    rows = rows_of(load_table(tmp_path, "kafka.prices"))
    assert [(row["key"]["id"], row["value"]) for row in rows] == [
        (1201234567890123457, "3"),
        (1201234567890123458, "4"),
    ]
