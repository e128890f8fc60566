"""The tables of topics that the console shows, from a catalog that the job's own table wrote."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from isotherm.console.table_pages import table_row
from isotherm.errors import RemoteStorageError
from isotherm.spark.tables.iceberg_catalogs import open_catalog
from isotherm.spark.tables.iceberg_listing import ListedTable, list_topic_tables
from isotherm.spark.tables.iceberg_table import IcebergTable
from isotherm.spark.tables.topic_table import Identity, TableCommit
from isotherm.spark.tables.value_types import KeyValue
from isotherm.types import Offset
from tests.support.console_server import running_console
from tests.support.scripted_cluster import ScriptedCluster, local_tier

ROWS, DEAD = 3, 2


@pytest.fixture
def cluster() -> ScriptedCluster:
    cluster = ScriptedCluster()
    for _ in range(2):
        cluster.add("orders", [], local_tier(5, 5, 100, 100))
    return cluster


@pytest.fixture
def warehouse(tmp_path: Path, cluster: ScriptedCluster) -> str:
    topic_id = str(cluster.read().topics["orders"].state.topic_id)
    warehouse = (tmp_path / "lake").as_uri()
    table = IcebergTable(open_catalog(None, {}, warehouse), "kafka.orders")
    assert table.identity() is None
    table.create(Identity(topic="orders", topic_id=topic_id, value_format="raw"))
    places = table.places(KeyValue(None, None))

    def put(place: Any, schema: pa.Schema, rows: int) -> str:
        columns = [pa.nulls(rows, each.type) for each in schema]
        file = tmp_path / f"{rows}.parquet"
        parquet.write_table(pa.Table.from_arrays(columns, schema=schema), file)
        return str(place.put(file.name, file))

    rows = put(places.rows, places.rows_schema, ROWS)
    dead = put(places.dead, places.dead_schema, DEAD)
    table.commit(TableCommit([rows], [dead], {0: 60}))
    table.settle()
    # Tables of other programs are not listed.
    open_catalog(None, {}, warehouse).create_table("kafka.other", pa.schema([("x", pa.int64())]))
    return warehouse


def test_table_of_a_topic_has_rows_offsets_and_dead_letters(warehouse: str) -> None:
    (found,) = list_topic_tables(open_catalog(None, {}, warehouse))
    assert (found.name, found.identity.topic) == ("kafka.orders", "orders")
    assert (found.rows, found.dead_letters, found.snapshots) == (ROWS, DEAD, 1)
    assert found.covered == {0: 60}
    snapshot = open_catalog(None, {}, warehouse).load_table("kafka.orders").current_snapshot()
    assert snapshot is not None
    assert found.last_commit_ms == snapshot.timestamp_ms


def test_lag_is_what_the_table_does_not_cover(warehouse: str, cluster: ScriptedCluster) -> None:
    def listed() -> list[ListedTable]:
        return list_topic_tables(open_catalog(None, {}, warehouse))

    with running_console(lambda: cluster, read_tables=listed) as address:
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
    table = ListedTable("kafka.t", identity, 1, 1, 5, covered, 0)
    assert table_row(table, cluster.read())["lag"] is None


def test_without_a_warehouse_there_are_no_tables(cluster: ScriptedCluster) -> None:
    with running_console(lambda: cluster) as address:
        assert tables_of(address)["tables"] is None


def test_catalog_that_fails_has_a_reason(cluster: ScriptedCluster) -> None:
    def fails() -> Iterator[ListedTable]:
        raise RemoteStorageError("the tables cannot be listed: the catalog fails")

    with running_console(lambda: cluster, read_tables=lambda: list(fails())) as address:
        found = tables_of(address)
    assert found["tables"] == []
    assert "the catalog fails" in found["tables_error"]


def tables_of(address: str) -> dict[str, Any]:
    found: dict[str, Any] = json.load(urllib.request.urlopen(f"{address}/api/tables"))
    return found
