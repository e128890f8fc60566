"""kafka-python, which negotiates the newest versions of ListOffsets, Metadata and FindCoordinator.

It has no snappy of its own; librdkafka's tests cover that codec.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

with warnings.catch_warnings():
    # It reads its schemas, at import, with a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import KafkaAdminClient, NewTopic

from isotherm.testing.embedded_broker import EmbeddedBroker

TIMEOUT_MS = 60_000
_numbers = itertools.count()


@pytest.fixture
def admin(broker: EmbeddedBroker) -> Iterator[KafkaAdminClient]:
    made = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    yield made
    made.close()


@pytest.fixture
def topic(admin: KafkaAdminClient) -> str:
    name = f"python-{next(_numbers)}"
    admin.create_topics([NewTopic(name, 2, 1, topic_configs={"retention.ms": "-1"})])
    return name


def consume(broker: EmbeddedBroker, topic: str, count: int) -> list[Any]:
    consumer = KafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers,
        group_id=None,
        auto_offset_reset="earliest",
        consumer_timeout_ms=TIMEOUT_MS,
    )
    try:
        consumer.assign([TopicPartition(topic, 0)])
        return list(itertools.islice(consumer, count))
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", [None, "gzip", "lz4", "zstd"])
@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_records_come_back_in_every_codec(
    broker: EmbeddedBroker, topic: str, codec: str | None, acks: Any
) -> None:
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers,
        compression_type=codec,
        acks=acks,
        enable_idempotence=acks == "all",
        linger_ms=5,
    )
    values = [b"value %d" % number for number in range(100)]
    for value in values:
        producer.send(
            topic, value, b"key", [("h", b"1")], partition=0, timestamp_ms=1_700_000_000_123
        )
    producer.flush(TIMEOUT_MS / 1000)
    records = consume(broker, topic, len(values))
    producer.close()
    assert [record.value for record in records] == values
    assert [record.offset for record in records] == list(range(len(values)))
    assert {(record.key, record.timestamp) for record in records} == {(b"key", 1_700_000_000_123)}
    assert records[0].headers == [("h", b"1")] or records[0].headers == (("h", b"1"),)


def test_offsets_are_found_at_both_ends_and_by_time(broker: EmbeddedBroker, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    for step in range(5):
        timestamp_ms = 1_700_000_000_000 + 10 * step
        producer.send(topic, b"x", partition=0, timestamp_ms=timestamp_ms).get(TIMEOUT_MS / 1000)
    producer.close()
    partition = TopicPartition(topic, 0)
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, group_id=None)
    assert consumer.beginning_offsets([partition]) == {partition: 0}
    assert consumer.end_offsets([partition]) == {partition: 5}
    found = consumer.offsets_for_times({partition: 1_700_000_000_011})[partition]
    assert (found.offset, found.timestamp) == (2, 1_700_000_000_020)
    consumer.close()


def test_topics_are_listed_and_deleted(admin: KafkaAdminClient, topic: str) -> None:
    assert topic in admin.list_topics()
    admin.delete_topics([topic])
    assert topic not in admin.list_topics()


def test_consumer_keeps_one_fetch_session_and_gets_every_record(
    broker: EmbeddedBroker, topic: str
) -> None:
    sessions = broker.node.services.fetch_sessions
    before = len(sessions)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    consumer = KafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers,
        group_id=None,
        auto_offset_reset="earliest",
        consumer_timeout_ms=TIMEOUT_MS,
    )
    try:
        consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        for number in range(10):
            sent = producer.send(topic, f"{number}".encode(), partition=number % 2)
            sent.get(timeout=TIMEOUT_MS / 1000)
            assert next(consumer).value == f"{number}".encode()
        assert len(sessions) == before + 1
        assert sessions.partition_count >= 2
    finally:
        consumer.close()
        producer.close()
