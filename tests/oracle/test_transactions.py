"""Transactions of Kafka's own client, by both protocols, and Kafka's tools on their results."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from isotherm.broker.metadata.features import FeatureUpdate, UpgradeType
from isotherm.testing.embedded_broker import EmbeddedBroker
from oracle.dump_text import parse_dump
from oracle.kafka import TOOL_OPTIONS, TOOL_TIMEOUT_S, dump_log_segments, run_tool

CLIENT = Path(__file__).with_name("TransactionalClient.java")
TIMEOUT_S = 300


@pytest.fixture
def broker(kafka_tools: Path, tmp_path: Path) -> Iterator[EmbeddedBroker]:
    # One partition, so that the dump is of one file.
    settings = {"transaction.state.log.num.partitions": "1"}
    with EmbeddedBroker(tmp_path, settings) as started:
        admin = AdminClient({"bootstrap.servers": started.bootstrap_servers})
        admin.create_topics([NewTopic("java", 1, 1)])["java"].result(TIMEOUT_S)
        yield started


def run_client(jars: Path, broker: EmbeddedBroker) -> list[str]:
    completed = subprocess.run(
        ["java", *TOOL_OPTIONS, "-cp", f"{jars}/*", str(CLIENT), broker.bootstrap_servers],
        capture_output=True,
        text=True,
        timeout=TOOL_TIMEOUT_S,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr[-4000:]
    return completed.stdout.splitlines()


@pytest.mark.parametrize("transaction_version", [0, 1, 2])
def test_javas_transactions_are_seen_as_they_ended(
    kafka_tools: Path, broker: EmbeddedBroker, transaction_version: int
) -> None:
    services = broker.node.services
    downgrade = FeatureUpdate(
        "transaction.version", transaction_version, UpgradeType.SAFE_DOWNGRADE
    )
    services.control_executor.submit(services.controller.update_features, [downgrade]).result()
    assert run_client(kafka_tools, broker) == [
        "zombie fenced",
        "offset 3",
        "values value1 value3 value5 last",
    ]
    metadata = services.transaction_coordinator.describe("java")
    # With version 2 each of seven ends raised the epoch; otherwise only the fence and the second
    # producer did.
    assert metadata.producer_epoch == (9 if transaction_version == 2 else 2)


def test_kafkas_tools_read_the_transactions(broker: EmbeddedBroker, tmp_path: Path) -> None:
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": "tools",
            "transaction.timeout.ms": 900_000,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce("java", b"value", partition=0)
    assert producer.flush(TIMEOUT_S) == 0

    def transactions(*arguments: str) -> list[list[str]]:
        printed = run_tool(
            "org.apache.kafka.tools.TransactionsCommand",
            "--bootstrap-server",
            broker.bootstrap_servers,
            *arguments,
        )
        return [line.split() for line in printed.splitlines() if "\t" in line]

    ((name, _, _, state),) = transactions("list")[1:]
    assert (name, state) == ("tools", "Ongoing")
    ((*_, partitions),) = transactions("describe", "--transactional-id", "tools")[1:]
    assert partitions == "java-0"
    ((_, epoch, *_, started),) = transactions(
        "describe-producers", "--topic", "java", "--partition", "0"
    )[1:]
    assert (epoch, started) == ("0", "0")
    transactions("abort", "--topic", "java", "--partition", "0", "--start-offset", "0")
    log = broker.node.services.replica_manager.find_partition("java", None, 0).log
    assert log.last_stable_offset == log.log_end_offset == 2

    broker.stop()
    (segment,) = (tmp_path / "log" / "__transaction_state-0").glob("*.log")
    (dump,) = parse_dump(dump_log_segments([segment], "--transaction-log-decoder")).values()
    assert dump.remarks == []
    assert len(dump.records) == 2
    assert all('"transactionalId":"tools"' in record["key"] for record in dump.records)
    assert '"transactionStatus":1' in dump.records[1]["payload"]
