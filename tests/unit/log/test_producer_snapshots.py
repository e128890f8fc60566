"""The producer snapshot files of a directory: which are taken, used, kept and removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.log.fs import OsFileSystem
from isotherm.log.producer_snapshots import ProducerSnapshots
from isotherm.log.producer_state import ProducerStateManager
from isotherm.segment.producer_snapshot import ProducerSnapshotEntry, encode_producer_snapshot
from isotherm.types import TopicPartition
from tests.support.faulty_fs import FaultyFileSystem

NOW = 1_700_000_000_000
DAY = 86_400_000


def entry(producer: int) -> ProducerSnapshotEntry:
    return ProducerSnapshotEntry(producer, 0, 0, 0, 0, NOW, -1, -1)


def path(directory: Path, offset: int) -> Path:
    return directory / f"{offset:020d}.snapshot"


def snapshots_at(directory: Path, *offsets: int) -> ProducerSnapshots:
    """Snapshots at these offsets; each has the producer with the id of its offset."""
    for offset in offsets:
        path(directory, offset).write_bytes(encode_producer_snapshot([entry(offset)]))
    return ProducerSnapshots(OsFileSystem(), directory)


def manager() -> ProducerStateManager:
    return ProducerStateManager(TopicPartition("t", 0), DAY)


def stored(directory: Path) -> list[int]:
    return sorted(int(each.name[:20]) for each in directory.glob("*.snapshot"))


def test_snapshots_of_a_directory_are_found(tmp_path: Path) -> None:
    for name in (f"{5:020d}.log", f"{7:020d}.snapshot.deleted", "readme"):
        (tmp_path / name).write_bytes(b"")
    assert snapshots_at(tmp_path, 20, 3).offsets == (3, 20)
    names = [f"{4:020d}.snapshot"]
    assert ProducerSnapshots(OsFileSystem(), tmp_path, names).offsets == (4,)


def test_snapshot_is_taken_once_and_none_at_the_start_of_a_log(tmp_path: Path) -> None:
    snapshots, state = snapshots_at(tmp_path, 5, 20), manager()
    for offset, is_taken in ((0, False), (5, False), (7, True), (7, False)):
        state.load([entry(1)], offset, NOW)
        assert snapshots.take(state) is is_taken
    assert snapshots.offsets == (5, 7, 20)
    assert path(tmp_path, 7).read_bytes() == encode_producer_snapshot([entry(1)])
    assert path(tmp_path, 5).read_bytes() == encode_producer_snapshot([entry(5)])


@pytest.mark.parametrize(("end_offset", "loaded"), [(4, None), (5, 5), (19, 5), (20, 20), (99, 20)])
def test_latest_snapshot_up_to_the_end_is_loaded(
    tmp_path: Path, end_offset: int, loaded: int | None
) -> None:
    state = manager()
    state.load([entry(1)], 3, NOW)
    snapshots_at(tmp_path, 5, 20).load_latest(state, end_offset, NOW)
    assert state.map_end_offset == (loaded or 0)
    assert [snapshot_entry.producer_id for snapshot_entry in state.snapshot_entries()] == [
        loaded
    ] * bool(loaded)


def test_damaged_snapshots_go_and_an_earlier_one_is_loaded(tmp_path: Path) -> None:
    snapshots, state = snapshots_at(tmp_path, 5, 20, 30), manager()
    for offset in (20, 30):
        path(tmp_path, offset).write_bytes(b"rubbish")
    snapshots.load_latest(state, 25, NOW)
    assert state.map_end_offset == 5
    assert (stored(tmp_path), snapshots.offsets) == ([5, 30], (5, 30))


def test_snapshots_above_an_offset_go(tmp_path: Path) -> None:
    snapshots = snapshots_at(tmp_path, 5, 20, 21)
    snapshots.remove_where_above(20)
    assert (stored(tmp_path), snapshots.offsets) == ([5, 20], (5, 20))


@pytest.mark.parametrize(
    ("bases", "kept"),
    [
        ({0, 5, 20}, [5, 20, 30]),
        ({0, 20}, [20, 30]),
        # The latest one is at the end of the log, or at its last segment.
        ({0, 30}, [30]),
        ({0, 31}, []),
        (set(), [30]),
    ],
)
def test_snapshots_of_no_segment_go_but_the_one_at_the_end(
    tmp_path: Path, bases: set[int], kept: list[int]
) -> None:
    """Kafka: ProducerStateManager.removeStraySnapshots."""
    snapshots = snapshots_at(tmp_path, 5, 20, 25, 30)
    snapshots.remove_strays(bases)
    assert (stored(tmp_path), list(snapshots.offsets)) == (kept, kept)


def test_snapshot_is_marked_for_deletion(tmp_path: Path) -> None:
    snapshots = snapshots_at(tmp_path, 5)
    assert snapshots.rename_to_deleted(4) is None
    deleted = snapshots.rename_to_deleted(5)
    assert deleted == path(tmp_path, 5).with_suffix(".snapshot.deleted")
    assert deleted is not None
    assert deleted.exists()
    assert (stored(tmp_path), snapshots.offsets) == ([], ())


def test_snapshots_are_synced_from_an_offset_on(tmp_path: Path) -> None:
    snapshots_at(tmp_path, 5, 20, 30)
    fs = FaultyFileSystem()
    ProducerSnapshots(fs, tmp_path).sync(20)
    assert set(fs.sync_counts) == {path(tmp_path, 20), path(tmp_path, 30)}


def test_snapshot_is_synced_once(tmp_path: Path) -> None:
    snapshots_at(tmp_path, 5, 20)
    fs = FaultyFileSystem()
    snapshots = ProducerSnapshots(fs, tmp_path, are_durable=True)
    snapshots.put(30, ())
    snapshots.sync(0)
    snapshots.sync(0)
    assert fs.sync_counts == {path(tmp_path, 30): 1}
    # One of the same name is another file.
    snapshots.remove(5)
    snapshots.put(5, ())
    assert snapshots.unsynced(0) == [5]
    snapshots.sync(0)
    assert fs.sync_counts[path(tmp_path, 5)] == 1
