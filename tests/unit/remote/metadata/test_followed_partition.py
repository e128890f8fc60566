"""A followed metadata partition has the state of a new fold of the same topic, which is the
oracle."""

from __future__ import annotations

import uuid
from dataclasses import replace

from isotherm.remote.metadata.folding.fold import fold_metadata_topic
from isotherm.remote.metadata.folding.followed_partition import FollowedPartition
from isotherm.remote.metadata.wire.serde import RemoteLogMetadataEvent, encode_event
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from isotherm.types import TopicIdPartition
from tests.support.memory_metadata_topic import MemoryMetadataTopic

ONE, OTHER = (TopicIdPartition(uuid.UUID(int=n), f"topic-{n}", 0) for n in (1, 2))


def started(owner: TopicIdPartition, number: int) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(owner, uuid.UUID(int=number)),
        start_offset=number * 10,
        end_offset_inclusive=number * 10 + 9,
        max_timestamp_ms=1,
        broker_id=1,
        event_timestamp_ms=1,
        segment_size_in_bytes=100,
        segment_leader_epochs={0: number * 10},
    )


def finished(segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(
        segment_id=segment.segment_id,
        event_timestamp_ms=2,
        state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        broker_id=1,
    )


def deletion(
    owner: TopicIdPartition, state: RemotePartitionDeleteState
) -> RemotePartitionDeleteMetadata:
    return RemotePartitionDeleteMetadata(
        topic_id_partition=owner, state=state, event_timestamp_ms=3, broker_id=1
    )


def append(topic: MemoryMetadataTopic, *events: RemoteLogMetadataEvent) -> None:
    for event in events:
        topic.append(0, None, encode_event(event), 1)


def held(followed: FollowedPartition) -> dict[TopicIdPartition, list[RemoteLogSegmentMetadata]]:
    return {cache.partition: cache.segments() for cache in followed.partitions.caches()}


def folded(topic: MemoryMetadataTopic) -> dict[TopicIdPartition, list[RemoteLogSegmentMetadata]]:
    caches = fold_metadata_topic(topic, lambda _: True)
    return {partition: cache.segments() for partition, cache in caches.items()}


def test_later_events_and_later_partitions_are_taken_in() -> None:
    topic = MemoryMetadataTopic(1)
    append(topic, started(ONE, 0))
    followed = FollowedPartition(topic, 0, lambda _: True)
    followed.catch_up()
    assert held(followed) == folded(topic)
    append(topic, finished(started(ONE, 0)), started(OTHER, 1))
    assert followed.catch_up() == 2
    assert followed.next_offset == 3
    assert held(followed) == folded(topic)
    assert followed.catch_up() == 0


def test_deleted_partition_is_gone_and_stays_so() -> None:
    topic = MemoryMetadataTopic(1)
    append(topic, started(ONE, 0), started(OTHER, 1))
    followed = FollowedPartition(topic, 0, lambda _: True)
    followed.catch_up()
    append(topic, *(deletion(ONE, state) for state in RemotePartitionDeleteState))
    followed.catch_up()
    assert list(held(followed)) == [OTHER]
    append(topic, deletion(ONE, RemotePartitionDeleteState.DELETE_PARTITION_MARKED))
    followed.catch_up()
    assert held(followed) == folded(topic)


def test_what_is_not_wanted_is_left_out() -> None:
    topic = MemoryMetadataTopic(1)
    append(topic, started(ONE, 0))
    followed = FollowedPartition(topic, 0, lambda partition: partition == OTHER)
    followed.catch_up()
    append(topic, started(OTHER, 1), replace(started(ONE, 2)))
    assert followed.catch_up() == 2
    assert list(held(followed)) == [OTHER]
