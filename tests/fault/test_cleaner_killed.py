"""A broker that dies while it compacts: the last acknowledged value of every key is still there."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.conditions import wait_until

TIMEOUT_S = 300
TOPIC = "state"
KEYS = [b"key-%d" % number for number in range(40)]
SETTINGS = {
    "auto.create.topics.enable": "false",
    "log.cleaner.backoff.ms": "1",
    "log.cleaner.min.cleanable.ratio": "0.001",
    "log.cleaner.dedupe.buffer.size": "2000000",
}
CLEANED = f"log is cleaned partition={TOPIC}-0"
KILLS = 3


class Written(NamedTuple):
    offset: int
    value: bytes | None


class KeyedWriter:
    """Writes values and tombstones; `acknowledged` is the newest of each key, by offset."""

    def __init__(self, bootstrap_servers: str, rng: random.Random) -> None:
        self.acknowledged: dict[bytes, Written] = {}
        self.sent: list[tuple[bytes, bytes | None]] = []
        self.count = 0
        self._rng = rng
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
                value = None if self._rng.random() < 0.1 else self._rng.randbytes(1000)
                key = self._rng.choice(KEYS)
                self.sent.append((key, value))
                self._producer.produce(TOPIC, value, key, on_delivery=self._on_delivery)
            # Slow enough for many rounds of the cleaner.
            self._producer.poll(0.02)
        self._producer.flush(TIMEOUT_S)

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is None:
            self.count += 1
            self.acknowledged[message.key()] = Written(message.offset(), message.value())


def read_all(bootstrap_servers: str) -> dict[bytes, Written]:
    """The newest record of each key. Offsets rise, and may have gaps."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "none",
            "check.crcs": True,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: dict[bytes, Written] = {}
    last_offset = -1
    while True:
        (message,) = consumer.consume(1, TIMEOUT_S)
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            consumer.close()
            return found
        assert message.offset() > last_offset
        last_offset = message.offset()
        found[message.key()] = Written(message.offset(), message.value())


def has_cleaned(broker: Any, writer: threading.Thread) -> bool:
    assert writer.is_alive()
    return bool(broker.log_text.count(CLEANED) >= 3)


def test_broker_killed_while_compacting_keeps_the_last_value_of_each_key(
    broker_process: Callable[..., Any], tmp_path: Path
) -> None:
    rng = random.Random(534)
    expected: dict[bytes, Written] = {}
    sent: list[tuple[bytes, bytes | None]] = []
    rounds_before_kill = 0
    for kill in range(KILLS):
        broker = broker_process(SETTINGS)
        if kill == 0:
            make_topic(broker.bootstrap_servers)
        writer = KeyedWriter(broker.bootstrap_servers, rng)
        stopped = threading.Event()
        thread = threading.Thread(target=writer.write_until, args=(stopped,))
        thread.start()
        wait_until(lambda broker=broker, thread=thread: has_cleaned(broker, thread))
        wanted = writer.count + rng.randrange(6_000)
        wait_until(lambda writer=writer, wanted=wanted: writer.count >= wanted)
        broker.kill()
        stopped.set()
        thread.join()
        expected |= writer.acknowledged
        sent += writer.sent
        rounds_before_kill += broker.log_text.count(CLEANED)
    broker = broker_process(SETTINGS)
    found = read_all(broker.bootstrap_servers)
    assert broker.stop() == 0
    assert rounds_before_kill >= 3 * KILLS
    for key, written in expected.items():
        left = found.get(key)
        if left is None or left.offset < written.offset:
            # Deleted for good: the tombstone itself may be gone.
            assert written.value is None, key
        elif left.offset == written.offset:
            assert left.value == written.value, key
        else:
            assert (key, left.value) in sent, key
    names = [path.name for path in (tmp_path / "broker" / "log" / f"{TOPIC}-0").iterdir()]
    assert not [name for name in names if name.endswith((".cleaned", ".swap"))]


def make_topic(bootstrap_servers: str) -> None:
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": str(1024 * 1024),
        "delete.retention.ms": "0",
        "file.delete.delay.ms": "0",
    }
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)])[TOPIC].result(TIMEOUT_S)
