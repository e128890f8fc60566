"""`isotherm topics describe-storage` on a topic that Apache Kafka tiered. The oracles are the files
of both tiers, and Kafka's own offset tool."""

from __future__ import annotations

import json
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.clock import SystemClock
from isotherm.storage_view.cluster_storage import StorageReader
from isotherm.storage_view.group_lag import ReadsFrom, group_lags
from oracle.kafka import KafkaOracle, run_tool
from oracle.tiered_topic import TieredTopic


def kafkas_offsets(topic: TieredTopic, time: str) -> dict[int, int]:
    tool = run_tool(
        "org.apache.kafka.tools.GetOffsetShell",
        *("--bootstrap-server", topic.bootstrap_server, "--topic", topic.name, "--time", time),
    )
    lines = [line.split(":") for line in tool.splitlines() if line.startswith(topic.name)]
    return {int(partition): int(offset) for _, partition, offset in lines}


def test_groups_are_kafkas(kafka_tiered_topic: TieredTopic) -> None:
    properties = {"bootstrap.servers": kafka_tiered_topic.bootstrap_server}
    place = TopicPartition(kafka_tiered_topic.name, 1, 7)
    consumer = Consumer({**properties, "group.id": "storage-view"})
    consumer.commit(offsets=[place], asynchronous=False)
    consumer.close()
    with StorageReader(properties, SystemClock()) as reader:
        storage = reader.read()
        (group,) = (g for g in reader.read_groups(storage.brokers) if g.group_id == "storage-view")
    assert (group.state, group.kind, group.error) == ("Empty", "classic", None)
    (found,) = group_lags(group, storage.topics, storage.read_at_ms)
    assert (found.place, found.committed_offset) == ((place.topic, place.partition), 7)
    assert found.reads_from is ReadsFrom.REMOTE
    start = kafka_tiered_topic.local_start_offsets[place.partition]
    assert found.remote_lag == start - 7


def size_of(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern))


def test_both_tiers_are_kafkas(kafka: KafkaOracle, kafka_tiered_topic: TieredTopic) -> None:
    topic = kafka_tiered_topic
    command = ["topics", "describe-storage", topic.name, "--json", "-b", topic.bootstrap_server]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    *rows, total = map(json.loads, result.stdout.splitlines())
    for column, time in {
        "local_log_start_offset": "earliest-local",
        "last_tiered_offset": "latest-tiered",
    }.items():
        assert {row["partition"]: row[column] for row in rows} == kafkas_offsets(topic, time), (
            column
        )
    for row in rows:
        place = f"{topic.name}-{row['partition']}"
        assert row["local_bytes"] == size_of(kafka.log_dir / place, "*.log")
    assert total["remote_bytes"] == size_of(topic.remote_root, f"{topic.name}-*/*.log")
    assert total["total_bytes"] == total["local_bytes"] + total["remote_bytes"]
    assert total["missing_offsets"] == 0
