"""Holes between the finished segments of a partition."""

from __future__ import annotations

import uuid

import pytest

from isotherm.remote.history.holes import find_holes
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.types import TopicIdPartition

PARTITION = TopicIdPartition(uuid.UUID(int=1), "flights", 0)
STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


def segment(
    start: int, end: int, state: RemoteLogSegmentState = FINISHED
) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(PARTITION, uuid.UUID(int=(start << 64) | end)),
        start_offset=start,
        end_offset_inclusive=end,
        max_timestamp_ms=0,
        broker_id=1,
        event_timestamp_ms=0,
        segment_size_in_bytes=1,
        segment_leader_epochs={0: start},
        state=state,
    )


@pytest.mark.parametrize(
    ("segments", "holes"),
    [
        ([], []),
        # Offsets that were deleted before the first segment, or are not copied yet, are no holes.
        ([segment(500, 599)], []),
        ([segment(0, 99), segment(100, 199)], []),
        ([segment(0, 99), segment(101, 199)], [(100, 100)]),
        ([segment(300, 399), segment(0, 99), segment(200, 249)], [(100, 199), (250, 299)]),
        # Segments of a deposed leader overlap others. The farthest end counts.
        ([segment(0, 150), segment(0, 99), segment(120, 130), segment(151, 199)], []),
        ([segment(0, 150), segment(20, 40), segment(200, 210)], [(151, 199)]),
        # Readers cannot read a segment whose copy or deletion is under way.
        ([segment(0, 99), segment(100, 199, STARTED), segment(200, 299)], [(100, 199)]),
        ([segment(0, 99, DELETING), segment(200, 299)], []),
    ],
)
def test_holes_are_the_offsets_between_finished_segments(
    segments: list[RemoteLogSegmentMetadata], holes: list[tuple[int, int]]
) -> None:
    found = find_holes(segments)
    assert [(each.first_offset, each.last_offset) for each in found] == holes
    for each in found:
        assert each.before.end_offset_inclusive + 1 == each.first_offset
        assert each.after.start_offset - 1 == each.last_offset
