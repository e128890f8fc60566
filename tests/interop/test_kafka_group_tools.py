"""Kafka's own consumers and group tool against Isotherm, in both protocols."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from isotherm.testing.embedded_broker import EmbeddedBroker
from oracle.tools import CONSOLE_CONSUMER, CONSUMER_GROUPS, GROUPS, run_tools

pytestmark = pytest.mark.oracle

SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


@pytest.fixture(scope="module")
def broker(kafka_tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), SETTINGS) as started:
        admin = AdminClient({"bootstrap.servers": started.bootstrap_servers})
        admin.create_topics([NewTopic("java", 2)])["java"].result()
        producer = Producer({"bootstrap.servers": started.bootstrap_servers})
        for index in range(20):
            producer.produce("java", f"value-{index}".encode(), partition=index % 2)
        producer.flush()
        yield started


@pytest.fixture(scope="module", params=["classic", "consumer"])
def printed(request: pytest.FixtureRequest, broker: EmbeddedBroker) -> dict[str, str]:
    """Name of a run -> output of the tool about a group of one protocol;

    "group" -> the group's id.
    """
    protocol = request.param
    group = f"java-{protocol}"
    server = f"--bootstrap-server={broker.bootstrap_servers}"
    consume = [
        *(CONSOLE_CONSUMER, server, "--topic=java", f"--group={group}", "--from-beginning"),
        *("--max-messages=20", "--timeout-ms=30000"),
        f"--command-property=group.protocol={protocol}",
    ]
    groups = [CONSUMER_GROUPS, server]
    one = [f"--group={group}"]
    reset = [*groups, "--reset-offsets", *one]
    commands = {
        "consume": consume,
        "list": [*groups, "--list", "--type"],
        "list empty": [*groups, "--list", "--state=empty"],
        "describe": [*groups, "--describe", *one],
        "state": [*groups, "--describe", *one, "--state"],
        "members": [*groups, "--describe", *one, "--members", "--verbose"],
        "reset": [*reset, "--topic=java", "--to-earliest", "--execute"],
        "reset to offset": [*reset, "--topic=java:1", "--to-offset=7", "--execute"],
        "shift": [*reset, "--all-topics", "--shift-by=2", "--execute"],
        "reset to a time": [
            *(*reset, "--topic=java", "--to-datetime=2020-01-01T00:00:00.000"),
            *("--dry-run", "--export"),
        ],
        "describe after": [*groups, "--describe", *one],
        "delete offsets": [*groups, "--delete-offsets", *one, "--topic=java"],
        "delete": [*groups, "--delete", *one],
        "list after": [*groups, "--list"],
        "groups": [GROUPS, server, "--list"],
    }
    outputs = dict(zip(commands, run_tools(*commands.values()), strict=True))
    return {"group": group, "type": protocol.capitalize(), **outputs}


def rows(printed: dict[str, str], name: str) -> list[list[str]]:
    """Partition, committed offset, log end offset and lag of each row of a description."""
    lines = [line.split() for line in printed[name].splitlines()]
    return sorted(line[2:6] for line in lines if line and line[0] == printed["group"])


def test_group_reads_every_record_and_commits(printed: dict[str, str]) -> None:
    read = [line for line in printed["consume"].splitlines() if line.startswith("value-")]
    assert sorted(read) == sorted(f"value-{index}" for index in range(20))
    assert rows(printed, "describe") == [["0", "10", "10", "0"], ["1", "10", "10", "0"]]


def test_group_is_listed_and_described(printed: dict[str, str]) -> None:
    listed = [line.split() for line in printed["list"].splitlines()]
    assert [printed["group"], printed["type"]] in listed
    assert printed["group"] in printed["list empty"].split()
    assert "Empty" in printed["state"]
    assert "has no active members" in printed["members"]


def test_offsets_are_reset_in_every_way(printed: dict[str, str]) -> None:
    for name, moved in (
        ("reset", [["java", "0", "0"], ["java", "1", "0"]]),
        ("reset to offset", [["java", "1", "7"]]),
        ("shift", [["java", "0", "2"], ["java", "1", "9"]]),
    ):
        lines = [line.split() for line in printed[name].splitlines()]
        assert sorted(line[1:] for line in lines if line[:1] == [printed["group"]]) == moved
    assert sorted(printed["reset to a time"].split()[-2:]) == ["java,0,0", "java,1,0"]
    assert rows(printed, "describe after") == [["0", "2", "10", "8"], ["1", "9", "10", "1"]]


def test_offsets_and_the_group_are_deleted(printed: dict[str, str]) -> None:
    assert printed["delete offsets"].count("Successful") == 2
    assert "was successful" in printed["delete"]
    assert printed["group"] not in printed["list after"].split()
    assert printed["group"] not in printed["groups"].split()
