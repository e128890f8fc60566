"""A broker that lost its log directory serves its history again, rebuilt from the bucket."""

from __future__ import annotations

import json
import random
import shutil
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from isotherm.broker.startup.log_dir_rebuild import rebuild_log_dirs
from isotherm.broker.startup.rebuilt_partitions import RebuiltPartition
from isotherm.cli.main import app
from isotherm.clock import SystemClock
from isotherm.errors import PolicyViolationError, TopicAlreadyExistsError
from isotherm.log.fs import OsFileSystem
from isotherm.remote.metadata.folding.fold import fold_metadata_topic
from isotherm.remote.metadata.topic.kafka_topic import KafkaMetadataTopic
from isotherm.segment.leader_epoch_checkpoint import EpochEntry
from isotherm.spark.jobs.rebuild import write_to_topic
from isotherm.testing.embedded_broker import EmbeddedBroker
from isotherm.types import REMOTE_LOG_METADATA_TOPIC as METADATA
from isotherm.types import TopicIdPartition

TOPIC = "flights"
TIMEOUT_S = 300


def fill(broker: EmbeddedBroker) -> None:
    """Two partitions; every third transaction is aborted."""
    servers = {"bootstrap.servers": broker.bootstrap_servers}
    config = {
        "remote.storage.enable": "true",
        "segment.bytes": "1048576",
        "local.retention.bytes": "1",
        "retention.ms": "-1",
    }
    admin = AdminClient(servers)
    for future in admin.create_topics([NewTopic(TOPIC, 2, 1, config=config)]).values():
        future.result(TIMEOUT_S)
    producer = Producer(
        {
            **servers,
            "transactional.id": "filler",
            "transaction.timeout.ms": 900_000,
            "batch.size": 16384,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    for transaction in range(12):
        producer.begin_transaction()
        for number in range(400):
            value = b"%d-%d" % (transaction, number) + bytes(900)
            producer.produce(TOPIC, value, b"%d" % number, partition=number % 2)
        if transaction % 3 == 2:
            producer.flush(TIMEOUT_S)
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)


def consume(
    broker: EmbeddedBroker, partition: int, isolation: str = "read_committed"
) -> dict[int, bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )
    consumer.assign([TopicPartition(TOPIC, partition, 0)])
    records: dict[int, bytes] = {}
    while (message := consumer.poll(TIMEOUT_S)) is not None and message.error() is None:
        offset, value = message.offset(), message.value()
        assert offset is not None
        assert value is not None
        records[offset] = value
    assert message is not None, "the end is not met in time"
    consumer.close()
    return records


def run(*arguments: str, exit_code: int = 0) -> list[dict[str, Any]]:
    result = CliRunner().invoke(app, ["pipeline", *arguments, "--json"])
    assert result.exit_code == exit_code, result.output + str(result.exception)
    return [json.loads(line) for line in result.stdout.splitlines()]


def segments_listed_by(broker: EmbeddedBroker, topic: str) -> set[tuple[Any, ...]]:
    properties = {"bootstrap.servers": broker.bootstrap_servers}
    with closing(KafkaMetadataTopic(properties, topic=topic)) as metadata:
        caches = fold_metadata_topic(metadata, lambda _: True)
    return {
        (segment.segment_id, segment.state, segment.start_offset, segment.end_offset_inclusive)
        for cache in caches.values()
        for segment in cache.segments()
    }


def check_events_in_a_topic(broker: EmbeddedBroker, bucket: str) -> None:
    """Rebuild into a user's topic: it has the cluster's segments.

    The cluster's own topic is never written to.
    """
    cluster = ("-b", broker.bootstrap_servers, "--metadata-partitions", "3")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic("rebuilt", 3, 1)])["rebuilt"].result(TIMEOUT_S)
    rows = run("rebuild", "--path", bucket, *cluster, "--to-topic", "rebuilt", "--run")
    costs = [row["cost"] for row in rows if "cost" in row]
    found = next(row["found"] for row in rows if "found" in row)
    # A manifest for each segment, and two objects for the producer state of each partition.
    assert [cost["gets"] for cost in costs] == [0, found["segments"] + 2 * found["partitions"]]
    assert costs[1]["bytes"] > 0
    listed = segments_listed_by(broker, "rebuilt")
    assert len(listed) == found["segments"]
    assert listed <= segments_listed_by(broker, METADATA)
    with pytest.raises(PolicyViolationError, match="never written to"):
        write_to_topic(
            SparkSession.getActiveSession().range(1),
            {"bootstrap.servers": broker.bootstrap_servers},
            METADATA,
        )


def test_history_is_served_after_the_log_directory_is_lost(
    spark: SparkSession,
    start_broker: Callable[..., EmbeddedBroker],
    await_manifests: Callable[[EmbeddedBroker, str, int], None],
    tmp_path: Path,
) -> None:
    broker = start_broker()
    fill(broker)
    await_manifests(broker, TOPIC, 4)
    before = {
        isolation: {partition: consume(broker, partition, isolation) for partition in range(2)}
        for isolation in ("read_uncommitted", "read_committed")
    }
    bucket, log_dir = str(broker.directory / "bucket"), broker.directory / "log"
    check_events_in_a_topic(broker, bucket)
    broker.stop()
    shutil.rmtree(log_dir)

    properties = tmp_path / "server.properties"
    properties.write_text(
        f"log.dirs={log_dir}\nrlmm.config.remote.log.metadata.topic.num.partitions=3\n"
    )
    rows = run("rebuild", "--path", bucket, "--config", str(properties), "--run")
    ends = {row["partition"]: row["log_end"] for row in rows if "log_end" in row}
    stable_ends = {row["partition"]: row["stable_end"] for row in rows if "log_end" in row}
    assert all(end > 1000 for end in stable_ends.values())
    segments = next(row["found"]["segments"] for row in rows if "found" in row)
    assert rows[-1] == {"written": 2 * segments}

    config = broker.config
    owner = TopicIdPartition(uuid.UUID(int=1), TOPIC, 0)
    again = RebuiltPartition(owner, 0, 1, [EpochEntry(0, 0)], None)
    with pytest.raises(TopicAlreadyExistsError):
        rebuild_log_dirs(
            config, [again], [], clock=SystemClock(), fs=OsFileSystem(), rng=random.Random(0)
        )

    broker.start()
    # Records of a transaction with an end that was not tiered are there, and aborted.
    borders = {"read_uncommitted": ends, "read_committed": stable_ends}
    for isolation, served in before.items():
        for partition, border in borders[isolation].items():
            tiered = {offset: v for offset, v in served[partition].items() if offset < border}
            assert consume(broker, partition, isolation) == tiered
    # New records continue the log after its history, and the old producer's state is known.
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": "filler",
            "transaction.timeout.ms": 900_000,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(TOPIC, b"after", partition=0)
    producer.commit_transaction(TIMEOUT_S)
    offset, value = max(consume(broker, 0).items())
    assert (offset >= ends[0], value) == (True, b"after")
