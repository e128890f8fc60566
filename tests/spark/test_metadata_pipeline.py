"""The commands of docs/pipeline on a broker and its metadata topic, and their results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.errors import ConfigError, PolicyViolationError
from isotherm.remote.metadata.folding.fold import fold_metadata_topic
from isotherm.remote.metadata.topic.kafka_topic import KafkaMetadataTopic
from isotherm.spark.jobs.project_topic import project_to_topic
from isotherm.spark.metadata.segment_frames import segment_row
from isotherm.testing.embedded_broker import EmbeddedBroker

METADATA = "__remote_log_metadata"
TIMEOUT_S = 300


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker with a topic of one partition in the remote tier."""
    few = {"rlmm.config.remote.log.metadata.topic.num.partitions": "4"}
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), few) as broker:
        _fill(broker)
        yield broker


def _fill(broker: EmbeddedBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    config = {"remote.storage.enable": "true", "segment.bytes": "1048576", "retention.ms": "-1"}
    for future in admin.create_topics([NewTopic("flights", 1, 1, config=config)]).values():
        future.result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.size": 65536})
    for number in range(3500):
        producer.produce("flights", bytes(1000), b"%d" % number, timestamp=1_700_000_000_000)
    assert producer.flush(TIMEOUT_S) == 0


def isotherm(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
    result = CliRunner().invoke(app, ["pipeline", *arguments, "--json"], catch_exceptions=False)
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()]


def known_to(broker: EmbeddedBroker) -> list[dict[str, Any]]:
    properties = {"bootstrap.servers": broker.bootstrap_servers}
    with closing(KafkaMetadataTopic(properties)) as topic:
        caches = fold_metadata_topic(topic, lambda _: True)
    return [segment_row(segment) for cache in caches.values() for segment in cache.segments()]


def test_jobs_follow_a_brokers_topic_and_the_source_reads_what_they_made(
    spark: SparkSession,
    tiered: EmbeddedBroker,
    await_manifests: Callable[[EmbeddedBroker, str, int], None],
    tmp_path: Path,
) -> None:
    await_manifests(tiered, "flights", 3)
    cluster = ("-b", tiered.bootstrap_servers)
    table = str(tmp_path / "metadata")
    code, rows = isotherm("replay", *cluster, "--of", "flights")
    assert code == 0
    assert [{name: row[name] for name in segment_row_names()} for row in rows] == [
        _as_json(row) for row in known_to(tiered)
    ]
    code, (done,) = isotherm("project", *cluster, "--to", table, "--to-topic", "states")
    assert (code, done["segments"], done["topic"]["states"]) == (0, 3, 3)
    code, (again,) = isotherm("project", *cluster, "--to", table, "--to-topic", "states")
    assert (again["records"], again["changed"], again["topic"]["states"]) == (0, 0, 0)
    for other in (["--against", table], ["--against-topic", "states"]):
        assert isotherm("verify", *cluster, *other) == (0, [])

    options = {"path": (tiered.directory / "bucket").as_uri(), "subscribe": "flights"}
    options["kafka.bootstrap.servers"] = tiered.bootstrap_servers
    for tail in ("true", "false"):
        by_topic, by_table = (
            spark.read.format("isotherm").options(**options, includeTail=tail, **metadata).load()
            for metadata in ({}, {"metadata": "table", "metadataTable": table})
        )
        assert by_table.count() == by_topic.count() > 0
        assert by_table.exceptAll(by_topic).count() == 0

    # At level 1 the audit topic has the history, and the metadata topic keyed states alone.
    assert isotherm("verify", *cluster, "--audit", "--against-topic", METADATA) == (0, [])
    log_dir = ("--log-dir", str(tiered.directory / "log"))
    assert isotherm("verify", *log_dir, "--against-keys") == (0, [])
    with pytest.raises(ConfigError, match="choose one of --against"):
        isotherm("verify", *cluster)
    with pytest.raises(PolicyViolationError, match="never written to"):
        project_to_topic(spark, {"bootstrap.servers": "nowhere:1"}, METADATA)


def segment_row_names() -> list[str]:
    from isotherm.spark.metadata.segment_frames import SEGMENT_ARROW

    return list(SEGMENT_ARROW.names)


def _as_json(row: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(row, default=str))
    return plain
