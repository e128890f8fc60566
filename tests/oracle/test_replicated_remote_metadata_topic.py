"""A member's metadata topic with partitions that a broker of Apache Kafka leads."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from isotherm.broker.peers.leader_requests import LeaderRequests
from isotherm.broker.tier.replicated_remote_metadata_topic import ReplicatedRemoteMetadataTopic
from isotherm.errors import (
    ConfigError,
    NotLeaderOrFollowerError,
    PeerDisconnectedError,
    RemoteStorageNotReadyError,
    UnknownTopicOrPartitionError,
)
from isotherm.remote.metadata.api import NewMetadataRecord
from isotherm.types import TopicPartition as Name
from oracle.kafka import KafkaOracle
from oracle.topics import wait_until

TOPIC = "metadata-of-a-member"
NODE_ID = 1


class NoReplicas:
    def local_replica(self, topic_partition: Name) -> None:
        return None


def image_of(address: str, leader: int = NODE_ID, partitions: int = 2) -> MetadataImage:
    host, _, port = address.partition(":")
    topic = TopicImage(
        TOPIC,
        uuid.UUID(int=7),
        tuple(PartitionImage(n, (NODE_ID,), (NODE_ID,), leader, 0, 0) for n in range(partitions)),
    )
    endpoint = Endpoint("INTERNAL", host, int(port))
    broker = BrokerImage(NODE_ID, 1, None, None, fenced=False, endpoints=(endpoint,))
    return MetadataImage(topics_by_name={TOPIC: topic}, brokers={NODE_ID: broker})


@pytest.fixture
def topic(kafka: KafkaOracle) -> Iterator[ReplicatedRemoteMetadataTopic]:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_server})
    forever = {"retention.ms": "-1"}
    for made in admin.create_topics([NewTopic(TOPIC, 2, 1, config=forever)]).values():
        made.result(300)
    found = opened(image_of(kafka.bootstrap_server))
    wait_until(lambda: is_led(found), "the broker leads the new topic")
    yield found
    found.close()
    for gone in admin.delete_topics([TOPIC]).values():
        gone.result(300)


def is_led(topic: ReplicatedRemoteMetadataTopic) -> bool:
    try:
        return topic.offsets(0) == topic.offsets(1)
    except (NotLeaderOrFollowerError, UnknownTopicOrPartitionError):
        return False


def opened(image: MetadataImage, count: int = 2) -> ReplicatedRemoteMetadataTopic:
    metadata: Any = SimpleNamespace(image=image)
    leaders = LeaderRequests(metadata, "INTERNAL", client_id="isotherm-test", request_timeout_s=60)
    return ReplicatedRemoteMetadataTopic(
        NoReplicas(), leaders, count, lambda: 2, request_timeout_ms=60_000, topic=TOPIC
    )


def test_kafka_has_what_was_appended_and_tells_it_back(
    kafka: KafkaOracle, topic: ReplicatedRemoteMetadataTopic
) -> None:
    assert topic.offsets(1) == (0, 0)
    assert topic.read(1, 0, 1000) == []
    assert topic.append(1, None, b"first", 1_000) == 0
    more = [NewMetadataRecord(b"k", b"second", 2_000), NewMetadataRecord(b"k", None, 3_000)]
    assert topic.append_all(1, more) == 1
    assert topic.offsets(1) == (0, 3)
    assert topic.offsets(0) == (0, 0)

    found = topic.read(1, 0, 1_000_000)
    assert [(r.offset, r.timestamp_ms, r.key, r.value) for r in found] == [
        (0, 1_000, None, b"first"),
        (1, 2_000, b"k", b"second"),
        (2, 3_000, b"k", None),
    ]
    assert [record.offset for record in topic.read(1, 2, 1)] == [2]
    assert topic.read(1, 3, 1_000) == []
    columns = topic.read_columns(1, 1, 1_000_000)
    assert columns.offset.tolist() == [1, 2]
    assert columns.value.to_pylist() == [b"second", None]
    assert columns.next_offset == 3
    assert values_by_a_consumer(kafka, 3) == [b"first", b"second", None]


def values_by_a_consumer(kafka: KafkaOracle, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_server, "group.id": "unused"})
    consumer.assign([TopicPartition(TOPIC, 1, 0)])
    messages = consumer.consume(count, 60)
    consumer.close()
    return [message.value() for message in messages]


def test_what_the_cluster_lacks_is_an_error_that_names_it(
    kafka: KafkaOracle, topic: ReplicatedRemoteMetadataTopic
) -> None:
    beyond = opened(image_of(kafka.bootstrap_server, partitions=9))
    with pytest.raises(UnknownTopicOrPartitionError, match=f"{TOPIC}-8 .*UNKNOWN_TOPIC"):
        beyond.append(8, None, b"x", 1)
    with pytest.raises(UnknownTopicOrPartitionError, match=f"{TOPIC}-9"):
        beyond.read(9, 0, 1)
    beyond.close()
    with pytest.raises(NotLeaderOrFollowerError, match="leader=-1"):
        opened(image_of(kafka.bootstrap_server, leader=-1)).offsets(0)
    closed = opened(image_of(kafka.bootstrap_server))
    closed.close()
    with pytest.raises(PeerDisconnectedError):
        closed.offsets(0)


def test_refused_records_are_not_taken_for_appended(topic: ReplicatedRemoteMetadataTopic) -> None:
    with pytest.raises(RemoteStorageNotReadyError, match="MESSAGE_TOO_LARGE"):
        topic.append(0, None, bytes(2_000_000), 1)
    assert topic.offsets(0) == (0, 0)


def test_nothing_is_done_with_another_number_of_partitions(kafka: KafkaOracle) -> None:
    wrong = opened(image_of(kafka.bootstrap_server), count=50)
    for use in (
        lambda: wrong.append(0, None, b"x", 1),
        lambda: wrong.read(0, 0, 1),
        lambda: wrong.offsets(0),
        lambda: wrong.is_current(0),
    ):
        with pytest.raises(ConfigError, match=r"num.partitions value=50 .* partitions=2"):
            use()
