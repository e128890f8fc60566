"""The state that the workers of a round share: topics, values, the history and the end of the
round.
"""

from __future__ import annotations

import itertools
import logging
import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from isotherm.clock import Clock
from isotherm.types import TopicPartition
from tests.support.correctness.history import UNREADABLE_VALUE, History, Value

EVENTS = "events"
COPIES = "copies"
EXPIRING = "expiring"
"""The topic with retention. The others have none."""
FORGETTING = "forgetting"
"""The topic whose records are erased. No other topic has its values."""
PARTITIONS: Mapping[str, int] = {EVENTS: 4, COPIES: 2, EXPIRING: 1, FORGETTING: 2}
VALUE_SIZE = 800
BATCH_SIZE = 50_000
"""The size of a producer's batch, below `max.message.bytes`."""
REFUSED_VALUE_SIZE = 70_000
"""The size of a value above `max.message.bytes`.

The broker must refuse it, and no client may ever read it.
"""

CLIENT_DEBUG = "cgrp,topic,eos"
"""librdkafka's debug contexts that show why a member has its partitions and positions."""

REQUEST_TIMEOUT_S = 30
PATIENCE_S = 300
"""The time that clients wait for a restarting broker.

It is long, so that a busy machine causes no failure.
"""


@dataclass(frozen=True, slots=True)
class Workload:
    """The shared state of all workers. Thread-safe."""

    bootstrap_servers: str
    clock: Clock
    pause_s: float = 0.02
    """The pause of a writing client between two operations."""
    replicas: int = 1
    """The replication factor of each topic."""
    client_logger: logging.Logger | None = None
    """The logger of the clients' debug lines (`CLIENT_DEBUG`). With None they log nothing."""
    history: History = field(default_factory=History)
    stopping: threading.Event = field(default_factory=threading.Event)
    _values: Iterator[Value] = field(default_factory=lambda: itertools.count(1))

    def client_config(self, **settings: Any) -> dict[str, Any]:
        """librdkafka's settings for a client of a restarting broker."""
        logs: dict[str, Any] = {"log_level": 0}
        if self.client_logger is not None:
            logs = {"logger": self.client_logger, "debug": CLIENT_DEBUG}
        return {
            "bootstrap.servers": self.bootstrap_servers,
            # Brokers are stopped on purpose, so librdkafka's log lines about that are noise.
            **logs,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            # By default librdkafka 2.16 forgets a cluster whose last broker goes away, but not the
            # address of the group's coordinator. The next TxnOffsetCommit then waits past any time
            # limit for a connection that it never makes. The same happens with Apache Kafka.
            "metadata.recovery.strategy": "none",
            **{key.replace("_", "."): value for key, value in settings.items()},
        }

    def new_value(self) -> Value:
        return next(self._values)

    def partitions(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in range(PARTITIONS[topic])]

    def any_partition(self, topic: str, rng: random.Random) -> TopicPartition:
        return rng.choice(self.partitions(topic))

    def make_topics(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        """Create the topics with these settings, by topic."""
        admin = AdminClient(self.client_config())
        wanted = [
            NewTopic(topic, PARTITIONS[topic], self.replicas, config=dict(config))
            for topic, config in configs.items()
        ]
        for future in admin.create_topics(wanted).values():
            future.result(REQUEST_TIMEOUT_S)


@contextmanager
def logging_to(path: Path) -> Iterator[logging.Logger]:
    """A logger that writes to a file within the block. Lines begin with the time in seconds since
    1970, so that they can be compared with timestamps of records."""
    logger = logging.getLogger(f"{__name__}.clients")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(created).3f %(message)s"))
    logger.addHandler(handler)
    try:
        yield logger
    finally:
        logger.removeHandler(handler)
        handler.close()


def encode_value(value: Value, size: int = VALUE_SIZE) -> bytes:
    """The bytes of a number. It is repeated, so that any misplaced byte is detected."""
    text = b"%d " % value
    return (text * (size // len(text) + 1))[:size]


def decode_value(payload: bytes | None) -> Value:
    """The number in bytes of `encode_value`. UNREADABLE_VALUE for any other bytes."""
    try:
        value = int((payload or b"").split(b" ", 1)[0])
    except ValueError:
        return UNREADABLE_VALUE
    return value if payload == encode_value(value, len(payload or b"")) else UNREADABLE_VALUE
