"""The driver of a streaming query against brokers whose state changes, on a simulated clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import pytest

from isotherm.errors import (
    CorruptObjectError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from isotherm.record.batch import NewRecord, build_batch
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.spark.option_parsing import parse_stream_options
from isotherm.spark.plan.offsets import OffsetBounds
from isotherm.spark.streaming.stream_offsets import StreamOffset
from isotherm.spark.streaming.stream_query import StreamQuery
from isotherm.spark.tier.tiered_log import TieredLog
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicIdPartition, TopicPartition
from tests.support.record_segments import RecordSegmentMaker

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
SegmentFactory = Callable[..., RemoteLogSegmentMetadata]


class Cluster:
    """Brokers and bucket, whose state the test changes. Counts the listings.

    `deleted_next` are segments that the next listing returns and that are deleted right after it.
    """

    def __init__(self, owner: TopicIdPartition) -> None:
        self._owner = owner
        self.ends: dict[TopicPartition, OffsetBounds] = {A0: OffsetBounds(0, 0)}
        self.segments: list[RemoteLogSegmentMetadata] = []
        self.deleted_next: list[RemoteLogSegmentMetadata] = []
        self.listings = 0

    def topic_names(self) -> list[str]:
        return sorted({partition.topic for partition in self.ends})

    def partitions(self, topics: Iterable[str]) -> list[TopicIdPartition]:
        if not set(topics) <= set(self.topic_names()):
            raise UnknownTopicOrPartitionError("no such topic")
        return [
            self._owner._replace(partition=partition.partition)
            for partition in self.ends
            if partition.topic in set(topics)
        ]

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetBounds]:
        return {partition: self.ends[partition] for partition in partitions}

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict:
        raise AssertionError("no time was asked for")

    def visible_segments(self, selects_topic, partitions) -> list[RemoteLogSegmentMetadata]:
        self.listings += 1
        deleted, self.deleted_next = self.deleted_next, []
        return deleted or self.segments


class Stream:
    """A streaming query and its present offset, as Spark's engine drives it."""

    def __init__(
        self, cluster: Cluster, storage: ObjectStoreRemoteStorageManager, **options: str
    ) -> None:
        given = {"path": "memory://", "subscribe": "a"} | options
        if options.pop("brokers", "yes") == "yes":
            given["kafka.bootstrap.servers"] = "unused:1"
        given.pop("brokers", None)
        self.clock = SimClock()
        parsed = parse_stream_options(given)
        brokers = cluster if parsed.has_brokers else None
        self.query = StreamQuery(parsed, TieredLog(parsed, storage, cluster, brokers), self.clock)
        self.at = StreamOffset({})

    def start(self) -> dict[TopicPartition, int]:
        self.at = self.query.initial_offset()
        return self.at.offsets

    def batch(self, *, is_limited: bool = True) -> list[tuple[str, int, int]] | None:
        """The reads of the next batch as (tier, start, end). None if there is no batch."""
        end = self.query.next_offset(self.at, is_limited=is_limited)
        if end is self.at:
            return None
        reads = reads_of(self.query, self.at, end)
        self.at = end
        return reads


def reads_of(query: StreamQuery, start: StreamOffset, end: StreamOffset) -> list:
    return [
        (type(read).__name__.removesuffix("Read"), read.start_offset, read.end_offset)
        for task in query.tasks(start, end)
        for read in task.reads
    ]


@pytest.fixture
def cluster(owner: TopicIdPartition) -> Cluster:
    return Cluster(owner)


@pytest.fixture
def stream(cluster: Cluster, storage: ObjectStoreRemoteStorageManager) -> Callable[..., Stream]:
    return lambda **options: Stream(cluster, storage, **options)


def test_stream_begins_at_the_end_unless_reported_otherwise(cluster: Cluster, stream) -> None:
    cluster.ends[A0] = OffsetBounds(5, 70)
    assert stream().start() == {A0: 70}
    assert stream(startingOffsets="earliest").start() == {A0: 5}
    assert stream(startingOffsets='{"a":{"0":-1}}').start() == {A0: 70}
    assert stream(startingOffsets='{"a":{"0":12}}').start() == {A0: 12}


def test_batches_go_from_bucket_to_tail_while_segments_move(
    cluster: Cluster, stream, segment: SegmentFactory
) -> None:
    cluster.ends[A0] = OffsetBounds(0, 150)
    cluster.segments = [segment(0, 99)]
    following = stream(startingOffsets="earliest")
    following.start()
    assert following.batch() == [("Segment", 0, 100), ("Broker", 100, 150)]
    assert following.batch() is None
    cluster.segments.append(segment(100, 179))
    cluster.ends[A0] = OffsetBounds(0, 200)
    assert following.batch() == [("Segment", 150, 180), ("Broker", 180, 200)]


def test_limits_hold_until_everything_is_asked_for(cluster: Cluster, stream) -> None:
    cluster.ends[A0] = OffsetBounds(0, 1000)
    following = stream(startingOffsets="earliest", maxOffsetsPerTrigger="300")
    following.start()
    assert following.batch() == [("Broker", 0, 300)]
    assert following.query.latest_offset() == StreamOffset({A0: 1000})
    assert following.batch() == [("Broker", 300, 600)]
    assert following.batch(is_limited=False) == [("Broker", 600, 1000)]


def test_bytes_limit_is_measured_by_the_segments(
    cluster: Cluster, stream, segment: SegmentFactory
) -> None:
    cluster.ends[A0] = OffsetBounds(0, 200)
    cluster.segments = [segment(0, 99, size=10_000), segment(100, 199, size=40_000)]
    following = stream(startingOffsets="earliest", maxBytesPerTrigger="10000")
    following.start()
    assert [following.batch() for _ in range(3)] == [
        [("Segment", 0, 100)],
        [("Segment", 100, 125)],
        [("Segment", 125, 150)],
    ]


def test_too_few_records_wait_until_the_delay_has_passed(cluster: Cluster, stream) -> None:
    cluster.ends[A0] = OffsetBounds(0, 5)
    following = stream(
        startingOffsets="earliest", minOffsetsPerTrigger="100", maxTriggerDelay="60s"
    )
    following.start()
    assert following.batch() == [("Broker", 0, 5)], "as the Kafka source: the first never waits"
    cluster.ends[A0] = OffsetBounds(0, 50)
    assert following.batch() is None
    following.clock.advance(59_000)
    assert following.batch() is None
    following.clock.advance(1_000)
    assert following.batch() == [("Broker", 5, 50)]
    cluster.ends[A0] = OffsetBounds(0, 150)
    assert following.batch() == [("Broker", 50, 150)], "enough is there at once"


def test_delay_begins_again_with_each_look_that_passes_also_without_records(
    cluster: Cluster, stream
) -> None:
    """The first look passes and finds nothing.

    Few records then wait for the delay, as in the Kafka source.
    """
    following = stream(minOffsetsPerTrigger="100", maxTriggerDelay="60s")
    following.start()
    following.batch()
    cluster.ends[A0] = OffsetBounds(0, 5)
    following.clock.advance(59_000)
    assert following.batch() is None
    following.clock.advance(1_000)
    assert following.batch() == [("Broker", 0, 5)]
    following.clock.advance(60_000)
    assert following.batch() is None
    cluster.ends[A0] = OffsetBounds(0, 9)
    following.clock.advance(59_000)
    assert following.batch() is None, "the look without records has begun the delay"


def test_available_now_reads_what_was_there_and_never_waits(cluster: Cluster, stream) -> None:
    cluster.ends[A0] = OffsetBounds(0, 10)
    following = stream(
        startingOffsets="earliest", maxOffsetsPerTrigger="6", minOffsetsPerTrigger="6"
    )
    following.query.fix_target()
    following.start()
    cluster.ends |= {A0: OffsetBounds(0, 99), A1: OffsetBounds(0, 99)}
    assert following.batch() == [("Broker", 0, 6)]
    assert following.batch() == [("Broker", 6, 10)]
    assert following.batch() is None
    assert following.at == StreamOffset({A0: 10})


def test_first_batch_keeps_its_start_over_a_crash(cluster: Cluster, stream) -> None:
    cluster.ends[A0] = OffsetBounds(0, 70)
    first = stream()
    first.start()
    cluster.ends[A0] = OffsetBounds(0, 80)
    end = first.query.next_offset(first.at, is_limited=True)
    # The process dies after the offsets are in the checkpoint. New records move the end.
    cluster.ends[A0] = OffsetBounds(0, 95)
    second = stream()
    assert second.start() == {A0: 95}
    assert reads_of(second.query, second.at, end) == [("Broker", 70, 80)]
    second.at = end
    assert second.batch() == [("Broker", 80, 95)]


def test_start_is_reported_even_when_there_is_nothing_to_read(cluster: Cluster, stream) -> None:
    cluster.ends[A0] = OffsetBounds(0, 70)
    first = stream()
    first.start()
    assert first.batch() == []
    assert first.at == StreamOffset({A0: 70}, {A0: 70})
    assert first.batch() is None
    # While the query is stopped, new records arrive. The restarted stream reads them.
    cluster.ends[A0] = OffsetBounds(0, 95)
    second = stream()
    second.at = first.at
    assert second.batch() == [("Broker", 70, 95)]
    assert second.batch() is None


def test_second_batch_has_no_start(cluster: Cluster, stream) -> None:
    following = stream(startingOffsets="earliest")
    following.start()
    cluster.ends[A0] = OffsetBounds(0, 10)
    following.batch()
    assert following.at.start == {A0: 0}
    cluster.ends[A0] = OffsetBounds(0, 20)
    following.batch()
    assert following.at == StreamOffset({A0: 20}, None)


def test_added_partition_is_read_from_its_beginning(cluster: Cluster, stream) -> None:
    cluster.ends[A0] = OffsetBounds(0, 10)
    following = stream()
    following.start()
    cluster.ends[A1] = OffsetBounds(0, 4)
    assert following.batch() == [("Broker", 0, 4)]


def test_added_partition_that_lacks_its_beginning_is_data_loss(cluster: Cluster, stream) -> None:
    following, lenient = stream(), stream(failOnDataLoss="false")
    following.start()
    lenient.start()
    cluster.ends[A1] = OffsetBounds(3, 9)
    with pytest.raises(OffsetOutOfRangeError, match=r"partition=a-1 first_available=3"):
        following.batch()
    assert lenient.batch() == [("Broker", 3, 9)]


def test_added_partition_that_loses_its_beginning_before_it_is_read_is_data_loss(
    cluster: Cluster, stream
) -> None:
    following, lenient = stream(), stream(failOnDataLoss="false")
    following.start()
    lenient.start()
    cluster.ends[A1] = OffsetBounds(0, 9)
    end, lenient_end = (
        each.query.next_offset(each.at, is_limited=True) for each in (following, lenient)
    )
    cluster.ends[A1] = OffsetBounds(3, 9)
    with pytest.raises(OffsetOutOfRangeError, match=r"partition=a-1 first_available=3"):
        following.query.tasks(following.at, end)
    assert reads_of(lenient.query, lenient.at, lenient_end) == [("Broker", 3, 9)]


def test_records_that_expired_before_they_were_read_are_data_loss(cluster: Cluster, stream) -> None:
    cluster.ends[A0] = OffsetBounds(0, 10)
    following, lenient = (
        stream(startingOffsets="earliest", failOnDataLoss=fails) for fails in ("true", "false")
    )
    following.start()
    lenient.start()
    cluster.ends[A0] = OffsetBounds(6, 10)
    with pytest.raises(OffsetOutOfRangeError, match="no longer kept partition=a-0"):
        following.batch()
    assert lenient.batch() == [("Broker", 6, 10)]


def test_topic_that_vanished_is_data_loss_and_the_others_go_on(cluster: Cluster, stream) -> None:
    cluster.ends |= {A0: OffsetBounds(0, 10), A1: OffsetBounds(0, 10)}
    following, lenient = stream(), stream(failOnDataLoss="false")
    following.start()
    lenient.start()
    del cluster.ends[A1]
    cluster.ends[A0] = OffsetBounds(0, 12)
    with pytest.raises(OffsetOutOfRangeError, match="gone partitions=a-1"):
        following.batch()
    assert lenient.batch() == [("Broker", 10, 12)]


def test_log_that_became_shorter_is_data_loss_and_goes_on_from_its_end(
    cluster: Cluster, stream
) -> None:
    cluster.ends[A0] = OffsetBounds(0, 10)
    lenient = stream(failOnDataLoss="false")
    lenient.start()
    cluster.ends[A0] = OffsetBounds(0, 3)
    assert lenient.batch() == []
    cluster.ends[A0] = OffsetBounds(0, 5)
    assert lenient.batch() == [("Broker", 3, 5)]
    strict = stream()
    strict.at = StreamOffset({A0: 10})
    with pytest.raises(OffsetOutOfRangeError, match="below the starting offset"):
        strict.batch()


def test_bucket_alone_is_listed_now_and_then(
    cluster: Cluster, stream, segment: SegmentFactory
) -> None:
    cluster.segments = [segment(0, 99)]
    following = stream(brokers="no", startingOffsets="earliest", bucketPollInterval="5s")
    following.start()
    assert following.batch() == [("Segment", 0, 100)]
    cluster.segments.append(segment(100, 149))
    listings = cluster.listings
    assert [following.batch() for _ in range(50)] == [None] * 50
    assert cluster.listings == listings
    following.clock.advance(5_000)
    assert following.batch() == [("Segment", 100, 150)]


def ask_start(stream: Callable[..., Stream]) -> object:
    return stream(brokers="no", startingTimestamp="10").start()


def ask_end(stream: Callable[..., Stream]) -> object:
    following = stream(brokers="no", isolationLevel="read_committed")
    return following.query.next_offset(StreamOffset({A0: 0}), is_limited=True).offsets


def ask_end_by_bytes(stream: Callable[..., Stream]) -> object:
    given = {"isolationLevel": "read_committed", "maxBytesPerTrigger": "1"}
    following = stream(**given)
    return following.query.next_offset(StreamOffset({A0: 0}), is_limited=True).offsets


def ask_tasks(stream: Callable[..., Stream]) -> object:
    following = stream(brokers="no", isolationLevel="read_committed")
    return reads_of(following.query, StreamOffset({A0: 0}), StreamOffset({A0: 50}))


@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (ask_start, {A0: 10}),
        (ask_end, {A0: 50}),
        (ask_end_by_bytes, {A0: 1}),
        (ask_tasks, [("Segment", 0, 50)]),
    ],
)
def test_segment_that_goes_while_it_is_looked_into_is_looked_for_again(
    cluster: Cluster,
    stream,
    storage: ObjectStoreRemoteStorageManager,
    maker: RecordSegmentMaker,
    owner: TopicIdPartition,
    ask: Callable[[Callable[..., Stream]], object],
    answer: object,
) -> None:
    batches = [build_batch([NewRecord(n, None, b"v") for n in range(50)])]
    gone, instead = (maker.tier(owner, batches) for _ in range(2))
    storage.delete_log_segment_data(gone)
    cluster.ends[A0] = OffsetBounds(0, 50)
    cluster.segments, cluster.deleted_next = [instead], [gone]
    assert ask(stream) == answer
    cluster.segments = [gone]
    with pytest.raises(CorruptObjectError, match="the metadata still has this segment"):
        ask(stream)
