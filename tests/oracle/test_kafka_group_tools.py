"""Kafka's own consumers and group tool against Isotherm, in both protocols."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from isotherm.testing.embedded_broker import EmbeddedBroker
from oracle.kafka import run_tool

CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
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


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_java_group_reads_commits_and_is_administered(
    broker: EmbeddedBroker, protocol: str
) -> None:
    group = f"java-{protocol}"
    bootstrap = ("--bootstrap-server", broker.bootstrap_servers)
    output = run_tool(
        CONSOLE_CONSUMER, *bootstrap, "--topic", "java", "--group", group, "--from-beginning",
        "--max-messages", "20", "--timeout-ms", "30000",
        "--command-property", f"group.protocol={protocol}",
    )  # fmt: skip
    assert sorted(line for line in output.splitlines() if line.startswith("value-")) == sorted(
        f"value-{index}" for index in range(20)
    )
    listed = run_tool(GROUPS, *bootstrap, "--list")
    assert group in listed.split()
    described = run_tool(GROUPS, *bootstrap, "--describe", "--group", group)
    rows = [line.split() for line in described.splitlines() if line.startswith(group)]
    # GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG ...
    assert sorted(row[1:6] for row in rows) == [
        ["java", "0", "10", "10", "0"],
        ["java", "1", "10", "10", "0"],
    ]
    run_tool(
        GROUPS, *bootstrap, "--reset-offsets", "--group", group, "--topic", "java",
        "--to-earliest", "--execute",
    )  # fmt: skip
    described = run_tool(GROUPS, *bootstrap, "--describe", "--group", group)
    rows = [line.split() for line in described.splitlines() if line.startswith(group)]
    assert [row[3] for row in rows] == ["0", "0"]
    run_tool(GROUPS, *bootstrap, "--delete", "--group", group)
    assert group not in run_tool(GROUPS, *bootstrap, "--list").split()
