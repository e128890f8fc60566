"""Events of segments as they are read and followed: how much is read, and which of it."""

from __future__ import annotations

import uuid

import pytest

from isotherm.remote.metadata.wire.keys import metadata_partition
from isotherm.remote.metadata.wire.serde import encode_event
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from isotherm.storage_view import event_source
from isotherm.storage_view.event_source import EventSource
from isotherm.types import TopicIdPartition
from tests.support.memory_metadata_topic import MemoryMetadataTopic

PLACE = TopicIdPartition(uuid.UUID(int=7), "orders", 0)
NUMBER = metadata_partition(PLACE, 3)
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


class Counted(MemoryMetadataTopic):
    """A topic that counts its reads. Each copy adds two events, COPY_SEGMENT_STARTED and
    COPY_SEGMENT_FINISHED, one second after the last."""

    def __init__(self) -> None:
        super().__init__(3)
        self.reads = 0
        self.segments = 0

    def read(self, *arguments: int) -> list[object]:  # type: ignore[override]
        self.reads += 1
        return super().read(*arguments)  # type: ignore[return-value]

    def copy(self, count: int = 1) -> None:
        for _ in range(count):
            number, at_ms = self.segments, self.segments * 1000
            self.segments += 1
            segment = RemoteLogSegmentId(PLACE, uuid.UUID(int=number + 1))
            started = RemoteLogSegmentMetadata(
                segment_id=segment,
                start_offset=number * 10,
                end_offset_inclusive=number * 10 + 9,
                max_timestamp_ms=at_ms,
                broker_id=1,
                event_timestamp_ms=at_ms,
                segment_size_in_bytes=100,
                segment_leader_epochs={0: 0},
            )
            finished = RemoteLogSegmentMetadataUpdate(
                segment_id=segment, event_timestamp_ms=at_ms + 500, state=FINISHED, broker_id=1
            )
            for event in (started, finished):
                self.append(NUMBER, None, encode_event(event), at_ms)

    @property
    def end(self) -> dict[int, int]:
        return {NUMBER: self.offsets(NUMBER)[1]}


def test_events_are_followed_and_an_unchanged_topic_is_not_read() -> None:
    topic = Counted()
    topic.copy(2)
    deleted = RemotePartitionDeleteMetadata(
        topic_id_partition=PLACE,
        state=RemotePartitionDeleteState.DELETE_PARTITION_MARKED,
        event_timestamp_ms=1,
        broker_id=1,
    )
    topic.append(NUMBER, None, encode_event(deleted), 0)
    source = EventSource(topic, "events")
    history = source.histories([PLACE], topic.end)[PLACE]
    assert (history.first_ms, history.offsets()) == (0, (0, 20))
    reads = topic.reads
    assert source.histories([PLACE], topic.end)[PLACE] is history
    assert topic.reads == reads
    topic.copy()
    assert source.histories([PLACE], topic.end)[PLACE].offsets() == (0, 30)


def test_no_more_than_the_last_events_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_source, "EVENTS_MAX", 10)
    topic = Counted()
    topic.copy(20)
    source = EventSource(topic, "events")
    assert source.histories([PLACE], topic.end)[PLACE].offsets() == (150, 200)
    for _ in range(8):
        topic.copy()
        offsets = source.histories([PLACE], topic.end)[PLACE].offsets()
        assert offsets is not None
        # At most twice EVENTS_MAX events are kept. Two events cover ten offsets.
        assert offsets[1] == topic.segments * 10
        assert offsets[1] - offsets[0] <= 2 * 10 // 2 * 10


def test_topic_that_was_made_anew_is_read_from_its_beginning() -> None:
    old, new = Counted(), Counted()
    old.copy(3)
    new.copy(1)
    source = EventSource(old, "events")
    source.histories([PLACE], old.end)
    source._topic = new
    assert source.histories([PLACE], new.end)[PLACE].offsets() == (0, 10)
