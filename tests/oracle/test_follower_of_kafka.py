"""A member of Kafka's cluster follows partitions that a broker of Kafka leads, and is in sync."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.metadata.image import PartitionImage
from isotherm.broker.partitions.replication.replica_fetcher import FetcherContext
from isotherm.broker.partitions.replication.replica_fetcher_manager import (
    ReplicaFetcherManager,
    connect_to_leaders,
)
from isotherm.clock import SystemClock
from isotherm.config.replication import ReplicationConfig
from isotherm.config.topic import TopicConfig
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import build_batch
from isotherm.types import TopicIdPartition
from oracle.kafka import CLUSTER_ID
from oracle.kafka_cluster import BrokerOracle, ControllerOracle
from tests.oracle.test_quorum_member import create_topic
from tests.support.conditions import wait_until
from tests.support.quorum_node import WAIT_S, QuorumNode

pytestmark = [pytest.mark.oracle, pytest.mark.slow, pytest.mark.usefixtures("kafka_tools")]

KAFKA, ISOTHERM = 1, 2
NOW_MS = 1_700_000_000_000
# Segments of the follower have other sizes than the leader's: their bytes are the same.
CONFIG = TopicConfig(retention_ms=-1, internal_segment_bytes=200_000)


class Followed:
    def __init__(self, place: TopicIdPartition, log: PartitionLog, leader_epoch: int) -> None:
        self.topic_id_partition = place
        self.log = log
        self.leader_epoch = leader_epoch

    def note_replicated(self, size: int) -> None:
        return


class Target(NamedTuple):
    partition: Followed
    leader: int
    endpoint: Endpoint


class Cluster:
    def __init__(self, root: Path, controller: ControllerOracle, kafka: BrokerOracle) -> None:
        self.kafka = kafka
        self.node = QuorumNode(root / "isotherm", controller.address, CLUSTER_ID, node_id=ISOTHERM)
        self.node.join()
        self.admin = AdminClient({"bootstrap.servers": kafka.bootstrap_server})
        self.fetchers = self._new_fetchers()

    def _new_fetchers(self) -> ReplicaFetcherManager:
        config = ReplicationConfig(replica_fetch_backoff_ms=100)
        features = self.node.metadata.image.features
        connect = connect_to_leaders(
            config,
            broker_id=ISOTHERM,
            broker_epoch=lambda: self.node.member.broker_epoch,
            metadata_version=lambda: features["metadata.version"],
            batch_bytes_max=2**20,
        )
        context = FetcherContext(self.node.log_manager, config, ISOTHERM, SystemClock())
        return ReplicaFetcherManager(context, connect)

    def create_topic(self, name: str) -> None:
        # Ask the controller itself: the metadata names any broker as controller, also the silent
        # one.
        create_topic(self.node, name, [[KAFKA, ISOTHERM]])

    def image(self, topic: str) -> PartitionImage:
        found = self.node.metadata.image.topic(topic)
        assert found is not None
        return found.partitions[0]

    def follow(self, topic: str) -> PartitionLog:
        found = self.node.metadata.image.topic(topic)
        assert found is not None
        place = TopicIdPartition(found.topic_id, topic, 0)
        log = self.node.log_manager.create_log(place.topic_partition, place.topic_id, CONFIG)
        partition = found.partitions[0]
        broker = self.node.metadata.image.brokers[partition.leader]
        endpoint = broker.endpoint("PLAINTEXT")
        assert endpoint is not None
        followed = Followed(place, log, partition.leader_epoch)
        self.fetchers.add([Target(followed, partition.leader, endpoint)])
        return log

    def wait(self, holds: Callable[[], object]) -> None:
        def is_there() -> object:
            assert not self.node.failures, self.node.failures
            return holds()

        wait_until(is_there, timeout_s=WAIT_S)

    def leaders_files(self, topic: str) -> list[Path]:
        return sorted(self.kafka.partition_directory(topic).glob("*.log"))

    def close(self) -> None:
        assert self.fetchers.stop(WAIT_S)
        self.node.crash()


@pytest.fixture(scope="module")
def cluster(kafka_tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("cluster")
    controller = ControllerOracle(root / "controller")
    controller.start()
    kafka = BrokerOracle(root / "kafka", controller, node_id=KAFKA)
    try:
        kafka.start()
        made = Cluster(root, controller, kafka)
        try:
            yield made
        finally:
            made.close()
    finally:
        kafka.kill()
        controller.kill()


def produce(cluster: Cluster, topic: str, count: int, *, acks: str = "all") -> None:
    producer = Producer(
        {
            "bootstrap.servers": cluster.kafka.bootstrap_server,
            "acks": acks,
            "compression.type": "zstd",
            "batch.num.messages": 10,
        }
    )
    rng = random.Random(count)
    for number in range(count):
        producer.produce(topic, rng.randbytes(rng.randrange(600)), str(number))
    assert producer.flush(WAIT_S) == 0


def stored(paths: Sequence[Path]) -> bytes:
    return b"".join(path.read_bytes() for path in paths)


def check_equal(cluster: Cluster, topic: str, log: PartitionLog, end: int) -> None:
    cluster.wait(lambda: log.log_end_offset == end == log.high_watermark)
    own = [segment.log_path for segment in log.segments()]
    assert stored(own) == stored(cluster.leaders_files(topic))


def test_follower_stays_in_sync_leaves_and_comes_back(cluster: Cluster) -> None:
    topic = "in-sync"
    cluster.create_topic(topic)
    log = cluster.follow(topic)
    # A record is acknowledged once the follower has it, because both are in the ISR.
    produce(cluster, topic, 2000)
    # On a busy machine the follower may have left the ISR for a while.
    cluster.wait(lambda: set(cluster.image(topic).isr) == {KAFKA, ISOTHERM})
    check_equal(cluster, topic, log, 2000)
    assert len(log.segments()) > 1

    cluster.fetchers.remove([log.topic_partition])
    # A follower that has everything stays in the ISR, however silent it is.
    produce(cluster, topic, 500, acks="1")
    cluster.wait(lambda: cluster.image(topic).isr == (KAFKA,))
    assert log.log_end_offset == 2000
    cluster.follow(topic)
    cluster.wait(lambda: set(cluster.image(topic).isr) == {KAFKA, ISOTHERM})
    produce(cluster, topic, 100)
    check_equal(cluster, topic, log, 2600)
    assert cluster.fetchers.failed_partitions() == frozenset()


def test_records_that_the_leader_lacks_are_truncated(cluster: Cluster) -> None:
    topic = "diverging"
    cluster.create_topic(topic)
    log = cluster.follow(topic)
    produce(cluster, topic, 50)
    check_equal(cluster, topic, log, 50)
    cluster.fetchers.remove([log.topic_partition])
    epoch = cluster.image(topic).leader_epoch
    log.append_as_leader(build_batch([(NOW_MS, b"k", b"lost", ())] * 7), epoch, now_ms=NOW_MS)
    cluster.follow(topic)
    cluster.wait(lambda: log.log_end_offset == 50)
    produce(cluster, topic, 20)
    check_equal(cluster, topic, log, 70)


@pytest.mark.nightly
def test_new_follower_begins_at_the_start_of_the_leader(cluster: Cluster) -> None:
    """DeleteRecords has moved the start into a batch."""
    topic = "deleted"
    cluster.create_topic(topic)
    cluster.wait(lambda: cluster.image(topic).isr == (KAFKA,))
    produce(cluster, topic, 95)
    # The request waits for the follower, which does not fetch yet, so it times out.
    cluster.admin.delete_records(
        [TopicPartition(topic, 0, 33)], request_timeout=60, operation_timeout=1
    )
    log = cluster.follow(topic)
    cluster.wait(lambda: log.log_end_offset == 95)
    cluster.wait(lambda: log.log_start_offset == 33)
    own = stored([segment.log_path for segment in log.segments()])
    assert stored(cluster.leaders_files(topic)).endswith(own)
    assert log.read(33, 10**6).records[:8] == own[:8]
    cluster.wait(lambda: set(cluster.image(topic).isr) == {KAFKA, ISOTHERM})
    produce(cluster, topic, 5)
    assert cluster.fetchers.failed_partitions() == frozenset()
