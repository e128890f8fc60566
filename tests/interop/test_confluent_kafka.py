"""librdkafka, through confluent-kafka, against a broker of this process."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from isotherm.record.batch import CompressionType, iterate_batches
from isotherm.testing.bucket_files import files_below
from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker
from tests.support.conditions import wait_until

TIMEOUT_S = 300
_numbers = itertools.count()


@pytest.fixture
def admin(broker: EmbeddedBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


@pytest.fixture
def topic(admin: AdminClient) -> Callable[..., str]:
    """Creates a topic with a unique name, which keeps records of any age."""

    def make(partitions: int = 1, **config: str) -> str:
        name = f"topic-{next(_numbers)}"
        settings = {"retention.ms": "-1"}
        settings |= {key.replace("_", "."): value for key, value in config.items()}
        for future in admin.create_topics(
            [NewTopic(name, partitions, 1, config=settings)]
        ).values():
            future.result(TIMEOUT_S)
        return name

    return make


@pytest.fixture
def consumer(broker: EmbeddedBroker) -> Iterator[Consumer]:
    made = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "never-used",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "check.crcs": True,
            "fetch.wait.max.ms": 100,
        }
    )
    yield made
    made.close()


def producer(broker: EmbeddedBroker, **settings: Any) -> Producer:
    return Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 5, **settings})


def produce_all(client: Producer, topic: str, values: list[bytes], **more: Any) -> list[Message]:
    delivered: list[Message] = []
    failed: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is None:
            delivered.append(message)
        else:
            failed.append(error)

    for value in values:
        client.produce(topic, value, on_delivery=on_delivery, **more)
    assert client.flush(TIMEOUT_S) == 0
    assert not failed
    return delivered


def consume(consumer: Consumer, topic: str, count: int, offset: int = 0) -> list[Message]:
    consumer.assign([TopicPartition(topic, 0, offset)])
    messages: list[Message] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(messages) < count and time.monotonic() < deadline:
        for message in consumer.consume(count - len(messages), 0.2):
            assert message.error() is None, message.error()
            messages.append(message)
    assert len(messages) == count
    return messages


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_come_back_in_every_codec(
    broker: EmbeddedBroker, topic: Any, consumer: Consumer, codec: str, acks: str
) -> None:
    name = topic()
    values = [b"value-%d-" % number * 20 for number in range(300)]
    client = producer(broker, **{"compression.type": codec, "acks": acks})
    produce_all(client, name, values, key=b"key", timestamp=1_700_000_000_123)
    messages = consume(consumer, name, len(values))
    assert [message.value() for message in messages] == values
    assert [message.offset() for message in messages] == list(range(len(values)))
    assert {message.key() for message in messages} == {b"key"}
    assert {message.timestamp()[1] for message in messages} == {1_700_000_000_123}
    stored = broker.node.services.replica_manager.find_partition(name, None, 0).log
    codecs = {
        header.compression_type
        for _, header in iterate_batches(stored.read(0, 1 << 20, min_one_message=True).records)
    }
    assert codecs == {CompressionType[codec.upper()]}


def test_headers_nulls_and_empty_values_come_back(
    broker: EmbeddedBroker, topic: Any, consumer: Consumer
) -> None:
    name = topic()
    client = producer(broker)
    headers = [("a", b"1"), ("a", b""), ("ü", None)]
    client.produce(name, value=None, key=b"", headers=headers)
    client.produce(name, value=b"", key=None)
    assert client.flush(TIMEOUT_S) == 0
    first, second = consume(consumer, name, 2)
    assert (first.key(), first.value(), first.headers()) == (b"", None, headers)
    assert (second.key(), second.value(), second.headers()) == (None, b"", None)


def test_idempotent_producer_writes_in_order_with_its_id(
    broker: EmbeddedBroker, topic: Any, consumer: Consumer
) -> None:
    name = topic()
    client = producer(broker, **{"enable.idempotence": True, "batch.num.messages": 10})
    values = [b"%d" % number for number in range(1000)]
    produce_all(client, name, values)
    assert [message.value() for message in consume(consumer, name, 1000)] == values
    log = broker.node.services.replica_manager.find_partition(name, None, 0).log
    headers = [header for _, header in iterate_batches(log.read(0, 1 << 20).records)]
    assert len({header.producer_id for header in headers}) == 1
    assert headers[0].has_producer_id
    assert [header.base_sequence for header in headers] == [h.base_offset for h in headers]


def test_consumer_waiting_at_the_end_gets_a_new_record(
    broker: EmbeddedBroker, topic: Any, consumer: Consumer
) -> None:
    name = topic()
    consumer.assign([TopicPartition(name, 0, OFFSET_BEGINNING)])
    assert consumer.poll(0.1) is None
    produce_all(producer(broker), name, [b"late"])
    message = consumer.poll(TIMEOUT_S)
    assert message is not None
    assert message.value() == b"late"


def test_offsets_are_found_by_time_and_at_both_ends(
    broker: EmbeddedBroker, topic: Any, consumer: Consumer, admin: AdminClient
) -> None:
    name = topic()
    client = producer(broker)
    for step in range(10):
        client.produce(name, b"x", timestamp=1_700_000_000_000 + 100 * step)
        client.flush(TIMEOUT_S)
    assert consumer.get_watermark_offsets(TopicPartition(name, 0), TIMEOUT_S) == (0, 10)
    (found,) = consumer.offsets_for_times([TopicPartition(name, 0, 1_700_000_000_301)], TIMEOUT_S)
    assert found.offset == 4
    partition = TopicPartition(name, 0)
    for spec, offset in (
        (OffsetSpec.earliest(), 0),
        (OffsetSpec.latest(), 10),
        (OffsetSpec.max_timestamp(), 9),
        (OffsetSpec.for_timestamp(1_700_000_000_100), 1),
    ):
        ((_, future),) = admin.list_offsets({partition: spec}).items()
        assert future.result(TIMEOUT_S).offset == offset


def test_topics_are_made_described_and_deleted(admin: AdminClient, topic: Any) -> None:
    name = topic(3, retention_ms="1234567")
    described = admin.list_topics(name, TIMEOUT_S).topics[name]
    assert sorted(described.partitions) == [0, 1, 2]
    resource = ConfigResource(ResourceType.TOPIC, name)
    config = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
    assert config["retention.ms"].value == "1234567"
    admin.delete_topics([name])[name].result(TIMEOUT_S)
    assert name not in admin.list_topics(timeout=TIMEOUT_S).topics


def test_making_a_topic_twice_is_refused(admin: AdminClient, topic: Any) -> None:
    name = topic()
    error = admin.create_topics([NewTopic(name, 1, 1)])[name].exception(TIMEOUT_S)
    assert error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    assert name in error.args[0].str()


def test_unknown_topic_is_an_error_without_auto_creation(
    start_broker: Callable[..., EmbeddedBroker],
) -> None:
    broker = start_broker({"auto.create.topics.enable": "false"})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    described = admin.list_topics("absent", TIMEOUT_S).topics["absent"]
    assert described.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_consumer_beyond_the_end_gets_offset_out_of_range(
    broker: EmbeddedBroker, topic: Any, consumer: Consumer
) -> None:
    name = topic()
    produce_all(producer(broker), name, [b"only"])
    consumer.assign([TopicPartition(name, 0, 100)])
    message = consumer.poll(TIMEOUT_S)
    assert message is not None
    assert message.error().code() == KafkaError._AUTO_OFFSET_RESET


def test_deleted_topic_made_again_is_a_new_one(
    broker: EmbeddedBroker, topic: Any, admin: AdminClient, consumer: Consumer
) -> None:
    name = topic()
    produce_all(producer(broker), name, [b"old"] * 5)
    admin.delete_topics([name])[name].result(TIMEOUT_S)
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(TIMEOUT_S)
    produce_all(producer(broker), name, [b"new"])
    (message,) = consume(consumer, name, 1)
    assert (message.offset(), message.value()) == (0, b"new")


def test_records_outlive_a_restart(start_broker: Callable[..., EmbeddedBroker]) -> None:
    first = start_broker()
    produce_all(producer(first), "kept", [b"%d" % number for number in range(100)])
    cluster_id = first.node.services.cluster_id
    first.stop()
    second = start_broker()
    assert second.node.services.cluster_id == cluster_id
    produce_all(producer(second), "kept", [b"after"])
    consumer = Consumer({"bootstrap.servers": second.bootstrap_servers, "group.id": "none"})
    messages = consume(consumer, "kept", 101)
    assert [message.offset() for message in messages] == list(range(101))
    assert [message.leader_epoch() for message in messages] == [0] * 100 + [1]
    consumer.close()


def tier_topic(broker: EmbeddedBroker, name: str, values: list[bytes]) -> Any:
    """Produce until segments have rolled, and wait until only the active one is on disk."""
    produce_all(producer(broker, **{"batch.size": 16384}), name, values)
    log = broker.node.services.replica_manager.find_partition(name, None, 0).log
    wait_until(lambda: len(log.segments()) == 1)
    assert log.local_log_start_offset > log.log_start_offset == 0
    return log


def test_tiered_records_are_read_back_from_the_bucket(
    broker: EmbeddedBroker, admin: AdminClient, consumer: Consumer
) -> None:
    name = f"tiered-{next(_numbers)}"
    admin.create_topics([NewTopic(name, 1, 1, config=TIERED_TOPIC)])[name].result(TIMEOUT_S)
    values = [b"%06d" % number * 150 for number in range(5000)]
    log = tier_topic(broker, name, values)
    objects = [path for path in files_below(broker.directory / "bucket") if name in str(path)]
    assert len([path for path in objects if path.suffix == ".rsm-manifest"]) >= 3
    messages = consume(consumer, name, len(values))
    assert [message.value() for message in messages] == values
    assert [message.offset() for message in messages] == list(range(len(values)))
    middle = log.local_log_start_offset - 1
    assert [m.offset() for m in consume(consumer, name, 3, middle)] == [
        middle,
        middle + 1,
        middle + 2,
    ]
    ((_, future),) = admin.list_offsets({TopicPartition(name, 0): OffsetSpec.earliest()}).items()
    assert future.result(TIMEOUT_S).offset == 0


def test_tiered_records_are_found_by_time(broker: EmbeddedBroker, admin: AdminClient) -> None:
    name = f"tiered-{next(_numbers)}"
    admin.create_topics([NewTopic(name, 1, 1, config=TIERED_TOPIC)])[name].result(TIMEOUT_S)
    client = producer(broker, **{"batch.size": 16384})
    for number in range(4000):
        client.produce(name, bytes(1000), timestamp=1_700_000_000_000 + number)
    assert client.flush(TIMEOUT_S) == 0
    tier_topic(broker, name, [b"last"])
    partition = TopicPartition(name, 0)
    spec = OffsetSpec.for_timestamp(1_700_000_000_777)
    ((_, future),) = admin.list_offsets({partition: spec}).items()
    found = future.result(TIMEOUT_S)
    assert (found.offset, found.timestamp) == (777, 1_700_000_000_777)


def test_tiered_records_outlive_a_restart(start_broker: Callable[..., EmbeddedBroker]) -> None:
    first = start_broker()
    admin = AdminClient({"bootstrap.servers": first.bootstrap_servers})
    admin.create_topics([NewTopic("tiered", 1, 1, config=TIERED_TOPIC)])["tiered"].result(TIMEOUT_S)
    values = [b"%06d" % number * 150 for number in range(4000)]
    tier_topic(first, "tiered", values)
    first.stop()
    second = start_broker()
    log = second.node.services.replica_manager.find_partition("tiered", None, 0).log
    assert log.log_start_offset == 0 < log.local_log_start_offset
    consumer = Consumer({"bootstrap.servers": second.bootstrap_servers, "group.id": "none"})
    assert [message.value() for message in consume(consumer, "tiered", 4000)] == values
    consumer.close()


def test_deleted_tiered_topic_leaves_nothing_in_the_bucket(
    broker: EmbeddedBroker, admin: AdminClient
) -> None:
    name = f"tiered-{next(_numbers)}"
    admin.create_topics([NewTopic(name, 1, 1, config=TIERED_TOPIC)])[name].result(TIMEOUT_S)
    tier_topic(broker, name, [bytes(1000)] * 3000)

    def objects() -> list[Path]:
        return [path for path in files_below(broker.directory / "bucket") if name in str(path)]

    assert objects()
    admin.delete_topics([name])[name].result(TIMEOUT_S)
    wait_until(lambda: objects() == [])
