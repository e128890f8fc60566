"""Splits a segment whose offsets are too far apart for its indexes.

An index has 31 bits for an offset above the segment's base. The cleaner of Kafka before 1.1 could
put more into a segment (KAFKA-5413, KAFKA-6264). A load replaces such a segment by parts that fit:
every byte of the old one is in a part, and each part begins at its first batch. The parts are made
durable as `.cleaned` and go through `segment_swap`, so a crash leaves the old segment or all parts.
They have no indexes: the load that follows makes them from the batches.
Source: Kafka LocalLog.splitOverflowedSegment, LogLoader.retryOnOffsetOverflow.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from isotherm.errors import CorruptRecordError
from isotherm.log.batch_scan import RECOVERY_READ_SIZE, SoundBatches
from isotherm.log.file_cache import FileCache
from isotherm.log.log_segment import LogSegment
from isotherm.log.segment_swap import swap_segments
from isotherm.segment.file_names import CLEANED_SUFFIX, LOG_SUFFIX, segment_file_name
from isotherm.segment.offset_index import RELATIVE_OFFSET_MAX
from isotherm.types import Offset, Position, TimestampMs

logger = logging.getLogger(__name__)


class SegmentOverflowError(Exception):
    """A segment has to be split before its log can be loaded: the loader does it and starts
    again."""

    def __init__(self, segment: LogSegment, plan: SplitPlan) -> None:
        super().__init__(f"segment spans too many offsets file={segment.log_path}")
        self.segment = segment
        self.plan = plan


class SegmentPart(NamedTuple):
    base_offset: Offset
    position: Position
    """Position of its first batch in the old segment."""


class SplitPlan(NamedTuple):
    parts: tuple[SegmentPart, ...]
    sound_end: Position
    """The end of the batches that the parts were chosen for. Bytes above it, which recovery will
    cut, stay at the end of the last part."""


def overflows(base_offset: Offset, next_offset: Offset) -> bool:
    """Whether a segment that ends below `next_offset` has offsets that no index entry can have."""
    return next_offset - 1 - base_offset > RELATIVE_OFFSET_MAX


def plan_split(scans: Iterable[SoundBatches]) -> SplitPlan:
    """The parts of a segment with these batches, each as long as its indexes allow.

    A damaged base offset, which no CRC covers, may look like a wide segment. It shows if a later
    batch continues where the far one should: the plan ends below the far batch then.
    """
    chosen = _Parts()
    try:
        for sound in scans:
            rising = sound.before(sound.starts_below(chosen.next_offset))
            chosen.add(rising)
            if len(rising.batches) < len(sound.batches):
                chosen.drop_contradicted(int(sound.batches["base_offset"][len(rising.batches)]))
                break
    except CorruptRecordError:
        # A torn end. Recovery finds it again in the last part, and reports it.
        pass
    return SplitPlan(tuple(chosen.parts), chosen.sound_end)


class _Parts:
    def __init__(self) -> None:
        self.parts: list[SegmentPart] = []
        self.sound_end: Position = 0
        self.next_offset: Offset = 0
        # For each part, the end of the records before it.
        self._ends_before: list[Offset] = []

    def add(self, sound: SoundBatches) -> None:
        """Add batches whose offsets rise."""
        row = 0
        while row < len(sound.batches):
            last_offsets = sound.next_offsets - 1
            fitting = -1
            if self.parts:
                end = self.parts[-1].base_offset + RELATIVE_OFFSET_MAX
                fitting = int(np.searchsorted(last_offsets, end, side="right"))
            if fitting > row:
                row = fitting
            else:
                base_offset = int(sound.batches["base_offset"][row])
                position = sound.position + int(sound.batches["position"][row])
                self.parts.append(SegmentPart(base_offset, position))
                self._ends_before.append(
                    int(last_offsets[row - 1]) + 1 if row else self.next_offset
                )
                # A batch fits into a part of its own: its delta has 31 bits.
                row += 1
        if len(sound.batches):
            self.next_offset, self.sound_end = int(sound.next_offsets[-1]), sound.end_position

    def drop_contradicted(self, base_offset: Offset) -> None:
        """Drop the parts from the first one that lies above a later batch at `base_offset`, if that
        batch follows the records before this part."""
        for number, (part, end) in enumerate(zip(self.parts, self._ends_before, strict=True)):
            if number and end <= base_offset < part.base_offset:
                self.parts, self.sound_end = self.parts[:number], part.position
                return


def split_segment(cache: FileCache, segment: LogSegment, plan: SplitPlan) -> None:
    """Replace the files of `segment`, which is not in use, by those of its parts."""
    fs, directory = cache.fs, segment.directory
    modified_ms = fs.modified_ms(segment.log_path)
    ends = [part.position for part in plan.parts[1:]] + [segment.size_in_bytes]
    parts = [
        _write_part(cache, segment, part, end, modified_ms)
        for part, end in zip(plan.parts, ends, strict=True)
    ]

    def mark_for_deletion(
        segments: Sequence[LogSegment], *, reused_base_offsets: Collection[Offset]
    ) -> None:
        # Producer snapshots stay: the loader removes those that belong to no segment.
        for old in segments:
            old.rename_to_deleted()

    swap_segments(fs, directory, [segment], parts, mark_for_deletion)
    segment.delete_files()
    for part in (segment, *parts):
        part.release_files()
    fs.sync_directory(directory)
    logger.warning(
        "segment spans more offsets than its indexes can hold and is split file=%s parts=%d"
        " base_offsets=%s largest_gap=%d",
        directory / segment_file_name(segment.base_offset, LOG_SUFFIX),
        len(parts),
        ",".join(str(part.base_offset) for part in plan.parts[:8]),
        max(
            (after.base_offset - before.base_offset for before, after in pairwise(plan.parts)),
            default=plan.parts[0].base_offset - segment.base_offset,
        ),
    )


def _write_part(
    cache: FileCache,
    segment: LogSegment,
    part: SegmentPart,
    end: Position,
    modified_ms: TimestampMs,
) -> LogSegment:
    fs, directory = cache.fs, segment.directory
    path = directory / segment_file_name(part.base_offset, LOG_SUFFIX, CLEANED_SUFFIX)
    fs.remove(path)
    file = fs.open_writable(path)
    for position in range(part.position, end, RECOVERY_READ_SIZE):
        data = segment.read_bytes(position, min(RECOVERY_READ_SIZE, end - position))
        file.write_at(position - part.position, data)
    file.sync()
    file.close()
    fs.set_modified_ms(path, modified_ms)
    return LogSegment(
        cache, directory, part.base_offset, now_ms=modified_ms, temporary_suffix=CLEANED_SUFFIX
    )
