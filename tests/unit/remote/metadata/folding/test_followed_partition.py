"""A followed metadata partition has the state of a new fold of the same topic, which is the
oracle."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from isotherm.errors import CorruptMetadataError
from isotherm.remote.metadata.api import MetadataTopicRecord
from isotherm.remote.metadata.folding.fold import fold_metadata_partition, fold_metadata_topic
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


def test_deletion_that_the_fold_found_finished_is_not_opened_again() -> None:
    topic = MemoryMetadataTopic(1)
    append(topic, started(ONE, 0), started(OTHER, 1))
    append(topic, *(deletion(ONE, state) for state in RemotePartitionDeleteState))
    followed = FollowedPartition(topic, 0, lambda _: True)
    followed.catch_up()
    append(
        topic, started(ONE, 2), deletion(ONE, RemotePartitionDeleteState.DELETE_PARTITION_MARKED)
    )
    followed.catch_up()
    assert held(followed) == folded(topic) == {OTHER: [started(OTHER, 1)]}
    assert {*followed.partitions} == {ONE, OTHER}
    again = fold_metadata_partition(topic, 0, lambda _: True)
    assert followed.partitions.folded(0).deleted == again.deleted
    assert len(again.deleted) == 1


def test_deletion_under_way_is_taken_over_from_the_fold() -> None:
    topic = MemoryMetadataTopic(1)
    marked = deletion(ONE, RemotePartitionDeleteState.DELETE_PARTITION_MARKED)
    append(topic, started(ONE, 0), marked)
    followed = FollowedPartition(topic, 0, lambda _: True)
    followed.catch_up()
    assert followed.partitions.deletion(ONE) == marked
    assert followed.partitions.deletion(OTHER) is None


class TrimmedTopic(MemoryMetadataTopic):
    """A topic that keeps the records from offset 2 on, and that reads one at a time."""

    def offsets(self, partition: int) -> tuple[int, int]:
        return 2, super().offsets(partition)[1]

    def read(self, partition: int, start_offset: int, max_bytes: int) -> list[MetadataTopicRecord]:
        assert start_offset >= 2
        return super().read(partition, start_offset, max_bytes)[:1]


def test_offsets_passed_count_from_the_first_one_that_is_kept() -> None:
    topic = TrimmedTopic(1)
    append(topic, *(started(ONE, number) for number in range(5)))
    followed = FollowedPartition(topic, 0, lambda _: True)
    assert followed.catch_up() == 3
    assert followed.next_offset == 5
    assert held(followed) == {ONE: [started(ONE, number) for number in range(2, 5)]}


def test_records_are_applied_up_to_the_end_that_is_asked_for() -> None:
    topic = TrimmedTopic(1)
    append(topic, started(ONE, 0), started(ONE, 1), started(ONE, 2))
    followed = FollowedPartition(topic, 0, lambda _: True)
    followed.catch_up()
    append(topic, *(started(ONE, number) for number in range(3, 6)))
    assert followed.catch_up(5) == 2
    assert followed.next_offset == 5
    assert followed.catch_up(4) == 0
    assert followed.catch_up() == 1


def test_replica_that_is_behind_is_not_waited_for() -> None:
    topic = MemoryMetadataTopic(1)
    append(topic, started(ONE, 0))
    followed = FollowedPartition(topic, 0, lambda _: True)
    followed.catch_up()
    topic.append_visible, topic.is_behind = False, True
    append(topic, started(ONE, 1))
    assert (followed.catch_up(), followed.next_offset) == (0, 1)
    topic.show_all()
    topic.is_behind = False
    assert (followed.catch_up(), followed.next_offset) == (1, 2)
    assert held(followed) == folded(topic)


def test_offsets_without_records_at_the_end_are_passed() -> None:
    """Compaction has removed the last record."""
    topic = MemoryMetadataTopic(1)
    append(topic, started(ONE, 0))
    followed = FollowedPartition(topic, 0, lambda _: True)
    followed.catch_up()
    topic.append(0, b"key", None, 0)
    topic.compact()
    assert (followed.catch_up(), followed.next_offset) == (1, 2)


def test_record_that_cannot_be_applied_is_skipped_or_stops_the_reader() -> None:
    topic = MemoryMetadataTopic(1)
    append(topic, started(ONE, 0))
    problems: list[str] = []
    skipping = FollowedPartition(topic, 0, lambda _: True, lambda each: problems.append(str(each)))
    refusing = FollowedPartition(topic, 0, lambda _: True)
    for each in (skipping, refusing):
        each.catch_up()
    append(topic, finished(started(ONE, 0)))
    topic.append(0, None, b"odd", 0)
    append(topic, started(ONE, 1))
    assert skipping.catch_up() == 3
    assert [each.segment_id.id.int for each in held(skipping)[ONE]] == [0, 1]
    assert len(problems) == 1
    assert "partition=0 offset=2 " in problems[0]
    for _ in range(2):
        with pytest.raises(CorruptMetadataError, match="partition=0 offset=2 "):
            refusing.catch_up()
        assert refusing.next_offset == 2
    (segment,) = held(refusing)[ONE]
    assert segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
