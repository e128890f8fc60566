"""When the files of removed segments go from the disk."""

from __future__ import annotations

from pathlib import Path

from isotherm.log.deletion_queue import DeletionQueue
from isotherm.log.file_cache import FileCache
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_segment import LogSegment
from isotherm.log.producer_snapshots import ProducerSnapshots

FS = OsFileSystem()


def segment(directory: Path, base_offset: int) -> LogSegment:
    for suffix in ("log", "index", "snapshot"):
        (directory / f"{base_offset:020d}.{suffix}").write_bytes(b"x")
    return LogSegment(FileCache(FS), directory, base_offset, now_ms=0)


def names(directory: Path) -> list[str]:
    return sorted(path.name.lstrip("0") for path in directory.iterdir())


def test_files_are_renamed_and_go_when_they_are_due(tmp_path: Path) -> None:
    segments = [segment(tmp_path, base) for base in (5, 8)]
    queue = DeletionQueue(FS, ProducerSnapshots(FS, tmp_path))
    queue.mark(segments[:1], 100)
    queue.mark(segments[1:], 101)
    assert names(tmp_path) == [
        f"{base}.{suffix}.deleted" for base in (5, 8) for suffix in ("index", "log", "snapshot")
    ]
    queue.delete_due(99)
    assert len(names(tmp_path)) == 6
    queue.delete_due(100)
    assert names(tmp_path) == [f"8.{suffix}.deleted" for suffix in ("index", "log", "snapshot")]
    queue.delete_due(101)
    assert names(tmp_path) == []
    queue.delete_due(1000)


def test_snapshot_at_the_base_of_another_segment_stays(tmp_path: Path) -> None:
    segments = [segment(tmp_path, base) for base in (5, 8)]
    queue = DeletionQueue(FS, ProducerSnapshots(FS, tmp_path))
    queue.mark(segments, 100, reused_base_offsets={5})
    assert "5.snapshot" in names(tmp_path)
    queue.delete_due(100)
    assert names(tmp_path) == ["5.snapshot"]


def test_files_marked_before_under_the_same_names_go_at_once(tmp_path: Path) -> None:
    first, other = segment(tmp_path, 5), segment(tmp_path, 8)
    queue = DeletionQueue(FS, ProducerSnapshots(FS, tmp_path))
    queue.mark([first, other], 100)
    second = segment(tmp_path, 5)
    (tmp_path / f"{5:020d}.log").write_bytes(b"second")
    queue.mark([second], 200, reused_base_offsets={5})
    assert (tmp_path / f"{5:020d}.log.deleted").read_bytes() == b"second"
    queue.delete_due(100)
    assert names(tmp_path) == ["5.index.deleted", "5.log.deleted", "5.snapshot"]
    queue.delete_due(200)
    assert names(tmp_path) == ["5.snapshot"]
