"""Kafka's command-line tools print the same about a cluster of Isotherm brokers as about one of
Kafka brokers.

`cluster_tool_runs.txt` has the command lines. They run on two clusters with a Kafka controller
each. All brokers of a cluster are of one kind, because a tool asks any of them. Intended
differences are listed here with their reasons, and must remain.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from oracle.cluster_members import TIER_SETTINGS, IsothermMember, KafkaMember
from oracle.kafka import CLUSTER_ID, EAGER_SETTINGS
from oracle.kafka_cluster import ControllerOracle
from oracle.tool_texts import Run, difference, normalised
from oracle.tools import command_of, run_tools_to_status
from oracle.topics import wait_until
from tests.support.quorum_node import QuorumNode

pytestmark = [pytest.mark.oracle, pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(1800)]

RUNS = [
    line
    for line in Path(__file__).with_name("cluster_tool_runs.txt").read_text("utf-8").splitlines()
    if line and not line.startswith("#")
]
# The number of command lines that one JVM runs.
LINES_PER_RUN = 30
RUN_TIMEOUT_S = 600
# Keyed and with an audit topic beside it on Isotherm brokers alone (KIP-1266), so its lines differ.
METADATA_TOPIC = "__remote_log_metadata"
START_MS = 1_700_000_000_000
DOWN = 3
SETTINGS = {
    **EAGER_SETTINGS,
    "offsets.topic.num.partitions": "3",
    **{
        key: "2" if key.endswith(".replication.factor") else text
        for key, text in TIER_SETTINGS.items()
    },
}

# Output in which Isotherm differs, with the reason.
DIFFERENT: Mapping[str, str] = {
    "configs --topic filled --describe --all": "remote.copy.lag.* are keys of a later Kafka",
    "configs --entity-type topics --describe": "settings of the keyed metadata topic",
    "configs --entity-type broker-loggers --entity-name 1 --describe": "the loggers are Isotherm's",
}


def moved(topic: str, *replicas: int) -> dict[str, object]:
    return {"partitions": [{"topic": topic, "partition": 0, "replicas": list(replicas)}]}


def write_files(folder: Path) -> None:
    """Write the files that the command lines name."""
    for name, content in {
        "topics.json": {"topics": [{"topic": "stuck"}]},
        "swap.json": moved("made", 2, 1),
        "stuck.json": moved("stuck", 1, DOWN),
        "elsewhere.json": moved("made", 9),
        "nowhere.json": moved("nowhere", 1),
        "delete.json": {"partitions": [{"topic": "filled", "partition": 0, "offset": 4}]},
        "delete-beyond.json": {"partitions": [{"topic": "filled", "partition": 0, "offset": 400}]},
    }.items():
        (folder / name).write_text(json.dumps({"version": 1, **content}))


def create(server: str, name: str, *replicas: Sequence[int]) -> None:
    topic = NewTopic(
        name, len(replicas), replica_assignment=[list(replica) for replica in replicas]
    )

    def is_created() -> bool:
        # Kafka names any broker as the controller, also the one that answers no client: another
        # client may get another name.
        admin = AdminClient({"bootstrap.servers": server})
        try:
            admin.create_topics([topic], request_timeout=5)[name].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                return False
        return True

    wait_until(is_created, f"topic {name}", 300)


def set_up(server: str) -> None:
    # Created explicitly: a client's first request might put the group's partition on the broker
    # that is down.
    create(server, "__consumer_offsets", *[[1, 2]] * int(SETTINGS["offsets.topic.num.partitions"]))
    create(server, "filled", [1, 2], [2, 1])
    create(server, "degraded", [1, 2, DOWN])
    create(server, "gone", [DOWN])
    create(server, "stuck", [1])
    # A batch for each record: otherwise the client's timing decides how it fills batches.
    producer = Producer({"bootstrap.servers": server, "batch.num.messages": 1, "acks": "all"})
    for number in range(60):
        producer.produce("filled", f"v{number}", partition=number % 2, timestamp=START_MS + number)
    assert producer.flush(300) == 0
    consumer = Consumer({"bootstrap.servers": server, "group.id": "readers"})
    offsets = [TopicPartition("filled", 0, 10), TopicPartition("filled", 1, 20)]

    def is_committed() -> bool:
        try:
            consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException:
            return False  # the coordinator's topic is being created
        return True

    wait_until(is_committed, "the coordinator", 300)
    consumer.close()


@contextmanager
def cluster(kind: type[IsothermMember | KafkaMember], root: Path) -> Iterator[str]:
    """The address of broker 1."""
    (root / "bucket").mkdir()
    controller = ControllerOracle(root / "controller")
    controller.start()
    members = [
        kind(root / f"broker-{node_id}", controller, node_id, root / "bucket", SETTINGS)
        for node_id in (1, 2)
    ]
    try:
        for member in members:
            member.start()
        down = QuorumNode(root / "down", controller.address, CLUSTER_ID, node_id=DOWN)
        down.join()
        set_up(members[0].bootstrap_server)
        assert down.stop()
        yield members[0].bootstrap_server
    finally:
        for member in members:
            member.kill()
        controller.kill()


def run_all(server: str, files: Path) -> list[Run]:
    found: list[Run] = []
    for start in range(0, len(RUNS), LINES_PER_RUN):
        lines = RUNS[start : start + LINES_PER_RUN]
        commands = [command_of(line, files, server) for line in lines]
        results = run_tools_to_status(*commands, timeout_s=RUN_TIMEOUT_S)
        found += [Run(status, compared_lines(text)) for status, text in results]
    return found


def compared_lines(text: str) -> frozenset[str]:
    return frozenset(line for line in normalised(text).splitlines() if METADATA_TOPIC not in line)


def test_tools_exit_and_print_as_with_kafka(
    kafka_tools: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    files = tmp_path_factory.mktemp("files")
    write_files(files)
    runs = []
    for kind in (IsothermMember, KafkaMember):
        with cluster(kind, tmp_path_factory.mktemp(kind.__name__)) as server:
            runs.append(run_all(server, files))
    compared = list(zip(RUNS, *runs, strict=True))
    different = {line for line, ours, theirs in compared if ours != theirs}
    unexpected = [
        difference(line, ours, theirs)
        for line, ours, theirs in compared
        if line in different - DIFFERENT.keys()
    ]
    assert not unexpected, "\n".join(unexpected)
    assert different == DIFFERENT.keys()
