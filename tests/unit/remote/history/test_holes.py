"""Holes between the finished segments of a partition."""

from __future__ import annotations

import uuid

import pytest

from isotherm.remote.history.holes import find_holes, hole_error
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


@pytest.mark.parametrize(
    ("offset", "before", "after", "last"),
    [
        (150, segment(20, 129), segment(160, 189), 159),
        (130, segment(20, 129), segment(160, 189), 159),
        (159, segment(20, 129), segment(160, 189), 159),
        (5, None, segment(10, 99), 9),
        (320, segment(200, 310), None, 399),
    ],
)
def test_error_at_a_hole_names_the_nearest_finished_segments(
    offset: int,
    before: RemoteLogSegmentMetadata | None,
    after: RemoteLogSegmentMetadata | None,
    last: int,
) -> None:
    segments = [
        segment(10, 99),
        segment(20, 129),
        segment(100, 110),
        segment(140, 155, STARTED),
        segment(190, 199),
        segment(160, 189),
        segment(151, 158, DELETING),
        segment(200, 310),
    ]
    error = hole_error(PARTITION, segments, offset, 400)

    def named(each: RemoteLogSegmentMetadata) -> str:
        return f"{each.segment_id.id}:{each.start_offset}-{each.end_offset_inclusive}"

    assert f"topic=flights partition=0 offset={offset} " in str(error)
    assert f" before={named(before) if before else 'nothing'} " in str(error)
    assert f" after={named(after) if after else 'local:400'} " in str(error)
    assert f"up to offset {last + 1} gives" in str(error)
    assert error.place == f"{PARTITION}:{last}"
