from __future__ import annotations

import uuid
from collections.abc import Mapping

import pytest

from isotherm.broker.tier.lineage_restorer import joined_lineage, segment_before
from isotherm.errors import CorruptLogError
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.segment.leader_epoch_checkpoint import EpochEntry
from isotherm.types import TopicIdPartition

PARTITION = TopicIdPartition(uuid.UUID(int=7), "topic", 0)
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


def segment(
    start: int, end: int, epochs: Mapping[int, int], state: RemoteLogSegmentState = FINISHED
) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(PARTITION, uuid.UUID(int=start)),
        start_offset=start,
        end_offset_inclusive=end,
        max_timestamp_ms=0,
        broker_id=1,
        event_timestamp_ms=1,
        segment_size_in_bytes=1,
        segment_leader_epochs=epochs,
        state=state,
    )


def entries(*pairs: tuple[int, int]) -> tuple[EpochEntry, ...]:
    return tuple(EpochEntry(*pair) for pair in pairs)


def test_segment_that_ends_before_or_within_the_local_log_is_taken() -> None:
    first, last = segment(0, 9, {0: 0}), segment(10, 19, {0: 10, 2: 15})
    assert segment_before(20, (), [first, last]) is last
    assert segment_before(15, entries((2, 15)), [first, last]) is last
    assert segment_before(10, entries((0, 10), (2, 15)), [first, last]) is first


@pytest.mark.parametrize(
    "segments",
    [
        [],
        [segment(0, 8, {0: 0})],
        [segment(0, 9, {0: 0}, RemoteLogSegmentState.COPY_SEGMENT_STARTED)],
        [segment(0, 9, {0: 0}), segment(5, 9, {1: 5})],  # of two leaders
        [segment(0, 14, {0: 0, 3: 12})],  # the local log has another epoch there
    ],
)
def test_history_that_is_not_sure_is_refused(segments: list[RemoteLogSegmentMetadata]) -> None:
    with pytest.raises(CorruptLogError):
        segment_before(10, entries((2, 10)), segments)


def test_epochs_of_both_are_joined() -> None:
    last = segment(10, 19, {0: 10, 2: 15})
    checkpoint = entries((0, 4), (2, 15))
    assert joined_lineage(last, checkpoint, 20, entries((2, 20), (5, 30))) == [
        *checkpoint,
        EpochEntry(5, 30),
    ]
    assert joined_lineage(last, checkpoint, 20, ()) == [*checkpoint]
    assert joined_lineage(last, checkpoint, 15, entries((2, 15))) == [*checkpoint]


@pytest.mark.parametrize(
    ("checkpoint", "local"),
    [
        (entries((0, 4)), ()),  # not that of the segment
        (entries((0, 4), (2, 15)), entries((1, 20))),  # the local log is of an older leader
        ((), entries((2, 20))),
    ],
)
def test_epochs_that_do_not_fit_are_refused(
    checkpoint: tuple[EpochEntry, ...], local: tuple[EpochEntry, ...]
) -> None:
    with pytest.raises(CorruptLogError):
        joined_lineage(segment(10, 19, {0: 10, 2: 15}), checkpoint, 20, local)
