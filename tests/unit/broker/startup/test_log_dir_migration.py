"""Migration of a stopped broker's log directory to level 1.

A metadata topic written by Apache Kafka is put into an Isotherm broker's directory, migrated,
compacted by the broker's cleaner, and read again.
"""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from isotherm.broker.startup.log_dir_migration import migrate_log_dirs
from isotherm.clock import SystemClock
from isotherm.config.broker import BrokerConfig
from isotherm.errors import (
    CorruptLogError,
    LogDirFailedError,
    PolicyViolationError,
    UnknownTopicOrPartitionError,
)
from isotherm.log.fs import OsFileSystem
from isotherm.remote.metadata.folding.fold import fold_metadata_topic
from isotherm.remote.metadata.topic.log_dir_topic import LogDirMetadataTopic
from isotherm.remote.metadata.upkeep.migration import PartitionPlan
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.testing.embedded_broker import EmbeddedBroker

GOLDEN = Path(__file__).parents[3] / "golden" / "kafka" / "log"
LEVEL_0 = {
    "remote.log.metadata.compaction.initial.level": "0",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "50",
    "log.cleaner.backoff.ms": "100",
    # The broker's own upkeep must not run: it would take the segments of Kafka's topics, which this
    # cluster does not have, for leftovers.
    "log.initial.task.delay.ms": "600000",
}

Broker = Callable[[], EmbeddedBroker]


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return lambda: EmbeddedBroker(tmp_path, LEVEL_0)


@pytest.fixture
def kafkas_topic(broker: Broker, tmp_path: Path) -> Path:
    """The log directory of a stopped broker at level 0. Apache Kafka wrote its metadata topic."""
    with broker():
        pass
    log_dir = tmp_path / "log"
    for source in GOLDEN.glob("__remote_log_metadata-*"):
        for path in source.iterdir():
            if path.name != "partition.metadata":
                shutil.copyfile(path, log_dir / source.name / path.name)
    (log_dir / "recovery-point-offset-checkpoint").unlink()
    return log_dir


def migrate(config: BrokerConfig, audit_retention_ms: int | None = None) -> list[PartitionPlan]:
    return migrate_log_dirs(
        config,
        clock=SystemClock(),
        fs=OsFileSystem(),
        rng=random.Random(1),
        progress=lambda number, written, total: None,
        audit_retention_ms=audit_retention_ms,
    )


def segments(log_dir: Path) -> dict[str, list[RemoteLogSegmentMetadata]]:
    caches = fold_metadata_topic(LogDirMetadataTopic([log_dir]), lambda _: True)
    return {str(cache.partition): cache.segments() for cache in caches.values() if len(cache)}


def test_topic_of_kafka_is_migrated_and_tells_the_same(broker: Broker, kafkas_topic: Path) -> None:
    before = segments(kafkas_topic)
    assert sum(map(len, before.values())) == 5
    plans = migrate(broker().config)
    assert sum(plan.states_to_write for plan in plans) == 5
    assert sum(plan.counts.without_key for plan in plans) == 22
    assert segments(kafkas_topic) == before
    assert all(plan.is_migrated for plan in migrate(broker().config))
    with broker() as started:
        controller = started.node.services.controller
        assert controller.image.features["remote.log.metadata.compaction"] == 1
        assert controller.topic_texts("__remote_log_metadata")["cleanup.policy"] == "compact"
        assert "__remote_log_metadata_audit" in controller.image.topics_by_name


def test_audit_topic_keeps_events_as_long_as_the_operator_wants(
    broker: Broker, kafkas_topic: Path
) -> None:
    migrate(broker().config, audit_retention_ms=86_400_000)
    with broker() as started:
        texts = started.node.services.metadata.topic_texts("__remote_log_metadata_audit")
        assert texts["retention.ms"] == "86400000"


def test_directory_in_use_is_left_alone(broker: Broker, tmp_path: Path) -> None:
    with broker() as running, pytest.raises(LogDirFailedError, match=str(tmp_path)):
        migrate(running.config)


def test_directory_of_kafka_is_refused_and_stays_as_it_is(tmp_path: Path, broker: Broker) -> None:
    log_dir = tmp_path / "log"
    shutil.copytree(GOLDEN, log_dir)
    before = {path: path.read_bytes() for path in log_dir.rglob("*") if path.is_file()}
    with pytest.raises(PolicyViolationError, match="never written to"):
        migrate(broker().config)
    after = {path: path.read_bytes() for path in log_dir.rglob("*") if path.is_file()}
    assert after == before


def test_broker_without_the_topic_has_nothing_to_migrate(tmp_path: Path) -> None:
    plain = EmbeddedBroker(tmp_path, {"remote.log.storage.system.enable": "false"})
    with plain:
        pass
    with pytest.raises(UnknownTopicOrPartitionError, match="nothing to migrate"):
        migrate(plain.config)


def test_migrated_topic_holds_keyed_records_alone_once_it_is_cleaned(
    broker: Broker, kafkas_topic: Path
) -> None:
    before = segments(kafkas_topic)
    migrate(broker().config)
    with broker():
        clock, deadline_s = SystemClock(), SystemClock().monotonic_s() + 300
        while records_without_key(kafkas_topic) and clock.monotonic_s() < deadline_s:
            clock.wait(threading.Event(), 0.1)
    assert records_without_key(kafkas_topic) == 0
    assert segments(kafkas_topic) == before
    topic = LogDirMetadataTopic([kafkas_topic])
    assert sum(len(topic.read(number, 0, 1 << 20)) for number in range(50)) == 5


def records_without_key(log_dir: Path) -> int:
    topic = LogDirMetadataTopic([log_dir])
    try:
        return sum(
            record.key is None
            for number in range(topic.partition_count)
            for record in topic.read(number, topic.offsets(number)[0], 1 << 20)
        )
    except FileNotFoundError:
        return -1  # the cleaner is just replacing a segment
    except CorruptLogError as error:
        if "has become shorter since it was listed" not in str(error):
            raise
        return -1  # the cleaner has just replaced a segment
