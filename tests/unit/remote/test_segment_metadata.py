"""What the metadata of a remote segment allow, and what an update changes."""

from __future__ import annotations

import pickle
import uuid
from dataclasses import replace
from typing import Any

import pytest

from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.types import NO_LEADER_EPOCH, UNKNOWN_OFFSET, TopicIdPartition

PARTITION = TopicIdPartition(uuid.UUID(int=1), "t", 0)
SEGMENT = RemoteLogSegmentMetadata(
    segment_id=RemoteLogSegmentId(PARTITION, uuid.UUID(int=2)),
    start_offset=10,
    end_offset_inclusive=19,
    max_timestamp_ms=5,
    broker_id=1,
    event_timestamp_ms=6,
    segment_size_in_bytes=7,
    segment_leader_epochs={4: 15, 2: 10},
    custom_metadata=b"old",
    txn_index_empty=True,
    broker_leader_epoch=3,
)
UPDATE = RemoteLogSegmentMetadataUpdate(
    segment_id=SEGMENT.segment_id,
    event_timestamp_ms=60,
    state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
    broker_id=8,
    custom_metadata=b"new",
    broker_leader_epoch=9,
)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"start_offset": -1}, "start offset is negative"),
        ({"end_offset_inclusive": 9}, "end offset is below the start offset"),
        ({"segment_leader_epochs": {}}, "at least one leader epoch"),
    ],
)
def test_segment_that_contradicts_itself_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        replace(SEGMENT, **changes)


def test_segment_may_begin_at_0_and_hold_one_offset() -> None:
    smallest = replace(SEGMENT, start_offset=0, end_offset_inclusive=0)
    assert (smallest.start_offset, smallest.end_offset_inclusive) == (0, 0)


def test_leader_epochs_ascend_and_cannot_be_changed() -> None:
    assert list(SEGMENT.segment_leader_epochs.items()) == [(2, 10), (4, 15)]
    with pytest.raises(TypeError):
        SEGMENT.segment_leader_epochs[4] = 11  # type: ignore[index]


def test_segment_is_shipped_whole() -> None:
    again = pickle.loads(pickle.dumps(SEGMENT))
    assert again == SEGMENT
    assert list(again.segment_leader_epochs) == [2, 4]


@pytest.mark.parametrize("custom", [b"new", b"", None])
def test_update_changes_state_custom_metadata_broker_and_time_alone(custom: bytes | None) -> None:
    updated = SEGMENT.updated(replace(UPDATE, custom_metadata=custom))
    assert updated == replace(
        SEGMENT,
        state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        custom_metadata=custom,
        broker_id=8,
        event_timestamp_ms=60,
    )


def test_update_of_another_segment_is_refused() -> None:
    other = RemoteLogSegmentId(PARTITION, uuid.UUID(int=3))
    with pytest.raises(ValueError, match="names another segment"):
        SEGMENT.updated(replace(UPDATE, segment_id=other))


def test_state_of_a_new_segment_and_the_numbers_of_the_wire() -> None:
    """The numbers are those of Kafka's RemoteLogSegmentState."""
    new = RemoteLogSegmentMetadata(
        segment_id=SEGMENT.segment_id,
        start_offset=0,
        end_offset_inclusive=0,
        max_timestamp_ms=0,
        broker_id=0,
        event_timestamp_ms=0,
        segment_size_in_bytes=0,
        segment_leader_epochs={0: 0},
    )
    assert new.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED
    assert (new.custom_metadata, new.txn_index_empty) == (None, False)
    assert new.broker_leader_epoch == NO_LEADER_EPOCH == -1
    bare = RemoteLogSegmentMetadataUpdate(
        segment_id=SEGMENT.segment_id,
        event_timestamp_ms=0,
        state=RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
        broker_id=0,
    )
    assert (bare.broker_leader_epoch, bare.end_offset_inclusive) == (-1, UNKNOWN_OFFSET)
    assert [state.name for state in sorted(RemoteLogSegmentState)] == [
        "COPY_SEGMENT_STARTED",
        "COPY_SEGMENT_FINISHED",
        "DELETE_SEGMENT_STARTED",
        "DELETE_SEGMENT_FINISHED",
    ]
    assert sorted(RemoteLogSegmentState) == [0, 1, 2, 3]


def test_id_is_shown_with_its_partition() -> None:
    assert str(SEGMENT.segment_id) == f"{PARTITION}/AAAAAAAAAAAAAAAAAAAAAg"
