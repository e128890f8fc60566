"""The plan of a batch query: which offsets are read from the bucket and which from brokers."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import pytest

from isotherm.errors import ConfigError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from isotherm.record.batch import NewRecord, build_batch
from isotherm.remote.metadata.api import MetadataTopicRecord
from isotherm.remote.metadata.wire.serde import encode_event
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.spark.driver.batch_query import BatchQuery
from isotherm.spark.option_parsing import parse_options
from isotherm.spark.plan.offsets import OffsetBounds
from isotherm.spark.plan.planning import BrokerRead
from isotherm.spark.tier.segment_list_sources import TopicSegmentSource
from isotherm.spark.tier.tiered_log import TieredLog
from isotherm.types import TopicIdPartition, TopicPartition
from tests.support.memory_metadata_topic import MemoryMetadataTopic
from tests.support.record_segments import RecordSegmentMaker

SegmentFactory = Callable[..., RemoteLogSegmentMetadata]
A0 = TopicPartition("a", 0)
STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


class FakeBrokers:
    """Brokers with fixed offsets. A question about an unknown partition fails."""

    def __init__(
        self,
        bounds: Mapping[TopicIdPartition, OffsetBounds],
        times: Mapping[TopicPartition, int | None] | None = None,
    ) -> None:
        self._ids = list(bounds)
        self._bounds = {owner.topic_partition: bound for owner, bound in bounds.items()}
        self._times = times or {}
        self.times_asked: list[TopicPartition] = []

    def topic_names(self) -> list[str]:
        return sorted({owner.topic for owner in self._ids})

    def partitions(self, topics: Iterable[str]) -> list[TopicIdPartition]:
        wanted = set(topics)
        if not wanted <= set(self.topic_names()):
            raise UnknownTopicOrPartitionError("no such topic")
        return [owner for owner in self._ids if owner.topic in wanted]

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetBounds]:
        return {partition: self._bounds[partition] for partition in partitions}

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        self.times_asked += times
        return {partition: self._times[partition] for partition in times}


class FixedSegments:
    """A `SegmentSource` with these segments."""

    def __init__(self, *segments: RemoteLogSegmentMetadata) -> None:
        self._segments = segments

    def visible_segments(self, selects_topic, partitions) -> list[RemoteLogSegmentMetadata]:
        return [
            segment
            for segment in self._segments
            if (
                selects_topic(segment.topic_id_partition.topic)
                if partitions is None
                else segment.topic_id_partition in partitions
            )
        ]


def plan(
    storage: ObjectStoreRemoteStorageManager,
    segments: FixedSegments,
    brokers: FakeBrokers | None = None,
    **options: str,
) -> list[tuple[str, str, int, int]]:
    """The planned reads in order as (topic-partition, kind, start, end)."""
    given = {"path": "memory://", **options}
    if not {"subscribe", "assign", "subscribePattern"} & options.keys():
        given["subscribe"] = "a"
    if brokers is not None:
        given["kafka.bootstrap.servers"] = "unused:1"
    options = parse_options(given)
    tasks = BatchQuery(options, TieredLog(options, storage, segments, brokers)).plan()
    return [
        (
            str(read.topic_partition),
            "broker" if isinstance(read, BrokerRead) else "bucket",
            read.start_offset,
            read.end_offset,
        )
        for task in tasks
        for read in task.reads
    ]


def test_history_below_the_log_start_is_not_read(
    storage: ObjectStoreRemoteStorageManager, segment: SegmentFactory, owner: TopicIdPartition
) -> None:
    brokers = FakeBrokers({owner: OffsetBounds(150, 260)})
    assert plan(storage, FixedSegments(segment(0, 99), segment(100, 199)), brokers) == [
        ("a-0", "bucket", 150, 200),
        ("a-0", "broker", 200, 260),
    ]


def test_without_tail_the_log_start_of_the_brokers_still_holds(
    storage: ObjectStoreRemoteStorageManager, segment: SegmentFactory, owner: TopicIdPartition
) -> None:
    brokers = FakeBrokers({owner: OffsetBounds(150, 260)})
    segments = FixedSegments(segment(0, 99), segment(100, 199))
    assert plan(storage, segments, brokers, includeTail="false") == [("a-0", "bucket", 150, 200)]


def test_partition_without_segments_is_read_from_the_brokers_or_is_empty(
    storage: ObjectStoreRemoteStorageManager, owner: TopicIdPartition
) -> None:
    brokers = FakeBrokers({owner: OffsetBounds(3, 9)})
    assert plan(storage, FixedSegments(), brokers) == [("a-0", "broker", 3, 9)]
    assert plan(storage, FixedSegments(), brokers, includeTail="false") == []


def test_segments_of_another_incarnation_are_not_read(
    storage: ObjectStoreRemoteStorageManager, segment: SegmentFactory, owner: TopicIdPartition
) -> None:
    old = segment(0, 99, topic_id=uuid.UUID(int=4))
    brokers = FakeBrokers({owner: OffsetBounds(0, 9)})
    assert plan(storage, FixedSegments(old), brokers) == [("a-0", "broker", 0, 9)]


def test_assigned_partition_that_does_not_exist_is_an_error(
    storage: ObjectStoreRemoteStorageManager, owner: TopicIdPartition
) -> None:
    brokers = FakeBrokers({owner: OffsetBounds(0, 9)})
    with pytest.raises(UnknownTopicOrPartitionError, match="missing=a-7"):
        plan(storage, FixedSegments(), brokers, assign='{"a":[0,7]}')


def test_pattern_that_matches_nothing_is_an_error(
    storage: ObjectStoreRemoteStorageManager, owner: TopicIdPartition
) -> None:
    brokers = FakeBrokers({owner: OffsetBounds(0, 9)})
    with pytest.raises(UnknownTopicOrPartitionError, match=r"missing=b\.\*"):
        plan(storage, FixedSegments(), brokers, subscribePattern="b.*")


def test_lost_offsets_are_an_error_or_left_out(
    storage: ObjectStoreRemoteStorageManager,
    segment: SegmentFactory,
    owner: TopicIdPartition,
    caplog: pytest.LogCaptureFixture,
) -> None:
    brokers = FakeBrokers({owner: OffsetBounds(150, 260)})
    segments = FixedSegments(segment(100, 199))
    offsets = {"startingOffsets": '{"a":{"0":100}}'}
    with pytest.raises(OffsetOutOfRangeError, match="no longer kept"):
        plan(storage, segments, brokers, **offsets)
    reads = plan(storage, segments, brokers, failOnDataLoss="false", **offsets)
    assert reads[:1] == [("a-0", "bucket", 150, 200)]
    assert "no longer kept" in caplog.text


def test_start_beyond_the_end_is_refused_whatever_may_be_lost(
    storage: ObjectStoreRemoteStorageManager, owner: TopicIdPartition
) -> None:
    brokers = FakeBrokers({owner: OffsetBounds(150, 260)})
    words = "resolved start offset 300 is greater than the resolved end offset 260 for topic a"
    for fail in ("true", "false"):
        with pytest.raises(ConfigError, match=words):
            plan(
                storage,
                FixedSegments(),
                brokers,
                failOnDataLoss=fail,
                startingOffsets='{"a":{"0":300}}',
            )


def test_times_that_the_bucket_does_not_have_are_asked_of_the_brokers(
    storage: ObjectStoreRemoteStorageManager, maker: RecordSegmentMaker, owner: TopicIdPartition
) -> None:
    segment = maker.tier(owner, [build_batch([NewRecord(n, None, b"v") for n in range(50)])])
    brokers = FakeBrokers({owner: OffsetBounds(0, 80)}, {A0: 63})
    in_bucket = plan(storage, FixedSegments(segment), brokers, startingTimestamp="20")
    assert (in_bucket[0], brokers.times_asked) == (("a-0", "bucket", 20, 50), [])
    in_tail = plan(storage, FixedSegments(segment), brokers, startingTimestamp="60")
    assert (in_tail, brokers.times_asked) == ([("a-0", "broker", 63, 80)], [A0])


def test_times_below_the_log_start_are_found_above_it(
    storage: ObjectStoreRemoteStorageManager, maker: RecordSegmentMaker, owner: TopicIdPartition
) -> None:
    segment = maker.tier(owner, [build_batch([NewRecord(n, None, b"v") for n in range(50)])])
    brokers = FakeBrokers({owner: OffsetBounds(30, 50)})
    assert plan(storage, FixedSegments(segment), brokers, startingTimestamp="20") == [
        ("a-0", "bucket", 30, 50)
    ]


def test_min_partitions_counts_the_tasks_that_sizes_give(
    storage: ObjectStoreRemoteStorageManager, segment: SegmentFactory
) -> None:
    segments = FixedSegments(segment(0, 99, size=4096))
    options = {"targetBytesPerTask": "1024"}
    assert plan(storage, segments, minPartitions="4", **options) == [
        ("a-0", "bucket", start, start + 25) for start in (0, 25, 50, 75)
    ]
    assert plan(storage, segments, minPartitions="2") == [
        ("a-0", "bucket", 0, 50),
        ("a-0", "bucket", 50, 100),
    ]


def metadata_topic(*segments: RemoteLogSegmentMetadata) -> MemoryMetadataTopic:
    """A topic with the events that lead each segment to its state."""
    topic = MemoryMetadataTopic(1)
    started = RemoteLogSegmentState.COPY_SEGMENT_STARTED
    for segment in segments:
        topic.append(0, None, encode_event(replace(segment, state=started)), 0)
        path = {
            RemoteLogSegmentState.COPY_SEGMENT_STARTED: (),
            RemoteLogSegmentState.COPY_SEGMENT_FINISHED: (1,),
            RemoteLogSegmentState.DELETE_SEGMENT_STARTED: (1, 2),
            RemoteLogSegmentState.DELETE_SEGMENT_FINISHED: (1, 2, 3),
        }[segment.state]
        for state in path:
            update = RemoteLogSegmentMetadataUpdate(
                segment_id=segment.segment_id,
                event_timestamp_ms=1,
                state=RemoteLogSegmentState(state),
                broker_id=1,
            )
            topic.append(0, None, encode_event(update), 0)
    return topic


def test_only_finished_segments_are_visible(
    segment: SegmentFactory, owner: TopicIdPartition
) -> None:
    segments = [
        segment(index * 100, index * 100 + 99, state=state)
        for index, state in enumerate(RemoteLogSegmentState)
    ]
    foreign = segment(0, 99, topic="b", topic_id=uuid.UUID(int=8))
    source = TopicSegmentSource(metadata_topic(*segments, foreign))
    visible = source.visible_segments(lambda topic: topic == "a", [owner])
    assert [found.start_offset for found in visible] == [100]


def test_metadata_topic_is_read_on_from_where_it_was_left(
    segment: SegmentFactory, owner: TopicIdPartition
) -> None:
    topic = metadata_topic(segment(0, 99))
    starts: list[int] = []
    read = topic.read

    def counted(partition: int, start_offset: int, max_bytes: int) -> list[MetadataTopicRecord]:
        starts.append(start_offset)
        return read(partition, start_offset, max_bytes)

    topic.read = counted  # type: ignore[method-assign]
    source = TopicSegmentSource(topic)
    other = owner._replace(partition=1)

    def visible(*partitions: TopicIdPartition) -> list[int]:
        found = source.visible_segments(lambda name: True, partitions)
        return sorted(each.start_offset for each in found)

    assert visible(owner) == [0]
    for later in (segment(100, 199), segment(700, 799, partition=1)):
        topic.append(0, None, encode_event(replace(later, state=STARTED)), 0)
        update = RemoteLogSegmentMetadataUpdate(
            segment_id=later.segment_id, event_timestamp_ms=1, state=FINISHED, broker_id=1
        )
        topic.append(0, None, encode_event(update), 0)
    starts.clear()
    assert visible(owner) == [0, 100]
    assert min(starts) == 2
    assert visible(owner, other) == [0, 100, 700], "a partition that came later is read whole"
    assert visible(owner) == [0, 100]
