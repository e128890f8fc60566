"""`isotherm remote migrate` as an operator uses it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.errors import (
    ConfigError,
    CorruptMetadataError,
    PolicyViolationError,
    UnknownTopicOrPartitionError,
)
from isotherm.record.batch import NewRecord, build_batch, read_batch_header
from isotherm.testing.embedded_broker import EmbeddedBroker

GOLDEN = Path(__file__).parents[2] / "golden" / "kafka" / "log"
LEVEL_0 = {
    "remote.log.metadata.compaction.initial.level": "0",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "50",
}
# The broker's own upkeep would take the segments of Kafka's topics, which it does not have, for
# leftovers.
NO_UPKEEP = {"log.initial.task.delay.ms": "600000"}


def migrate(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["remote", "migrate", *map(str, arguments)])


def rows(result: Result) -> list[dict[str, object]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def kafkas_topic(tmp_path: Path) -> Path:
    """The log directory of a stopped broker. Apache Kafka wrote its metadata topic."""
    with EmbeddedBroker(tmp_path, LEVEL_0 | NO_UPKEEP):
        pass
    log_dir = tmp_path / "log"
    for source in GOLDEN.glob("__remote_log_metadata-*"):
        for path in source.iterdir():
            if path.name != "partition.metadata":
                shutil.copyfile(path, log_dir / source.name / path.name)
    (log_dir / "recovery-point-offset-checkpoint").unlink()
    return log_dir


def files(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_check_of_a_directory_tells_what_would_happen_and_changes_nothing(
    kafkas_topic: Path,
) -> None:
    before = files(kafkas_topic)
    result = migrate("--check", "--log-dir", str(kafkas_topic), "--json")
    assert result.exit_code == 4
    *partitions, total = rows(result)
    assert [row["metadata_partition"] for row in partitions] == [2, 46, 49]
    assert (total["records"], total["without_key"]) == (22, 22)
    assert (total["live_segments"], total["states_to_write"]) == (5, 5)
    assert files(kafkas_topic) == before
    assert "run again with --run" in migrate("--check", "--log-dir", str(kafkas_topic)).stdout


def test_run_on_a_directory_migrates_and_a_check_finds_nothing_left(kafkas_topic: Path) -> None:
    assert migrate("--run", "--log-dir", str(kafkas_topic)).exit_code == 0
    checked = migrate("--check", "--log-dir", str(kafkas_topic), "--json")
    assert checked.exit_code == 0
    total = rows(checked)[-1]
    assert (total["records"], total["live_segments"], total["states_to_write"]) == (27, 5, 0)
    assert migrate("--run", "--log-dir", str(kafkas_topic)).exit_code == 0


def test_directory_of_kafka_is_looked_at_and_never_written_to() -> None:
    before = files(GOLDEN)
    checked = migrate("--check", "--log-dir", str(GOLDEN))
    assert checked.exit_code == 4
    assert "--run is refused" in checked.stdout
    assert isinstance(migrate("--run", "--log-dir", str(GOLDEN)).exception, PolicyViolationError)
    assert files(GOLDEN) == before


@pytest.mark.slow
def test_running_broker_is_migrated_and_waited_for(tmp_path: Path) -> None:
    with EmbeddedBroker(
        tmp_path, {**LEVEL_0, "remote.log.manager.task.interval.ms": "100"}
    ) as broker:
        server = broker.bootstrap_servers
        result = migrate("--run", "-b", server, "--audit-retention-ms", "1000", "--timeout-s", "30")
        assert result.exit_code == 0, result.exception
        assert "is at level 1" in result.stdout
        controller = broker.node.services.controller
        assert controller.image.features["remote.log.metadata.compaction"] == 1
        assert controller.topic_config("__remote_log_metadata").compacts
        texts = controller.topic_texts("__remote_log_metadata_audit")
        assert texts["retention.ms"] == "1000"
        assert migrate("--check", "-b", server).exit_code == 0


def test_damaged_record_is_named_and_may_be_passed_over(kafkas_topic: Path) -> None:
    (segment,) = (kafkas_topic / "__remote_log_metadata-2").glob("*.log")
    damaged(segment)
    result = migrate("--check", "--log-dir", str(kafkas_topic))
    assert isinstance(result.exception, CorruptMetadataError)
    assert "partition=2 offset=0" in str(result.exception)
    passed = migrate("--check", "--log-dir", str(kafkas_topic), "--skip-corrupt")
    assert passed.exit_code == 4
    assert "partition=2 offset=0" in passed.stderr


def damaged(segment: Path) -> None:
    """Give the first record a value without meaning, in a batch with a right CRC."""
    data = segment.read_bytes()
    header = read_batch_header(data, 0)
    batch = build_batch([NewRecord(0, None, b"\x01\x63\x00")] * header.records_count)
    segment.write_bytes(bytes(batch) + data[header.size_in_bytes :])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["-b", "localhost:1"], ConfigError),
        (["--check", "--run", "-b", "localhost:1"], ConfigError),
        (["--check"], ConfigError),
        (["--check", "-b", "localhost:1", "--log-dir", "x"], ConfigError),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    arguments: list[str], error: type[Exception]
) -> None:
    assert isinstance(migrate(*arguments).exception, error)


def test_broker_that_is_not_there_is_named() -> None:
    result = migrate("--check", "-b", "127.0.0.1:1")
    assert "127.0.0.1:1" in str(result.exception)


def test_directory_without_the_topic_is_named(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("node.id=1\n")
    result = migrate("--check", "--log-dir", str(tmp_path))
    assert isinstance(result.exception, UnknownTopicOrPartitionError)
