"""Upkeep of a table keeps its rows, offsets and dead letters, whatever other programs commit
meanwhile.

The oracle is PyIceberg's scan, and the folder itself for deleted files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from isotherm.errors import ConfigError, TableOvertakenError
from isotherm.spark.jobs.table_upkeep import merged_batches
from isotherm.spark.tables.iceberg_table import IcebergTable
from isotherm.spark.tables.iceberg_upkeep import IcebergKept
from isotherm.spark.tables.topic_table import TableCommit
from isotherm.spark.tables.upkeep_plan import (
    GROUP_FILES_MAX,
    SMALL_FILE_BYTES,
    DataFile,
    check_upkeep,
    plan_compaction,
)
from tests.unit.spark.tables.test_topic_tables import begun, catalog_of, offsets_of, staged

NEVER_MS, EVER_MS = 0, 2**60


def file(
    name: str, first: int, size: int = 10, *, partition: int = 0, group: Any = None
) -> DataFile:
    return DataFile(name, size, 1, (partition, partition), (first, first + 9), group)


def names(groups: list[list[DataFile]]) -> list[list[str]]:
    return [[each.name for each in group] for group in groups]


def test_neighbours_become_one_in_the_order_of_partitions_and_offsets() -> None:
    files = [file("d", 0, partition=1), file("b", 10), file("a", 0), file("c", 20)]
    assert names(plan_compaction(files)) == [["a", "b", "c", "d"]]


def test_large_files_and_one_alone_stay() -> None:
    assert plan_compaction([file("a", 0, SMALL_FILE_BYTES), file("b", 10)]) == []


def test_group_ends_when_it_is_large_enough() -> None:
    size = SMALL_FILE_BYTES - 1
    files = [file(f"{n:02}", n * 10, size) for n in range(12)]
    groups = plan_compaction(files)
    assert [len(group) for group in groups] == [5, 5, 2]
    assert [name for group in names(groups) for name in group] == sorted(
        each.name for each in files
    )


def test_group_has_a_bounded_number_of_files() -> None:
    files = [file(f"{n:04}", n * 10) for n in range(GROUP_FILES_MAX + 2)]
    assert [len(each) for each in plan_compaction(files)] == [GROUP_FILES_MAX, 2]


def test_files_of_different_partitions_of_the_table_stay_apart() -> None:
    files = [file("a", 0, group=1), file("b", 10, group=2), file("c", 20, group=1)]
    assert names(plan_compaction(files)) == [["a", "c"]]


class _Folder:
    def open(self, name: str) -> Any:
        return Path(name).open("rb")


@pytest.mark.parametrize("seed", range(10))
def test_rows_are_merged_in_order(tmp_path: Path, seed: int) -> None:
    """Files of several partitions overlap. One has no bounds, and all lack a column."""
    rng = Random(seed)
    places = sorted({(rng.randrange(4), rng.randrange(200)) for _ in range(300)})
    files = []
    for number in range(6):
        own = sorted(rng.sample(places, rng.randrange(1, 40)))
        places = [each for each in places if each not in own]
        rows = pa.table(
            {"partition": pa.array([p for p, _ in own], pa.int32()), "offset": [o for _, o in own]}
        )
        path = tmp_path / f"{number}.parquet"
        parquet.write_table(rows, path, row_group_size=7)
        partitions, offsets = zip(*own, strict=True)
        bounds = ((min(partitions), max(partitions)), (min(offsets), max(offsets)))
        known = bounds if number else (None, None)
        files.append((DataFile(str(path), 1, len(own), *known), own))
    schema = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("note", pa.string())])
    place: Any = _Folder()
    found = pa.Table.from_batches(merged_batches([each for each, _ in files], place, schema))
    merged = list(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True))
    assert merged == sorted(place for _, own in files for place in own)
    assert found["note"].null_count == len(found)


def test_lists_and_maps_whose_elements_have_grown_are_merged_row_by_row(tmp_path: Path) -> None:
    """The files overlap, so that slices of their batches become rows with the table's columns."""

    def column(*fields: tuple[str, pa.DataType]) -> pa.DataType:
        inner = pa.struct(list(fields))
        return pa.struct([("items", pa.list_(inner)), ("named", pa.map_(pa.string(), inner))])

    def value(offset: int) -> dict[str, Any]:
        items = [{"x": offset}, {"x": -offset}, None]
        named = [("a", {"x": offset}), ("b", None)]
        return {
            "items": None if offset % 5 == 0 else items[: offset % 4],
            "named": None if offset % 7 == 0 else named[: offset % 3],
        }

    old = column(("x", pa.int64()))
    files = []
    for number in range(2):
        offsets = list(range(number, 40, 2))
        rows = pa.table(
            {
                "partition": pa.array([0] * len(offsets), pa.int32()),
                "offset": offsets,
                "value": pa.array([value(offset) for offset in offsets], old),
            }
        )
        path = tmp_path / f"{number}.parquet"
        parquet.write_table(rows, path)
        bounds = (offsets[0], offsets[-1])
        files.append(DataFile(str(path), 1, len(offsets), (0, 0), bounds))
    grown = column(("x", pa.int64()), ("y", pa.string()))
    schema = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("value", grown)])
    place: Any = _Folder()
    merged = pa.Table.from_batches(merged_batches(files, place, schema))
    assert merged["offset"].to_pylist() == list(range(40))
    expected = pa.array([value(offset) for offset in range(40)], grown)
    assert merged["value"].to_pylist() == expected.to_pylist()


def test_only_iceberg_has_upkeep() -> None:
    check_upkeep("--compact", "iceberg")
    with pytest.raises(ConfigError, match=r"only Iceberg tables option=--compact to=parquet"):
        check_upkeep("--compact", "parquet")


@pytest.fixture
def table(tmp_path: Path) -> IcebergTable:
    """A table of three commits, each with two rows and a dead letter."""
    return add_three(opened(tmp_path), tmp_path)


def add_three(table: IcebergTable, folder: Path) -> IcebergTable:
    begun(table)
    for _ in range(3):
        start = table.covered().get(0, 0)
        table.commit(staged(table, folder, range(start, start + 2), range(start + 2, start + 3)))
        table.settle()
    return table


def opened(folder: Path) -> IcebergTable:
    return IcebergTable(catalog_of(folder), "kafka.prices")


def theirs(folder: Path, suffix: str = "") -> Table:
    return catalog_of(folder).load_table(f"kafka.prices{suffix}")


def merge(kept: IcebergKept, folder: Path, name: str = "merged") -> None:
    """Merge the files as the job does, without Spark."""
    old = kept.files()
    batches: Iterator[pa.RecordBatch] = merged_batches(old, kept.place, kept.schema)
    path = folder / f"{name}.parquet"
    parquet.write_table(pa.Table.from_batches(batches, kept.schema), path)
    kept.replace([kept.place.put(path.name, path)], [each.name for each in old], keeps_rows=True)


def rows(folder: Path, suffix: str = "") -> list[int]:
    found = theirs(folder, suffix).scan().to_arrow().to_pylist()
    return sorted(offsets_of(found))


@pytest.mark.slow
def test_merged_files_have_the_rows_and_the_offsets(table: IcebergTable, tmp_path: Path) -> None:
    for kept in table.kept():
        assert len(kept.files()) == 3
        merge(kept, tmp_path, kept.name)
        kept.read()
        assert len(kept.files()) == 1
    assert rows(tmp_path) == [0, 1, 3, 4, 6, 7]
    assert rows(tmp_path, "_dead_letters") == [2, 5, 8]
    snapshot = theirs(tmp_path).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation.value == "replace"
    assert snapshot.summary.additional_properties["total-records"] == "6"
    again = begun(opened(tmp_path))
    assert again.covered() == {0: 9}
    assert rows(tmp_path, "_dead_letters") == [2, 5, 8]


def test_run_between_look_and_commit_of_a_merge(table: IcebergTable, tmp_path: Path) -> None:
    """A run commits between. Its rows, its offsets and its unsettled dead letters stay."""
    kept = table.kept()[0]
    old = kept.files()
    run = begun(opened(tmp_path))
    run.commit(staged(run, tmp_path, range(9, 11), range(11, 12)))
    path = tmp_path / "merged.parquet"
    batches = merged_batches(old, kept.place, kept.schema)
    parquet.write_table(pa.Table.from_batches(batches, kept.schema), path)
    kept.replace([kept.place.put(path.name, path)], [each.name for each in old], keeps_rows=True)
    run.settle()
    again = begun(opened(tmp_path))
    assert again.covered() == {0: 12}
    assert rows(tmp_path) == [0, 1, 3, 4, 6, 7, 9, 10]
    assert rows(tmp_path, "_dead_letters") == [2, 5, 8, 11]


def test_merge_between_look_and_commit_of_a_run(table: IcebergTable, tmp_path: Path) -> None:
    run = begun(opened(tmp_path))
    ours = staged(run, tmp_path, range(9, 11), range(11, 12))
    merge(table.kept()[0], tmp_path)
    run.commit(ours)
    run.settle()
    assert begun(opened(tmp_path)).covered() == {0: 12}
    assert rows(tmp_path) == [0, 1, 3, 4, 6, 7, 9, 10]


def test_files_that_others_have_replaced_are_not_merged(
    table: IcebergTable, tmp_path: Path
) -> None:
    kept = table.kept()[0]
    kept.read()
    other = theirs(tmp_path)
    other.delete("offset = 3")
    with pytest.raises(TableOvertakenError, match="start the upkeep again"):
        merge(kept, tmp_path)
    assert rows(tmp_path) == [0, 1, 4, 6, 7]


@pytest.mark.slow
def test_old_snapshots_expire_with_the_files_that_only_they_name(
    table: IcebergTable, tmp_path: Path
) -> None:
    merge(table.kept()[0], tmp_path)
    add_three(table, tmp_path)
    kept = table.kept()[0]
    assert kept.expire(NEVER_MS) == (0, 0)
    before = set((tmp_path / "lake").rglob("*"))
    expired = kept.expire(EVER_MS)
    gone = before - set((tmp_path / "lake").rglob("*"))
    assert expired.snapshots == 6
    # Deleted are the files of rows and the manifests of the first three commits, the manifest that
    # the merge replaced, and every manifest list but the newest.
    assert len([path for path in gone if path.suffix == ".parquet"]) == 3
    assert len([path for path in gone if path.suffix == ".avro"]) == 3 + 1 + 6
    assert expired.files == 13
    assert len(theirs(tmp_path).snapshots()) == 1
    assert begun(opened(tmp_path)).covered() == {0: 18}
    assert len(rows(tmp_path)) == 12


@pytest.mark.slow
def test_what_the_next_run_needs_does_not_expire(table: IcebergTable, tmp_path: Path) -> None:
    """The newest run's snapshot must stay, although commits of others and of upkeep follow it,
    because its dead letters are not settled."""
    table.commit(staged(table, tmp_path, range(9, 11), range(11, 12)))
    merge(table.kept()[0], tmp_path)
    others = theirs(tmp_path)
    others.append(others.scan(limit=1).to_arrow())
    merge(table.kept()[0], tmp_path, "again")
    for kept in table.kept():
        kept.read()
        kept.expire(EVER_MS)
    assert [
        snapshot.summary.operation.value
        for snapshot in theirs(tmp_path).snapshots()
        if snapshot.summary
    ] == ["append", "replace", "append", "replace"]
    again = begun(opened(tmp_path))
    assert again.covered() == {0: 12}
    for _ in range(2):
        assert rows(tmp_path, "_dead_letters") == [2, 5, 8, 11]
        for kept in again.kept():
            kept.expire(EVER_MS)
        again = begun(opened(tmp_path))


def test_snapshots_with_names_do_not_expire(table: IcebergTable, tmp_path: Path) -> None:
    first = theirs(tmp_path).history()[0].snapshot_id
    theirs(tmp_path).manage_snapshots().create_tag(first, "audited").commit()
    kept = table.kept()[0]
    kept.expire(EVER_MS)
    assert len(theirs(tmp_path).snapshots()) == 2
    assert offsets_of(theirs(tmp_path).scan(snapshot_id=first).to_arrow().to_pylist()) == [0, 1]


def test_rollback_while_snapshots_expire(
    table: IcebergTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rollback makes an old snapshot the current one. It must stay."""
    kept = table.kept()[0]
    kept.read()
    first = theirs(tmp_path).history()[0].snapshot_id
    commit_table = SqlCatalog.commit_table

    def slow(*given: Any) -> Any:
        monkeypatch.undo()
        theirs(tmp_path).manage_snapshots().rollback_to_snapshot(first).commit()
        return commit_table(*given)

    monkeypatch.setattr(SqlCatalog, "commit_table", slow)
    kept.expire(EVER_MS)
    assert rows(tmp_path) == [0, 1]
    assert begun(opened(tmp_path)).covered() == {0: 3}


def test_files_of_tables_that_share_them_are_not_deleted(
    table: IcebergTable, tmp_path: Path
) -> None:
    with theirs(tmp_path).transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    with pytest.raises(ConfigError, match=r"property=gc\.enabled"):
        table.kept()[0].expire(EVER_MS)


def test_run_without_rows_after_all_others_have_expired(
    table: IcebergTable, tmp_path: Path
) -> None:
    table.commit(TableCommit((), (), {0: 20}))
    for kept in table.kept():
        kept.expire(EVER_MS)
    assert begun(opened(tmp_path)).covered() == {0: 20}
    assert rows(tmp_path) == [0, 1, 3, 4, 6, 7]
