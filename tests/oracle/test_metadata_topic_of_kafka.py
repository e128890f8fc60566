"""The metadata topic of a real Kafka cluster is read completely, followed live, and never written
to. Our own metadata topic is beside it, on the same cluster."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import AdminClient

from isotherm.broker.cluster.upstream_metadata_topic import UpstreamMetadataTopic
from isotherm.clock import SystemClock
from isotherm.errors import PolicyViolationError
from isotherm.metrics.registry import Metrics
from isotherm.remote.metadata.folding.fold import fold_metadata_topic
from isotherm.remote.metadata.state.cache import RemoteLogMetadataCache
from isotherm.remote.metadata.topic.kafka_topic import KafkaMetadataTopic
from isotherm.remote.metadata.topic.log_dir_topic import LogDirMetadataTopic
from isotherm.remote.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from isotherm.remote.metadata.wire.events import iterate_columns, iterate_records
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.testing.conformance.remote_metadata import FINISHED, make_segment, make_update
from isotherm.types import TopicIdPartition
from oracle.kafka import KafkaOracle
from oracle.tiered_topic import TieredTopic, make_tiered_topic
from oracle.topics import create_topic, wait_until


@pytest.fixture
def topic(kafka: KafkaOracle) -> Iterator[KafkaMetadataTopic]:
    with closing(KafkaMetadataTopic({"bootstrap.servers": kafka.bootstrap_server})) as opened:
        yield opened


@pytest.fixture(scope="module")
def kafka_tiered_topic(kafka: KafkaOracle) -> TieredTopic:
    """A topic for this module alone, because its tests write to it."""
    return make_tiered_topic(kafka, "followed-by-isotherm", partitions=1, records=3000)


@pytest.fixture
def partition(kafka: KafkaOracle, kafka_tiered_topic: TieredTopic) -> TopicIdPartition:
    """One of Kafka's tiered partitions."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_server})
    described = admin.describe_topics(TopicCollection([kafka_tiered_topic.name]))
    topic_id = described[kafka_tiered_topic.name].result(300).topic_id
    halves = (topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits())
    high, low = (half & 0xFFFFFFFFFFFFFFFF for half in halves)
    return TopicIdPartition(uuid.UUID(int=(high << 64) | low), kafka_tiered_topic.name, 0)


def manager(topic: KafkaMetadataTopic) -> TopicBasedRemoteLogMetadataManager:
    return TopicBasedRemoteLogMetadataManager(topic, clock=SystemClock(), metrics=Metrics())


def segments_of(
    caches: dict[TopicIdPartition, RemoteLogMetadataCache],
) -> dict[TopicIdPartition, list[RemoteLogSegmentMetadata]]:
    return {name: cache.segments() for name, cache in caches.items()}


def test_fold_through_a_client_is_the_fold_of_kafkas_files(
    kafka: KafkaOracle, topic: KafkaMetadataTopic, kafka_tiered_topic: TieredTopic
) -> None:
    wanted = kafka_tiered_topic.name
    read: dict[TopicIdPartition, RemoteLogMetadataCache] = {}

    def are_equal() -> bool:
        # Kafka goes on copying what another test sent it, so the two may be of different moments.
        read.update(fold_metadata_topic(topic, lambda each: each.topic == wanted))
        # Files as they are now: the topic of files has their sizes from its beginning on.
        files = LogDirMetadataTopic([kafka.log_dir])
        lying = fold_metadata_topic(files, lambda each: each.topic == wanted)
        return segments_of(read) == segments_of(lying)

    wait_until(are_equal, "the topic to read as it lies in Kafka's files")
    assert read
    for name, cache in read.items():
        finished = [
            segment
            for segment in cache.segments()
            if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        ]
        ends = [segment.end_offset_inclusive + 1 for segment in finished]
        assert [segment.start_offset for segment in finished] == [0, *ends[:-1]]
        assert ends[-1] >= kafka_tiered_topic.local_start_offsets[name.partition]


def test_replicas_reader_reads_what_librdkafka_does(
    kafka: KafkaOracle, kafka_tiered_topic: TieredTopic, topic: KafkaMetadataTopic
) -> None:
    with closing(UpstreamMetadataTopic({"bootstrap.servers": kafka.bootstrap_server})) as ours:
        assert ours.partition_count == topic.partition_count
        sizes = []
        for number in range(topic.partition_count):
            first, end = topic.offsets(number)
            assert ours.offsets(number) == (first, end)
            expected = list(iterate_records(topic, number, end_offset=end))
            sizes.append(len(expected))
            assert list(iterate_records(ours, number, end_offset=end)) == expected
            middle = first + (end - first) // 2
            columns = list(iterate_columns(ours, number, start_offset=middle))
            rows = [row for part in columns for row in part.offset.tolist()]
            assert rows == [each.offset for each in expected if each.offset >= middle]
            values = [value for part in columns for value in part.value.to_pylist()]
            assert values == [record.value for record in expected if record.offset >= middle]
            assert ours.read(number, end, 1 << 20) == []
            assert ours.read_columns(number, end, 1 << 20).next_offset == end
        # A few at a time, too: the budget is below the size of most runs.
        fullest = sizes.index(max(sizes))
        first, end = topic.offsets(fullest)
        position, small = first, []
        while records := ours.read(fullest, position, 200):
            small += records
            position = small[-1].offset + 1
        assert [each.offset for each in small] == list(range(first, end))


def test_manager_follows_what_kafka_goes_on_to_copy(
    kafka: KafkaOracle, topic: KafkaMetadataTopic, partition: TopicIdPartition
) -> None:
    following = manager(topic)
    following.on_partition_leadership_changes([], [partition])
    following.poll()
    assert following.is_ready(partition)
    before = following.list_remote_log_segments(partition)
    assert before
    producer = Producer({"bootstrap.servers": kafka.bootstrap_server, "acks": "all"})
    for number in range(3000):
        producer.produce(partition.topic, bytes(1000), b"%d" % number, 0)
    producer.flush(300)

    def sees_more() -> bool:
        following.poll()
        return len(following.list_remote_log_segments(partition)) > len(before)

    wait_until(sees_more, "segments that were copied after the manager began to follow")


def test_metadata_topic_of_a_cluster_is_never_written_to(
    topic: KafkaMetadataTopic, partition: TopicIdPartition
) -> None:
    writing = manager(topic)
    writing.on_partition_leadership_changes([partition], [])
    writing.poll()
    segment = make_segment(1, {0: 0}, 9, partition=partition)
    with pytest.raises(PolicyViolationError, match="never written to"):
        writing.add_remote_log_segment_metadata(segment)
    # Kafka itself may still be writing there.
    written = fold_metadata_topic(topic, lambda each: each == partition)[partition].segments()
    assert written
    assert segment.segment_id not in [each.segment_id for each in written]


def test_write_to_a_topic_of_ones_own_is_done_when_it_is_read_back(kafka: KafkaOracle) -> None:
    create_topic(kafka.bootstrap_server, "projection", 3, {})
    partition = TopicIdPartition(uuid.UUID(int=5), "flights", 1)
    properties = {"bootstrap.servers": kafka.bootstrap_server}
    with closing(KafkaMetadataTopic(properties, topic="projection")) as own:
        writing = manager(own)
        writing.on_partition_leadership_changes([partition], [])
        writing.poll()
        segment = make_segment(1, {0: 0}, 9, partition=partition)
        writing.add_remote_log_segment_metadata(segment).result(300)
        update = make_update(segment, FINISHED)
        writing.update_remote_log_segment_metadata(update).result(300)
        assert writing.remote_log_segment_metadata(partition, 0, 5) == segment.updated(update)
        writing.close()
