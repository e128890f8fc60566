"""Isotherm brokers while one or all controllers of their cluster are down, or one broker cannot be
heard.

Brokers go on serving the partitions that they lead. No topic, no leader and no smaller ISR comes
about meanwhile. Acknowledged records are there afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from oracle.cluster_members import TIER_SETTINGS, IsothermMember
from oracle.kafka_cluster import QuorumOracle
from oracle.tools import METADATA_QUORUM, run_tools
from oracle.topics import wait_until

pytestmark = [pytest.mark.oracle, pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(1200)]

WAIT_S = 300
TWO_REPLICAS = {
    key: "2" if key.endswith(".factor") else "1" if key.endswith(".isr") else text
    for key, text in TIER_SETTINGS.items()
}


class Cluster:
    def __init__(self, root: Path) -> None:
        (root / "bucket").mkdir()
        self.quorum = QuorumOracle(root / "quorum")
        self.quorum.start()
        controllers = cast("Any", SimpleNamespace(address=self.quorum.addresses))
        self.members = {
            node_id: IsothermMember(
                root / f"broker-{node_id}", controllers, node_id, root / "bucket", TWO_REPLICAS
            )
            for node_id in (1, 2)
        }
        for member in self.members.values():
            member.start()
        self.servers = ",".join(each.bootstrap_server for each in self.members.values())
        self.admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    def close(self) -> None:
        for member in self.members.values():
            member.kill()
        self.quorum.stop()

    def create(self, topic: str, replicas: list[int], timeout_s: float = WAIT_S) -> None:
        config = {"min.insync.replicas": "2", "retention.ms": "-1"}
        new = NewTopic(topic, 1, replica_assignment=[replicas], config=config)
        made = self.admin.create_topics([new], request_timeout=timeout_s)
        made[topic].result(timeout_s + WAIT_S)

    def partition(self, topic: str) -> Any:
        return self.admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions[0]

    def await_partition(self, topic: str, *, leader: int | None = None, isr: set[int]) -> None:
        def is_there() -> bool:
            try:
                found = self.admin.list_topics(topic, timeout=5).topics[topic].partitions[0]
            except KafkaException:
                return False  # the client asked the paused broker
            return set(found.isrs) == isr and leader in (None, found.leader)

        wait_until(is_there, f"ISR {isr} of {topic}", WAIT_S)

    def produce(self, topic: str, numbers: range, timeout_s: float = WAIT_S) -> list[KafkaError]:
        """Produce with acks=all; return the errors."""
        errors: list[KafkaError] = []
        producer = Producer(
            {
                "bootstrap.servers": self.servers,
                "acks": "all",
                "message.timeout.ms": int(timeout_s * 1000),
                "log_level": 0,
            }
        )
        for number in numbers:
            producer.produce(
                topic,
                str(number),
                on_delivery=lambda error, _: errors.append(error) if error else None,
            )
        assert producer.flush(WAIT_S) == 0
        return errors

    def read(self, topic: str, count: int) -> list[int]:
        """Read to the end of the partition; wait until it has at least `count` records."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "unused",
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[int] = []

        def is_read() -> bool:
            for message in consumer.consume(1000, 0.5):
                error = message.error()
                if error is None:
                    found.append(int(message.value() or b""))
                elif error.code() == KafkaError._PARTITION_EOF and len(found) >= count:
                    return True
            return False

        wait_until(is_read, f"{count} records of {topic}", WAIT_S)
        consumer.close()
        return found


@pytest.fixture(scope="module")
def cluster(kafka_tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


def active_controller(cluster: Cluster) -> int:
    server = cluster.members[1].bootstrap_server
    (text,) = run_tools([METADATA_QUORUM, "--bootstrap-server", server, "describe", "--status"])
    return int(text.split("LeaderId:")[1].split()[0])


def test_cluster_goes_on_under_another_controller(cluster: Cluster) -> None:
    cluster.create("led", [1, 2])
    assert cluster.produce("led", range(100)) == []
    killed = active_controller(cluster)
    cluster.quorum.controllers[killed].kill()
    try:
        assert cluster.produce("led", range(100, 200)) == []
        cluster.create("made-by-the-next", [2, 1])
        assert active_controller(cluster) != killed
        # Heartbeats and AlterPartition have found the new controller too.
        cluster.members[2].kill()
        cluster.await_partition("led", isr={1})
        cluster.members[2].start()
        cluster.await_partition("led", isr={1, 2})
    finally:
        cluster.quorum.controllers[killed].start()
    assert cluster.read("led", 200) == list(range(200))


def test_without_controllers_what_is_led_is_served_and_nothing_new_promised(
    cluster: Cluster,
) -> None:
    cluster.create("alone", [1, 2])
    assert cluster.produce("alone", range(100)) == []
    cluster.quorum.stop()
    try:
        assert cluster.produce("alone", range(100, 200)) == []
        assert cluster.read("alone", 200) == list(range(200))
        with pytest.raises(KafkaException) as refused:
            cluster.create("nobody", [1, 2], timeout_s=10)
        assert refused.value.args[0].name() in ("_TIMED_OUT", "REQUEST_TIMED_OUT")
        # The ISR cannot shrink, so the broker cannot answer acks=all.
        cluster.members[2].kill()
        errors = cluster.produce("alone", range(1000, 1001), timeout_s=15)
        assert len(errors) == 1
        assert sorted(cluster.partition("alone").isrs) == [1, 2]
        assert cluster.read("alone", 200) == list(range(200))
    finally:
        cluster.quorum.start()
    cluster.members[2].start()
    wait_until(lambda: not cluster.produce("alone", range(300, 301), 10), "acks of all", WAIT_S)
    found = [each for each in cluster.read("alone", 201) if each < 1000]
    assert found == [*range(200), *[300] * (len(found) - 200)]
    cluster.create("somebody", [2, 1])


def test_broker_that_is_not_heard_of_is_fenced_and_comes_back(cluster: Cluster) -> None:
    """A paused broker does not know, when it resumes, that another one leads."""
    cluster.create("fenced", [2, 1])
    assert cluster.produce("fenced", range(100)) == []
    process = cluster.members[2]._process
    assert process is not None
    process.pause()
    try:
        cluster.await_partition("fenced", leader=1, isr={1})
    finally:
        process.resume()
    cluster.await_partition("fenced", isr={1, 2})
    assert cluster.produce("fenced", range(100, 200)) == []
    assert cluster.read("fenced", 200) == list(range(200))
