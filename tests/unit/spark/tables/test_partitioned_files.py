"""Many partition files written at once: their bounds, and that no local file is left behind."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pyarrow as pa
import pytest
from pyarrow import parquet

from isotherm.spark.tables import parquet_files, partitioned_files
from isotherm.spark.tables.partitioned_files import OPEN_PARTITIONS_MAX, PartitionedFiles
from isotherm.spark.tables.time_partitions import DAY, folder_of

SCHEMA = pa.schema([("offset", pa.int64()), ("timestamp", pa.timestamp("us", tz="UTC"))])
DAY_US = 86_400_000_000


class FolderPlace:
    """A place on the local disk. The put with number `fails_at` fails."""

    def __init__(self, folder: Path, fails_at: int = -1) -> None:
        self.folder = folder
        self.fails_at = fails_at
        self.puts = 0

    def put(self, name: str, path: Path) -> str:
        if self.puts == self.fails_at:
            raise OSError("no space left on device")
        self.puts += 1
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
        return name

    def open(self, name: str) -> IO[bytes]:
        return (self.folder / name).open("rb")

    def delete(self, files: Sequence[str]) -> None:
        for file in files:
            (self.folder / file).unlink()


def rows(first: int, days: Sequence[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array(range(first, first + len(days)), pa.int64()),
            pa.array([day * DAY_US for day in days], pa.int64()).cast(SCHEMA.field(1).type),
        ],
        schema=SCHEMA,
    )


@pytest.fixture
def place(tmp_path: Path) -> FolderPlace:
    return FolderPlace(tmp_path / "table")


@pytest.mark.slow
def test_rows_of_many_days_keep_to_the_bounds_and_their_folders(
    place: FolderPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (parquet_files, partitioned_files):
        monkeypatch.setattr(module, "ROW_GROUP_BYTES", 4096)
    days = OPEN_PARTITIONS_MAX * 3
    local = tmp_path / "local"
    local.mkdir()
    with PartitionedFiles(place, SCHEMA, local / "rows", DAY) as files:
        for first in range(0, 5000, 500):
            # Neighbouring rows are of different days, and each day comes again.
            files.write(rows(first, [(first + n) % days for n in range(500)]))
            assert len(list(local.iterdir())) <= OPEN_PARTITIONS_MAX
        put = files.put_all()
    assert list(local.iterdir()) == []
    assert sum(each.rows for each in put) == 5000
    assert len({each.name for each in put}) == len(put)
    found: list[int] = []
    for each in put:
        table = parquet.read_table(place.folder / each.name, partitioning=None)
        assert table.num_rows == each.rows
        assert (place.folder / each.name).stat().st_size == each.size
        of_days = {moment.date().isoformat() for moment in table.column("timestamp").to_pylist()}
        assert {folder_of(each.name)} == {f"timestamp_day={day}/" for day in of_days}
        offsets = table.column("offset").to_pylist()
        assert offsets == sorted(offsets)
        found += offsets
    assert sorted(found) == list(range(5000))


def test_files_of_all_partitions_together_keep_to_the_bytes_of_one(
    place: FolderPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (parquet_files, partitioned_files):
        monkeypatch.setattr(module, "ROW_GROUP_BYTES", 2048)
        monkeypatch.setattr(module, "FILE_BYTES", 8192)
    local = tmp_path / "local"
    local.mkdir()
    with PartitionedFiles(place, SCHEMA, local / "rows", DAY) as files:
        for first in range(0, 8000, 100):
            files.write(rows(first, [n % 8 for n in range(100)]))
            on_disk = sum(path.stat().st_size for path in local.iterdir())
            assert on_disk < 8192 + 2 * 2048
        put = files.put_all()
    assert place.puts == len(put) > 8
    assert sum(each.rows for each in put) == 8000


@pytest.mark.parametrize("fails_at", [0, 3, 70])
def test_what_was_put_is_deleted_when_a_put_fails(tmp_path: Path, fails_at: int) -> None:
    place = FolderPlace(tmp_path / "table", fails_at)
    (tmp_path / "local").mkdir()

    def write() -> None:
        with PartitionedFiles(place, SCHEMA, tmp_path / "local" / "rows", DAY) as files:
            files.write(rows(0, range(OPEN_PARTITIONS_MAX + 40)))
            files.put_all()

    with pytest.raises(OSError, match="no space left"):
        write()
    assert place.puts == fails_at
    assert [path for path in (tmp_path / "table").rglob("*") if path.is_file()] == []
