"""The promise of every kind of table to a job: a run's commit is made once, and wholly or not at
all.

The oracle is a reader that shares no code with Isotherm: DuckDB for folders of Parquet, PyIceberg's
scan for Iceberg, and delta-rs for Delta.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from pyarrow import parquet
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException

from isotherm.errors import ConfigError, RemoteStorageError, TableOvertakenError
from isotherm.remote.storage.object_client import ObjectClient
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.tables.delta_table import DeltaPlace, DeltaTopicTable, storage_options
from isotherm.spark.tables.iceberg_catalogs import open_catalog
from isotherm.spark.tables.iceberg_table import IcebergTable
from isotherm.spark.tables.parquet_table import ParquetTable
from isotherm.spark.tables.topic_table import (
    FilePlaces,
    Identity,
    TableCommit,
    TopicTable,
    check_options,
    check_topic,
)
from isotherm.spark.tables.value_types import KeyValue
from isotherm.testing.sim_clock import SimClock
from tests.support.s3_server import S3Server, find_versitygw

IDENTITY = Identity(topic="prices", topic_id="id-of-prices", value_format="json")
FIRST = pa.struct([("eur", pa.int64())])
OpenTable = Callable[[], TopicTable]


@pytest.fixture(params=["iceberg", "delta", "parquet"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def open_table(kind: str, tmp_path: Path) -> OpenTable:
    """Opens the same table again, as another run does."""

    def opened() -> TopicTable:
        if kind != "iceberg":
            folder = tmp_path / "lake"
            folder.mkdir(exist_ok=True)
            settings = ObjectStoreSettings(url=folder.as_uri())
            if kind == "parquet":
                return ParquetTable(settings, "prices")
            return DeltaTopicTable(settings, "prices", SimClock())
        return IcebergTable(catalog_of(tmp_path), "kafka.prices")

    return opened


@pytest.fixture
def read(kind: str, tmp_path: Path) -> Callable[[str], list[dict[str, Any]]]:
    """The rows of the table, or with a suffix those of its dead letters, by offset."""

    def rows(suffix: str = "") -> list[dict[str, Any]]:
        if kind == "iceberg":
            found = catalog_of(tmp_path).load_table(f"kafka.prices{suffix}").scan().to_arrow()
        elif kind == "delta":
            found = DeltaTable(tmp_path / "lake" / f"prices{suffix}").to_pyarrow_table()
        else:
            files = tmp_path / "lake" / f"prices{suffix}" / "*.parquet"
            with duckdb.connect() as engine:
                found = engine.read_parquet(str(files), union_by_name=True).to_arrow_table()
        return sorted(found.to_pylist(), key=lambda row: row["offset"])

    return rows


def catalog_of(folder: Path) -> Catalog:
    return open_catalog(None, {}, (folder / "lake").as_uri())


def begun(table: TopicTable) -> TopicTable:
    """The table as a run finds it, created if it does not exist."""
    found = table.identity()
    if found is None:
        table.create(IDENTITY)
    else:
        check(found, IDENTITY, table.name)
        table.settle()
    return table


def check(found: Identity, wanted: Identity, name: str) -> None:
    check_options(found, wanted, name)
    check_topic(found, wanted.topic, wanted.topic_id, name)


def created_places(table: TopicTable) -> FilePlaces:
    table.create(IDENTITY)
    return table.places(KeyValue(pa.binary(), FIRST))


def staged(
    table: TopicTable, folder: Path, offsets: range, dead: range = range(0), kind: Any = FIRST
) -> TableCommit:
    """A commit of files with these offsets, ready to be made."""
    places = table.places(KeyValue(pa.binary(), kind))
    names: dict[str, list[str]] = {}
    for what, wanted, place, schema in (
        ("rows", offsets, places.rows, places.rows_schema),
        ("dead", dead, places.dead, places.dead_schema),
    ):
        path = folder / f"{what}-{offsets}-{id(table)}.parquet"
        value = {"eur": 1, "usd": 2} if what == "rows" else b"?"
        made = [{"topic": "prices", "partition": 0, "offset": n, "value": value} for n in wanted]
        parquet.write_table(pa.Table.from_pylist(made, schema=schema), path)
        names[what] = [place.put(path.name, path)] if wanted else []
    return TableCommit(names["rows"], names["dead"], {0: max([*offsets, *dead]) + 1})


def offsets_in(files: list[str]) -> list[int]:
    return sorted(
        offset
        for file in files
        for offset in parquet.read_table(file.removeprefix("file://"))["offset"].to_pylist()
    )


def offsets_of(rows: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in rows]


def test_runs_go_on_from_each_other(open_table: OpenTable, tmp_path: Path, read: Any) -> None:
    for start in (0, 10, 20):
        table = begun(open_table())
        assert table.covered() == ({0: start} if start else {})
        table.commit(staged(table, tmp_path, range(start, start + 9), range(start + 9, start + 10)))
        table.settle()
    assert offsets_of(read()) == [n for n in range(30) if n % 10 != 9]
    assert offsets_of(read("_dead_letters")) == [9, 19, 29]
    assert {row["value"] for row in read("_dead_letters")} == {b"?"}


def test_a_table_that_is_deleted_while_it_is_followed_is_made_again(
    kind: str, open_table: OpenTable, tmp_path: Path, read: Any
) -> None:
    table = begun(open_table())
    table.commit(staged(table, tmp_path, range(3), range(3, 4)))
    table.settle()
    for suffix in ("", "_dead_letters"):
        if kind == "iceberg":
            catalog_of(tmp_path).drop_table(f"kafka.prices{suffix}")
        else:
            shutil.rmtree(tmp_path / "lake" / f"prices{suffix}")
    assert table.identity() is None
    assert table.covered() == {}
    table.create(IDENTITY)
    table.commit(staged(table, tmp_path, range(2)))
    table.settle()
    assert begun(open_table()).covered() == {0: 2}
    assert offsets_of(read()) == [0, 1]


def test_files_without_a_commit_are_in_no_table(
    open_table: OpenTable, tmp_path: Path, read: Any
) -> None:
    table = begun(open_table())
    table.commit(staged(table, tmp_path, range(3)))
    table.settle()
    killed = begun(open_table())
    staged(killed, tmp_path, range(3, 6), range(6, 7))
    table = begun(open_table())
    assert table.covered() == {0: 3}
    table.commit(staged(table, tmp_path, range(3, 5)))
    table.settle()
    assert offsets_of(read()) == [0, 1, 2, 3, 4]


def test_what_follows_from_a_commit_is_done_by_the_next_run(
    open_table: OpenTable, tmp_path: Path, read: Any
) -> None:
    killed = begun(open_table())
    killed.commit(staged(killed, tmp_path, range(3), range(3, 5)))
    for _ in range(2):
        assert begun(open_table()).covered() == {0: 5}
        assert offsets_of(read()) == [0, 1, 2]
        assert offsets_of(read("_dead_letters")) == [3, 4]


def test_one_of_two_runs_wins(open_table: OpenTable, tmp_path: Path, read: Any) -> None:
    first = begun(open_table())
    first.commit(staged(first, tmp_path, range(2)))
    first.settle()
    one, other = begun(open_table()), begun(open_table())
    ours, theirs = staged(one, tmp_path, range(2, 4)), staged(other, tmp_path, range(2, 6))
    other.commit(theirs)
    other.settle()
    with pytest.raises(TableOvertakenError, match="another run has written to the table"):
        one.commit(ours)
    assert begun(open_table()).covered() == {0: 6}
    assert offsets_of(read()) == [0, 1, 2, 3, 4, 5]


def test_a_table_made_meanwhile_is_left_alone(open_table: OpenTable, tmp_path: Path) -> None:
    one, other = open_table(), open_table()
    assert one.identity() is None
    begun(other).commit(staged(other, tmp_path, range(2)))

    def go_on() -> None:
        one.create(IDENTITY)
        one.commit(staged(one, tmp_path, range(2)))

    with pytest.raises(TableOvertakenError):
        go_on()
    assert begun(open_table()).covered() == {0: 2}


def test_new_fields_become_columns(open_table: OpenTable, tmp_path: Path, read: Any) -> None:
    table = begun(open_table())
    assert table.types() == KeyValue(pa.binary(), None)
    table.commit(staged(table, tmp_path, range(1)))
    table.settle()
    table = begun(open_table())
    assert table.types().value == FIRST
    wider = pa.struct([*FIRST, ("usd", pa.int64())])
    table.commit(staged(table, tmp_path, range(1, 2), kind=wider))
    table.settle()
    assert begun(open_table()).types().value == wider
    assert [row["value"] for row in read()] == [{"eur": 1, "usd": None}, {"eur": 1, "usd": 2}]


def test_offsets_without_records_are_covered_too(open_table: OpenTable, read: Any) -> None:
    table = begun(open_table())
    table.commit(TableCommit((), (), {0: 7, 1: 2}))
    table.settle()
    assert begun(open_table()).covered() == {0: 7, 1: 2}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (replace(IDENTITY, topic="other"), "of another topic table=t its_topic=prices topic=other"),
        (replace(IDENTITY, topic_id="id"), "made anew since .* table=t topic=prices topic_id=id "),
        (replace(IDENTITY, mode="latest"), "option=--mode its_value=append value=latest"),
        (replace(IDENTITY, key_format="json"), "option=--key its_value=raw value=json"),
        (replace(IDENTITY, value_format="avro"), "hint='give --value json, or name another"),
        (replace(IDENTITY, partition_by="day"), "option=--partition-by its_value=none value=day"),
    ],
)
def test_a_table_of_another_topic_or_with_other_options_is_refused(
    open_table: OpenTable, tmp_path: Path, other: Identity, message: str
) -> None:
    table = open_table()
    table.create(IDENTITY)
    table.commit(staged(table, tmp_path, range(1)))
    found = open_table().identity()
    assert found == IDENTITY
    with pytest.raises(ConfigError, match=message):
        check(found, other, "t")


@pytest.mark.parametrize("kind", ["delta", "parquet"], indirect=True)
@pytest.mark.parametrize("suffix", ["", "_dead_letters"])
def test_a_folder_with_files_of_others_is_refused(
    open_table: OpenTable, tmp_path: Path, suffix: str
) -> None:
    """The files are of other programs, or of a table of another format."""
    folder = tmp_path / "lake" / f"prices{suffix}"
    folder.mkdir(parents=True)
    table = open_table()
    assert table.identity() is None
    (folder / "part-0.parquet").touch()
    message = rf"has not put there folder=.*/lake/prices{suffix} files=part-0.parquet hint="
    with pytest.raises(ConfigError, match=message):
        created_places(table)


@pytest.mark.parametrize("kind", ["delta", "parquet"], indirect=True)
def test_a_table_that_was_made_meanwhile_is_no_folder_of_others(
    open_table: OpenTable, tmp_path: Path
) -> None:
    late = open_table()
    assert late.identity() is None
    table = begun(open_table())
    table.commit(staged(table, tmp_path, range(1), range(1, 2)))
    table.settle()
    with pytest.raises(TableOvertakenError):
        late.create(IDENTITY)


def test_table_that_names_neither_mode_nor_format_of_keys_goes_on(
    open_table: OpenTable, tmp_path: Path, kind: str
) -> None:
    """An older version made the table, before these properties existed."""
    table = begun(open_table())
    table.commit(staged(table, tmp_path, range(2)))
    if kind == "iceberg":
        with catalog_of(tmp_path).load_table("kafka.prices").transaction() as change:
            change.remove_properties("isotherm.mode", "isotherm.key-format")
    elif kind == "delta":
        stored = tmp_path / "lake" / "prices" / "_delta_log" / f"{0:020}.json"
        lines = [json.loads(line) for line in stored.read_text().splitlines()]
        for line in lines:
            properties = line.get("metaData", {}).get("configuration", {})
            properties.pop("isotherm.mode", None)
            properties.pop("isotherm.key-format", None)
        stored.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    else:
        (stored,) = (tmp_path / "lake" / "prices" / "_commits").glob("*.json")
        made = json.loads(stored.read_text())
        del made["identity"]["mode"], made["identity"]["key_format"]
        stored.write_text(json.dumps(made))
    assert begun(open_table()).covered() == {0: 2}


def test_files_of_a_run_that_was_killed_while_it_moved_them(
    open_table: OpenTable, tmp_path: Path
) -> None:
    table = begun(open_table())
    table.commit(staged(table, tmp_path, range(2)))
    table.settle()
    table.commit(staged(table, tmp_path, range(2, 4)))
    reader = open_table()
    reader.identity()
    assert offsets_in(reader.data_files()) == [0, 1, 2, 3]
    table.settle()
    assert offsets_in(reader.data_files()) == [0, 1, 2, 3]


def test_commit_in_a_folder_whose_answer_was_lost_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client sends the request again, and the second answer is a refusal."""
    table = ParquetTable(ObjectStoreSettings(url=(tmp_path / "lake").as_uri()), "prices")
    ours = staged(begun(table), tmp_path, range(2))
    create = ObjectClient.create

    def lost(*given: Any) -> bool:
        create(*given)
        return create(*given)

    monkeypatch.setattr(ObjectClient, "create", lost)
    table.commit(ours)
    table.settle()
    assert table.covered() == {0: 2}
    assert offsets_in(table.data_files()) == [0, 1]


class TestIceberg:
    """Other programs write to the same table."""

    @pytest.fixture
    def kind(self) -> str:
        return "iceberg"

    def test_commits_of_others_do_not_end_a_run(
        self, open_table: OpenTable, tmp_path: Path, read: Any
    ) -> None:
        table = begun(open_table())
        table.commit(staged(table, tmp_path, range(2)))
        table = begun(open_table())
        ours = staged(table, tmp_path, range(2, 4))
        theirs = catalog_of(tmp_path).load_table("kafka.prices")
        theirs.append(theirs.scan(limit=1).to_arrow())
        table.commit(ours)
        assert begun(open_table()).covered() == {0: 4}
        assert offsets_of(read()) == [0, 0, 1, 2, 3]

    def test_a_table_that_is_rolled_back_goes_on_from_there(
        self, open_table: OpenTable, tmp_path: Path, read: Any
    ) -> None:
        for start in (0, 2):
            table = begun(open_table())
            table.commit(staged(table, tmp_path, range(start, start + 2)))
        theirs = catalog_of(tmp_path).load_table("kafka.prices")
        before = theirs.history()[0].snapshot_id
        theirs.manage_snapshots().rollback_to_snapshot(before).commit()
        assert begun(open_table()).covered() == {0: 2}
        assert offsets_of(read()) == [0, 1]

    def test_snapshots_without_offsets_are_refused(
        self, open_table: OpenTable, tmp_path: Path
    ) -> None:
        table = begun(open_table())
        table.commit(staged(table, tmp_path, range(2)))
        theirs = catalog_of(tmp_path).load_table("kafka.prices")
        ours = theirs.current_snapshot()
        theirs.append(theirs.scan().to_arrow())
        assert ours is not None
        theirs.maintenance.expire_snapshots().by_id(ours.snapshot_id).commit()
        with pytest.raises(ConfigError, match="none of them names the offsets that it covers"):
            open_table().identity()

    def test_a_table_of_someone_else_is_refused(
        self, open_table: OpenTable, tmp_path: Path
    ) -> None:
        catalog = catalog_of(tmp_path)
        catalog.create_namespace("kafka")
        catalog.create_table("kafka.prices", pa.schema([("offset", pa.int64())]))
        with pytest.raises(ConfigError, match=r"was not made by this command table=kafka.prices"):
            open_table().identity()

    def test_lost_columns_are_named(self, open_table: OpenTable, tmp_path: Path) -> None:
        begun(open_table())
        with catalog_of(tmp_path).load_table("kafka.prices").update_schema() as update:
            update.delete_column("headers")
        with pytest.raises(ConfigError, match=r"has lost columns .*columns=headers"):
            begun(open_table()).places(KeyValue(pa.binary(), FIRST))

    def test_warehouse_and_catalog_that_fail_are_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("no folder")
        with pytest.raises(
            ConfigError, match=r"the warehouse cannot be made .*file is not a folder"
        ):
            open_catalog(None, {}, (tmp_path / "file").as_uri())
        (tmp_path / "lake").mkdir()
        (tmp_path / "lake" / "catalog.db").write_text("no database, but long enough for a header")
        with pytest.raises(
            RemoteStorageError, match=r"cannot be opened file=.*/lake/catalog.db: the"
        ):
            catalog_of(tmp_path)
        words = "the catalog cannot be opened uri=http://127.0.0.1:1/x: the catalog fails"
        with pytest.raises(RemoteStorageError, match=words):
            open_catalog(None, {"type": "rest", "uri": "http://me:word@127.0.0.1:1/x"}, "s3://lake")

    def test_a_locked_catalog_is_named_and_nothing_is_half_committed(
        self, open_table: OpenTable, tmp_path: Path, read: Any
    ) -> None:
        file = tmp_path / "lake" / "catalog.db"
        table = begun(open_table())
        table.commit(staged(table, tmp_path, range(2)))
        impatient = {"type": "sql", "uri": f"sqlite:///{file}?timeout=0"}
        table = IcebergTable(open_catalog(None, impatient, file.parent.as_uri()), "kafka.prices")
        ours = staged(begun(table), tmp_path, range(2, 4))
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(RemoteStorageError, match="cannot be written: the catalog fails"):
                table.commit(ours)
            other.execute("ROLLBACK")
        assert offsets_of(read()) == [0, 1]
        table = begun(open_table())
        assert table.covered() == {0: 2}
        table.commit(staged(table, tmp_path, range(2, 4)))
        assert offsets_of(read()) == [0, 1, 2, 3]

    def test_files_are_those_of_the_offsets(self, open_table: OpenTable, tmp_path: Path) -> None:
        table = begun(open_table())
        table.commit(staged(table, tmp_path, range(2)))
        reader = open_table()
        reader.identity()
        table.commit(staged(table, tmp_path, range(2, 4)))
        assert reader.covered() == {0: 2}
        assert offsets_in(reader.data_files()) == [0, 1]

    def test_renamed_columns_are_refused_for_reading_files(
        self, open_table: OpenTable, tmp_path: Path
    ) -> None:
        table = begun(open_table())
        table.commit(staged(table, tmp_path, range(2)))
        with catalog_of(tmp_path).load_table("kafka.prices").update_schema() as update:
            update.rename_column("headers", "head")
        reader = open_table()
        reader.identity()
        with pytest.raises(ConfigError, match=r"renamed or made anew .*column=head"):
            reader.data_files()

    def test_files_are_replaced_in_one_commit(
        self, open_table: OpenTable, tmp_path: Path, read: Any
    ) -> None:
        table = begun(open_table())
        table.commit(staged(table, tmp_path, range(2)))
        table = begun(open_table())
        before = table.data_files()
        table.commit(replace(staged(table, tmp_path, range(1, 4)), replaced=before))
        assert offsets_of(read()) == [1, 2, 3]
        assert begun(open_table()).covered() == {0: 4}

    def test_files_that_others_have_rewritten_are_not_replaced(
        self, open_table: OpenTable, tmp_path: Path, read: Any
    ) -> None:
        table = begun(open_table())
        table.commit(staged(table, tmp_path, range(2)))
        table = begun(open_table())
        ours = replace(staged(table, tmp_path, range(1, 4)), replaced=table.data_files())
        theirs = catalog_of(tmp_path).load_table("kafka.prices")
        theirs.overwrite(theirs.scan().to_arrow())
        with pytest.raises(TableOvertakenError):
            table.commit(ours)
        assert offsets_of(read()) == [0, 1]

    def test_commit_whose_answer_was_lost_is_found(
        self, open_table: OpenTable, tmp_path: Path, read: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The transport of a REST catalog sends the request again, and the second answer is a
        refusal."""
        table = begun(open_table())
        ours = staged(table, tmp_path, range(2), range(2, 3))
        commit_table = SqlCatalog.commit_table

        def lost(*given: Any) -> Any:
            monkeypatch.undo()
            commit_table(*given)
            raise CommitFailedException("the table is another one")

        monkeypatch.setattr(SqlCatalog, "commit_table", lost)
        table.commit(ours)
        assert table.covered() == {0: 3}
        table.settle()
        assert offsets_of(read()) == [0, 1]
        assert offsets_of(read("_dead_letters")) == [2]

    def test_dead_letters_that_another_run_appends_at_the_same_time_are_there_once(
        self, open_table: OpenTable, tmp_path: Path, read: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = begun(open_table())
        table.commit(staged(table, tmp_path, range(2), range(2, 3)))
        commit_table = SqlCatalog.commit_table

        def slow(*given: Any) -> Any:
            monkeypatch.undo()
            begun(open_table())
            return commit_table(*given)

        monkeypatch.setattr(SqlCatalog, "commit_table", slow)
        table.settle()
        assert offsets_of(read("_dead_letters")) == [2]

    def test_offsets_are_in_the_snapshot(self, open_table: OpenTable, tmp_path: Path) -> None:
        table = begun(open_table())
        table.commit(staged(table, tmp_path, range(2)))
        snapshot = catalog_of(tmp_path).load_table("kafka.prices").current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        stored = snapshot.summary.additional_properties
        assert json.loads(stored["isotherm.offsets"]) == {"0": 2}
        assert stored["total-records"] == "2"


class TestDelta:
    """Other programs write to the same table."""

    @pytest.fixture
    def kind(self) -> str:
        return "delta"

    @staticmethod
    def theirs(folder: Path) -> DeltaTable:
        return DeltaTable(folder / "lake" / "prices")

    def test_commits_of_others_do_not_end_a_run(
        self, open_table: OpenTable, tmp_path: Path, read: Any
    ) -> None:
        table = begun(open_table())
        table.commit(staged(table, tmp_path, range(2)))
        table = begun(open_table())
        ours = staged(table, tmp_path, range(2, 4))
        theirs = self.theirs(tmp_path)
        write_deltalake(theirs, theirs.to_pyarrow_table().slice(0, 1), mode="append")
        theirs.optimize.compact()
        theirs.create_checkpoint()
        table.commit(ours)
        assert begun(open_table()).covered() == {0: 4}
        assert offsets_of(read()) == [0, 0, 1, 2, 3]

    def test_new_files_are_read_once_for_all_tries_of_a_commit(
        self, open_table: OpenTable, tmp_path: Path, read: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commit, open_file = DeltaTable.create_write_transaction, DeltaPlace.open
        opened: list[str] = []
        tries: list[str] = []

        def overtaken_twice(self: DeltaTable, *arguments: Any, **more: Any) -> None:
            # First a commit of another program without rows, at the same version.
            tries.append(self.table_uri)
            if tries.count(self.table_uri) <= 2:
                DeltaTable(self.table_uri).alter.set_table_properties({"delta.appendOnly": "false"})
            commit(self, *arguments, **more)

        def open_counted(self: DeltaPlace, name: str) -> Any:
            opened.append(name)
            return open_file(self, name)

        table = begun(open_table())
        made = staged(table, tmp_path, range(3), range(3, 5))
        monkeypatch.setattr(DeltaTable, "create_write_transaction", overtaken_twice)
        monkeypatch.setattr(DeltaPlace, "open", open_counted)
        table.commit(made)
        table.settle()
        assert len(tries) == 6
        assert sorted(opened) == sorted([*made.rows, *made.dead])
        assert offsets_of(read()) == [0, 1, 2]
        assert offsets_of(read("_dead_letters")) == [3, 4]

    def test_a_table_that_is_restored_goes_on_from_there(
        self, open_table: OpenTable, tmp_path: Path, read: Any
    ) -> None:
        for start in (0, 2):
            table = begun(open_table())
            table.commit(staged(table, tmp_path, range(start, start + 2)))
        theirs = self.theirs(tmp_path)
        theirs.restore(theirs.version() - 1)
        table = begun(open_table())
        assert table.covered() == {0: 2}
        assert offsets_of(read()) == [0, 1]
        table.commit(staged(table, tmp_path, range(2, 5)))
        assert begun(open_table()).covered() == {0: 5}
        self.theirs(tmp_path).restore(0)
        assert begun(open_table()).covered() == {}

    def test_a_table_of_someone_else_is_refused(
        self, open_table: OpenTable, tmp_path: Path
    ) -> None:
        write_deltalake(tmp_path / "lake" / "prices", pa.table({"offset": [1]}))
        with pytest.raises(ConfigError, match=r"was not made by this command table=prices"):
            open_table().identity()

    def test_renamed_columns_are_refused(self, open_table: OpenTable, tmp_path: Path) -> None:
        begun(open_table())
        change = {"delta.columnMapping.mode": "name"}
        stored = tmp_path / "lake" / "prices" / "_delta_log" / f"{0:020}.json"
        lines = [json.loads(line) for line in stored.read_text().splitlines()]
        for line in lines:
            line.get("metaData", {}).get("configuration", {}).update(change)
        stored.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        with pytest.raises(ConfigError, match=r"have other names in its files.* table=prices"):
            open_table().identity()

    def test_a_log_that_cannot_be_read_is_named(
        self, open_table: OpenTable, tmp_path: Path
    ) -> None:
        begun(open_table())
        log = tmp_path / "lake" / "prices" / "_delta_log"
        (log / f"{1:020}.json").write_text('{"commit')
        with pytest.raises(RemoteStorageError, match=r"the table's log fails reason="):
            open_table().identity()

    def test_files_that_are_replaced_are_gone(
        self, open_table: OpenTable, tmp_path: Path, read: Any
    ) -> None:
        table = begun(open_table())
        table.commit(staged(table, tmp_path, range(3)))
        table = begun(open_table())
        (before,) = table.data_files()
        made = staged(table, tmp_path, range(1, 4))
        table.commit(replace(made, replaced=[before]))
        assert offsets_of(read()) == [1, 2, 3]
        # Another program rewrites this file before the commit.
        late = begun(open_table())
        made = staged(late, tmp_path, range(4, 6))
        self.theirs(tmp_path).delete()
        with pytest.raises(TableOvertakenError):
            late.commit(replace(made, replaced=late.data_files()))

    def test_a_commit_whose_answer_was_lost_is_found(
        self, open_table: OpenTable, tmp_path: Path, read: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The store's client sends the request again, and finds the file that it made itself."""
        commit = DeltaTable.create_write_transaction

        def answer_lost(self: DeltaTable, *arguments: Any, **more: Any) -> None:
            commit(self, *arguments, **more)
            raise CommitFailedError

        table = begun(open_table())
        made = staged(table, tmp_path, range(3), range(3, 5))
        with monkeypatch.context() as patched:
            patched.setattr(DeltaTable, "create_write_transaction", answer_lost)
            table.commit(made)
            table.settle()
        assert begun(open_table()).covered() == {0: 5}
        assert offsets_of(read()) == [0, 1, 2]
        assert offsets_of(read("_dead_letters")) == [3, 4]

    @pytest.mark.slow
    def test_a_table_in_a_bucket(self, tmp_path: Path) -> None:
        binary = find_versitygw()
        if binary is None:
            pytest.skip("versitygw is not installed: scripts/s3-server.sh install")
        with S3Server(binary, tmp_path / "root") as server:
            url = f"{server.config['url']}/lake"
            settings = ObjectStoreSettings.from_config({**server.config, "url": url})

            def opened() -> TopicTable:
                return begun(DeltaTopicTable(settings, "prices", SimClock()))

            table = opened()
            table.commit(staged(table, tmp_path, range(3), range(3, 5)))
            table.settle()
            one, other = opened(), opened()
            ours, theirs = (staged(each, tmp_path, range(5, 7)) for each in (one, other))
            one.commit(ours)
            with pytest.raises(TableOvertakenError):
                other.commit(theirs)
            options = storage_options(settings)
            found = [
                DeltaTable(f"{url}/{name}", storage_options=options).to_pyarrow_table()
                for name in ("prices", "prices_dead_letters")
            ]
        assert [sorted(each["offset"].to_pylist()) for each in found] == [[0, 1, 2, 5, 6], [3, 4]]
