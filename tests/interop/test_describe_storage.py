"""`isotherm topics describe-storage` against a broker. The oracles are the files on its disk and in
its bucket."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.cli.output import human_size
from isotherm.errors import UnknownTopicOrPartitionError
from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker

TIMEOUT_S = 300
TOPIC = "events"


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """The history of `kept` is in both tiers, and that of TOPIC in the bucket alone.

    `plain` is not tiered.
    """
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        both = {**TIERED_TOPIC, "local.retention.bytes": "-2"}
        topics = [
            NewTopic(TOPIC, 2, 1, config=TIERED_TOPIC),
            NewTopic("kept", 1, 1, config=both),
            NewTopic("plain", 1, 1),
        ]
        for future in admin.create_topics(topics).values():
            future.result()
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.size": 20_000})
        for number in range(5000):
            producer.produce(TOPIC, os.urandom(1000), partition=number % 2)
            producer.produce("kept", os.urandom(1000), partition=0)
            if number % 20 == 0:
                producer.flush()
        producer.flush()
        wait_for_rest(broker)
        yield broker


def wait_for_rest(broker: EmbeddedBroker) -> None:
    """Wait until all closed segments are copied, and those of TOPIC are gone from the disk."""
    pause = threading.Event()
    for _ in range(TIMEOUT_S * 20):
        copied = len(bucket_logs(broker, "kept")) == len(local_logs(broker, "kept")) - 1 > 0
        if copied and all(len(local_logs(broker, TOPIC, p)) == 1 for p in (0, 1)):
            return
        pause.wait(0.05)
    raise AssertionError("the segments were not tiered")


def local_logs(broker: EmbeddedBroker, topic: str, partition: int = 0) -> list[Path]:
    return list((broker.directory / "log" / f"{topic}-{partition}").glob("*.log*"))


def bucket_logs(broker: EmbeddedBroker, topic: str) -> list[Path]:
    found = (broker.directory / "bucket").rglob("*.rsm-manifest")
    return [each.with_suffix(".log") for each in found if topic in str(each)]


def size_of(paths: list[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def run(broker: EmbeddedBroker, *arguments: str) -> Result:
    command = ["topics", "describe-storage", *arguments, "-b", broker.bootstrap_servers]
    return CliRunner().invoke(app, command)


def rows_of(broker: EmbeddedBroker, *arguments: str) -> list[dict[str, Any]]:
    result = run(broker, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_sizes_are_those_of_the_files(tiered: EmbeddedBroker) -> None:
    *partitions, total = rows_of(tiered, TOPIC, "--price", "1")
    for row in partitions:
        logs = local_logs(tiered, TOPIC, row["partition"])
        assert row["local_bytes"] == size_of(logs)
        assert row["local_log_start_offset"] == int(logs[0].name[:20])
        assert row["last_tiered_offset"] == row["local_log_start_offset"] - 1
        # All that is local is the active segment, for which no copy is due.
        assert row["high_watermark"] > row["local_log_start_offset"]
        assert (row["copy_lag_bytes"], row["copy_lag_offsets"], row["copy_lag_s"]) == (0, 0, 0)
        assert row["overlap_bytes"] == row["missing_offsets"] == row["deletion_lag_segments"] == 0
    remote = bucket_logs(tiered, TOPIC)
    assert total["partition"] is None
    assert total["remote_segments"] == len(remote)
    assert total["remote_bytes"] == size_of(remote)
    assert total["total_bytes"] == total["remote_bytes"] + total["local_bytes"]
    assert total["cost_per_month"] == pytest.approx(size_of(remote) / 1024**3, abs=1e-6)


def test_bytes_of_both_tiers_are_counted_once(tiered: EmbeddedBroker) -> None:
    *_, total = rows_of(tiered, "kept")
    on_disk, in_bucket = size_of(local_logs(tiered, "kept")), size_of(bucket_logs(tiered, "kept"))
    assert total["overlap_bytes"] == total["remote_bytes"] == in_bucket
    assert total["total_bytes"] == total["local_bytes"] == on_disk


def test_bucket_says_the_same_as_the_metadata_topic(tiered: EmbeddedBroker) -> None:
    by_bucket = rows_of(tiered, TOPIC, "--path", str(tiered.directory / "bucket"))
    moving = {"copy_lag_s"}
    for one, other in zip(by_bucket, rows_of(tiered, TOPIC), strict=True):
        assert {k: one[k] for k in one if k not in moving} == {
            k: other[k] for k in other if k not in moving
        }


def test_tables_name_sizes_and_lags(tiered: EmbeddedBroker) -> None:
    text = run(tiered, TOPIC).stdout
    assert all(word in text for word in ("local log start", "overlap", "copy lag", "all"))
    assert "the topic is not tiered" in run(tiered, "plain").stdout


def test_top_prints_the_cluster_once(tiered: EmbeddedBroker) -> None:
    result = CliRunner().invoke(app, ["top", "--once", "-b", tiered.bootstrap_servers])
    assert result.exit_code == 0, result.output
    rows = {line.split()[0]: line for line in result.stdout.splitlines() if line.strip()}
    assert human_size(size_of(bucket_logs(tiered, TOPIC))) in rows[TOPIC]
    assert "not tiered" in rows["plain"]


def test_metrics_that_do_not_answer_are_named_beside_the_json(tiered: EmbeddedBroker) -> None:
    gone = "http://127.0.0.1:1/metrics"
    result = run(tiered, TOPIC, "--json", "--metrics", gone)
    assert result.exit_code == 0
    assert [json.loads(line)["partition"] for line in result.stdout.splitlines()] == [0, 1, None]
    assert result.stderr.startswith(f"no metrics from {gone}: ")


def test_unknown_topic_and_price_are_refused(tiered: EmbeddedBroker) -> None:
    unknown = run(tiered, "event").exception
    assert isinstance(unknown, UnknownTopicOrPartitionError)
    assert f"nearest={TOPIC}" in str(unknown)
    assert "s3-standard" in str(run(tiered, TOPIC, "--price", "cheap").exception)
