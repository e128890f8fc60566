"""`isotherm groups` shows share groups beside groups of consumers, and resets and deletes them as
Kafka's kafka-share-groups does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.errors import ConfigError, RejectedError
from isotherm.protocol.api_keys import ApiKey
from isotherm.testing.embedded_broker import EmbeddedBroker
from oracle.raw_requests import ask, read_answer, request_frame
from oracle.tools import SHARE_GROUPS, run_tools, run_tools_to_status
from tests.support.conditions import wait_until

E = ErrorCode
NOTHING_DONE = {
    "in_flight": None,
    "acknowledged": 0,
    "archived": 0,
    "released": 0,
    "delivery_count_max": 0,
}
"""The counts of a partition from whose start offset on no record is done; no metrics are named."""
START_MS = 1_700_000_000_000  # 2023-11-14T22:13:20Z
SIDES = ("ours", "kafkas")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path, {"offsets.topic.num.partitions": "1"}) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic("t", 2)])["t"].result(300)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for index in range(5):
            producer.produce("t", str(index), partition=1)
        assert producer.flush(300) == 0
        yield broker


def call(broker: EmbeddedBroker, api: str, version: int, **fields: Any) -> Any:
    payload = ask(broker.bootstrap_servers, request_frame(ApiKey[api], version, fields))
    assert isinstance(payload, bytes), payload
    return read_answer(ApiKey[api], version, payload)


def shown(broker: EmbeddedBroker, *arguments: str) -> Any:
    command = ["groups", *arguments, "-b", broker.bootstrap_servers, "--json"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.output.splitlines()]


def test_share_groups_are_listed_and_described(broker: EmbeddedBroker) -> None:
    assert shown(broker, "list") == []
    entry = {"partition_index": 1, "start_offset": 2}
    topics = [{"topic_name": "t", "partitions": [entry]}]
    altered = call(broker, "ALTER_SHARE_GROUP_OFFSETS", 0, group_id="queue", topics=topics)
    assert altered.error_code is E.none
    assert shown(broker, "list") == [{"group": "queue", "state": "empty", "type": "share"}]
    second = {"topic": "t", "partition": 1, "start_offset": 2, "lag": 3, **NOTHING_DONE}
    assert shown(broker, "describe", "queue") == [second]
    joined = call(
        broker,
        "SHARE_GROUP_HEARTBEAT",
        1,
        group_id="queue",
        member_id="m",
        member_epoch=0,
        subscribed_topic_names=["t"],
    )
    assert joined.error_code is E.none
    assert shown(broker, "list") == [{"group": "queue", "state": "stable", "type": "share"}]
    unknown = dict.fromkeys(NOTHING_DONE)
    first = {"topic": "t", "partition": 0, "start_offset": None, "lag": None, **unknown}
    wait_until(
        lambda: shown(broker, "describe", "queue") == [first, second], "the states", timeout_s=300
    )


RESETS = [
    ["--topic", "flights", "--to-earliest"],
    ["--topic", "flights:1", "--to-latest"],
    ["--topic", "flights:0,1", "--to-datetime", "2023-11-14T22:13:24.000"],
    ["--all-topics", "--to-latest"],
    ["--all-topics", "--to-datetime", "2033-01-01T00:00:00.000"],
]


def with_flights(broker: EmbeddedBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    topic = NewTopic("flights", 2, config={"retention.ms": "-1"})
    admin.create_topics([topic])["flights"].result(300)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for index in range(20):
        time_ms = START_MS + index * 1000
        producer.produce("flights", b"%d" % index, partition=index % 2, timestamp=time_ms)
    assert producer.flush(300) == 0


def printed(broker: EmbeddedBroker, *arguments: str) -> str:
    command = ["groups", *arguments, "-b", broker.bootstrap_servers]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def joined(broker: EmbeddedBroker, group: str, member_epoch: int = 0) -> None:
    """Let a member join the group, or leave it."""
    topics = ["flights"] if member_epoch == 0 else None
    fields = {"member_id": "m", "member_epoch": member_epoch, "subscribed_topic_names": topics}
    answer = call(broker, "SHARE_GROUP_HEARTBEAT", 1, group_id=group, **fields)
    assert answer.error_code is E.none


@pytest.mark.oracle
def test_start_offsets_after_a_reset_are_those_of_kafkas_tool(
    kafka_tools: Path, broker: EmbeddedBroker
) -> None:
    with_flights(broker)
    server = f"--bootstrap-server={broker.bootstrap_servers}"
    commands, begin = [], ["--topic", "flights", "--to-datetime", "2023-11-14T22:13:28.000"]
    for number in range(len(RESETS)):
        for side in ("ours", "kafkas"):
            printed(broker, "reset-offsets", f"{side}-{number}", "--share", *begin, "--execute")
    for number, reset in enumerate(RESETS):
        tool = [SHARE_GROUPS, server, "--reset-offsets", f"--group=kafkas-{number}"]
        commands.append([*tool, *reset, "--execute"])
    run_tools(*commands)
    for number, reset in enumerate(RESETS):
        before = shown(broker, "describe", f"ours-{number}")
        plan = printed(broker, "reset-offsets", f"ours-{number}", *reset)
        assert "a plan: --execute does it" in plan
        assert shown(broker, "describe", f"ours-{number}") == before, "a plan changes nothing"
        printed(broker, "reset-offsets", f"ours-{number}", *reset, "--execute")
        ours, kafkas = (shown(broker, "describe", f"{side}-{number}") for side in SIDES)
        assert ours == kafkas, reset
        assert ours != before, reset
        assert len(ours) == len(before)


@pytest.mark.oracle
def test_a_share_group_with_members_is_refused_as_by_kafkas_tool(
    kafka_tools: Path, broker: EmbeddedBroker
) -> None:
    with_flights(broker)
    joined(broker, "busy")
    reset = ["--topic", "flights", "--to-earliest", "--execute"]
    server = f"--bootstrap-server={broker.bootstrap_servers}"
    tool = [SHARE_GROUPS, server, "--group=busy"]
    (_, refused), (_, kept), (_, offsets_kept) = run_tools_to_status(
        [*tool, "--reset-offsets", *reset],
        [*tool, "--delete"],
        [*tool, "--delete-offsets", "--topic", "flights"],
    )
    assert "Share group 'busy' is not empty." in refused
    assert "Share group 'busy' is not EMPTY." in kept
    assert "Error: the group has members group_id=busy" in offsets_kept
    for command in (
        ["reset-offsets", "busy", *reset],
        ["delete", "busy", "--execute"],
        ["delete-offsets", "busy", "--topic", "flights", "--execute"],
    ):
        with pytest.raises(RejectedError, match="active members group=busy state=stable"):
            printed(broker, *command)
    joined(broker, "busy", -1)
    printed(broker, *["delete", "busy", "--execute"])
    assert shown(broker, "list") == []


def test_deletions_show_a_plan_first(broker: EmbeddedBroker) -> None:
    with_flights(broker)
    both = ["--topic", "t", "--topic", "flights:0"]
    reset = ["reset-offsets", "old", *both, "--to-latest"]
    with pytest.raises(RejectedError, match="no such group group=old"):
        printed(broker, "delete", "old")
    printed(broker, *reset, "--share", "--execute")
    rows = [
        {"topic": "flights", "partition": 0, "start_offset": 10, "lag": 0, **NOTHING_DONE},
        {"topic": "t", "partition": 0, "start_offset": 0, "lag": 0, **NOTHING_DONE},
        {"topic": "t", "partition": 1, "start_offset": 5, "lag": 0, **NOTHING_DONE},
    ]
    assert shown(broker, "describe", "old") == rows
    deletion = ["delete-offsets", "old", "--topic", "t"]
    would = "would delete the offsets of 2 partitions of t in group old"
    assert would in printed(broker, *deletion)
    assert shown(broker, "describe", "old") == rows
    printed(broker, *deletion, "--execute")
    assert shown(broker, "describe", "old") == rows[:1]
    with pytest.raises(RejectedError, match=r"no offsets of these topics group=old topics=\['t'\]"):
        printed(broker, *deletion, "--execute")
    assert "would delete group old with 1 start offsets" in printed(broker, "delete", "old")
    assert shown(broker, "describe", "old") == rows[:1]
    assert "deleted group old with 1 start offsets" in printed(broker, "delete", "old", "--execute")
    assert shown(broker, "list") == []
    with pytest.raises(RejectedError, match="no such share group group=old"):
        printed(broker, *deletion)


def test_what_kafkas_tool_lacks_for_share_groups_is_refused(broker: EmbeddedBroker) -> None:
    for target in (["--to-offset", "1"], ["--shift-by", "1"], ["--by-duration", "P1D"]):
        with pytest.raises(ConfigError, match="a share group is reset by --to-earliest"):
            printed(broker, "reset-offsets", "queue", "--topic", "t", "--share", *target)
