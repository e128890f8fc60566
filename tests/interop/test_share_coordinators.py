"""The share coordinator moves between Isotherm and Apache Kafka while a share consumer works.

The members and the records in flight are a Kafka broker's. What is in flight is kept in
`__share_group_state`, whose partition Isotherm and Kafka lead in turn. When the Kafka broker is
killed, its next process learns from Isotherm what is done.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer, ShareConsumer

from oracle.cluster_members import IsothermMember, KafkaMember
from oracle.mixed_cluster import ISOTHERM, KAFKA, MixedCluster
from oracle.topics import wait_until

pytestmark = [pytest.mark.oracle, pytest.mark.slow, pytest.mark.timeout(600)]

STATE, OFFSETS, TOPIC, GROUP = "__share_group_state", "__consumer_offsets", "work", "workers"
OFFSETS_PARTITIONS = 3  # see CLUSTER_SETTINGS
TIMEOUT_S = 120
KINDS = {ISOTHERM: IsothermMember, KAFKA: KafkaMember}


@pytest.fixture
def cluster(kafka_tools: Path, tmp_path: Path) -> Iterator[MixedCluster]:
    settings = {"remote.log.storage.system.enable": "false"}
    with MixedCluster(tmp_path / "cluster", KINDS, settings) as cluster:
        yield cluster


class Worker:
    """A share consumer in a thread, which accepts what it gets. `stop` ends it."""

    def __init__(self, servers: str) -> None:
        # How often each value was delivered, and those whose acceptance was answered.
        self.delivered: Counter[bytes] = Counter()
        self.accepted: set[bytes] = set()
        self.repeated: set[bytes] = set()
        self._servers = servers
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        consumer = ShareConsumer(
            {"bootstrap.servers": self._servers, "group.id": GROUP, "log_level": 0}
        )
        consumer.subscribe([TOPIC])
        while not self._ends.is_set():
            values = [each.value() for each in consumer.poll(0.2) if each.error() is None]
            self.delivered.update(values)
            self.repeated |= self.accepted & set(values)
            if values and self._commit(consumer):
                self.accepted |= set(values)
        consumer.close()

    @staticmethod
    def _commit(consumer: ShareConsumer) -> bool:
        try:
            answers = consumer.commit_sync(60.0)
        except KafkaException:
            return False
        return bool(answers) and all(error is None for error in answers.values())


class Work:
    """Numbered records. `go_on` produces more until the worker has accepted new ones."""

    def __init__(self, cluster: MixedCluster, worker: Worker) -> None:
        self._worker = worker
        self._producer = Producer({"bootstrap.servers": cluster.servers, "log_level": 0})
        self.count = 0

    def go_on(self) -> None:
        first = self.count

        def is_accepted() -> bool:
            for _ in range(10):
                self._producer.produce(TOPIC, b"%d" % self.count)
                self.count += 1
            self._producer.flush(TIMEOUT_S)
            return any(
                b"%d" % number in self._worker.accepted for number in range(first, self.count)
            )

        wait_until(is_accepted, "accepted records", TIMEOUT_S)


def test_a_share_group_works_while_its_state_moves(cluster: MixedCluster) -> None:
    cluster.create(STATE, [ISOTHERM, KAFKA], **{"cleanup.policy": "delete"})
    # On Kafka alone, whose next process learns from Isotherm what is done.
    cluster.create(TOPIC, [KAFKA])
    cluster.create(OFFSETS, *[[KAFKA]] * OFFSETS_PARTITIONS, **{"cleanup.policy": "compact"})
    worker = Worker(cluster.servers)
    try:
        work = Work(cluster, worker)
        work.go_on()
        begun = min(map(int, worker.delivered))
        for node_id in (KAFKA, ISOTHERM):
            cluster.move_leader(STATE, 0, node_id)
            work.go_on()
        cluster.members[KAFKA].kill()
        cluster.members[KAFKA].start()
        cluster.await_isr(STATE, {ISOTHERM, KAFKA}, 0)
        assert cluster.leader(STATE) == ISOTHERM
        work.go_on()
        everything = {b"%d" % number for number in range(begun, work.count)}
        wait_until(lambda: everything <= worker.accepted, "all records accepted", TIMEOUT_S)
        assert worker.repeated == set()
    finally:
        worker.stop()
