"""What the workers of one round share: topics, values, the history and the end of the round."""

from __future__ import annotations

import itertools
import random
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from isotherm.clock import Clock
from isotherm.testing.correctness.history import UNREADABLE_VALUE, History, Value
from isotherm.types import TopicPartition

EVENTS = "events"
COPIES = "copies"
PARTITIONS: Mapping[str, int] = {EVENTS: 4, COPIES: 2}

# Small segments that leave the local disk as soon as they are in the bucket.
TOPIC_CONFIG: Mapping[str, str] = {
    "remote.storage.enable": "true",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
    "internal.segment.bytes": "131072",
    "file.delete.delay.ms": "100",
    "max.message.bytes": "65536",
}
VALUE_SIZE = 800
BATCH_SIZE = 50_000
"""What producers put into a batch: within `max.message.bytes`."""
REFUSED_VALUE_SIZE = 70_000
"""More than `max.message.bytes`: the broker has to refuse it, and nobody may ever read it."""

REQUEST_TIMEOUT_S = 30

_API_VERSIONS_KEY = 18
JOIN_GROUP_KEY, ADD_PARTITIONS_TO_TXN_KEY, CONSUMER_GROUP_HEARTBEAT_KEY = 11, 24, 68


@dataclass(frozen=True, slots=True)
class Workload:
    """Handed to every worker; safe for any thread."""

    bootstrap_servers: str
    clock: Clock
    history: History = field(default_factory=History)
    stopping: threading.Event = field(default_factory=threading.Event)
    _values: Iterator[Value] = field(default_factory=lambda: itertools.count(1))

    def client_config(self, **settings: Any) -> dict[str, Any]:
        """librdkafka's settings for a client that meets a broker that comes and goes."""
        return {
            "bootstrap.servers": self.bootstrap_servers,
            # A broker that is away is what this is about; nobody wants to read of it.
            "log_level": 0,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            # By default librdkafka 2.16 forgets a cluster whose last broker goes away, except where
            # it keeps the group's coordinator: the next TxnOffsetCommit waits for a connection that
            # it never makes again, past any time limit. It does so with Apache Kafka as well.
            "metadata.recovery.strategy": "none",
            **{key.replace("_", "."): value for key, value in settings.items()},
        }

    def new_value(self) -> Value:
        return next(self._values)

    def partitions(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in range(PARTITIONS[topic])]

    def any_partition(self, topic: str, rng: random.Random) -> TopicPartition:
        return rng.choice(self.partitions(topic))

    def make_topics(self) -> None:
        admin = AdminClient(self.client_config())
        wanted = [
            NewTopic(topic, count, 1, config=dict(TOPIC_CONFIG))
            for topic, count in PARTITIONS.items()
        ]
        for future in admin.create_topics(wanted).values():
            future.result(REQUEST_TIMEOUT_S)


def encode_value(value: Value, size: int = VALUE_SIZE) -> bytes:
    """The number, again and again, so that any byte out of place shows."""
    text = b"%d " % value
    return (text * (size // len(text) + 1))[:size]


def decode_value(payload: bytes | None) -> Value:
    """UNREADABLE_VALUE for anything that `encode_value` does not make."""
    try:
        value = int((payload or b"").split(b" ", 1)[0])
    except ValueError:
        return UNREADABLE_VALUE
    return value if payload == encode_value(value, len(payload or b"")) else UNREADABLE_VALUE


def served_api_keys(bootstrap_servers: str) -> frozenset[int]:
    """What the broker names in its answer to ApiVersions, version 0."""
    host, port = bootstrap_servers.rsplit(":", 1)
    request = struct.pack(">hhih", _API_VERSIONS_KEY, 0, 1, -1)
    with socket.create_connection((host, int(port)), REQUEST_TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            answer = stream.read(size)
    _, error_code, count = struct.unpack_from(">ihi", answer)
    if error_code != 0:
        raise AssertionError(f"broker refuses ApiVersions error_code={error_code}")
    return frozenset(
        struct.unpack_from(">hhh", answer, 10 + 6 * index)[0] for index in range(count)
    )
