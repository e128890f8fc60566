"""A read replica, the leader behind it and the controller are killed in turn (SIGKILL), while a
consumer reads a topic of Apache Kafka through the replica, from the beginning through the end of
the tier into the tail. It gets exactly the records that the leader gives."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.replica_servers import ReplicaServer
from oracle.consumed_records import consume_all
from oracle.kafka import java_command
from oracle.kafka_cluster import BrokerOracle, ControllerOracle
from oracle.tiered_topic import fully_tiered
from oracle.tools import CONSOLE_CONSUMER
from oracle.topics import SEGMENT_BYTES_MIN, create_topic
from tests.support.conditions import wait_until

TIMEOUT_S = 300
TOPIC = "read-under-kills"
HISTORY_RECORDS, RECORDS_PER_KILL = 4000, 600
RECORD_SIZE = 1000
ONE_REPLICA = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
    "rlmm.config.remote.log.metadata.topic.min.isr": "1",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "2",
}


class Read(NamedTuple):
    """A record by its offset and the number that its value begins with. Clients leave out offsets
    that they have passed, so a record that is given twice shows by its number."""

    offset: int
    number: int


ReadTo: TypeAlias = Callable[[int], list[Read]]
"""Reads on until the client has so many records at least; all records so far, as they came."""


class Killed(Protocol):
    def kill(self) -> None: ...

    def start(self) -> None: ...


class Servers(NamedTuple):
    controller: ControllerOracle
    leader: BrokerOracle
    replica: ReplicaServer

    def write(self, count: int) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.leader.bootstrap_server,
                "enable.idempotence": True,
                "batch.size": 20_000,
                "batch.num.messages": 10,
            }
        )
        for number in range(count):
            producer.produce(TOPIC, b"%d " % number + b"x" * RECORD_SIZE, partition=0)
        assert producer.flush(TIMEOUT_S) == 0


@pytest.fixture
def servers(kafka_tools: Path, tmp_path: Path) -> Iterator[Servers]:
    controller = ControllerOracle(tmp_path / "controller")
    leader = BrokerOracle(tmp_path / "leader", controller, node_id=1, overrides=ONE_REPLICA)
    replica = ReplicaServer(tmp_path / "replica", leader.remote_dir, leader.bootstrap_server)
    all_of_them = Servers(controller, leader, replica)
    try:
        controller.start()
        leader.start()
        config = {
            "remote.storage.enable": "true",
            "segment.bytes": str(SEGMENT_BYTES_MIN),
            "local.retention.bytes": "1",
            "file.delete.delay.ms": "100",
            "retention.ms": "-1",
        }
        create_topic(leader.bootstrap_server, TOPIC, 1, config)
        all_of_them.write(HISTORY_RECORDS)
        wait_until(lambda: fully_tiered(leader.log_dir, TOPIC, 1), "the tier")
        replica.start()
        wait_until(lambda: answers(replica), "the replica", timeout_s=TIMEOUT_S)
        yield all_of_them
    finally:
        replica.stop()
        leader.kill()
        controller.kill()


def read_of(offset: int, value: bytes | None) -> Read:
    return Read(offset, int((value or b"").partition(b" ")[0]))


def answers(replica: ReplicaServer) -> bool:
    replica.check_runs()
    often = {"reconnect.backoff.max.ms": 500}
    admin = AdminClient({"bootstrap.servers": replica.bootstrap_server, "log_level": 0, **often})
    try:
        return TOPIC in admin.list_topics(timeout=10).topics
    except KafkaException:  # it does not listen yet
        return False


@contextmanager
def librdkafka(replica: ReplicaServer, tmp_path: Path) -> Iterator[ReadTo]:
    """It reads little ahead, so that kills meet it where it is."""
    consumer = Consumer(
        {
            "bootstrap.servers": replica.bootstrap_server,
            "group.id": "under-kills",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 50_000,
            "queued.min.messages": 20,
            "queued.max.messages.kbytes": 60,
            "fetch.queue.backoff.ms": 5,
            "topic.metadata.refresh.interval.ms": 1000,
            "reconnect.backoff.max.ms": 500,
            # An offset that is not there would show as a jump.
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    got: list[Read] = []

    def read_to(count: int) -> list[Read]:
        def take() -> bool:
            for message in consumer.consume(min(200, count - len(got)), 0.2):
                error = message.error()
                # A killed server is an error that the client retries.
                assert error is None or error.code() != KafkaError._AUTO_OFFSET_RESET, error
                if error is None:
                    got.append(read_of(message.offset() or 0, message.value()))
            return len(got) >= count

        wait_until(take, lambda: f"{count} records, {len(got)} so far", timeout_s=TIMEOUT_S)
        return got

    try:
        yield read_to
    finally:
        consumer.close()


@contextmanager
def java(replica: ReplicaServer, tmp_path: Path) -> Iterator[ReadTo]:
    printed, words = tmp_path / "java.txt", tmp_path / "java-errors.txt"
    command = java_command(
        CONSOLE_CONSUMER, "--bootstrap-server", replica.bootstrap_server,
        "--topic", TOPIC, "--partition", "0", "--offset", "earliest",
        "--command-property", "metadata.max.age.ms=1000",
        "--command-property", "auto.offset.reset=none",
        "--command-property", "max.partition.fetch.bytes=50000",
        "--formatter-property", "print.offset=true",
        log_level="warn",
    )  # fmt: skip

    got: list[Read] = []

    with (
        printed.open("wb") as output,
        printed.open("rb") as lines,
        words.open("wb") as errors,
        subprocess.Popen(command, stdout=output, stderr=errors) as process,
    ):

        def read_to(count: int) -> list[Read]:
            def is_read() -> bool:
                # It ends at an error that it does not retry, such as an offset out of range.
                assert process.poll() is None, words.read_text()[-2000:]
                at = lines.tell()
                while (line := lines.readline()).endswith(b"\n"):
                    offset, _, value = line.removeprefix(b"Offset:").partition(b"\t")
                    got.append(read_of(int(offset), value))
                    at = lines.tell()
                lines.seek(at)
                return len(got) >= count

            wait_until(
                is_read,
                lambda: f"{count} records, {len(got)} so far\n{words.read_text()[-2000:]}",
                timeout_s=TIMEOUT_S,
            )
            return got

        try:
            yield read_to
        finally:
            process.kill()


Client: TypeAlias = Callable[[ReplicaServer, Path], AbstractContextManager[ReadTo]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("client", "kills"),
    [
        (librdkafka, 3),
        pytest.param(librdkafka, 18, marks=pytest.mark.nightly),
        pytest.param(java, 18, marks=pytest.mark.nightly),
    ],
)
def test_consumer_gets_all_records_once_and_in_order(
    servers: Servers, tmp_path: Path, client: Client, kills: int
) -> None:
    controller, leader, replica = servers
    victims: Iterator[Killed] = itertools.cycle((replica, leader, controller))
    written = HISTORY_RECORDS
    with client(replica, tmp_path) as read_to:
        for number in range(kills):
            victim = next(victims)
            # The kills are spread over the tier, its end and the tail.
            written_share = (number + 1) * written // (kills + 1)
            read_to(written_share)
            victim.kill()
            if victim is leader and written_share < HISTORY_RECORDS // 2:
                # What lies in the tier is served without it.
                read_to(written_share + 100)
            victim.start()
            if victim is replica:
                wait_until(lambda: answers(replica), "the replica", timeout_s=TIMEOUT_S)
            servers.write(RECORDS_PER_KILL)
            written += RECORDS_PER_KILL
        got = read_to(written)
    expected = [
        read_of(message.offset, message.value)
        for message in consume_all(leader.bootstrap_server, TOPIC, just_started=True)
    ]
    assert len(expected) == written
    assert got == expected
