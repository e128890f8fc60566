"""When entries of the active segment's index are written to the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from isotherm.log.fs import OsFile, OsFileSystem
from isotherm.log.index_file import UNWRITTEN_SIZE_MAX, IndexFile

ENTRY_SIZE = 8
ENTRIES_PER_PAGE = UNWRITTEN_SIZE_MAX // ENTRY_SIZE


def entry(number: int) -> bytes:
    return number.to_bytes(ENTRY_SIZE)


def entries(count: int, start: int = 0) -> bytes:
    return b"".join(entry(number) for number in range(start, start + count))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "0.index"


@pytest.fixture
def index(path: Path) -> IndexFile:
    return open_index(OsFileSystem(), path)


def open_index(fs: OsFileSystem, path: Path, padding_count: int = 0) -> IndexFile:
    return IndexFile(
        fs, path, ENTRY_SIZE, 1 << 20, lambda stored: len(stored) // ENTRY_SIZE - padding_count
    )


def fill(index: IndexFile, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        index.append(entry(number))


def test_entries_are_read_from_memory_and_written_a_page_at_a_time(
    index: IndexFile, path: Path
) -> None:
    fill(index, ENTRIES_PER_PAGE - 1)
    assert path.stat().st_size == 0
    fill(index, 3, start=ENTRIES_PER_PAGE - 1)
    assert index.entries == entries(ENTRIES_PER_PAGE + 2)
    assert path.read_bytes() == entries(ENTRIES_PER_PAGE)


def test_sync_writes_what_was_kept_back_once(index: IndexFile, path: Path) -> None:
    fill(index, 3)
    index.sync()
    fill(index, 2, start=3)
    index.sync()
    assert path.read_bytes() == entries(5)


def test_truncating_drops_entries_whether_written_or_not(index: IndexFile, path: Path) -> None:
    fill(index, 4)
    index.sync()
    fill(index, 4, start=4)
    index.truncate(6 * ENTRY_SIZE)
    assert path.read_bytes() == entries(4)
    index.truncate(2 * ENTRY_SIZE)
    assert path.read_bytes() == entries(2)
    fill(index, 1, start=9)
    index.write_out()
    assert path.read_bytes() == entries(2) + entry(9)


def test_loading_goes_on_after_what_the_file_holds(index: IndexFile, path: Path) -> None:
    fill(index, 3)
    index.sync()
    again = open_index(OsFileSystem(), path, padding_count=1)
    assert path.read_bytes() == entries(2)
    fill(again, 1, start=7)
    again.sync()
    assert again.entries == path.read_bytes() == entries(2) + entry(7)


def test_no_file_stays_open_between_writes(path: Path) -> None:
    opened: list[OsFile] = []

    class RecordingFileSystem(OsFileSystem):
        def open_writable(self, path: Path) -> OsFile:
            opened.append(OsFile(path, os.O_RDWR | os.O_CREAT))
            return opened[-1]

    index = open_index(RecordingFileSystem(), path)
    fill(index, ENTRIES_PER_PAGE + 3)
    index.sync()
    index.truncate(ENTRY_SIZE)
    assert path.read_bytes() == entries(1)
    assert len(opened) >= 3
    for file in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            file.size()


class SyncingFileSystem(OsFileSystem):
    """Notes the size of each file that is synced."""

    def __init__(self) -> None:
        self.synced: list[int] = []

    def sync_file(self, path: Path) -> None:
        self.synced.append(path.stat().st_size)


def test_index_is_synced_when_it_has_changed_since(path: Path) -> None:
    fs = SyncingFileSystem()
    index = open_index(fs, path)
    index.sync()
    assert fs.synced == [0], "a new file must be durable, too"
    index.sync()
    fill(index, 3)
    index.sync()
    index.sync()
    index.truncate(2 * ENTRY_SIZE)
    index.sync()
    index.sync()
    fill(index, ENTRIES_PER_PAGE, start=2)
    index.sync()
    entry_counts = [0, 3, 2, ENTRIES_PER_PAGE + 2]
    assert fs.synced == [count * ENTRY_SIZE for count in entry_counts]


def test_index_of_an_earlier_process_is_synced_once(path: Path) -> None:
    path.write_bytes(entries(4))
    fs = SyncingFileSystem()
    index = open_index(fs, path, padding_count=1)
    index.sync()
    index.sync()
    assert fs.synced == [3 * ENTRY_SIZE]


def test_unwritten_entries_that_are_truncated_leave_the_file_alone(
    index: IndexFile, path: Path
) -> None:
    fill(index, 2)
    index.sync()
    fill(index, 2, start=2)
    before = index.entries
    index.truncate(2 * ENTRY_SIZE)
    assert before == entries(4), "a look-up in progress keeps the old entries"
    assert index.entries == path.read_bytes() == entries(2)


def test_several_entries_at_once_are_written_as_one_page(index: IndexFile, path: Path) -> None:
    index.append(entries(ENTRIES_PER_PAGE - 1))
    assert path.stat().st_size == 0
    index.append(entry(ENTRIES_PER_PAGE - 1))
    assert path.read_bytes() == entries(ENTRIES_PER_PAGE)
    with pytest.raises(AssertionError):
        index.append(b"half")


@pytest.mark.parametrize(("size_max", "size_full"), [(80, 80), (87, 80), (7, 0)])
def test_size_of_a_full_index_is_a_whole_number_of_entries(
    path: Path, size_max: int, size_full: int
) -> None:
    index = IndexFile(OsFileSystem(), path, ENTRY_SIZE, size_max, lambda _: 0)
    assert index.size_full == size_full
