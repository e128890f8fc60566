"""Offsets without a record: holes between segments, which no segment holds, and gaps inside one."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple

from isotherm.errors import RemoteHoleError
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.types import Offset, TopicIdPartition


class Gaps(enum.Enum):
    """Whether offsets inside a segment may have no record (docs/decisions/0071): nowhere, in
    segments whose batches show that they were cleaned, or anywhere."""

    REFUSED = enum.auto()
    WHERE_CLEANED = enum.auto()
    PERMITTED = enum.auto()


class Hole(NamedTuple):
    """The first and the last missing offset, and the segments on both sides."""

    first_offset: Offset
    last_offset: Offset
    before: RemoteLogSegmentMetadata
    after: RemoteLogSegmentMetadata


def find_holes(segments: Iterable[RemoteLogSegmentMetadata]) -> list[Hole]:
    """The holes between the finished segments of one partition, ascending.

    Offsets before the first segment were deleted, and those after the last one are not copied yet:
    neither is a hole. Segments may overlap. A compacted segment keeps its range of offsets, so
    compaction leaves no hole.
    """
    holes = []
    reached: RemoteLogSegmentMetadata | None = None
    finished = (s for s in segments if s.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
    for segment in sorted(finished, key=lambda metadata: metadata.start_offset):
        if reached is not None and segment.start_offset > reached.end_offset_inclusive + 1:
            first = reached.end_offset_inclusive + 1
            holes.append(Hole(first, segment.start_offset - 1, reached, segment))
        if reached is None or segment.end_offset_inclusive > reached.end_offset_inclusive:
            reached = segment
    return holes


def hole_error(
    partition: TopicIdPartition,
    segments: Iterable[RemoteLogSegmentMetadata],
    offset: Offset,
    local_log_start_offset: Offset,
) -> RemoteHoleError:
    """The error for a consumer at `offset`, which no segment holds. It names the segments on both
    sides."""
    finished = [s for s in segments if s.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED]
    before = max(
        (segment for segment in finished if segment.end_offset_inclusive < offset),
        key=lambda metadata: metadata.end_offset_inclusive,
        default=None,
    )
    after = min(
        (segment for segment in finished if segment.start_offset > offset),
        key=lambda metadata: metadata.start_offset,
        default=None,
    )
    last = (after.start_offset if after is not None else local_log_start_offset) - 1
    return RemoteHoleError(
        "no segment of the remote tier holds an offset of the log"
        f" topic={partition.topic} partition={partition.partition} offset={offset}"
        f" before={_named(before) if before is not None else 'nothing'}"
        f" after={_named(after) if after is not None else f'local:{local_log_start_offset}'}"
        " hint='`isotherm pipeline scrub` finds segments that the metadata does not name;"
        f" `kafka-delete-records.sh` up to offset {last + 1} gives the hole up'",
        f"{partition}:{last}",
    )


def _named(segment: RemoteLogSegmentMetadata) -> str:
    return f"{segment.segment_id.id}:{segment.start_offset}-{segment.end_offset_inclusive}"
