"""The steps of a swap, in their order. What a crash between them leaves is in
tests/fault/test_cleaner_crash.py."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from isotherm.log.file_cache import FileCache
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_segment import LogSegment
from isotherm.log.segment_swap import swap_segments
from isotherm.record.batch import build_batch
from isotherm.segment.file_names import CLEANED_SUFFIX, LOG_SUFFIX, segment_file_name
from isotherm.segment.offset_index import Buffer

T0 = 1_700_000_000_000


class NotedFileSystem(OsFileSystem):
    """Notes the changes of names, without the zeros of the names."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def write_bytes(self, path: Path, data: Buffer) -> None:
        self.steps.append(f"write {short(path)} size={len(data)}")
        super().write_bytes(path, data)

    def rename(self, source: Path, target: Path) -> None:
        self.steps.append(f"{short(source)} -> {short(target)}")
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self.steps.append(f"remove {short(path)}")
        super().remove(path)

    def sync_directory(self, path: Path) -> None:
        self.steps.append("sync")
        super().sync_directory(path)


def short(path: Path) -> str:
    base, _, suffixes = path.name.partition(".")
    return f"{int(base)}.{suffixes}"


class Swap:
    """A swap in `directory` of old segments with these base offsets, by new ones with a record each
    at these offsets."""

    def __init__(self, directory: Path, old: Sequence[int], new: Sequence[int]) -> None:
        self.fs = NotedFileSystem()
        self._cache, self._directory = FileCache(self.fs), directory
        self.old = [self._segment(base, base, "") for base in old]
        self.new = [self._segment(offset, offset, CLEANED_SUFFIX) for offset in new]

    def _segment(self, base: int, offset: int, temporary_suffix: str) -> LogSegment:
        path = self._directory / segment_file_name(base, LOG_SUFFIX, temporary_suffix)
        path.write_bytes(build_batch([(T0, b"k", b"v", ())], base_offset=offset))
        return LogSegment(
            self._cache, self._directory, base, now_ms=T0, temporary_suffix=temporary_suffix
        )

    def run(self) -> list[str]:
        swap_segments(self.fs, self._directory, self.old, self.new, self._mark)
        return self.fs.steps

    def _mark(
        self, segments: Sequence[LogSegment], *, reused_base_offsets: Collection[int]
    ) -> None:
        assert segments is self.old
        self.fs.steps.append(f"mark reused={sorted(reused_base_offsets)}")


def test_one_segment_is_replaced_by_one(tmp_path: Path) -> None:
    assert Swap(tmp_path, [4], [4]).run() == [
        "4.log.cleaned -> 4.log.swap",
        "mark reused=[4]",
        "4.log.swap -> 4.log",
        "sync",
    ]


def test_segment_of_which_nothing_is_left_is_its_own_cover(tmp_path: Path) -> None:
    swap = Swap(tmp_path, [4], [4])
    path = swap.new[0].log_path
    path.write_bytes(b"")
    swap.new[0].size_in_bytes = 0
    assert swap.run()[0] == "4.log.cleaned -> 4.log.swap"


def test_names_change_from_the_highest_base_to_the_lowest(tmp_path: Path) -> None:
    """A crash leaves a `.cleaned` of the first segment as long as not all are renamed."""
    assert Swap(tmp_path, [0], [0, 3, 5]).run() == [
        "5.log.cleaned -> 5.log.swap",
        "3.log.cleaned -> 3.log.swap",
        "0.log.cleaned -> 0.log.swap",
        "mark reused=[0, 3, 5]",
        "0.log.swap -> 0.log",
        "3.log.swap -> 3.log",
        "5.log.swap -> 5.log",
        "sync",
    ]


@pytest.mark.parametrize(("last", "is_covered"), [(3, False), (2, True), (1, True)])
def test_last_old_segment_is_covered_unless_a_new_one_reaches_into_it(
    tmp_path: Path, last: int, is_covered: bool
) -> None:
    """Loading removes the old segments that begin within the offsets of the swap files. The last of
    the old ones here begins at 3, and the new ones end with the record at `last`."""
    swap = Swap(tmp_path, [0, 1, 3], [0, last])
    steps = swap.run()
    assert (steps[0] == "write 3.log.cleaned size=0") is is_covered
    if is_covered:
        assert steps == [
            "write 3.log.cleaned size=0",
            "3.log.cleaned -> 3.log.swap",
            f"{last}.log.cleaned -> {last}.log.swap",
            "0.log.cleaned -> 0.log.swap",
            f"mark reused=[0, {last}]",
            "remove 3.log.swap",
            "0.log.swap -> 0.log",
            f"{last}.log.swap -> {last}.log",
            "sync",
        ]
    else:
        assert "remove" not in " ".join(steps)
