"""The tables of topics that the console shows, from a catalog that the job's own table wrote."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from isotherm.cli import console as console_command
from isotherm.clock import SystemClock
from isotherm.console.table_pages import table_row
from isotherm.errors import RemoteStorageError
from isotherm.spark.tables import dead_letters, iceberg_listing
from isotherm.spark.tables.dead_letters import DeadLetters
from isotherm.spark.tables.iceberg_catalogs import open_catalog
from isotherm.spark.tables.iceberg_listing import list_topic_tables, read_dead_letters
from isotherm.spark.tables.listed_table import ListedTable
from isotherm.spark.tables.open_table import TablePlace, open_table
from isotherm.spark.tables.topic_table import Identity, TableCommit
from isotherm.spark.tables.value_types import KeyValue
from isotherm.types import Offset
from tests.support.console_server import running_console
from tests.support.scripted_cluster import ScriptedCluster, local_tier
from tests.support.scripted_records import FIRST_MS
from tests.support.scripted_tables import ScriptedTables
from tests.unit.console.test_console_api import get, json_of

ROWS, DEAD = 3, 2


@pytest.fixture
def cluster() -> ScriptedCluster:
    cluster = ScriptedCluster()
    for _ in range(2):
        cluster.add("orders", [], local_tier(5, 5, 100, 100))
    return cluster


class CatalogTables:
    """A `TableReader` of a warehouse."""

    def __init__(self, warehouse: str) -> None:
        self._catalog = open_catalog(None, {}, warehouse)

    def listed(self) -> list[ListedTable]:
        return list_topic_tables(self._catalog)

    def dead_letters(self, table: tuple[str, str]) -> DeadLetters:
        return read_dead_letters(self._catalog, table[1])


class Lake:
    """A table of the job, and the runs that write to it."""

    def __init__(self, folder: Path, topic_id: str, table_format: str = "iceberg") -> None:
        self.warehouse = (folder / "lake").as_uri()
        self._folder = folder
        place = TablePlace(table_format, self.warehouse)
        self._table = open_table("orders", place, writes=True)
        assert self._table.identity() is None
        self._table.create(Identity(topic="orders", topic_id=topic_id, value_format="raw"))
        self._files = 0

    def run(self, rows: int, dead: Sequence[str], covered: Mapping[int, Offset]) -> None:
        """A run that adds rows, and dead letters with these reasons. Those of run `n` begin at
        offset 1000 `n` of partition 0, one each millisecond."""
        places = self._table.places(KeyValue(None, None))
        base = 1000 * self._files
        columns = {
            "partition": [0] * len(dead),
            "offset": [base + n for n in range(len(dead))],
            "timestamp": [(FIRST_MS + base + n) * 1000 for n in range(len(dead))],
            "reason": list(dead),
        }
        added = self._put(places.rows, places.rows_schema, rows, {})
        refused = self._put(places.dead, places.dead_schema, len(dead), columns)
        self._table.commit(TableCommit([added], [refused], covered))
        self._table.settle()

    def _put(self, place: Any, schema: pa.Schema, rows: int, columns: Mapping[str, Any]) -> str:
        arrays = [pa.array(columns.get(each.name, [None] * rows), each.type) for each in schema]
        self._files += 1
        file = self._folder / f"{self._files}.parquet"
        parquet.write_table(pa.Table.from_arrays(arrays, schema=schema), file)
        return str(place.put(file.name, file))


@pytest.fixture
def lake(tmp_path: Path, cluster: ScriptedCluster) -> Lake:
    lake = Lake(tmp_path, str(cluster.read().topics["orders"].state.topic_id))
    lake.run(ROWS, ["not JSON"] * DEAD, {0: 60})
    return lake


@pytest.fixture
def warehouse(lake: Lake) -> str:
    # Tables of other programs are not listed.
    catalog = open_catalog(None, {}, lake.warehouse)
    catalog.create_table("kafka.other", pa.schema([("x", pa.int64())]))
    return lake.warehouse


def test_table_of_a_topic_has_rows_offsets_and_dead_letters(warehouse: str) -> None:
    (found,) = list_topic_tables(open_catalog(None, {}, warehouse))
    assert (found.name, found.identity.topic) == ("kafka.orders", "orders")
    assert (found.rows, found.dead_letters, found.snapshots) == (ROWS, DEAD, 1)
    assert found.covered == {0: 60}
    snapshot = open_catalog(None, {}, warehouse).load_table("kafka.orders").current_snapshot()
    assert snapshot is not None
    assert found.last_commit_ms == snapshot.timestamp_ms


def test_lag_is_what_the_table_does_not_cover(warehouse: str, cluster: ScriptedCluster) -> None:
    with running_console(lambda: cluster, tables=CatalogTables(warehouse)) as address:
        (row,) = tables_of(address)["tables"]
    # Partition 1 is not in it, and begins at its log start.
    assert row["lag"] == (100 - 60) + (100 - 5)
    assert (row["rows"], row["dead_letters"], row["covered"]) == (ROWS, DEAD, {"0": 60})


@pytest.mark.parametrize(
    ("topic", "topic_id"), [("orders", "of an earlier topic"), ("of another cluster", "any")]
)
def test_lag_behind_another_topic_is_unknown(
    cluster: ScriptedCluster, topic: str, topic_id: str
) -> None:
    covered: Mapping[int, Offset] = {0: 1}
    identity = Identity(topic=topic, topic_id=topic_id, value_format="raw")
    table = ListedTable("iceberg", "kafka.t", identity, 1, 1, 5, covered, 0)
    assert table_row(table, cluster.read())["lag"] is None


def test_without_a_warehouse_there_are_no_tables(cluster: ScriptedCluster) -> None:
    with running_console(lambda: cluster) as address:
        assert tables_of(address)["tables"] is None


def test_catalog_that_fails_has_a_reason(cluster: ScriptedCluster) -> None:
    class Failing(ScriptedTables):
        def listed(self) -> list[ListedTable]:
            raise RemoteStorageError("the tables cannot be listed: the catalog fails")

    with running_console(lambda: cluster, tables=Failing()) as address:
        found = tables_of(address)
        status, _, body = get(address, "/api/tables/kafka.orders")
        assert (status, b"the catalog fails" in body) == (503, True)
    assert found["tables"] == []
    assert "the catalog fails" in found["tables_error"]


def tables_of(address: str) -> dict[str, Any]:
    found: dict[str, Any] = json.load(urllib.request.urlopen(f"{address}/api/tables"))
    return found


def test_page_of_a_table_has_the_reasons_of_its_dead_letters(
    cluster: ScriptedCluster, lake: Lake
) -> None:
    lake.run(1, ["no such schema", "not JSON", "no such schema"], {0: 70, 1: 9})
    with running_console(lambda: cluster, tables=CatalogTables(lake.warehouse)) as address:
        found = json_of(address, "/api/tables/kafka.orders")
        assert get(address, "/api/tables/kafka.none")[0] == 404
    assert found["dead_letters"] == DEAD + 3
    read = found["newest_dead_letters"]
    assert (read["files"], read["rows"], read["reasons_total"]) == (2, DEAD + 3, 2)
    assert read["reasons"] == [["not JSON", DEAD + 1], ["no such schema", 2]]
    newest, *_, oldest = read["newest"]
    base = read["newest"][0]["offset"] - 2
    assert newest == {
        "partition": 0,
        "offset": base + 2,
        "timestamp_ms": FIRST_MS + base + 2,
        "reason": "no such schema",
    }
    assert oldest["offset"] < base
    assert [
        (each["partition"], each["next_offset"], each["last_stable_offset"], each["lag"])
        for each in found["by_partition"]
    ] == [(0, 70, 100, 30), (1, 9, 100, 91)]


def test_dead_letters_are_read_within_bounds(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(3):
        lake.run(1, [f"run {n}"] * 5, {0: 61 + n})
    tables = CatalogTables(lake.warehouse)

    def bounded(name: str, value: int) -> DeadLetters:
        with monkeypatch.context() as patch:
            module = iceberg_listing if name.startswith("MANIFEST") else dead_letters
            patch.setattr(module, name, value)
            return tables.dead_letters(("iceberg", "kafka.orders"))

    # The newest files come first.
    assert bounded("FILES_MAX", 2).reasons == (("run 2", 5), ("run 1", 5))
    assert bounded("ROWS_MAX", 7).reasons == (("run 2", 5), ("run 1", 2))
    assert bounded("BYTES_MAX", 1).rows == 0
    assert bounded("MANIFEST_BYTES_MAX", 1).files == 0
    assert [each.reason for each in bounded("NEWEST_MAX", 6).newest] == ["run 2"] * 5 + ["run 1"]
    some = bounded("REASONS_MAX", 1)
    assert (len(some.reasons), some.reasons_total) == (1, 4)
    assert bounded("REASON_CHARS_MAX", 3).reasons == (("run", 15), ("not", DEAD))


@pytest.mark.parametrize(
    ("table_format", "counts"), [("delta", (ROWS + 1, 5, DEAD + 1)), ("parquet", (None,) * 3)]
)
def test_table_in_a_folder_is_listed(
    cluster: ScriptedCluster,
    tmp_path: Path,
    table_format: str,
    counts: tuple[int | None, ...],
) -> None:
    lake = Lake(tmp_path, str(cluster.read().topics["orders"].state.topic_id), table_format)
    lake.run(ROWS, ["not JSON"] * DEAD, {0: 60})
    lake.run(1, ["no such schema"], {0: 70, 1: 9})
    (tmp_path / "lake" / "of another program" / "_delta_log").mkdir(parents=True)
    tables = console_command.warehouse_tables(lake.warehouse, None, {})
    with running_console(lambda: cluster, tables=tables) as address:
        (row,) = tables_of(address)["tables"]
        page = json_of(address, "/api/tables/orders")
    assert (row["table"], row["format"], row["topic"]) == ("orders", table_format, "orders")
    assert (row["covered"], row["lag"]) == ({"0": 70, "1": 9}, 30 + 91)
    assert abs(row["last_commit_ms"] - SystemClock().now_ms()) < 3_600_000
    rows, versions, dead_letters = counts
    assert (row["rows"], row["dead_letters"]) == (rows, dead_letters)
    assert row["snapshots"] == versions
    read = page["newest_dead_letters"]
    assert (read["files"], read["rows"]) == (2, DEAD + 1)
    assert read["reasons"] == [["not JSON", DEAD], ["no such schema", 1]]


@pytest.mark.parametrize("table_format", ["delta", "parquet"])
def test_dead_letters_in_a_folder_are_read_within_bounds(
    cluster: ScriptedCluster, tmp_path: Path, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path, "any", table_format)
    for n in range(3):
        lake.run(1, [f"run {n}"] * 5, {0: 61 + n})
        for file in (tmp_path / "lake").glob(f"*dead_letters*/**/{2 * n + 2}.parquet"):
            os.utime(file, (n, n))
    monkeypatch.setattr(dead_letters, "FILES_MAX", 2)
    tables = console_command.warehouse_tables(lake.warehouse, None, {})
    assert tables is not None
    read = tables.dead_letters((table_format, "orders"))
    assert (read.files, read.rows) == (2, 10)
    if table_format == "parquet":
        assert read.reasons == (("run 2", 5), ("run 1", 5))


def test_folder_without_tables_has_an_empty_list(tmp_path: Path) -> None:
    for warehouse in (tmp_path, tmp_path / "none"):
        tables = console_command.warehouse_tables(str(warehouse), None, {})
        assert tables is not None
        assert list(tables.listed()) == []
    assert not (tmp_path / "none").exists()


def test_dead_letters_of_a_damaged_file_have_a_reason(
    cluster: ScriptedCluster, lake: Lake, tmp_path: Path
) -> None:
    (file,) = (tmp_path / "lake").glob("**/*dead_letters*/**/*.parquet")
    file.write_bytes(b"PAR1" + bytes(100))
    with running_console(lambda: cluster, tables=CatalogTables(lake.warehouse)) as address:
        found = json_of(address, "/api/tables/kafka.orders")
    assert found["newest_dead_letters"] is None
    assert file.name in found["dead_letters_error"]
