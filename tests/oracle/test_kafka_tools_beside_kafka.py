"""Kafka's command-line tools print the same about Isotherm as about Apache Kafka.

`kafka_tool_runs.txt` has the command lines. Each runs on an Isotherm broker and on a Kafka broker
that are set up alike, before the next one does. Exit statuses must be equal, and so must texts
except for ids, addresses, times and the order of lines. Kafka shows a change a moment after its
tool has ended, so a read-only command is repeated until both print the same. The text after the
name of an error is each broker's own. Intended differences are listed here with their reasons, and
must remain.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from isotherm.testing.broker_process import BrokerProcess
from oracle.kafka import running_kafka
from oracle.tool_texts import Run, difference, normalised
from oracle.tools import ToolProcess, command_of
from oracle.topics import create_topic, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

RUNS = [
    line
    for line in Path(__file__).with_name("kafka_tool_runs.txt").read_text("utf-8").splitlines()
    if line and not line.startswith("#")
]
# Long enough for every wait, also on a busy machine.
SETTLING_TIMEOUT_S = 300
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
}
START_MS = 1_700_000_000_000

_METADATA_TOPICS = "the metadata topic is compacted, and its audit topic is beside it (KIP-1266)"
_COPY_LAG = "remote.copy.lag.* are keys of a later Kafka"
_NO_STREAMS_GROUPS = "streams groups are not supported: as with streams.version=0"

# Output in which Isotherm differs, with the reason.
DIFFERENT: Mapping[str, str] = {
    "topics --list": _METADATA_TOPICS,
    "topics --describe": _METADATA_TOPICS,
    "topics --describe --topics-with-overrides": _METADATA_TOPICS,
    "topics --list --exclude-internal": _METADATA_TOPICS,
    "configs --entity-type topics --describe": _METADATA_TOPICS,
    "configs --topic filled --describe --all": _COPY_LAG,
    "configs --entity-type broker-loggers --entity-name 1 --describe": "the loggers are Isotherm's",
    "streams-groups --describe --group strangers": _NO_STREAMS_GROUPS,
}


def partitions(topic: str, count: int, replica: int = 1) -> list[dict[str, object]]:
    return [{"topic": topic, "partition": n, "replicas": [replica]} for n in range(count)]


def write_files(folder: Path) -> None:
    """Write the files that the command lines name."""
    for name, content in {
        "topics.json": {"topics": [{"topic": "made"}]},
        "as-is.json": {"partitions": partitions("made", 5)},
        "to-broker-2.json": {"partitions": partitions("made", 1, replica=2)},
        "nowhere.json": {"partitions": partitions("nowhere", 1)},
        "delete.json": {"partitions": [{"topic": "filled", "partition": 0, "offset": 4}]},
        "delete-beyond.json": {"partitions": [{"topic": "filled", "partition": 0, "offset": 400}]},
    }.items():
        (folder / name).write_text(json.dumps({"version": 1, **content}))
    (folder / "topic.properties").write_text("max.message.bytes=2000000\n")
    (folder / "client.properties").write_text("client.id=tool\n")


def set_up(server: str) -> None:
    create_topic(server, "filled", 2, {"retention.ms": "-1"})
    create_topic(server, "keyed", 1, {"cleanup.policy": "compact", "retention.ms": "-1"})
    # A batch for each record: otherwise the client's timing decides how it fills batches.
    producer = Producer({"bootstrap.servers": server, "batch.num.messages": 1})
    for number in range(60):
        producer.produce("filled", f"v{number}", partition=number % 2, timestamp=START_MS + number)
    producer.produce("keyed", "v", key="k", timestamp=START_MS)
    producer.flush()
    consumer = Consumer({"bootstrap.servers": server, "group.id": "readers"})
    offsets = [TopicPartition("filled", 0, 10), TopicPartition("filled", 1, 20)]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def only_reads(line: str) -> bool:
    return not {"--describe", "describe", "--list", "list"}.isdisjoint(line.split())


def run_beside(ours: Callable[[], Run], theirs: Callable[[], Run], settles: bool) -> list[Run]:
    """The output of both; if it `settles`, the equal output, or the last one after the timeout."""
    runs = [ours(), theirs()]

    def is_equal() -> bool:
        if runs[0] != runs[1]:
            runs[:] = [ours(), theirs()]
        return runs[0] == runs[1]

    if settles:
        with contextlib.suppress(TimeoutError):
            wait_until(is_equal, "equal texts", SETTLING_TIMEOUT_S)
    return runs


@contextlib.contextmanager
def serving(directory: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(directory, SETTINGS)
    try:
        yield broker
    finally:
        broker.stop()


def runner(tools: ToolProcess, server: str, files: Path) -> Callable[[str], Run]:
    """Runs a command line on a broker."""

    def run(line: str) -> Run:
        status, text = tools.run(command_of(line, files, server))
        return Run(status, frozenset(normalised(text).splitlines()))

    return run


@pytest.mark.nightly
def test_tools_exit_and_print_as_with_kafka(kafka_tools: Path, tmp_path: Path) -> None:
    write_files(tmp_path)
    unexpected: list[str] = []
    different: set[str] = set()
    with (
        running_kafka(tmp_path / "kafka") as kafka,
        serving(tmp_path / "isotherm") as isotherm,
        contextlib.closing(ToolProcess()) as our_tools,
        contextlib.closing(ToolProcess()) as their_tools,
    ):
        for server in (kafka.bootstrap_server, isotherm.bootstrap_servers):
            set_up(server)
        of_isotherm = runner(our_tools, isotherm.bootstrap_servers, tmp_path)
        of_kafka = runner(their_tools, kafka.bootstrap_server, tmp_path)
        for line in RUNS:
            settles = only_reads(line) and line not in DIFFERENT
            ours, theirs = run_beside(
                functools.partial(of_isotherm, line), functools.partial(of_kafka, line), settles
            )
            if ours != theirs:
                different.add(line)
                if line not in DIFFERENT:
                    unexpected.append(difference(line, ours, theirs))
    assert not unexpected, "\n".join(unexpected)
    assert different == DIFFERENT.keys()


def test_list_of_runs_is_long_enough_and_names_files_that_are_there(tmp_path: Path) -> None:
    assert len(RUNS) >= 150
    write_files(tmp_path)
    named = {word[1:] for line in RUNS for word in line.split() if word.startswith("@")}
    assert named == {path.name for path in tmp_path.iterdir()}
