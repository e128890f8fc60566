"""sweep, scrub and rebuild on a topic that Apache Kafka tiered: its LocalTieredStorage, its own
metadata topic. Everything that Kafka wrote is sound, so any finding is an error of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from isotherm.cli.main import app
from oracle.tiered_topic import TieredTopic

pytestmark = pytest.mark.spark


def run(job: str, topic: TieredTopic, *arguments: str, exit_code: int) -> list[dict[str, Any]]:
    place = ["--path", str(topic.remote_dir), "--json"]
    result = CliRunner().invoke(app, ["pipeline", job, *place, *arguments])
    assert result.exit_code == exit_code, result.output + str(result.exception)
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_bucket_of_kafka_is_swept_and_scrubbed(
    spark: SparkSession, kafka_tiered_topic: TieredTopic
) -> None:
    topic = kafka_tiered_topic
    cluster = ("-b", topic.bootstrap_server)
    scrubbed = run("scrub", topic, *cluster, "-o", f"subscribe={topic.name}", exit_code=0)[-1]
    local_starts = topic.local_start_offsets
    assert scrubbed["scrubbed"]["segments"] >= len(local_starts)
    assert scrubbed["scrubbed"]["batches"] > 0

    logs = sorted(topic.remote_root.glob(f"{topic.name}-0-*/*.log"))
    content = logs[0].read_bytes()
    damaged = bytearray(content)
    damaged[200] ^= 1
    stray = logs[0].with_name("notes.txt")
    logs[0].write_bytes(damaged)
    stray.write_text("not of Kafka")
    try:
        rows = run("scrub", topic, *cluster, "-o", f"subscribe={topic.name}", exit_code=3)
        assert [row["kind"] for row in rows if "kind" in row] == ["wrong-crc"]
        rows = run("sweep", topic, *cluster, exit_code=3)
        assert [(row["kind"], Path(row["key"]).name) for row in rows if "kind" in row] == [
            ("foreign-object", "notes.txt")
        ]
    finally:
        logs[0].write_bytes(content)
        stray.unlink()
    # There are no manifests to rebuild from.
    run("rebuild", topic, exit_code=1)
