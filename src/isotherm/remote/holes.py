"""Offsets that no segment of the remote tier holds, between those that it does hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.types import Offset


class Hole(NamedTuple):
    """From the first offset to the last that are missing, and the segments on both sides."""

    first_offset: Offset
    last_offset: Offset
    before: RemoteLogSegmentMetadata
    after: RemoteLogSegmentMetadata


def find_holes(segments: Iterable[RemoteLogSegmentMetadata]) -> list[Hole]:
    """The holes among the finished segments of one partition, ascending; other states hold nothing.

    What lies before the first segment was deleted, and what comes after the last is not copied yet:
    neither is a hole. Segments may overlap. A compacted segment keeps the offsets that it stands
    for, so compaction leaves none.
    """
    holes = []
    reached: RemoteLogSegmentMetadata | None = None
    finished = (s for s in segments if s.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
    for segment in sorted(finished, key=lambda each: each.start_offset):
        if reached is not None and segment.start_offset > reached.end_offset_inclusive + 1:
            first = reached.end_offset_inclusive + 1
            holes.append(Hole(first, segment.start_offset - 1, reached, segment))
        if reached is None or segment.end_offset_inclusive > reached.end_offset_inclusive:
            reached = segment
    return holes
