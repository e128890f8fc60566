"""Create topics on a broker, and wait for work in the background."""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

WAIT_TIMEOUT_S = 300
# Kafka's smallest segment.bytes.
SEGMENT_BYTES_MIN = 1048576


def delete_topic(bootstrap_server: str, name: str) -> None:
    """Delete a topic and wait for the broker's answer."""
    admin = AdminClient({"bootstrap.servers": bootstrap_server, "log_level": 2})
    for future in admin.delete_topics([name]).values():
        future.result(300)


def create_topic(bootstrap_server: str, name: str, partitions: int, config: dict[str, str]) -> None:
    """Create a topic and wait until the broker leads every partition of it."""
    admin = AdminClient({"bootstrap.servers": bootstrap_server, "log_level": 2})
    topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
    for future in admin.create_topics([topic]).values():
        future.result(300)
    wait_until(lambda: has_leaders(admin, name, partitions), f"leaders of topic={name}")


def has_leaders(admin: AdminClient, topic: str, partitions: int) -> bool:
    """Whether the leader of each partition answers."""
    metadata = admin.list_topics(topic, timeout=300).topics[topic].partitions
    if len(metadata) != partitions or any(p.leader < 0 for p in metadata.values()):
        return False
    request = {TopicPartition(topic, p): OffsetSpec.latest() for p in range(partitions)}  # type: ignore[no-untyped-call]
    return all(f.exception(300) is None for f in admin.list_offsets(request).values())


def wait_until(
    condition: Callable[[], bool], subject: str, timeout_s: float = WAIT_TIMEOUT_S
) -> None:
    """Poll a condition; TimeoutError names the subject."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited in vain: timeout_s={timeout_s} for {subject}")
        time.sleep(0.1)
