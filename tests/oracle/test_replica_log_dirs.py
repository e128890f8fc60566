"""Kafka's tools move replicas between log directories of an Isotherm broker as on a Kafka
broker.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from isotherm.testing.broker_process import BrokerProcess
from oracle.cluster_members import TIER_SETTINGS, IsothermMember
from oracle.kafka import dump_log_segments, running_kafka
from oracle.kafka_cluster import ControllerOracle
from oracle.tools import LOG_DIRS, REASSIGN_PARTITIONS, run_tools
from oracle.topics import create_topic, wait_until

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

WAIT_S = 300
COUNT = 2000
TOPIC = "moved"


def move_file(folder: Path, target: Path) -> Path:
    plan = [
        {"topic": TOPIC, "partition": n, "replicas": [1], "log_dirs": [str(target)]}
        for n in range(2)
    ]
    path = folder / "move.json"
    path.write_text(json.dumps({"version": 1, "partitions": plan}))
    return path


def produce(server: str, start: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": server, "acks": "all", "enable.idempotence": True})
    for number in range(start, start + count):
        producer.produce(TOPIC, b"%09d" % number + b"x" * 200, partition=number % 2)
    assert producer.flush(WAIT_S) == 0


def read(server: str, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": server, "group.id": "g", "log_level": 0})
    consumer.assign([TopicPartition(TOPIC, n, 0) for n in range(2)])
    found: list[int] = []

    def is_read() -> bool:
        for message in consumer.consume(1000, 1.0):
            error = message.error()
            assert error is None or error.code() == KafkaError._PARTITION_EOF
            found.append(int((message.value() or b"")[:9]))
        return len(found) >= count

    wait_until(is_read, f"{count} records", WAIT_S)
    consumer.close()
    return sorted(found)


@contextmanager
def isotherm_alone(root: Path) -> Iterator[str]:
    dirs = f"{root / 'one'},{root / 'two'}"
    broker = BrokerProcess(root / "one", {"log.dirs": dirs})
    try:
        yield broker.bootstrap_servers
    finally:
        broker.stop()


@contextmanager
def kafka_alone(root: Path) -> Iterator[str]:
    with running_kafka(root, {"log.dirs": f"{root / 'log'},{root / 'two'}"}) as kafka:
        yield kafka.bootstrap_server


def move(server: str, root: Path) -> list[str]:
    """Move a replica to another log directory; return the output of the tools."""
    create_topic(server, TOPIC, 2, {"retention.ms": "-1"})
    produce(server, 0, COUNT)
    plan = [
        "--bootstrap-server",
        server,
        "--reassignment-json-file",
        str(move_file(root, root / "two")),
    ]
    # Each broker chooses the directories in which replicas start.
    (begun,) = run_tools([REASSIGN_PARTITIONS, "--execute", *plan])
    texts = [begun.partition("Save this")[2]]
    for number in range(2):
        wait_until((root / "two" / f"{TOPIC}-{number}").exists, f"partition {number}", WAIT_S)
    produce(server, COUNT, COUNT)
    texts += run_tools(
        [REASSIGN_PARTITIONS, "--verify", *plan],
        [LOG_DIRS, "--describe", "--topic-list", TOPIC, "--bootstrap-server", server],
        [REASSIGN_PARTITIONS, "--execute", *plan],
    )
    assert read(server, 2 * COUNT) == list(range(2 * COUNT))
    return [normalised(text, root) for text in texts]


def normalised(text: str, root: Path) -> str:
    text = text.replace(str(root), "<root>").replace("<root>/log", "<root>/one")
    # The client's timing decides how it fills batches, and so their sizes.
    text = re.sub(r'"size":\d+', '"size":0', text)
    if '"logDirs"' not in text:
        return text
    # The tool's order of directories is that of the hashes of their names.
    (broker,) = json.loads(text.splitlines()[-1])["brokers"]
    return json.dumps(sorted(broker["logDirs"], key=lambda each: str(each["logDir"])))


def test_replicas_move_as_in_a_broker_of_kafka(kafka_tools: Path, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "isotherm", tmp_path / "kafka"
    for root in (ours, theirs):
        root.mkdir()
    with isotherm_alone(ours) as server:
        isotherm = move(server, ours)
    with kafka_alone(theirs) as server:
        assert isotherm == move(server, theirs)
    assert '"isFuture": false' in isotherm[2]


@pytest.mark.nightly
def test_member_moves_its_replicas_and_the_controller_knows(
    kafka_tools: Path, tmp_path: Path
) -> None:
    """A producer writes meanwhile; all records are there, also after a kill."""
    (tmp_path / "bucket").mkdir()
    controller = ControllerOracle(tmp_path / "controller")
    controller.start()
    one, two = tmp_path / "one", tmp_path / "two"
    settings = {
        **{
            key: "1" if key.endswith((".factor", ".min.isr")) else text
            for key, text in TIER_SETTINGS.items()
        },
        "log.dirs": f"{one},{two}",
    }
    member = IsothermMember(tmp_path / "broker", controller, 1, tmp_path / "bucket", settings)
    try:
        member.start()
        server = member.bootstrap_server
        create_topic(server, TOPIC, 2, {"retention.ms": "-1", "min.insync.replicas": "1"})
        produce(server, 0, COUNT)
        is_over, produced = threading.Event(), [COUNT]

        def produce_on() -> None:
            while not is_over.is_set():
                produce(server, produced[0], 50)
                produced[0] += 50

        producer = threading.Thread(target=produce_on)
        producer.start()
        try:
            for target in (two, one):
                plan = str(move_file(tmp_path, target))
                run_tools(
                    [REASSIGN_PARTITIONS, "--execute", "--bootstrap-server", server,
                     "--reassignment-json-file", plan]
                )  # fmt: skip
                for number in range(2):
                    wait_until((target / f"{TOPIC}-{number}").exists, str(target), WAIT_S)
        finally:
            is_over.set()
            producer.join()
        assert read(server, produced[0]) == list(range(produced[0]))
        member.kill()
        member.start()
        assert read(member.bootstrap_server, produced[0]) == list(range(produced[0]))
        first = (one / "meta.properties").read_text().split("directory.id=")[1].split()[0]
        # The member reports the move to the controller afterwards.
        wait_until(
            lambda: recorded_directories(controller) == {first}, "the recorded directory", WAIT_S
        )
    finally:
        member.kill()
        controller.kill()


def recorded_directories(controller: ControllerOracle) -> set[str]:
    """The last log directory of each partition of the topic, from the controller's metadata."""
    logs = sorted((controller.log_dir / "__cluster_metadata-0").glob("*.log"))
    text = dump_log_segments(logs, "--cluster-metadata-decoder")
    records = [
        json.loads(payload) for payload in re.findall(r"payload: (\{.*\})$", text, re.MULTILINE)
    ]
    (topic_id,) = {
        record["data"]["topicId"]
        for record in records
        if record["type"] == "TOPIC_RECORD" and record["data"]["name"] == TOPIC
    }
    last: dict[int, str] = {}
    for record in records:
        data = record["data"]
        if data.get("topicId") == topic_id and data.get("directories"):
            last[data["partitionId"]] = data["directories"][0]
    return set(last.values())
