"""A broker process that dies without warning loses no record that it has acknowledged."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.conditions import wait_until

TIMEOUT_S = 300
TOPIC = "events"


class AcknowledgedWriter:
    """Produces numbered values with acks=all, and keeps those that were acknowledged."""

    def __init__(self, bootstrap_servers: str, first: int) -> None:
        self.acknowledged: dict[int, int] = {}
        self.next_number = first
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "acks": "all",
                "linger.ms": 1,
                "message.timeout.ms": 1000,
                "batch.num.messages": 50,
                "log_level": 0,
            }
        )

    def write_until(self, stopped: threading.Event) -> None:
        while not stopped.is_set():
            for _ in range(50):
                number = self.next_number
                self._producer.produce(TOPIC, b"%d" % number * 20, on_delivery=self._on_delivery)
                self.next_number += 1
            self._producer.poll(0.001)
        self._producer.flush(TIMEOUT_S)

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is None:
            value = message.value()
            self.acknowledged[message.offset()] = int(value[: len(value) // 20])


def read_all(bootstrap_servers: str) -> dict[int, int]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": "none", "check.crcs": True}
    )
    partition = TopicPartition(TOPIC, 0, 0)
    _, end = consumer.get_watermark_offsets(partition, TIMEOUT_S)
    consumer.assign([partition])
    found: dict[int, int] = {}
    next_offset = 0
    deadline = time.monotonic() + TIMEOUT_S
    while next_offset < end and time.monotonic() < deadline:
        for message in consumer.consume(1000, 0.5):
            assert message.error() is None, message.error()
            assert message.offset() == next_offset
            value = message.value()
            found[message.offset()] = int(value[: len(value) // 20])
            next_offset += 1
    consumer.close()
    assert next_offset == end
    return found


def test_broker_killed_while_producing_loses_no_acknowledged_record(
    broker_process: Callable[..., Any],
) -> None:
    rng = random.Random(2026)
    # Small segments, some of them on their way to the bucket when the broker dies.
    settings = {"log.segment.bytes": "1048576", "auto.create.topics.enable": "false"}
    acknowledged: dict[int, int] = {}
    next_number = 0
    for _ in range(3):
        broker = broker_process(settings)
        if not acknowledged:
            make_topic(broker.bootstrap_servers)
        writer = AcknowledgedWriter(broker.bootstrap_servers, next_number)
        stopped = threading.Event()
        thread = threading.Thread(target=writer.write_until, args=(stopped,))
        thread.start()
        wanted = rng.randrange(2_000, 8_000)
        wait_until(lambda writer=writer, wanted=wanted: len(writer.acknowledged) >= wanted)
        broker.kill()
        stopped.set()
        thread.join()
        assert not acknowledged.keys() & writer.acknowledged.keys()
        acknowledged |= writer.acknowledged
        next_number = writer.next_number
    broker = broker_process(settings)
    found = read_all(broker.bootstrap_servers)
    lost = {o: number for o, number in acknowledged.items() if found.get(o) != number}
    assert lost == {}
    assert len(acknowledged) >= 6_000
    assert broker.stop() == 0


def make_topic(bootstrap_servers: str) -> None:
    config = {
        "remote.storage.enable": "true",
        "local.retention.bytes": "1",
        "retention.ms": "-1",
        "file.delete.delay.ms": "100",
    }
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)])[TOPIC].result(TIMEOUT_S)


def test_sigterm_leaves_a_clean_folder(broker_process: Callable[..., Any], tmp_path: Path) -> None:
    broker = broker_process()
    assert broker.stop(TIMEOUT_S) == 0
    assert (tmp_path / "broker" / "log" / ".kafka_cleanshutdown").exists()
    broker_process().kill()
    assert not (tmp_path / "broker" / "log" / ".kafka_cleanshutdown").exists()
