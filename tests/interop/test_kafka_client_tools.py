"""Kafka's own clients, through the tools that come with them: verifiers, benchmarks, consoles.

The tools print JSON or tables, which Kafka's system tests read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from isotherm.record.batch import build_batch
from isotherm.record.validation import AppendOrigin
from isotherm.testing.embedded_broker import EmbeddedBroker
from oracle.kafka import run_tool
from oracle.tools import (
    CLIENT_COMPATIBILITY,
    CLUSTER,
    CONSOLE_CONSUMER,
    CONSOLE_PRODUCER,
    CONSUMER_PERFORMANCE,
    END_TO_END_LATENCY,
    MESSAGE_COPIER,
    PRODUCER_PERFORMANCE,
    TOPICS,
    TRANSACTIONS,
    VERIFIABLE_CONSUMER,
    VERIFIABLE_PRODUCER,
    VERSIONS,
    run_tools,
)

pytestmark = pytest.mark.oracle

SETTINGS = {"group.initial.rebalance.delay.ms": "0"}
TIMEOUT_S = 300
COPIED = 200
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# The id of a producer with a transaction that its coordinator does not know.
LOST_PRODUCER_ID = 4711


def until(count: int) -> tuple[str, str]:
    """Options that end a console consumer: the timeout matters only if the broker lacks records."""
    return f"--max-messages={count}", f"--timeout-ms={TIMEOUT_S * 1000}"


@pytest.fixture(scope="module")
def broker(kafka_tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), SETTINGS) as started:
        admin = AdminClient({"bootstrap.servers": started.bootstrap_servers})
        names = (
            "verified",
            "measured",
            "delayed",
            "compatible",
            "source",
            "copied",
            "typed",
            "hanging",
        )
        made = admin.create_topics([NewTopic(name, 1, 1) for name in names])
        for future in made.values():
            future.result(TIMEOUT_S)
        producer = Producer({"bootstrap.servers": started.bootstrap_servers})
        for number in range(COPIED):
            producer.produce("source", b"%d" % number)
        assert producer.flush(TIMEOUT_S) == 0
        leave_a_transaction_hanging(started)
        yield started


def leave_a_transaction_hanging(broker: EmbeddedBroker) -> None:
    """Leave a transaction open in the log and unknown to every coordinator, as after a loss of
    its state.
    """
    batch = build_batch(
        [(1_700_000_000_000, None, b"hanging", ())],
        producer_id=LOST_PRODUCER_ID,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    partition = broker.node.services.replica_manager.find_partition("hanging", None, 0)
    partition.append(
        batch, required_acks=1, now_ms=1_700_000_000_000, origin=AppendOrigin.COORDINATOR
    )


@pytest.fixture(scope="module")
def printed(broker: EmbeddedBroker) -> dict[str, str]:
    """Name of a run -> output of the tool."""
    server = f"--bootstrap-server={broker.bootstrap_servers}"
    consume = [VERIFIABLE_CONSUMER, server, "--topic=verified", "--max-messages=50"]
    consume += ["--reset-policy=earliest"]
    write = [PRODUCER_PERFORMANCE, server, "--topic=measured", "--record-size=100"]
    write += ["--num-records=1000", "--throughput=-1"]
    copy = [MESSAGE_COPIER, f"--broker-list={broker.bootstrap_servers}", "--input-topic=source"]
    copy += ["--input-partition=0", "--output-topic=copied", "--transaction-size=20"]
    copy += [f"--max-messages={COPIED}", "--group-mode"]
    hanging = ["--topic=hanging", "--partition=0"]
    commands = {
        "consume": [*consume, "--group-id=classic", "--group-protocol=classic"],
        "consume as modern": [*consume, "--group-id=modern", "--group-protocol=consumer"],
        **{
            f"measure {codec}": [*write, "--producer-props", f"compression.type={codec}"]
            for codec in CODECS
        },
        "measure transactions": [
            *(*write, "--transactional-id=measured", "--transaction-duration-ms=50"),
        ],
        "measure reads": [CONSUMER_PERFORMANCE, server, "--topic=measured", "--num-records=6000"],
        "latency": [
            # The tool mistakes "--name=value" for its former positional arguments.
            *(END_TO_END_LATENCY, "--bootstrap-server", broker.bootstrap_servers),
            *("--topic", "delayed", "--num-records", "50"),
            *("--producer-acks", "all", "--record-size", "100"),
        ],
        "compatibility": [
            *(CLIENT_COMPATIBILITY, server, "--topic=compatible", "--num-cluster-nodes=1"),
            *("--offsets-for-times-supported=true", "--cluster-id-supported=true"),
            *("--create-topics-supported=true", "--describe-configs-supported=true"),
            # The tool calls an API supported if it gets an answer, as from Kafka without an
            # authorizer.
            *("--describe-acls-supported=true", "--idempotent-producer-supported=true"),
            "--expect-record-too-large-exception=false",
        ],
        "copy": [*copy, "--transactional-id=copier", "--consumer-group=copier"],
        "copy on": [
            *(*copy, "--transactional-id=second", "--consumer-group=second"),
            *("--use-group-metadata", "--enable-random-aborts"),
        ],
        "transactions": [TRANSACTIONS, server, "list"],
        "transaction": [TRANSACTIONS, server, "describe", "--transactional-id=measured"],
        "hanging": [TRANSACTIONS, server, "find-hanging", *hanging, "--max-transaction-timeout=1"],
        "producers": [TRANSACTIONS, server, "describe-producers", *hanging],
        "abort": [TRANSACTIONS, server, "abort", *hanging, "--start-offset=0"],
        "hanging after": [
            *(TRANSACTIONS, server, "find-hanging", *hanging, "--max-transaction-timeout=1"),
        ],
        "read copies": [
            *(CONSOLE_CONSUMER, server, "--topic=copied", "--from-beginning"),
            *("--isolation-level=read_committed", *until(2 * COPIED)),
        ],
        "cluster id": [CLUSTER, "cluster-id", server],
        "endpoints": [CLUSTER, "list-endpoints", server],
        "versions": [VERSIONS, server],
        "topics": [TOPICS, server, "--list", "--exclude-internal"],
    }
    # In a process of its own: the tool finishes in a shutdown hook.
    verified = run_tool(VERIFIABLE_PRODUCER, server, "--topic=verified", "--max-messages=50")
    return {
        "produce": verified,
        **dict(zip(commands, run_tools(*commands.values()), strict=True)),
    }


def events(output: str) -> dict[str, list[dict[str, Any]]]:
    """The JSON lines that a verifier prints, by their names."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in output.splitlines():
        if line.startswith("{"):
            event = json.loads(line)
            found.setdefault(event["name"], []).append(event)
    return found


def test_verifiable_producer_gets_an_offset_for_each_record(printed: dict[str, str]) -> None:
    found = events(printed["produce"])
    assert [each["offset"] for each in found["producer_send_success"]] == list(range(50))
    assert "producer_send_error" not in found
    assert found["tool_data"][0]["acked"] == 50


@pytest.mark.parametrize("name", ["consume", "consume as modern"])
def test_verifiable_consumer_reads_and_commits_every_record(
    printed: dict[str, str], name: str
) -> None:
    found = events(printed[name])
    assert sum(each["count"] for each in found["records_consumed"]) == 50
    (committed,) = found["offsets_committed"][-1]["offsets"]
    assert (committed["offset"], found["offsets_committed"][-1]["success"]) == (50, True)


def test_performance_tools_measure_writing_and_reading(printed: dict[str, str]) -> None:
    for name in (*CODECS, "transactions"):
        name = f"measure {name}"
        assert "1000 records sent" in printed[name]
        assert "99.9th" in printed[name]
    header, values = printed["measure reads"].splitlines()[-2:]
    assert header.split(", ")[4] == "data.consumed.in.nMsg"
    assert int(values.split(", ")[4]) >= 6000
    assert "Percentiles: 50th" in printed["latency"]


def test_client_compatibility_test_finds_every_feature(printed: dict[str, str]) -> None:
    assert "SUCCESS" in printed["compatibility"]


def test_message_copier_copies_each_record_once_although_transactions_are_aborted(
    printed: dict[str, str],
) -> None:
    numbers = [line for line in printed["read copies"].splitlines() if line.isdigit()]
    assert sorted(numbers, key=int) == sorted(2 * list(map(str, range(COPIED))), key=int)


def test_transactions_are_listed_and_described(printed: dict[str, str]) -> None:
    states = {
        line.split()[0]: line.split()[3]
        for line in printed["transactions"].splitlines()
        if "\t" in line
    }
    assert states["measured"] == states["copier"] == "CompleteCommit"
    assert "measured" in printed["transaction"]


def test_hanging_transaction_is_found_and_aborted(
    printed: dict[str, str], broker: EmbeddedBroker
) -> None:
    def found(name: str) -> list[str]:
        lines = [line.split() for line in printed[name].splitlines()]
        return [line[2] for line in lines if line[:1] == ["hanging"]]

    assert found("hanging") == [str(LOST_PRODUCER_ID)]
    assert str(LOST_PRODUCER_ID) in printed["producers"]
    assert found("hanging after") == []
    log = broker.node.services.replica_manager.find_partition("hanging", None, 0).log
    assert log.last_stable_offset == log.log_end_offset == 2


def test_cluster_is_described(printed: dict[str, str], broker: EmbeddedBroker) -> None:
    assert str(broker.node.services.cluster_id) in printed["cluster id"]
    assert "unfenced" in printed["endpoints"]
    assert "Produce(0): 0 to 13 [usable: 13]" in printed["versions"]
    assert {"verified", "copied"} <= set(printed["topics"].split())


def test_lines_typed_into_the_console_come_out_again(broker: EmbeddedBroker) -> None:
    server = f"--bootstrap-server={broker.bootstrap_servers}"
    run_tool(
        *(CONSOLE_PRODUCER, server, "--topic=typed", "--compression-codec=zstd"),
        *("--reader-property=parse.key=true", "--reader-property=key.separator=:"),
        stdin="key:one\nkey:two\n",
    )
    (output,) = run_tools(
        [
            *(CONSOLE_CONSUMER, server, "--topic=typed", "--from-beginning", *until(2)),
            *("--formatter-property=print.key=true", "--formatter-property=key.separator=:"),
        ]
    )
    lines = [line for line in output.splitlines() if line.startswith("key:")]
    assert lines == ["key:one", "key:two"]
