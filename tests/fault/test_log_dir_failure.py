"""A disk that fails under a running broker takes its own partitions offline, and nothing else."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

with warnings.catch_warnings():
    # It reads its schemas, at import, with a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.admin import KafkaAdminClient

from isotherm.broker.coordinators.coordinator_partition import coordinator_partition
from isotherm.errors import LogDirFailedError
from isotherm.record.batch import build_batch
from isotherm.record.validation import AppendOrigin
from isotherm.testing.bucket_files import files_below
from isotherm.testing.embedded_broker import EmbeddedBroker
from tests.support.faulty_fs import FaultyFileSystem

TIMEOUT_S = 300
PARTITIONS = 6


class Disks:
    """A broker on three disks, of which the first holds the cluster's metadata."""

    def __init__(self, directory: Path, start: Callable[..., EmbeddedBroker]) -> None:
        self.fs = FaultyFileSystem()
        self.paths = [directory / name for name in ("first", "second", "third")]
        self._start = start
        self._clients: list[Any] = []
        self.broker = self.start()

    def start(self) -> EmbeddedBroker:
        return self._start(
            {
                "log.dirs": ",".join(str(path) for path in self.paths),
                "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
                "offsets.topic.num.partitions": "3",
                "transaction.state.log.num.partitions": "3",
            },
            fs=self.fs,
        )

    def create(self, topic: str, **config: str) -> None:
        admin = self.admin
        settings = {name.replace("_", "."): value for name, value in config.items()}
        new = NewTopic(topic, PARTITIONS, 1, config=settings)
        admin.create_topics([new])[topic].result(TIMEOUT_S)

    @property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.broker.bootstrap_servers})

    def python_admin(self) -> Any:
        """kafka-python's administrator: librdkafka's shows neither offline replicas nor log
        directories.
        """
        client = KafkaAdminClient(bootstrap_servers=self.broker.bootstrap_servers)
        self._clients.append(client)
        return client

    def close(self) -> None:
        self.fs.heal()
        for client in self._clients:
            client.close()

    def partitions_in(self, path: Path, topic: str) -> list[int]:
        return sorted(int(each.name.rpartition("-")[2]) for each in path.glob(f"{topic}-?"))

    def produce(
        self, topic: str, partition: int, value: bytes, timeout_s: float = TIMEOUT_S
    ) -> KafkaError | None:
        """Produce one record; return its error.

        The errors of a failure are retriable: a test that expects one needs a short timeout.
        """
        outcome: list[KafkaError | None] = []
        producer = Producer(
            {
                "bootstrap.servers": self.broker.bootstrap_servers,
                "message.timeout.ms": int(timeout_s * 1000),
            }
        )
        producer.produce(
            topic, value, partition=partition, on_delivery=lambda error, _: outcome.append(error)
        )
        assert producer.flush(2 * TIMEOUT_S) == 0
        return outcome[0]

    def consume(self, topic: str, partition: int, count: int) -> list[bytes]:
        consumer = Consumer(
            {"bootstrap.servers": self.broker.bootstrap_servers, "group.id": "unused"}
        )
        try:
            consumer.assign([TopicPartition(topic, partition, 0)])
            return [message.value() for message in consumer.consume(count, TIMEOUT_S)]
        finally:
            consumer.close()

    def fail(self, path: Path, topic: str) -> list[int]:
        """Fail a disk and let the broker notice it; return the partitions of `topic` on that
        disk.
        """
        failed = self.partitions_in(path, topic)
        self.fs.fail(path)
        services = self.broker.node.services
        batch = build_batch([(0, None, b"", ())])
        with pytest.raises(LogDirFailedError):
            services.replica_manager.find_partition(topic, None, failed[0]).append(
                batch, required_acks=1, now_ms=0, origin=AppendOrigin.COORDINATOR
            )
        while not services.replica_manager.is_offline(topic, failed[-1]):
            # The handling of a failure passes through the event loop to the control thread.
            services.control_executor.submit(lambda: None).result(TIMEOUT_S)
        return failed


@pytest.fixture
def disks(tmp_path: Path, start_broker: Callable[..., EmbeddedBroker]) -> Iterator[Disks]:
    made = Disks(tmp_path, start_broker)
    made.create("t")
    yield made
    made.close()


def test_partitions_of_other_directories_go_on(disks: Disks) -> None:
    for partition in range(PARTITIONS):
        assert disks.produce("t", partition, b"before") is None
    failed = disks.partitions_in(disks.paths[1], "t")
    others = sorted(set(range(PARTITIONS)) - set(failed))
    assert len(failed) == 2
    disks.fail(disks.paths[1], "t")
    for partition in others:
        assert disks.produce("t", partition, b"after") is None
        assert disks.consume("t", partition, 2) == [b"before", b"after"]
    for partition in failed:
        assert disks.produce("t", partition, b"lost", timeout_s=1.5) is not None


def test_metadata_shows_offline_replicas_without_a_leader(disks: Disks) -> None:
    failed = disks.fail(disks.paths[1], "t")
    found = disks.admin.list_topics("t", TIMEOUT_S).topics["t"].partitions
    for index, partition in found.items():
        if index in failed:
            assert partition.error.code() == KafkaError.LEADER_NOT_AVAILABLE
            assert (partition.leader, partition.replicas) == (-1, [1])
        else:
            assert partition.error is None
            assert partition.leader == 1
    [topic] = disks.python_admin().describe_topics(["t"])
    offline = {each["partition_index"]: each["offline_replicas"] for each in topic["partitions"]}
    assert offline == {index: [1] if index in failed else [] for index in range(PARTITIONS)}


def test_log_dirs_are_described_with_the_failure(disks: Disks) -> None:
    disks.fail(disks.paths[1], "t")
    [described] = disks.python_admin().describe_log_dirs()
    errors = {each["log_dir"]: each["error_code"] for each in described["log_dirs"]}
    assert errors == {
        str(path): KafkaError.KAFKA_STORAGE_ERROR if path == disks.paths[1] else 0
        for path in disks.paths
    }


def test_waiting_fetch_is_woken_with_the_error(disks: Disks) -> None:
    failed = disks.partitions_in(disks.paths[1], "t")
    consumer = Consumer(
        {
            "bootstrap.servers": disks.broker.bootstrap_servers,
            "group.id": "unused",
            "fetch.wait.max.ms": 60_000,
            "socket.timeout.ms": 90_000,
        }
    )
    try:
        consumer.assign([TopicPartition("t", failed[0], 0)])
        purgatory = disks.broker.node.services.replica_manager.purgatory
        while len(purgatory) == 0:
            assert consumer.poll(0.05) is None
        disks.fail(disks.paths[1], "t")
        while len(purgatory) > 0:
            assert consumer.poll(0.05) is None
    finally:
        consumer.close()


def commit_offset(disks: Disks, group: str, partition: int) -> bool:
    consumer = Consumer({"bootstrap.servers": disks.broker.bootstrap_servers, "group.id": group})
    at = TopicPartition("t", partition, 1)
    try:
        consumer.commit(offsets=[at], asynchronous=False)
        [found] = consumer.committed([at], TIMEOUT_S)
        return bool(found.offset == 1)
    finally:
        consumer.close()


def commit_transaction(disks: Disks, transactional_id: str, partition: int) -> None:
    producer = Producer(
        {
            "bootstrap.servers": disks.broker.bootstrap_servers,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 900_000,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce("t", b"in a transaction", partition=partition)
    producer.commit_transaction(TIMEOUT_S)


def test_coordinators_of_other_directories_go_on(disks: Disks) -> None:
    """They also go on after a restart that finds the directory gone."""
    names = [f"name-{number}" for number in range(6)]
    healthy = disks.partitions_in(disks.paths[2], "t")[0]
    assert disks.produce("t", healthy, b"first") is None
    for name in names:
        assert commit_offset(disks, name, healthy)
        commit_transaction(disks, name, healthy)

    def coordinated(topic: str) -> list[str]:
        offline = disks.partitions_in(disks.paths[1], topic)
        assert offline
        return [name for name in names if coordinator_partition(name, 3) not in offline]

    disks.fail(disks.paths[1], "t")
    for restarts in (False, True):
        if restarts:
            disks.broker.stop()
            disks.broker = disks.start()
        for group in coordinated("__consumer_offsets"):
            assert commit_offset(disks, group, healthy)
        for transactional_id in coordinated("__transaction_state"):
            commit_transaction(disks, transactional_id, healthy)


def test_broker_without_its_metadata_directory_has_failed(disks: Disks) -> None:
    disks.fs.fail(disks.paths[0])
    with pytest.raises(KafkaException):
        disks.create("another")
    disks.broker.wait_failed(TIMEOUT_S)


def test_partitions_are_there_again_once_the_disk_is_repaired(disks: Disks) -> None:
    failed = disks.partitions_in(disks.paths[1], "t")
    for partition in failed:
        assert disks.produce("t", partition, b"kept") is None
    disks.fail(disks.paths[1], "t")
    disks.create("new")
    assert disks.partitions_in(disks.paths[1], "new") == []
    disks.broker.stop()
    disks.broker = disks.start()
    assert disks.produce("t", failed[0], b"lost", timeout_s=1.5) is not None
    disks.broker.stop()
    disks.fs.heal()
    disks.broker = disks.start()
    for partition in failed:
        assert disks.consume("t", partition, 1) == [b"kept"]


def test_remote_history_of_a_failed_disk_outlives_it(disks: Disks) -> None:
    """Segments of a partition that is only offline must stay in the bucket, at once and over later
    starts with the disk away or back again."""
    disks.create(
        "tiered",
        remote_storage_enable="true",
        segment_index_bytes="12",
        index_interval_bytes="1",
        local_retention_bytes="1",
        retention_ms="-1",
        file_delete_delay_ms="0",
    )
    values = [b"v%d" % number for number in range(4)]
    failed = disks.partitions_in(disks.paths[1], "tiered")
    for partition in failed:
        for value in values:
            assert disks.produce("tiered", partition, value) is None

    def objects() -> set[str]:
        files = files_below(disks.broker.directory / "bucket")
        return {path.name for path in files if path.suffix == ".log"}

    manager = disks.broker.node.services.replica_manager
    pause = threading.Event()
    for _ in range(TIMEOUT_S * 100):
        logs = [manager.find_partition("tiered", None, each).log for each in failed]
        if all(log.local_log_start_offset == 3 for log in logs):
            break
        pause.wait(0.01)
    copied = objects()
    assert len(copied) == 3 * len(failed)
    disks.fail(disks.paths[1], "tiered")
    disks.broker.stop()
    disks.broker = disks.start()
    assert objects() == copied
    disks.broker.stop()
    disks.fs.heal()
    disks.broker = disks.start()
    for partition in failed:
        assert disks.consume("tiered", partition, 4) == values
    assert objects() == copied
