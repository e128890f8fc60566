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
