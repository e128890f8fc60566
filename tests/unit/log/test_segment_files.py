"""Readers hold no lock, so the names of a segment's files may change while a reader opens them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from isotherm.log.file_cache import FileCache
from isotherm.log.fs import File, OsFileSystem
from isotherm.log.segment_files import SegmentFiles
from isotherm.segment.file_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SWAP_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
)


class Interrupted(OsFileSystem):
    """Runs `before` or `after` once, right before or after a file is opened or read."""

    def __init__(self) -> None:
        self.before: Callable[[], None] | None = None
        self.after: Callable[[], None] | None = None

    def open_readable(self, path: Path) -> File:
        self._run("before")
        file = super().open_readable(path)
        self._run("after")
        return file

    def read_bytes(self, path: Path) -> bytes:
        self._run("before")
        data = super().read_bytes(path)
        self._run("after")
        return data

    def _run(self, moment: str) -> None:
        meanwhile: Callable[[], None] | None = getattr(self, moment)
        if meanwhile is not None:
            self.before = self.after = None
            meanwhile()


@pytest.fixture
def fs() -> Interrupted:
    return Interrupted()


def made(
    fs: Interrupted, directory: Path, content: str, temporary_suffix: str = ""
) -> SegmentFiles:
    files = SegmentFiles(FileCache(fs), directory, 0, temporary_suffix)
    for suffix in (LOG_SUFFIX, OFFSET_INDEX_SUFFIX):
        files.path(suffix).write_text(content + suffix)
    return files


def content(files: SegmentFiles) -> tuple[bytes, bytes]:
    return files.open_log().read_at(0, 100), files.read_index(OFFSET_INDEX_SUFFIX)


def test_files_go_through_the_names_of_a_swap(fs: Interrupted, tmp_path: Path) -> None:
    files = made(fs, tmp_path, "new", CLEANED_SUFFIX)
    for suffix in (SWAP_SUFFIX, "", DELETED_SUFFIX):
        files.rename(suffix)
        assert {path.name for path in tmp_path.iterdir()} == {
            f"{0:020}.log{suffix}",
            f"{0:020}.index{suffix}",
        }
        files.forget()
        assert content(files) == (b"new.log", b"new.index")
    files.remove()
    files.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("kind", [LOG_SUFFIX, OFFSET_INDEX_SUFFIX])
def test_reader_gets_its_own_file_though_another_takes_the_name_over(
    fs: Interrupted, tmp_path: Path, moment: str, kind: str
) -> None:
    old = made(fs, tmp_path, "old")
    new = made(fs, tmp_path, "new", SWAP_SUFFIX)

    def swap() -> None:
        old.rename(DELETED_SUFFIX)
        new.rename("")

    setattr(fs, moment, swap)
    if kind == OFFSET_INDEX_SUFFIX:
        assert old.read_index(kind) == b"old.index"
    assert content(old) == (b"old.log", b"old.index")
    assert content(new) == (b"new.log", b"new.index")


def test_reader_finds_a_file_in_the_middle_of_a_rename(fs: Interrupted, tmp_path: Path) -> None:
    old = made(fs, tmp_path, "old")
    rename = fs.rename
    seen: list[tuple[bytes, bytes]] = []

    def renaming(source: Path, target: Path) -> None:
        rename(source, target)
        old.forget()
        seen.append(content(old))

    fs.rename = renaming  # type: ignore[method-assign]
    old.rename(DELETED_SUFFIX)
    assert seen == [(b"old.log", b"old.index")] * 2


def test_segment_without_an_index_does_not_read_that_of_its_predecessor(
    fs: Interrupted, tmp_path: Path
) -> None:
    old = made(fs, tmp_path, "old")
    old.path(TRANSACTION_INDEX_SUFFIX).write_text("old")
    old.rename(DELETED_SUFFIX)
    new = made(fs, tmp_path, "new")
    assert new.read_index(TRANSACTION_INDEX_SUFFIX) == b""
    assert old.read_index(TRANSACTION_INDEX_SUFFIX) == b"old"


def test_removed_files_are_not_found(fs: Interrupted, tmp_path: Path) -> None:
    files = made(fs, tmp_path, "old")
    held = files.open_log()
    files.remove()
    assert held.read_at(0, 3) == b"old"
    assert files.read_index(OFFSET_INDEX_SUFFIX) == b""
    with pytest.raises(FileNotFoundError):
        files.open_log()
