"""Replaces segments by their cleaned versions, safely at every crash.

    1. the new segments are durable as `.cleaned`         crash: loading removes them
    2. renamed to `.swap`, highest base offset first      crash: a `.cleaned` is left: the same
    3. the old segments are renamed to `.deleted`         crash from here on: loading removes the
    4. the new ones lose `.swap`                          old ones and strips `.swap`

Loading removes segments that begin within the offsets of the swap files. If nothing is left of
the last old segments, they may begin above; a segment that is split may begin below its first part.
So an empty *cover* file with the base of that old segment goes through steps 1 to 3 with the new
ones, and is then removed. (Kafka has no such file: after a crash there, such segments return, but
not their tombstones.)
Source: Kafka LocalLog.replaceSegments, LogLoader.java.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Protocol

from isotherm.errors import CorruptRecordError
from isotherm.log.batch_scan import scan_sound_batches
from isotherm.log.fs import FileSystem
from isotherm.log.log_segment import LogSegment
from isotherm.log.recovery import plan_leftovers, plan_swaps
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
    # Durable with the new segments, before the first name changes.
    above = _begin_cover(fs, directory, old[-1]) if _ends_below(new, old) else None
    below = _begin_cover(fs, directory, old[0]) if new[0].base_offset > old[0].base_offset else None
    # Highest first: the names then show whether all were renamed before a crash.
    if above is not None:
        above = _rename(fs, above, SWAP_SUFFIX)
    for segment in reversed(new):
        segment.rename_files(SWAP_SUFFIX)
    if below is not None:
        below = _rename(fs, below, SWAP_SUFFIX)
    # The producer snapshots at the new base offsets stay: the state there is as it was.
    mark_for_deletion(old, reused_base_offsets={segment.base_offset for segment in new})
    for cover in (above, below):
        # Before the others lose `.swap`: a start that finds it alone takes it for a segment.
        if cover is not None:
            fs.remove(cover)
    for segment in new:
        segment.rename_files("")
    fs.sync_directory(directory)


def finish_swaps(fs: FileSystem, directory: Path) -> list[str]:
    """Complete or undo what a crash interrupted; returns the names in the directory afterwards."""
    names = fs.list_names(directory)
    leftovers = plan_leftovers(names)
    if not leftovers.deletions and not any(name.endswith(SWAP_SUFFIX) for name in names):
        return names
    _remove(fs, directory, leftovers.deletions)
    # After the deletions above: swap files that are rolled back must not count.
    ranges = [
        (base, _swap_next_offset(fs, directory, base)) for base in leftovers.swap_base_offsets
    ]
    swaps = plan_swaps(fs.list_names(directory), ranges)
    _remove(fs, directory, swaps.deletions)
    for source, target in swaps.renames:
        fs.rename(directory / source, directory / target)
    fs.sync_directory(directory)
    return fs.list_names(directory)


def _remove(fs: FileSystem, directory: Path, names: Sequence[str]) -> None:
    for name in names:
        fs.remove(directory / name)


def _swap_next_offset(fs: FileSystem, directory: Path, base_offset: Offset) -> Offset:
    path = directory / segment_file_name(base_offset, LOG_SUFFIX, SWAP_SUFFIX)
    next_offset = base_offset
    with closing(fs.open_readable(path)) as file, suppress(CorruptRecordError):
        # The last part of a split segment may have a torn end. It is not trusted: old segments
        # within these offsets are removed.
        for sound in scan_sound_batches(file, file.size()):
            possible = sound.possible(base_offset, next_offset)
            if len(possible.batches):
                next_offset = int(possible.next_offsets[-1])
            if len(possible.batches) < len(sound.batches):
                break
    return next_offset


def _ends_below(new: Sequence[LogSegment], old: Sequence[LogSegment]) -> bool:
    """Whether the last old segment begins above the end of the new ones."""
    return len(old) > 1 and new[-1].read_next_offset() <= old[-1].base_offset


def _begin_cover(fs: FileSystem, directory: Path, old: LogSegment) -> Path:
    path = directory / segment_file_name(old.base_offset, LOG_SUFFIX, CLEANED_SUFFIX)
    fs.write_bytes(path, b"")
    return path


def _rename(fs: FileSystem, path: Path, temporary_suffix: str) -> Path:
    target = path.with_name(path.name.removesuffix(CLEANED_SUFFIX) + temporary_suffix)
    fs.rename(path, target)
    return target
