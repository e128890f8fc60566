"""Compacted topics of a running broker, also its internal ones, read by real clients.

The cleaner runs every few milliseconds, and a small dirty ratio suffices. So a test closes the
active segment and waits until the checkpoint file says that the whole log is clean.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from isotherm.broker.coordinators.transactions.transaction_records import decode_record
from isotherm.log.partition_log import PartitionLog
from isotherm.testing.embedded_broker import EmbeddedBroker
from tests.support.conditions import wait_until

TIMEOUT_S = 300
SETTINGS = {
    "log.cleaner.backoff.ms": "20",
    "log.cleaner.min.cleanable.ratio": "0.001",
    "log.cleaner.dedupe.buffer.size": str(8 * 1024 * 1024),
    "log.segment.delete.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}
_names = itertools.count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), SETTINGS) as started:
        yield started


def make_topic(broker: EmbeddedBroker, **config: str) -> str:
    name = f"compacted-{next(_names)}"
    settings = {"cleanup.policy": "compact", **config}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(name, 1, 1, config=settings)])[name].result(TIMEOUT_S)
    return name


def produce(broker: EmbeddedBroker, topic: str, *records: tuple[str, str | None]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.size": 4000})
    for key, value in records:
        producer.produce(topic, key=key, value=value)
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0


def consume(
    broker: EmbeddedBroker, topic: str, isolation: str = "read_uncommitted"
) -> list[Message]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "never-used",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "check.crcs": True,
            "fetch.wait.max.ms": 100,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages: list[Message] = []
    while True:
        (message,) = consumer.consume(1, TIMEOUT_S)
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            consumer.close()
            return messages
        messages.append(message)


def texts(messages: list[Message]) -> list[tuple[str, str | None]]:
    return [
        (
            (message.key() or b"").decode(),
            None if (value := message.value()) is None else value.decode(),
        )
        for message in messages
    ]


def log_of(broker: EmbeddedBroker, topic: str) -> PartitionLog:
    return broker.node.services.replica_manager.find_partition(topic, None, 0).log


def checkpoint(broker: EmbeddedBroker, topic: str) -> int:
    """The offset of the topic's partition in the cleaner's checkpoint file, 0 without one."""
    path = broker.directory / "log" / "cleaner-offset-checkpoint"
    lines = path.read_text().splitlines()[2:] if path.exists() else []
    offsets = {tuple(line.split()[:2]): int(line.split()[2]) for line in lines}
    return offsets.get((topic, "0"), 0)


def clean(broker: EmbeddedBroker, topic: str) -> PartitionLog:
    """Wait until the topic is clean; return all its records."""
    log = log_of(broker, topic)
    end_offset = log.log_end_offset
    log.roll()
    wait_until(lambda: checkpoint(broker, topic) >= end_offset)
    return log


def test_compacted_topic_keeps_the_last_value_of_each_key(broker: EmbeddedBroker) -> None:
    topic = make_topic(broker)
    written = [(f"key-{number % 50}", f"value-{number}") for number in range(5000)]
    produce(broker, topic, *written)
    before = log_of(broker, topic).size_in_bytes
    log = clean(broker, topic)
    messages = consume(broker, topic)
    assert texts(messages) == written[-50:]
    assert [message.offset() for message in messages] == list(range(4950, 5000))
    assert log.size_in_bytes < before / 20
    produce(broker, topic, ("key-0", "newest"))
    clean(broker, topic)
    assert texts(consume(broker, topic)) == [*written[-49:], ("key-0", "newest")]


def test_tombstone_stays_for_the_retention_time_of_deletions(broker: EmbeddedBroker) -> None:
    kept, gone = (make_topic(broker, **{"delete.retention.ms": ms}) for ms in ("3600000", "0"))
    for topic in (kept, gone):
        produce(broker, topic, ("a", "1"), ("a", None), ("b", "1"))
        clean(broker, topic)
        assert texts(consume(broker, topic)) == [("a", None), ("b", "1")]
        produce(broker, topic, ("b", "2"))
        clean(broker, topic)
    assert texts(consume(broker, kept)) == [("a", None), ("b", "2")]
    assert texts(consume(broker, gone)) == [("b", "2")]


def test_aborted_records_are_compacted_away(broker: EmbeddedBroker) -> None:
    topic = make_topic(broker)
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": topic,
            "transaction.timeout.ms": 900_000,
            "linger.ms": 0,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    for value, commits in (("committed", True), ("aborted", False)):
        producer.begin_transaction()
        producer.produce(topic, key="a", value=value)
        producer.produce(topic, key=value, value="1")
        producer.flush(TIMEOUT_S)
        if commits:
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.abort_transaction(TIMEOUT_S)
    produce(broker, topic, ("b", "1"))
    expected = [("a", "committed"), ("committed", "1"), ("b", "1")]
    clean(broker, topic)
    for isolation in ("read_committed", "read_uncommitted"):
        assert texts(consume(broker, topic, isolation)) == expected


def test_open_transaction_holds_the_cleaner_back(broker: EmbeddedBroker) -> None:
    topic = make_topic(broker)
    produce(broker, topic, ("a", "1"), ("a", "2"))
    log_of(broker, topic).roll()
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": topic,
            "transaction.timeout.ms": 900_000,
            "linger.ms": 0,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, key="a", value="open")
    producer.flush(TIMEOUT_S)
    log_of(broker, topic).roll()
    produce(broker, topic, ("b", "1"))
    log_of(broker, topic).roll()
    wait_until(lambda: checkpoint(broker, topic) == 2)
    assert [value for _, value in texts(consume(broker, topic))] == ["2", "open", "1"]
    producer.abort_transaction(TIMEOUT_S)
    clean(broker, topic)
    assert [value for _, value in texts(consume(broker, topic))] == ["2", "1"]


def test_topic_that_is_compacted_and_deleted_loses_what_is_too_old(broker: EmbeddedBroker) -> None:
    topic = make_topic(broker, **{"cleanup.policy": "compact,delete", "retention.ms": "3600000"})
    produce(broker, topic, ("a", "1"), ("b", "1"), ("a", "2"))
    log = clean(broker, topic)
    assert texts(consume(broker, topic)) == [("b", "1"), ("a", "2")]
    alter(broker, ConfigResource(ResourceType.TOPIC, topic), "retention.ms", "1")
    wait_until(lambda: log.log_start_offset == 3)
    assert consume(broker, topic) == []


def alter(broker: EmbeddedBroker, resource: ConfigResource, name: str, value: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    resource.add_incremental_config(
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    )
    (changed,) = admin.incremental_alter_configs([resource]).values()
    changed.result(TIMEOUT_S)


def test_topic_becomes_compacted_while_the_broker_runs(broker: EmbeddedBroker) -> None:
    topic = make_topic(broker, **{"cleanup.policy": "delete"})
    produce(broker, topic, ("a", "1"), ("a", "2"))
    log_of(broker, topic).roll()
    alter(broker, ConfigResource(ResourceType.TOPIC, topic), "cleanup.policy", "compact")
    clean(broker, topic)
    assert texts(consume(broker, topic)) == [("a", "2")]


def test_threads_are_changed_while_the_broker_runs(broker: EmbeddedBroker) -> None:
    resource = ConfigResource(ResourceType.BROKER, "1")
    alter(broker, resource, "log.cleaner.threads", "2")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    (described,) = admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]).values()
    assert described.result(TIMEOUT_S)["log.cleaner.threads"].value == "2"
    with pytest.raises(KafkaException, match="greater than double the current value 2"):
        alter(broker, ConfigResource(ResourceType.BROKER, "1"), "log.cleaner.threads", "5")
    topic = make_topic(broker)
    produce(broker, topic, ("a", "1"), ("a", "2"))
    clean(broker, topic)
    assert texts(consume(broker, topic)) == [("a", "2")]


def test_tiered_topic_cannot_be_compacted(broker: EmbeddedBroker) -> None:
    with pytest.raises(KafkaException, match="cannot be compacted") as raised:
        make_topic(broker, **{"remote.storage.enable": "true"})
    assert raised.value.args[0].code() == KafkaError.INVALID_CONFIG


def test_metrics_tell_of_the_cleaner(broker: EmbeddedBroker) -> None:
    topic = make_topic(broker)
    produce(broker, topic, ("a", "1"), ("a", "2"))
    clean(broker, topic)
    metrics = broker.node.metrics
    wait_until(lambda: metrics.value("kafka_log_logcleaner_cleaner_recopy_percent") > 0)
    assert metrics.value("kafka_log_logcleaner_max_clean_time_secs") > 0
    assert metrics.value("kafka_log_logcleanermanager_time_since_last_run_ms") < TIMEOUT_S * 1000


def test_cleaner_that_is_held_back_delays_neither_a_deletion_nor_a_stop(tmp_path: Path) -> None:
    """The throttle is one byte a second, so a round would take a day."""
    throttled = {**SETTINGS, "log.cleaner.io.max.bytes.per.second": "1"}
    with EmbeddedBroker(tmp_path, throttled) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})

        def begin_round() -> str:
            topic = make_topic(broker)
            produce(broker, topic, *[("a", str(number) * 100) for number in range(100)])
            log_of(broker, topic).roll()
            wait_until(lambda: dirty_percent(broker) > 0)
            return topic

        topic = begin_round()
        admin.delete_topics([topic])[topic].result(TIMEOUT_S)
        wait_until(lambda: dirty_percent(broker) == 0)
        begin_round()
        started = time.monotonic()
    assert time.monotonic() - started < TIMEOUT_S


def dirty_percent(broker: EmbeddedBroker) -> float:
    """The dirty percentage of the log that the cleaner works on."""
    return broker.node.metrics.value("kafka_log_logcleanermanager_max_dirty_percent")


# The broker's own topics


def commit(broker: EmbeddedBroker, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def committed(broker: EmbeddedBroker, group: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=TIMEOUT_S)
    consumer.close()
    return int(found.offset)


def test_offsets_of_groups_survive_compaction_and_a_restart(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, SETTINGS) as broker:
        topic = make_topic(broker)
        produce(broker, topic, *[("a", str(number)) for number in range(30)])
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "busy"})
        for offset in range(1, 31):
            consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
        consumer.close()
        commit(broker, "idle", topic, 7)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        commit(broker, "deleted", topic, 8)
        admin.delete_consumer_groups(["deleted"])["deleted"].result(TIMEOUT_S)
        before = len(consume(broker, "__consumer_offsets"))
        clean(broker, "__consumer_offsets")
        after = len(consume(broker, "__consumer_offsets"))
        assert before >= 32
        assert after < 6
    with EmbeddedBroker(tmp_path, SETTINGS) as broker:
        assert committed(broker, "busy", topic) == 30
        assert committed(broker, "idle", topic) == 7
        assert committed(broker, "deleted", topic) < 0
        commit(broker, "busy", topic, 29)
        assert committed(broker, "busy", topic) == 29


def test_transactional_ids_survive_compaction_and_a_restart(tmp_path: Path) -> None:
    def begin(broker: EmbeddedBroker) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "transactional.id": "steady",
                "transaction.timeout.ms": 900_000,
            }
        )
        producer.init_transactions(TIMEOUT_S)
        return producer

    def producer_of_id(broker: EmbeddedBroker) -> tuple[int, int]:
        messages = consume(broker, "__transaction_state")
        decoded = decode_record(messages[-1].key(), messages[-1].value())
        assert decoded is not None
        assert decoded.key.transactional_id == "steady"
        assert decoded.value is not None
        return decoded.value.producer_id, decoded.value.producer_epoch

    with EmbeddedBroker(tmp_path, SETTINGS) as broker:
        topic = make_topic(broker)
        producer = begin(broker)
        for number in range(10):
            producer.begin_transaction()
            producer.produce(topic, key="a", value=str(number))
            producer.commit_transaction(TIMEOUT_S)
        before = len(consume(broker, "__transaction_state"))
        clean(broker, "__transaction_state")
        after = len(consume(broker, "__transaction_state"))
        assert (before > 20, after) == (True, 1)
        producer_id, epoch = producer_of_id(broker)
    with EmbeddedBroker(tmp_path, SETTINGS) as broker:
        producer = begin(broker)
        again_id, again_epoch = producer_of_id(broker)
        assert (again_id, again_epoch > epoch) == (producer_id, True)
        producer.begin_transaction()
        producer.produce(topic, key="a", value="after")
        producer.commit_transaction(TIMEOUT_S)
        assert texts(consume(broker, topic, "read_committed"))[-1] == ("a", "after")
