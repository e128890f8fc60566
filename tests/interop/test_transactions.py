"""Transactional producers of librdkafka, kafka-python and aiokafka, and the visibility of their
records.
"""

from __future__ import annotations

import asyncio
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.conditions import wait_until

with warnings.catch_warnings():
    # It reads its schemas, at import, with a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker
from isotherm.testing.local_servers import free_ports

TIMEOUT_S = 300
_numbers = itertools.count()


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    return make_topic(broker)


def make_topic(broker: EmbeddedBroker, partitions: int = 1, **config: str) -> str:
    name = f"transactions-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    settings = {"retention.ms": "-1", **config}
    admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(TIMEOUT_S)
    return name


@pytest.fixture
def producer(broker: EmbeddedBroker) -> Iterator[Callable[..., Producer]]:
    """Creates producers with a transaction begun; unsent records are dropped at the end."""
    made: list[Producer] = []

    def make(transactional_id: str | None = None, **settings: Any) -> Producer:
        made.append(
            Producer(
                {
                    "bootstrap.servers": settings.pop("servers", broker.bootstrap_servers),
                    "transactional.id": transactional_id or f"id-{next(_numbers)}",
                    "transaction.timeout.ms": 900_000,
                    "linger.ms": 0,
                    "log_level": 0,
                    **settings,
                }
            )
        )
        made[-1].init_transactions(TIMEOUT_S)
        return made[-1]

    yield make
    for each in made:
        each.purge()


def write(producer: Producer, topic: str, *values: bytes, partition: int = 0) -> None:
    """Produce values; they are in the log when this returns."""
    failed: list[Any] = []

    def on_delivery(error: Any, _message: Any) -> None:
        if error is not None:
            failed.append(error)

    for value in values:
        producer.produce(topic, value, partition=partition, on_delivery=on_delivery)
    assert producer.flush(TIMEOUT_S) == 0
    assert not failed, failed[0]


def read(servers: str, topic: str, isolation: str, partition: int = 0) -> list[bytes]:
    """Every value up to the end for this isolation level."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "never-used",
            "isolation.level": isolation,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "check.crcs": True,
            "fetch.wait.max.ms": 100,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    values: list[bytes] = []
    while True:
        (message,) = consumer.consume(1, TIMEOUT_S)
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            consumer.close()
            return values
        values.append(message.value())


def committed(broker: EmbeddedBroker, topic: str, partition: int = 0) -> list[bytes]:
    return read(broker.bootstrap_servers, topic, "read_committed", partition)


def uncommitted(broker: EmbeddedBroker, topic: str, partition: int = 0) -> list[bytes]:
    return read(broker.bootstrap_servers, topic, "read_uncommitted", partition)


def test_only_committed_records_are_seen_by_read_committed(
    broker: EmbeddedBroker, producer: Callable[..., Producer]
) -> None:
    topic = make_topic(broker, partitions=3)
    made = producer()
    for number in range(6):
        made.begin_transaction()
        for partition in range(3):
            write(made, topic, b"%d" % number, partition=partition)
        if number % 2:
            made.abort_transaction(TIMEOUT_S)
        else:
            made.commit_transaction(TIMEOUT_S)
    for partition in range(3):
        assert committed(broker, topic, partition) == [b"0", b"2", b"4"]
        assert uncommitted(broker, topic, partition) == [b"%d" % n for n in range(6)]


def test_open_transaction_hides_what_follows_it_until_it_ends(
    broker: EmbeddedBroker, topic: str, producer: Callable[..., Producer]
) -> None:
    first, second = producer(), producer()
    first.begin_transaction()
    write(first, topic, b"open")
    second.begin_transaction()
    write(second, topic, b"done")
    second.commit_transaction(TIMEOUT_S)
    assert committed(broker, topic) == []
    assert uncommitted(broker, topic) == [b"open", b"done"]
    first.abort_transaction(TIMEOUT_S)
    assert committed(broker, topic) == [b"done"]


def test_waiting_consumer_gets_the_records_once_they_are_committed(
    broker: EmbeddedBroker, topic: str, producer: Callable[..., Producer]
) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "never-used",
            # Longer than this test waits: the records come with the marker, or not at all.
            "fetch.wait.max.ms": 290_000,
            "socket.timeout.ms": 300_000,
            # More bytes than the marker has: the records that it makes visible must count.
            "fetch.min.bytes": 1000,
        }
    )
    made = producer()
    made.begin_transaction()
    write(made, topic, b"a" * 500, b"b" * 500)
    consumer.assign([TopicPartition(topic, 0, 0)])
    wait_until(lambda: len(broker.node.services.replica_manager.purgatory) > 0)
    made.commit_transaction(TIMEOUT_S)
    messages = consumer.consume(2, TIMEOUT_S)
    assert [message.value() for message in messages] == [b"a" * 500, b"b" * 500]
    consumer.close()


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_count_once_their_transaction_is_committed(
    broker: EmbeddedBroker, topic: str, producer: Callable[..., Producer], commit: bool
) -> None:
    made = producer()
    made.begin_transaction()
    write(made, topic, b"in")
    made.commit_transaction(TIMEOUT_S)
    target = make_topic(broker)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": f"group-{next(_numbers)}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    (message,) = consumer.consume(1, TIMEOUT_S)
    assert message.value() == b"in"
    made.begin_transaction()
    write(made, target, b"out")
    positions = consumer.position(consumer.assignment())
    made.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), TIMEOUT_S)
    if commit:
        made.commit_transaction(TIMEOUT_S)
    else:
        made.abort_transaction(TIMEOUT_S)
    (found,) = consumer.committed([TopicPartition(topic, 0)], TIMEOUT_S)
    assert found.offset == (positions[0].offset if commit else -1001)
    assert committed(broker, target) == ([b"out"] if commit else [])
    consumer.close()


def test_zombie_is_fenced_and_its_transaction_aborted(
    broker: EmbeddedBroker, topic: str, producer: Callable[..., Producer]
) -> None:
    zombie = producer("fenced")
    zombie.begin_transaction()
    write(zombie, topic, b"zombie")
    living = producer("fenced")
    living.begin_transaction()
    write(living, topic, b"living")
    living.commit_transaction(TIMEOUT_S)
    with pytest.raises(KafkaException) as failed:
        zombie.commit_transaction(TIMEOUT_S)
    assert failed.value.args[0].code() == KafkaError._FENCED
    assert failed.value.args[0].fatal()
    assert committed(broker, topic) == [b"living"]


def test_transaction_that_takes_too_long_is_aborted(
    broker: EmbeddedBroker, topic: str, producer: Callable[..., Producer]
) -> None:
    slow = producer(**{"transaction.timeout.ms": 3000})
    slow.begin_transaction()
    write(slow, topic, b"slow")
    quick = producer()
    quick.begin_transaction()
    write(quick, topic, b"quick")
    quick.commit_transaction(TIMEOUT_S)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "never-used",
            # Longer than this test waits: the records come with the marker, or not at all.
            "fetch.wait.max.ms": 290_000,
            "socket.timeout.ms": 300_000,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    (message,) = consumer.consume(1, TIMEOUT_S)
    assert message.value() == b"quick"
    consumer.close()
    with pytest.raises(KafkaException) as failed:
        slow.commit_transaction(TIMEOUT_S)
    assert failed.value.args[0].code() == KafkaError._FENCED


def test_timeout_above_the_allowed_is_refused(
    broker: EmbeddedBroker, producer: Callable[..., Producer]
) -> None:
    with pytest.raises(KafkaException) as failed:
        producer(**{"transaction.timeout.ms": 900_001})
    assert failed.value.args[0].code() == KafkaError.INVALID_TRANSACTION_TIMEOUT


def test_transaction_goes_on_after_a_restart_of_the_broker(
    start_broker: Callable[..., EmbeddedBroker], producer: Callable[..., Producer]
) -> None:
    listeners = {"listeners": f"PLAINTEXT://127.0.0.1:{free_ports(1)[0]}"}
    first = start_broker(listeners)
    topic = make_topic(first)
    made = producer(servers=first.bootstrap_servers)
    made.begin_transaction()
    write(made, topic, b"before")
    first.stop()
    second = start_broker(listeners)
    assert committed(second, topic) == []
    write(made, topic, b"after")
    made.commit_transaction(TIMEOUT_S)
    assert committed(second, topic) == [b"before", b"after"]


def test_transaction_left_open_is_aborted_by_the_next_producer_after_a_restart(
    start_broker: Callable[..., EmbeddedBroker], producer: Callable[..., Producer]
) -> None:
    listeners = {"listeners": f"PLAINTEXT://127.0.0.1:{free_ports(1)[0]}"}
    first = start_broker(listeners)
    topic = make_topic(first)
    left = producer("left", servers=first.bootstrap_servers)
    left.begin_transaction()
    write(left, topic, b"left")
    first.stop()
    second = start_broker(listeners)
    made = producer("left", servers=second.bootstrap_servers)
    made.begin_transaction()
    write(made, topic, b"next")
    made.commit_transaction(TIMEOUT_S)
    assert committed(second, topic) == [b"next"]


def test_both_isolations_read_the_same_from_the_remote_tier(
    broker: EmbeddedBroker, producer: Callable[..., Producer]
) -> None:
    topic = make_topic(broker, **TIERED_TOPIC)
    seen, all_values = [], []
    made, long_running = producer(), producer(**{"transaction.timeout.ms": 60_000})
    # An aborted transaction over several segments, with others begun and ended inside it.
    long_running.begin_transaction()
    for number in range(24):
        value = b"%02d" % number * 50_000
        if number % 6 == 0 and number < 18:
            write(long_running, topic, b"long" + value)
            all_values.append(b"long" + value)
        made.begin_transaction()
        write(made, topic, value, value)
        all_values += [value, value]
        if number % 3 == 0:
            made.abort_transaction(TIMEOUT_S)
        else:
            made.commit_transaction(TIMEOUT_S)
            seen += [value, value]
        if number == 18:
            long_running.abort_transaction(TIMEOUT_S)
    log = broker.node.services.replica_manager.find_partition(topic, None, 0).log
    wait_until(lambda: log.local_log_start_offset > 40)
    assert log.log_start_offset == 0
    assert uncommitted(broker, topic) == all_values
    assert committed(broker, topic) == seen


def test_kafka_python_commits_aborts_and_sends_offsets(broker: EmbeddedBroker, topic: str) -> None:
    made = kafka.KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, transactional_id="kafka-python"
    )
    made.init_transactions()
    for value, commit in ((b"a", True), (b"b", False), (b"c", True)):
        made.begin_transaction()
        made.send(topic, value, partition=0).get(TIMEOUT_S)
        if commit:
            offsets = {kafka.TopicPartition(topic, 0): kafka.OffsetAndMetadata(1, "", -1)}
            group = kafka.ConsumerGroupMetadata("kafka-python-group", -1, "", None)
            made.send_offsets_to_transaction(offsets, group)
            made.commit_transaction()
        else:
            made.abort_transaction()
    made.close()
    assert committed(broker, topic) == [b"a", b"c"]
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers,
        group_id="kafka-python-group",
        isolation_level="read_committed",
        consumer_timeout_ms=TIMEOUT_S * 1000,
    )
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    assert consumer.committed(partition) == 1
    # Offset 1 is the marker of the first transaction.
    assert next(consumer).value == b"c"
    consumer.close()


def test_aiokafka_commits_aborts_and_sends_offsets(broker: EmbeddedBroker, topic: str) -> None:
    async def scenario() -> list[bytes]:
        made = aiokafka.AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, transactional_id="aiokafka"
        )
        await made.start()
        partition = aiokafka.TopicPartition(topic, 0)
        async with made.transaction():
            await made.send_and_wait(topic, b"a", partition=0)
            await made.send_offsets_to_transaction({partition: 1}, "aiokafka-group")
        await made.begin_transaction()
        await made.send_and_wait(topic, b"b", partition=0)
        await made.abort_transaction()
        async with made.transaction():
            await made.send_and_wait(topic, b"c", partition=0)
        await made.stop()
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=broker.bootstrap_servers,
            group_id="aiokafka-group",
            isolation_level="read_committed",
            enable_auto_commit=False,
        )
        await consumer.start()
        consumer.assign([partition])
        assert await consumer.committed(partition) == 1
        await consumer.seek_to_beginning(partition)
        values = [(await consumer.getone()).value for _ in range(2)]
        await consumer.stop()
        return values

    assert asyncio.run(scenario()) == [b"a", b"c"]
    assert uncommitted(broker, topic) == [b"a", b"b", b"c"]
