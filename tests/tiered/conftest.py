"""Actions and expectations for scenarios of both tiers, after Kafka's TieredStorageTestBuilder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from isotherm.log.partition_log import PartitionLog
from isotherm.testing.embedded_broker import EmbeddedBroker
from tests.support.bucket_scrub import metadata_values_below, objects_below, scrub
from tests.support.conditions import wait_until
from tests.support.recording_store import DELETE, FETCH, RecordingStore

TIMEOUT_S = 300
SETTINGS = {
    "remote.log.storage.manager.class.name": "tests.support.recording_store.RecordingStore",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "auto.create.topics.enable": "false",
}
BYTES_PER_BATCH = 12
"""The bytes of a time index entry. With an index interval of one byte each batch leaves one, so
that the index limits the batches of a segment. This holds for up to two: later batches of the same
millisecond leave no entry."""

Record = tuple[bytes, bytes]


class Tiers:
    """A broker and its clients."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self._settings = {**SETTINGS, **(settings or {})}
        self.start()

    def start(self) -> None:
        self.broker = EmbeddedBroker(self.directory, self._settings).start()
        self.store = RecordingStore.opened.get((self.directory / "bucket").absolute().as_uri())
        self.client = {"bootstrap.servers": self.broker.bootstrap_servers, "log_level": 0}
        self.admin = AdminClient(self.client)

    def stop(self) -> None:
        self.broker.stop()

    # -- actions

    def create_topic(
        self, topic: str, batches_per_segment: int = 1, *, partitions: int = 1, **config: str
    ) -> None:
        settings = {
            "remote.storage.enable": "true",
            "segment.index.bytes": str(BYTES_PER_BATCH * batches_per_segment),
            "index.interval.bytes": "1",
            "local.retention.bytes": "1",
            "retention.ms": "-1",
            "file.delete.delay.ms": "0",
            **{key.replace("_", "."): value for key, value in config.items()},
        }
        new = NewTopic(topic, partitions, 1, config=settings)
        self.admin.create_topics([new])[topic].result(TIMEOUT_S)

    def alter_topic(self, topic: str, **config: str) -> None:
        entries = [
            ConfigEntry(
                key.replace("_", "."),
                value,
                incremental_operation=AlterConfigOpType.SET,
            )
            for key, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)

    def delete_records(self, topic: str, offset: int, partition: int = 0) -> None:
        asked = TopicPartition(topic, partition, offset)
        self.admin.delete_records([asked])[asked].result(TIMEOUT_S)

    def expand(self, topic: str, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(TIMEOUT_S)

    def delete_topic(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(TIMEOUT_S)

    def produce(
        self, topic: str, *records: Record, partition: int = 0, timestamps: list[int] | None = None
    ) -> None:
        """Produce each record in a batch of its own."""
        producer = Producer({**self.client, "linger.ms": 0, "acks": "all"})
        for number, (key, value) in enumerate(records):
            options = {"timestamp": timestamps[number]} if timestamps else {}
            producer.produce(topic, value, key, partition, **options)
            assert producer.flush(TIMEOUT_S) == 0

    def consume(
        self, topic: str, count: int, offset: int = 0, partition: int = 0, **config: Any
    ) -> list[Record]:
        consumer = Consumer(
            {
                **self.client,
                "group.id": "scenario",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                **{key.replace("_", "."): value for key, value in config.items()},
            }
        )
        consumer.assign([TopicPartition(topic, partition, offset)])
        found: list[Record] = []
        try:
            while len(found) < count:
                message = consumer.poll(TIMEOUT_S)
                assert message is not None, f"got {found}"
                assert message.error() is None, message.error()
                found.append((message.key(), message.value()))
        finally:
            consumer.close()
        return found

    # -- what the broker holds

    def log(self, topic: str, partition: int = 0) -> PartitionLog:
        manager = self.broker.node.services.replica_manager
        return manager.find_partition(topic, None, partition).log

    def epochs(self, topic: str, partition: int = 0) -> list[tuple[int, int]]:
        return [tuple(entry) for entry in self.log(topic, partition).leader_epochs.entries]

    def remote_objects(self, topic: str) -> list[str]:
        bucket = self.directory / "bucket"
        # Unlike a glob, a walk does not mind that directories go meanwhile.
        return [
            name
            for path, _, names in os.walk(bucket)
            if str(Path(path).relative_to(bucket)).startswith(f"{topic}-")
            for name in names
        ]

    # -- expectations

    def expect(self, condition: Callable[[], object], what: str) -> None:
        wait_until(condition, what)

    def expect_earliest_local(self, topic: str, offset: int, partition: int = 0) -> None:
        wait_until(
            lambda: self.log(topic, partition).local_log_start_offset == offset,
            f"earliest local offset {offset}, is {self.log(topic, partition)}",
        )

    def expect_log_start(self, topic: str, offset: int, partition: int = 0) -> None:
        wait_until(
            lambda: self.log(topic, partition).log_start_offset == offset,
            f"log start offset {offset}, is {self.log(topic, partition)}",
        )

    def expect_remote_ends(self, topic: str, *ends: int, partition: int = 0) -> None:
        """Expect remote segments with these end offsets, in order."""

        def copied() -> tuple[int, ...]:
            return tuple(
                event.end_offset_inclusive
                for event in self.store.events("copy", topic)
                if event.partition.partition == partition
            )

        wait_until(lambda: copied() == ends, f"copies up to {ends}, are {copied()}")

    def expect_deletions(self, topic: str, count: int) -> None:
        wait_until(
            lambda: len(self.store.events(DELETE, topic)) >= count,
            f"{count} deletions, are {self.store.events(DELETE, topic)}",
        )
        assert len(self.store.events(DELETE, topic)) == count

    def expect_empty_remote(self, topic: str) -> None:
        wait_until(lambda: not self.remote_objects(topic), f"no objects of {topic}")

    def fetches(self, topic: str) -> int:
        return len(self.store.events(FETCH, topic))


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    started = Tiers(tmp_path / "broker")
    yield started
    started.stop()
    objects = objects_below(started.directory / "bucket")
    assert scrub(objects, metadata_values_below(started.directory / "log")) == []


@pytest.fixture
def open_tiers() -> Callable[..., Tiers]:
    """Opens brokers with their own settings; the caller must stop them."""
    return Tiers
