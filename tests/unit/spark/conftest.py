from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping

import pytest

from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.types import TopicIdPartition

TOPIC_ID = uuid.UUID(int=0xF11)


def make_segment(
    start: int,
    end_inclusive: int,
    *,
    epochs: Mapping[int, int] | None = None,
    size: int = 1000,
    number: int | None = None,
    event_timestamp_ms: int = 0,
    max_timestamp_ms: int = 0,
    topic: str = "a",
    partition: int = 0,
    topic_id: uuid.UUID = TOPIC_ID,
    state: RemoteLogSegmentState = RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
) -> RemoteLogSegmentMetadata:
    id_number = start * 1_000_003 + end_inclusive if number is None else number
    owner = TopicIdPartition(topic_id, topic, partition)
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(owner, uuid.UUID(int=id_number)),
        start_offset=start,
        end_offset_inclusive=end_inclusive,
        max_timestamp_ms=max_timestamp_ms,
        broker_id=1,
        event_timestamp_ms=event_timestamp_ms,
        segment_size_in_bytes=size,
        segment_leader_epochs=epochs or {0: start},
        state=state,
    )


@pytest.fixture
def segment() -> Callable[..., RemoteLogSegmentMetadata]:
    return make_segment
