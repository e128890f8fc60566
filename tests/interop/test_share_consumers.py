"""confluent-kafka's share consumers: they accept, release and reject records, and read history."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Message, Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker
from oracle.kafka import run_tool
from oracle.tools import CONSOLE_SHARE_CONSUMER
from tests.interop.test_readme import GUIDES, RUN_TIMEOUT_S, blocks_of
from tests.support.conditions import wait_until

pytestmark = pytest.mark.slow

SETTINGS = {"group.share.min.record.lock.duration.ms": "1000"}
COUNT = 200


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), SETTINGS) as broker:
        yield broker


class Queue:
    """A topic with numbered records, and the members of a share group that begins at earliest."""

    def __init__(self, broker: EmbeddedBroker, name: str, **group: str) -> None:
        self.broker = broker
        self.name = name
        self.servers = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
        self.admin = AdminClient(self.servers)
        self.configure(**{"share.auto.offset.reset": "earliest", **group})
        self.consumers: list[ShareConsumer] = []

    def configure(self, **texts: str) -> None:
        entries = [
            ConfigEntry(name, text, incremental_operation=AlterConfigOpType.SET)
            for name, text in texts.items()
        ]
        group = ConfigResource(ResourceType.GROUP, self.name, incremental_configs=entries)
        self.admin.incremental_alter_configs([group])[group].result()

    def create(self, partitions: int = 2, **config: str) -> None:
        topic = NewTopic(self.name, partitions, 1, config=config)
        self.admin.create_topics([topic])[self.name].result()

    def produce(self, values: Iterator[bytes] | list[bytes]) -> None:
        producer = Producer({**self.servers, "batch.size": 20_000})
        for number, value in enumerate(values):
            producer.produce(self.name, value, key=str(number))
            producer.poll(0)
        producer.flush()

    def join(self, **settings: Any) -> ShareConsumer:
        consumer = ShareConsumer(
            {
                **self.servers,
                "group.id": self.name,
                "share.acknowledgement.mode": "explicit",
                **settings,
            }
        )
        consumer.subscribe([self.name])
        self.consumers.append(consumer)
        return consumer

    def close(self) -> None:
        for consumer in self.consumers:
            consumer.close()


def place(message: Message) -> tuple[int, int]:
    return message.partition(), message.offset()


class Worker:
    """What a member has been given, and how often."""

    def __init__(self, consumer: ShareConsumer) -> None:
        self.consumer = consumer
        self.accepted: set[tuple[int, int]] = set()
        self.counts: Counter[tuple[int, int]] = Counter()

    def work(self, kinds: Mapping[int, AcknowledgeType] | None = None) -> None:
        """Poll once, and acknowledge by delivery count; accept by default."""
        for message in self.consumer.poll(0.5):
            assert message.error() is None
            self.counts[place(message)] += 1
            kind = (kinds or {}).get(message.delivery_count(), AcknowledgeType.ACCEPT)
            self.consumer.acknowledge(message, kind)
            if kind is AcknowledgeType.ACCEPT:
                assert place(message) not in self.accepted
                self.accepted.add(place(message))
        answers = self.consumer.commit_sync()
        assert not any(answers.values())


def test_two_members_share_the_records_and_none_is_left(broker: EmbeddedBroker) -> None:
    queue = Queue(broker, "shared")
    queue.create()
    queue.produce([b"%d" % number for number in range(COUNT)])
    workers = [Worker(queue.join(**{"max.poll.records": 10})) for _ in range(2)]

    def is_done() -> bool:
        for worker in workers:
            worker.work()
        return sum(len(worker.accepted) for worker in workers) >= COUNT

    wait_until(is_done, "accepted records")
    assert not workers[0].accepted & workers[1].accepted
    assert sum(len(worker.accepted) for worker in workers) == COUNT
    queue.close()


def test_released_records_come_again_and_rejected_ones_do_not(broker: EmbeddedBroker) -> None:
    queue = Queue(broker, "released")
    queue.create(1)
    queue.produce([b"v"] * 20)
    worker = Worker(queue.join())
    kinds = {1: AcknowledgeType.RELEASE, 2: AcknowledgeType.RELEASE, 3: AcknowledgeType.REJECT}

    def all_are_rejected() -> bool:
        worker.work(kinds)
        return len(worker.counts) == 20 and min(worker.counts.values()) == 3

    wait_until(all_are_rejected, "third deliveries")
    queue.produce([b"last"])
    wait_until(lambda: worker.work() or worker.accepted, "the record after them")
    assert worker.accepted == {(0, 20)}
    assert set(worker.counts.values()) == {3, 1}
    queue.close()


def test_locks_of_a_silent_member_end(broker: EmbeddedBroker) -> None:
    queue = Queue(broker, "silent", **{"share.record.lock.duration.ms": "1000"})
    queue.create(1)
    queue.produce([b"v"] * 5)
    silent = queue.join()
    wait_until(lambda: len(silent.poll(0.5)), "records of the silent member")
    # The other member has time for its answers, however slow the machine is.
    queue.configure(**{"share.record.lock.duration.ms": "60000"})
    worker = Worker(queue.join())
    wait_until(lambda: worker.work() or len(worker.accepted) == 5, "the records of the other one")
    queue.close()


def test_topic_that_was_made_again_begins_anew(broker: EmbeddedBroker) -> None:
    queue = Queue(broker, "remade")
    queue.create(1)
    queue.produce([b"old"] * 5)
    worker = Worker(queue.join())
    wait_until(lambda: worker.work() or len(worker.accepted) == 5, "the old records")
    queue.close()
    queue.admin.delete_topics(["remade"])["remade"].result()
    topics = broker.node.services.metadata
    wait_until(lambda: "remade" not in topics.image.topics_by_name, "the deletion")
    queue.create(1)
    queue.produce([b"new"] * 3)
    again = Worker(queue.join())
    wait_until(lambda: again.work() or len(again.accepted) == 3, "the new records")
    assert again.accepted == {(0, 0), (0, 1), (0, 2)}
    assert set(again.counts.values()) == {1}
    again.consumer.close()


def test_group_at_earliest_reads_the_history_in_the_bucket(broker: EmbeddedBroker) -> None:
    queue = Queue(broker, "history")
    queue.create(1, **TIERED_TOPIC)
    count = 4000
    queue.produce([os.urandom(1000) for _ in range(count)])
    log = broker.node.services.replica_manager.find_partition("history", None, 0).log
    wait_until(lambda: log.local_log_start_offset > count / 2, "history in the bucket alone")
    worker = Worker(queue.join())
    wait_until(lambda: worker.work() or len(worker.accepted) == count, "all records")
    queue.close()


@pytest.mark.oracle
def test_javas_share_consumer_gets_each_record_once(
    broker: EmbeddedBroker, kafka_tools: Path
) -> None:
    queue = Queue(broker, "java")
    queue.create()
    values = [b"%d" % number for number in range(COUNT)]
    queue.produce(values)
    place = ["--bootstrap-server", broker.bootstrap_servers, "--topic", "java"]
    options = ["--group", "java", "--max-messages", str(COUNT), "--timeout-ms", "120000"]
    printed = run_tool(CONSOLE_SHARE_CONSUMER, *place, *options).splitlines()
    assert sorted(printed[:COUNT]) == sorted(value.decode() for value in values)
    # What it has accepted is not delivered again.
    queue.produce([b"last"])
    worker = Worker(queue.join())
    wait_until(lambda: worker.work() or worker.accepted, "the record after them")
    assert len(worker.counts) == 1


def test_guide_to_a_work_queue(broker: EmbeddedBroker, tmp_path: Path) -> None:
    (block,) = blocks_of(GUIDES / "work-queue.md")
    script = tmp_path / "worker.py"
    script.write_text(block.text.replace("localhost:9092", broker.bootstrap_servers))
    run = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=True
    )
    assert run.stdout == "99 tasks are done, 1 rejected\n"
