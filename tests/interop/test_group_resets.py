"""`isotherm groups reset-offsets` and `delete` do what Kafka's kafka-consumer-groups does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from isotherm.cli.group_resets import committed_offsets
from isotherm.cli.main import app
from isotherm.errors import ConfigError, RejectedError
from isotherm.testing.embedded_broker import EmbeddedBroker
from oracle.tools import CONSUMER_GROUPS, run_tools
from tests.support.conditions import wait_until

pytestmark = pytest.mark.oracle

START_MS = 1_700_000_000_000  # 2023-11-14T22:13:20Z
BEGIN = {0: 3, 1: 5}
RESETS = [
    ["--topic", "flights", "--to-earliest"],
    ["--topic", "flights:1", "--to-latest"],
    ["--topic", "flights", "--to-offset", "7"],
    ["--topic", "flights:0", "--to-offset", "999"],
    ["--all-topics", "--to-datetime", "2023-11-14T22:13:24.000"],
    ["--all-topics", "--to-datetime", "2033-01-01T00:00:00.000"],
    ["--all-topics", "--by-duration", "P1D"],
    ["--topic", "flights", "--shift-by", "2"],
    ["--topic", "flights:0,1", "--shift-by", "-4"],
]


@pytest.fixture(scope="module")
def broker(kafka_tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), settings) as started:
        admin = AdminClient({"bootstrap.servers": started.bootstrap_servers})
        topic = NewTopic("flights", 2, config={"retention.ms": "-1"})
        admin.create_topics([topic])["flights"].result()
        producer = Producer({"bootstrap.servers": started.bootstrap_servers})
        for index in range(20):
            time_ms = START_MS + index * 1000
            producer.produce("flights", b"%d" % index, partition=index % 2, timestamp=time_ms)
        assert producer.flush() == 0
        yield started


def group_at_begin(broker: EmbeddedBroker, group: str) -> None:
    properties = {"bootstrap.servers": broker.bootstrap_servers, "group.id": group}
    with closing(Consumer(properties)) as consumer:
        offsets = [TopicPartition("flights", number, at) for number, at in BEGIN.items()]
        consumer.commit(offsets=offsets, asynchronous=False)


def groups(broker: EmbeddedBroker, *arguments: str) -> str:
    command = ["groups", *arguments, "-b", broker.bootstrap_servers]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def offsets_of(broker: EmbeddedBroker, group: str) -> dict[tuple[str, int], int]:
    return committed_offsets(AdminClient({"bootstrap.servers": broker.bootstrap_servers}), group)


def test_offsets_after_a_reset_are_those_of_kafkas_tool(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    lines = tmp_path / "offsets.csv"
    lines.write_text('"flights",0,2\n"flights",1,500\n')
    resets = [*RESETS, ["--from-file", str(lines)]]
    server = f"--bootstrap-server={broker.bootstrap_servers}"
    commands = []
    for number, reset in enumerate(resets):
        for side in ("ours", "kafkas"):
            group_at_begin(broker, f"{side}-{number}")
        tool = [CONSUMER_GROUPS, server, "--reset-offsets", f"--group=kafkas-{number}"]
        commands.append([*tool, *reset, "--execute"])
    run_tools(*commands)
    for number, reset in enumerate(resets):
        before = offsets_of(broker, f"ours-{number}")
        plan = groups(broker, "reset-offsets", f"ours-{number}", *reset)
        assert "a plan: --execute does it" in plan
        assert offsets_of(broker, f"ours-{number}") == before, "a plan changes nothing"
        groups(broker, "reset-offsets", f"ours-{number}", *reset, "--execute")
        ours, kafkas = (offsets_of(broker, f"{side}-{number}") for side in ("ours", "kafkas"))
        assert ours == kafkas, reset
        assert len(ours) == len(BEGIN)


def test_group_with_a_member_is_refused_as_kafkas_tool_does(broker: EmbeddedBroker) -> None:
    properties = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "busy"}
    with closing(Consumer({**properties, "auto.offset.reset": "earliest"})) as consumer:
        consumer.subscribe(["flights"])
        wait_until(lambda: consumer.poll(1) is not None)
        reset = ["--topic", "flights", "--to-earliest", "--execute"]
        server = f"--bootstrap-server={broker.bootstrap_servers}"
        (told,) = run_tools(
            [CONSUMER_GROUPS, server, "--reset-offsets", "--group=busy", *reset],
        )
        assert re.search("if the group 'busy' is inactive, but the current state is Stable", told)
        with pytest.raises(RejectedError, match="active members group=busy state=stable"):
            groups(broker, "reset-offsets", "busy", *reset)
        with pytest.raises(RejectedError, match="active members group=busy state=stable"):
            groups(broker, "delete", "busy", "--execute")


def test_deletion_shows_a_plan_first(broker: EmbeddedBroker) -> None:
    group_at_begin(broker, "old")
    assert "would delete group old with 2 committed offsets" in groups(broker, "delete", "old")
    assert offsets_of(broker, "old")
    assert "deleted group old" in groups(broker, "delete", "old", "--execute")
    assert not offsets_of(broker, "old")
    assert "old" not in groups(broker, "list").split()
    with pytest.raises(RejectedError, match="no such group group=old"):
        groups(broker, "delete", "old", "--execute")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topic", "flights"], "choose one of --to-earliest"),
        (["--topic", "flights", "--to-earliest", "--to-latest"], "choose one of --to-earliest"),
        (["--to-earliest"], "choose one of --topic and --all-topics"),
        (["--topic", "flights:7", "--to-earliest"], r"no such partitions topic=flights .*\[7\]"),
        (["--topic", "flights:x", "--to-earliest"], "not TOPIC or TOPIC:0,1"),
        (["--topic", "flights", "--by-duration", "1 day"], "not a duration"),
        (["--topic", "flights", "--by-duration", "P36500D"], "before 1970 .*--to-earliest"),
        (["--topic", "flights", "--to-datetime", "soon"], "not a time"),
        (["--topic", "flights", "--shift-by", "1"], "without a committed offset"),
    ],
)
def test_wrong_options_are_refused(
    broker: EmbeddedBroker, arguments: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        groups(broker, "reset-offsets", "nobody", *arguments)
