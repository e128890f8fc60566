"""A broker with tiered history at level 0 is upgraded to level 1 while it serves (KIP-1266)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from isotherm.broker.metadata.features import FeatureUpdate, UpgradeType
from isotherm.broker.tier.embedded_remote_metadata_topic import EmbeddedRemoteMetadataTopic
from isotherm.clock import SystemClock
from isotherm.remote.metadata.api import MetadataTopicRecord
from isotherm.remote.metadata.folding.fold import fold_metadata_topic
from isotherm.remote.metadata.wire.events import iterate_records
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.testing.embedded_broker import EmbeddedBroker
from isotherm.types import REMOTE_LOG_METADATA_AUDIT_TOPIC, REMOTE_LOG_METADATA_TOPIC
from oracle.tools import FEATURES, run_tools, run_tools_to_status
from tests.support.conditions import wait_until

TIMEOUT_S = 300
FEATURE = "remote.log.metadata.compaction"
SETTINGS = {
    "remote.log.metadata.compaction.initial.level": "0",
    "log.cleaner.backoff.ms": "20",
    "log.cleaner.dedupe.buffer.size": str(8 * 1024 * 1024),
    "log.segment.delete.delay.ms": "0",
    # Lower than the dirty ratio of a topic with a few records.
    "rlmm.config.remote.log.metadata.topic.min.cleanable.dirty.ratio": "0.001",
}
TIERED = {
    "remote.storage.enable": "true",
    "internal.segment.bytes": "3000",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
}
NAME = "history"


class Tiered:
    """A broker with one tiered topic, and the values produced to it."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self.values: list[bytes] = []
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic(NAME, 1, 1, config=TIERED)])[NAME].result(TIMEOUT_S)

    def produce(self, count: int) -> None:
        """Produce `count` small batches, and wait until all but the last segment is in the
        bucket.
        """
        producer = Producer({"bootstrap.servers": self.broker.bootstrap_servers, "linger.ms": 0})
        for _ in range(count):
            self.values.append(b"%06d" % len(self.values) * 100)
            producer.produce(NAME, self.values[-1])
            assert producer.flush(TIMEOUT_S) == 0
        log = self.broker.node.services.replica_manager.find_partition(NAME, None, 0).log
        wait_until(lambda: len(log.segments()) == 1)

    def consume(self) -> list[bytes | None]:
        consumer = Consumer(
            {"bootstrap.servers": self.broker.bootstrap_servers, "group.id": "none"}
        )
        consumer.assign([TopicPartition(NAME, 0, 0)])
        found: list[bytes | None] = []
        while len(found) < len(self.values):
            # The consumer waits for this many records, or for its timeout.
            messages = consumer.consume(len(self.values) - len(found), TIMEOUT_S)
            assert messages
            found += [message.value() for message in messages]
        consumer.close()
        return found

    def topic(self, name: str = REMOTE_LOG_METADATA_TOPIC) -> EmbeddedRemoteMetadataTopic:
        services = self.broker.node.services
        return EmbeddedRemoteMetadataTopic(services.replica_manager, SystemClock(), 3, name)

    def records(self, name: str = REMOTE_LOG_METADATA_TOPIC) -> list[MetadataTopicRecord]:
        topic = self.topic(name)
        return [record for number in range(3) for record in iterate_records(topic, number)]

    def segments(self) -> list[RemoteLogSegmentMetadata]:
        (cache,) = fold_metadata_topic(self.topic(), lambda _: True).values()
        return cache.segments()

    def policy(self) -> str | None:
        return self.broker.node.services.metadata.topic_texts(REMOTE_LOG_METADATA_TOPIC).get(
            "cleanup.policy"
        )


@pytest.fixture
def tiered(start_broker: Callable[..., EmbeddedBroker]) -> Iterator[Tiered]:
    started = Tiered(start_broker(SETTINGS))
    started.produce(30)
    return started


def test_upgrade_while_serving_leaves_keyed_records_of_the_same_segments(
    tiered: Tiered, start_broker: Callable[..., EmbeddedBroker]
) -> None:
    before = tiered.segments()
    assert len(before) >= 4
    assert tiered.policy() == "delete"
    assert {record.key for record in tiered.records()} == {None}

    services = tiered.broker.node.services
    update = FeatureUpdate(FEATURE, 1, UpgradeType.UPGRADE)
    services.control_executor.submit(lambda: services.controller.update_features([update])).result(
        TIMEOUT_S
    )
    tiered.produce(20)
    wait_until(lambda: tiered.policy() == "compact")
    after = tiered.segments()
    assert [segment.segment_id for segment in after[: len(before)]] == [
        segment.segment_id for segment in before
    ]
    tiered.produce(10)
    audited = tiered.records(REMOTE_LOG_METADATA_AUDIT_TOPIC)
    assert audited
    assert all(record.key is not None for record in audited)

    last = tiered.segments()
    for number in range(3):
        partition = services.replica_manager.find_partition(REMOTE_LOG_METADATA_TOPIC, None, number)
        partition.log.roll()
    wait_until(lambda: all(record.key is not None for record in tiered.records()))
    assert tiered.segments() == last

    tiered.broker.stop()
    tiered.broker = start_broker(SETTINGS)
    assert tiered.segments() == last
    assert tiered.consume() == tiered.values


@pytest.mark.oracle
def test_kafkas_features_tool_upgrades_and_cannot_downgrade(
    tiered: Tiered, kafka_tools: Path
) -> None:
    server = f"--bootstrap-server={tiered.broker.bootstrap_servers}"
    before, _, after = run_tools(
        [FEATURES, server, "describe"],
        [FEATURES, server, "upgrade", f"--feature={FEATURE}=1"],
        [FEATURES, server, "describe"],
    )
    assert FEATURE in before
    (line,) = (each for each in after.splitlines() if FEATURE in each)
    assert "SupportedMaxVersion: 1" in line
    assert "FinalizedVersionLevel: 1" in line
    wait_until(lambda: tiered.policy() == "compact")
    ((status, printed),) = run_tools_to_status(
        [FEATURES, server, "downgrade", f"--feature={FEATURE}=0"]
    )
    assert status != 0
    assert "never lowered" in printed
