"""A topic that was compacted and is tiered since, on Isotherm and on Apache Kafka.

Both clean the same keys, of which some segments keep no record, and tier the topic. Then a consumer
at any offset gets the same records from both, and both have the same offsets and local segments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from isotherm.testing.broker_process import BrokerProcess
from oracle.kafka import EAGER_SETTINGS, running_kafka
from oracle.topics import create_topic, wait_until

# The unit tests have these values: tests/unit/remote/compaction/test_compacted_history.py.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

TOPIC = "compacted-first"
KEYS = ["a", "b", "b", "c", "c", "d", "d", "e", "e", "a", "z"]
LEFT = [2, 4, 6, 8, 9, 10]
"""The offsets of the newest records of their keys, and the active segment."""
WAIT_S = 300
SETTINGS = {
    **EAGER_SETTINGS,
    "offsets.topic.num.partitions": "1",
    "log.cleaner.enable": "true",
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.dedupe.buffer.size": "20971520",
}


@dataclass(frozen=True)
class Seen:
    """What clients and the disk show of the tiered topic. `read_from` has what a consumer gets, by
    its start."""

    watermarks: tuple[int, int]
    local_segments: list[int]
    read_from: dict[int, list[int]]


@pytest.fixture(params=["kafka", "isotherm"])
def broker(
    request: pytest.FixtureRequest, kafka_tools: Path, tmp_path: Path
) -> Iterator[tuple[str, Path]]:
    """The address and the log directory of a broker with a cleaner and a remote tier."""
    if request.param == "kafka":
        with running_kafka(tmp_path / "kafka", SETTINGS) as kafka:
            yield kafka.bootstrap_server, kafka.log_dir
        return
    isotherm = BrokerProcess(tmp_path / "isotherm", SETTINGS)
    try:
        yield isotherm.bootstrap_servers, tmp_path / "isotherm" / "log"
    finally:
        isotherm.kill()


def test_tiered_topic_is_read_across_what_the_cleaner_removed(broker: tuple[str, Path]) -> None:
    assert tiered_after_compaction(*broker) == Seen(
        (0, len(KEYS)),
        [len(KEYS) - 1],
        {start: [each for each in LEFT if each >= start] for start in range(len(KEYS))},
    )


def tiered_after_compaction(address: str, log_dir: Path) -> Seen:
    config = {
        "cleanup.policy": "compact",
        "internal.segment.bytes": "500",
        "min.cleanable.dirty.ratio": "0",
        "index.interval.bytes": "1",
        "local.retention.bytes": "1",
        "retention.ms": "-1",
        "file.delete.delay.ms": "100",
    }
    create_topic(address, TOPIC, 1, config)
    # A segment for each record: no two fit into one, before the cleaning or after.
    producer = Producer({"bootstrap.servers": address})
    for key in KEYS:
        producer.produce(TOPIC, b"v" * 200, key)
        producer.flush()
    wait_until(lambda: offsets_from(address, 0) == LEFT, "the cleaning", timeout_s=WAIT_S)
    alter(address, "cleanup.policy", "delete")
    alter(address, "remote.storage.enable", "true")
    folder, last = log_dir / f"{TOPIC}-0", [len(KEYS) - 1]
    wait_until(lambda: local_segments(folder) == last, "the tiering", timeout_s=WAIT_S)
    consumer = consumer_at(address, 0)
    try:
        watermarks = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), WAIT_S)
    finally:
        consumer.close()
    starts = range(len(KEYS))
    return Seen(
        watermarks,
        local_segments(folder),
        {start: offsets_from(address, start) for start in starts},
    )


def alter(address: str, name: str, value: str) -> None:
    resource = ConfigResource(
        ConfigResource.Type.TOPIC,
        TOPIC,
        incremental_configs=[ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)],
    )
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(WAIT_S)


def local_segments(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.log"))


def consumer_at(address: str, offset: int) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, offset)])
    return consumer


def offsets_from(address: str, offset: int) -> list[int]:
    """The offsets up to the end of the partition."""
    consumer, found = consumer_at(address, offset), list[int]()
    try:
        while (message := consumer.poll(WAIT_S)) is not None:
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            found.append(message.offset())
    finally:
        consumer.close()
    raise AssertionError(f"no message in {WAIT_S} s after offsets={found}")
