"""Kafka's command-line tools print the same about Isotherm as about Apache Kafka.

`kafka_tool_runs.txt` are the command lines, run on a broker of each kind that was set up alike. Exit
statuses must be equal, and texts but for ids, addresses, times and the order of lines. What a refusal
says behind the name of its error is each broker's own. What differs on purpose is listed here with
its reason, and must go on differing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from isotherm.testing.broker_process import BrokerProcess
from oracle.kafka import running_kafka
from oracle.tool_texts import Run, difference, normalised
from oracle.tools import SCRIPTS, run_tools_to_status
from oracle.topics import create_topic

pytestmark = pytest.mark.slow

RUNS = [
    line
    for line in Path(__file__).with_name("kafka_tool_runs.txt").read_text("utf-8").splitlines()
    if line and not line.startswith("#")
]
RUN_TIMEOUT_S = 240
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
}
START_MS = 1_700_000_000_000

_METADATA_TOPICS = "the metadata topic is compacted, and its audit topic is beside it (KIP-1266)"
_COPY_LAG = "remote.copy.lag.* are keys of a later Kafka"
_NO_SHARE_GROUPS = "share and streams groups are not served: as with share.version=0"

# What Isotherm prints otherwise, and why.
DIFFERENT: Mapping[str, str] = {
    "topics --list": _METADATA_TOPICS,
    "topics --describe": _METADATA_TOPICS,
    "topics --describe --topics-with-overrides": _METADATA_TOPICS,
    "topics --list --exclude-internal": _METADATA_TOPICS,
    "configs --entity-type topics --describe": _METADATA_TOPICS,
    "configs --topic filled --describe --all": _COPY_LAG,
    "configs --entity-type groups --entity-name readers --alter"
    " --add-config share.auto.offset.reset=earliest": _NO_SHARE_GROUPS,
    "configs --entity-type broker-loggers --entity-name 1 --describe": "the loggers are Isotherm's",
    "share-groups --describe --group strangers": _NO_SHARE_GROUPS,
    "streams-groups --describe --group strangers": _NO_SHARE_GROUPS,
}


def partitions(topic: str, count: int, replica: int = 1) -> list[dict[str, object]]:
    return [{"topic": topic, "partition": n, "replicas": [replica]} for n in range(count)]


def write_files(folder: Path) -> None:
    """The files that the command lines name."""
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
    # A batch for each record: how a client fills its batches is up to its timing.
    producer = Producer({"bootstrap.servers": server, "batch.num.messages": 1})
    for number in range(60):
        producer.produce("filled", f"v{number}", partition=number % 2, timestamp=START_MS + number)
    producer.produce("keyed", "v", key="k", timestamp=START_MS)
    producer.flush()
    consumer = Consumer({"bootstrap.servers": server, "group.id": "readers"})
    offsets = [TopicPartition("filled", 0, 10), TopicPartition("filled", 1, 20)]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def run_all(server: str, files: Path) -> dict[int, Run]:
    commands = []
    for line in RUNS:
        tool, *words = line.split()
        arguments = [str(files / word[1:]) if word.startswith("@") else word for word in words]
        commands.append([SCRIPTS[tool], *arguments, "--bootstrap-server", server])
    results = run_tools_to_status(*commands, timeout_s=RUN_TIMEOUT_S)
    return {
        number: Run(status, frozenset(normalised(text).splitlines()))
        for number, (status, text) in enumerate(results)
    }


@pytest.fixture(scope="module")
def runs(
    kafka_tools: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[dict[int, Run], dict[int, Run]]]:
    """Of Isotherm and of Kafka."""
    files = tmp_path_factory.mktemp("files")
    write_files(files)
    with running_kafka(tmp_path_factory.mktemp("kafka")) as kafka:
        set_up(kafka.bootstrap_server)
        theirs = run_all(kafka.bootstrap_server, files)
    isotherm = BrokerProcess(tmp_path_factory.mktemp("isotherm"), SETTINGS)
    try:
        set_up(isotherm.bootstrap_servers)
        yield run_all(isotherm.bootstrap_servers, files), theirs
    finally:
        isotherm.stop()


def test_tools_exit_and_print_as_with_kafka(
    runs: tuple[dict[int, Run], dict[int, Run]],
) -> None:
    ours, theirs = runs
    different = {number for number in range(len(RUNS)) if ours[number] != theirs[number]}
    unexpected = [
        difference(RUNS[number], ours[number], theirs[number])
        for number in sorted(different)
        if RUNS[number] not in DIFFERENT
    ]
    assert not unexpected, "\n".join(unexpected)
    assert {RUNS[number] for number in different} == DIFFERENT.keys()


def test_list_of_runs_is_long_enough_and_names_files_that_are_there(tmp_path: Path) -> None:
    assert len(RUNS) >= 150
    write_files(tmp_path)
    named = {word[1:] for line in RUNS for word in line.split() if word.startswith("@")}
    assert named == {path.name for path in tmp_path.iterdir()}
