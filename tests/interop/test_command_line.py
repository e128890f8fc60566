"""The commands of the client side against a broker, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from confluent_kafka import Consumer, Producer, TopicPartition
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.errors import IsothermError, NotLeaderOrFollowerError
from isotherm.testing.embedded_broker import EmbeddedBroker

_TIMES_MS = [1_767_225_600_000 + hour * 3_600_000 for hour in range(6)]  # from 2026-01-01T00:00Z


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> EmbeddedBroker:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as running:
        invoke(running, "topics", "create", "events", "--partitions", "2",
               "--config", "retention.ms=-1")  # fmt: skip
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        for number, time_ms in enumerate(_TIMES_MS):
            producer.produce("events", f"v{number}", partition=number % 2, timestamp=time_ms)
        producer.flush()
        yield running


def run(broker: EmbeddedBroker, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "-b", broker.bootstrap_servers])


def invoke(broker: EmbeddedBroker, *arguments: str) -> list[dict[str, Any]]:
    result = run(broker, *arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("at", [str(_TIMES_MS[3]), "2026-01-01T03:00", "2026-01-01T04:00+01:00"])
def test_records_are_consumed_from_a_time_on(broker: EmbeddedBroker, at: str) -> None:
    rows = invoke(broker, "consume", "events", "-o", f"@{at}", "--json")
    assert sorted(row["value"] for row in rows) == ["v3", "v4", "v5"]


def test_time_after_the_last_record_is_the_end(broker: EmbeddedBroker) -> None:
    assert invoke(broker, "consume", "events", "-o", "@2027-01-01", "--json") == []


@pytest.mark.parametrize("offset", ["@noon", "half"])
def test_offset_that_is_none_is_refused(broker: EmbeddedBroker, offset: str) -> None:
    assert run(broker, "consume", "events", "-o", offset).exit_code == 2


def test_topic_is_altered(broker: EmbeddedBroker) -> None:
    invoke(broker, "topics", "create", "grows", "--partitions", "1",
           "--config", "retention.ms=5000", "--config", "segment.ms=7000")  # fmt: skip
    invoke(broker, "topics", "alter", "grows", "--partitions", "3",
           "--config", "retention.ms=6000", "--delete-config", "segment.ms")  # fmt: skip
    shown = run(broker, "topics", "describe", "grows").stdout
    assert "retention.ms=6000" in shown
    assert "segment.ms" not in shown
    assert len(invoke(broker, "topics", "describe", "grows", "--json")) == 3


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("missing", "--config", "retention.ms=1"), IsothermError),
        (("events", "--partitions", "1"), IsothermError),
        (("events",), SystemExit),
    ],
)
def test_alteration_that_cannot_be_is_refused(
    broker: EmbeddedBroker, arguments: tuple[str, ...], kind: type[BaseException]
) -> None:
    result = run(broker, "topics", "alter", *arguments)
    assert result.exit_code != 0
    assert isinstance(result.exception, kind)


def test_groups_are_listed_with_their_lag(broker: EmbeddedBroker) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition("events", 0, 1)], asynchronous=False)
    consumer.close()
    (listed,) = invoke(broker, "groups", "list", "--json")
    assert listed == {"group": "readers", "state": "empty", "type": "classic"}
    (row,) = invoke(broker, "groups", "describe", "readers", "--json")
    assert (row["topic"], row["partition"], row["committed_offset"]) == ("events", 0, 1)
    assert (row["end_offset"], row["lag"], row["client_id"]) == (3, 2, None)


def test_group_that_does_not_exist_is_an_error(broker: EmbeddedBroker, tmp_path: Path) -> None:
    assert isinstance(run(broker, "groups", "describe", "nobody").exception, IsothermError)


def test_partition_that_is_offline_is_an_error_and_not_a_wait(tmp_path: Path) -> None:
    """It has no leader to ask for its end. The other partition is read."""
    with EmbeddedBroker(tmp_path) as broker:
        invoke(broker, "topics", "create", "half", "--partitions", "2")
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for partition in range(2):
            producer.produce("half", f"of {partition}", partition=partition)
        producer.flush()
    (log,) = (tmp_path / "log" / "half-1").glob("*.log")
    log.write_bytes(bytes(log.stat().st_size))
    with EmbeddedBroker(tmp_path) as broker:
        for command in ("consume", "topics describe"):
            refused = run(broker, *command.split(), "half")
            assert isinstance(refused.exception, NotLeaderOrFollowerError), refused.output
            assert "no broker leads them topic=half partitions=[1]" in str(refused.exception)
        (row,) = invoke(broker, "consume", "half", "--partition", "0", "--json")
    assert row["value"] == "of 0"
