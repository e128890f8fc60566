"""One controller of Apache Kafka and three brokers: Isotherm, Apache Kafka, Isotherm.

with MixedCluster(folder) as cluster:
    cluster.create("topic", [ISOTHERM, KAFKA, OTHER_ISOTHERM])
    cluster.move_leader("topic", 0, KAFKA)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from oracle.cluster_members import TIER_SETTINGS, IsothermMember, KafkaMember
from oracle.kafka_cluster import ControllerOracle
from oracle.leader_moves import elect_leader
from oracle.topics import wait_until

ISOTHERM, KAFKA, OTHER_ISOTHERM = 1, 2, 3
KINDS: Mapping[int, type[IsothermMember | KafkaMember]] = {
    ISOTHERM: IsothermMember,
    KAFKA: KafkaMember,
    OTHER_ISOTHERM: IsothermMember,
}
TIMEOUT_S = 300

Member = IsothermMember | KafkaMember


class MixedCluster:
    """Runs from construction to `close`. One thread at a time."""

    def __init__(
        self,
        root: Path,
        kinds: Mapping[int, type[Member]] = KINDS,
        settings: Mapping[str, str] | None = None,
        controller_settings: Mapping[str, str] | None = None,
    ) -> None:
        """`kinds` has a kind for each node id. `settings` of the brokers override TIER_SETTINGS."""
        self.bucket = root / "bucket"
        self.bucket.mkdir(parents=True)
        self.controller = ControllerOracle(root / "controller", controller_settings)
        self.members: dict[int, Member] = {}
        try:
            self.controller.start()
            for node_id, kind in kinds.items():
                member = kind(
                    root / f"broker-{node_id}",
                    self.controller,
                    node_id,
                    self.bucket,
                    {**TIER_SETTINGS, **(settings or {})},
                )
                self.members[node_id] = member
            # Most of a start is the start of an interpreter or JVM.
            with ThreadPoolExecutor(len(self.members)) as executor:
                for started in [executor.submit(each.start) for each in self.members.values()]:
                    started.result()
        except BaseException:
            self.close()
            raise
        self.admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        # librdkafka drops its handles of bootstrap addresses once it knows the brokers behind them,
        # and with a handle the request that was sent through it.
        wait_until(self._knows_brokers, "metadata of all brokers", TIMEOUT_S)

    def _knows_brokers(self) -> bool:
        try:
            return self.admin.list_topics(timeout=10).brokers.keys() == self.members.keys()
        except KafkaException:
            return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for member in self.members.values():
            member.kill()
        self.controller.kill()

    @property
    def servers(self) -> str:
        return ",".join(member.bootstrap_server for member in self.members.values())

    def create(self, topic: str, *assignment: Sequence[int], **configs: str) -> None:
        """Create a topic with a partition for each list of replicas, leader first.

        Return when all are in sync.
        """
        texts = {"min.insync.replicas": "2", "retention.ms": "-1", **configs}
        replicas = [list(each) for each in assignment]
        new = NewTopic(topic, len(replicas), replica_assignment=replicas, config=texts)
        self.admin.create_topics([new])[topic].result(TIMEOUT_S)
        for index, each in enumerate(replicas):
            self.await_isr(topic, set(each), index)

    def _partition(self, topic: str, partition: int) -> Any:
        try:
            found = self.admin.list_topics(topic, timeout=10).topics[topic]
        except KafkaException:
            return None
        return found.partitions.get(partition)

    def isr(self, topic: str, partition: int = 0) -> set[int]:
        found = self._partition(topic, partition)
        return set(found.isrs) if found else set()

    def leader(self, topic: str, partition: int = 0) -> int:
        """The leader's node id; -1 while there is none, or while no broker answers."""
        found = self._partition(topic, partition)
        return int(found.leader) if found else -1

    def await_isr(self, topic: str, expected: set[int], partition: int = 0) -> None:
        wait_until(
            lambda: self.isr(topic, partition) == expected,
            f"ISR {expected} of {topic}-{partition}",
            TIMEOUT_S,
        )

    def await_leader(self, topic: str, node_id: int, partition: int = 0) -> None:
        wait_until(
            lambda: self.leader(topic, partition) == node_id,
            f"{node_id} leads {topic}-{partition}",
            TIMEOUT_S,
        )

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        """Make a replica the preferred leader and elect it. Return when it leads."""
        if self.leader(topic, partition) == node_id:
            return

        def is_elected() -> bool:
            found = self._partition(topic, partition)
            if found is None:
                return False
            others = sorted({*found.replicas} - {node_id})
            # The replica may not be in sync yet.
            return elect_leader(self.servers, topic, partition, [node_id, *others])

        wait_until(is_elected, f"election of {node_id} for {topic}-{partition}", TIMEOUT_S)
        self.await_leader(topic, node_id, partition)
