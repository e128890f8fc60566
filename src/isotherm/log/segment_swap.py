"""Replaces segments by their cleaned versions, safely at every crash.

    1. the new segments are durable as `.cleaned`         crash: loading removes them
    2. renamed to `.swap`, highest base offset first      crash: a `.cleaned` is left: the same
    3. the old segments are renamed to `.deleted`         crash from here on: loading removes the
    4. the new ones lose `.swap`                          old ones and strips `.swap`

Loading removes segments that begin within the offsets of the swap files. If nothing is left of
the last old segments, they may begin above. So an empty *cover* file with the base of the last old
segment goes through steps 1 to 3 with the new ones, and is then removed. (Kafka has no such file:
after a crash there, such segments return, but not their tombstones.)
Source: Kafka LocalLog.replaceSegments, LogLoader.java.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

from isotherm.log.fs import FileSystem
from isotherm.log.log_segment import LogSegment
from isotherm.segment.file_names import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    segment_file_name,
)
from isotherm.types import Offset


class MarkForDeletion(Protocol):
    """`DeletionQueue.mark` with the time already bound."""

    def __call__(
        self, segments: Sequence[LogSegment], *, reused_base_offsets: Collection[Offset]
    ) -> None: ...


def swap_segments(
    fs: FileSystem,
    directory: Path,
    old: Sequence[LogSegment],
    new: Sequence[LogSegment],
    mark_for_deletion: MarkForDeletion,
) -> None:
    """Replace the segments `old` by `new`, which are finished `.cleaned` ones. Both lists ascend.
    Call under the log's lock."""
    cover = _begin_cover(fs, directory, old, new)
    if cover is not None:
        cover = _rename(fs, cover, SWAP_SUFFIX)
    # Highest first: the names then show whether all were renamed before a crash.
    for segment in reversed(new):
        segment.rename_files(SWAP_SUFFIX)
    # The producer snapshots at the new base offsets stay: the state there is as it was.
    mark_for_deletion(old, reused_base_offsets={segment.base_offset for segment in new})
    if cover is not None:
        # Before the others lose `.swap`: a start that finds it alone takes it for a segment.
        fs.remove(cover)
    for segment in new:
        segment.rename_files("")
    fs.sync_directory(directory)


def _begin_cover(
    fs: FileSystem, directory: Path, old: Sequence[LogSegment], new: Sequence[LogSegment]
) -> Path | None:
    last_base = old[-1].base_offset
    if len(old) == 1 or new[-1].read_next_offset() > last_base:
        return None
    path = directory / segment_file_name(last_base, LOG_SUFFIX, CLEANED_SUFFIX)
    fs.write_bytes(path, b"")
    return path


def _rename(fs: FileSystem, path: Path, temporary_suffix: str) -> Path:
    target = path.with_name(path.name.removesuffix(CLEANED_SUFFIX) + temporary_suffix)
    fs.rename(path, target)
    return target
