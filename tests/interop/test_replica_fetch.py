"""The follower's side of replication against real leaders, over TCP.

The fetchers fetch as consumers (replica id -1) and so get committed records only: a leader refuses
a replica that the cluster's metadata does not assign.
"""

from __future__ import annotations

import base64
import random
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic, TopicDescription
from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.partitions.replication.leader_endpoint import EARLIEST, LATEST, LookUpError
from isotherm.broker.partitions.replication.replica_fetcher import FetcherContext
from isotherm.broker.partitions.replication.replica_fetcher_manager import (
    Connect,
    ReplicaFetcherManager,
    connect_to_leaders,
)
from isotherm.client.node_address import NodeAddress
from isotherm.clock import SystemClock
from isotherm.config.broker import BrokerConfig
from isotherm.config.replication import ReplicationConfig
from isotherm.config.topic import TopicConfig
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_manager import LogManager
from isotherm.log.partition_log import PartitionLog
from isotherm.testing.embedded_broker import EmbeddedBroker
from isotherm.types import TopicIdPartition, TopicPartition
from oracle.kafka import running_kafka

CONSUMER = -1
PARTITIONS = 3
CONFIG = TopicConfig(retention_ms=-1)
WAIT_S = 300


@dataclass
class Followed:
    topic_id_partition: TopicIdPartition
    log: PartitionLog
    leader_epoch: int
    changed: threading.Condition = field(default_factory=threading.Condition)

    def note_replicated(self, size: int) -> None:
        with self.changed:
            self.changed.notify_all()

    def wait_for_end(self, offset: int) -> None:
        with self.changed:
            # The high watermark rises after the append.
            assert self.changed.wait_for(lambda: self.log.high_watermark >= offset, WAIT_S)


class Target(NamedTuple):
    partition: Followed
    leader: int
    endpoint: Endpoint


def create_topic(address: str, name: str) -> uuid.UUID:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(WAIT_S)
    while (description := describe(admin, name)) is None:
        pass  # Kafka answers a creation before each broker has the topic
    # librdkafka writes the id in standard base64, not in the URL-safe alphabet.
    return uuid.UUID(bytes=base64.b64decode(f"{description.topic_id}=="))


def describe(admin: AdminClient, name: str) -> TopicDescription | None:
    try:
        return admin.describe_topics(TopicCollection([name]))[name].result(WAIT_S)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise
        return None


def produce(address: str, topic: str, count: int, *, transactional: bool = False) -> None:
    settings = {"bootstrap.servers": address, "linger.ms": 5, "compression.type": "lz4"}
    if transactional:
        settings |= {"transactional.id": "follower-test", "transaction.timeout.ms": 900_000}
    producer = Producer(settings)
    if transactional:
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
    rng = random.Random(count)
    for number in range(count):
        value = rng.randbytes(rng.randrange(300))
        producer.produce(topic, value, str(number), partition=number % PARTITIONS)
    assert producer.flush(WAIT_S) == 0
    if transactional:
        producer.abort_transaction(WAIT_S)


def follow(
    root: Path,
    address: str,
    topic: str,
    topic_id: uuid.UUID,
    action: Callable[[dict[int, Followed], ReplicaFetcherManager], None],
) -> None:
    """Follow every partition of a topic from the broker at `address` while `action` runs."""
    manager = LogManager(
        (root,),
        config=BrokerConfig(log_dirs=(root,), topic_defaults=CONFIG),
        topic_config_for=lambda topic: CONFIG,
        clock=SystemClock(),
        fs=OsFileSystem(),
        rng=random.Random(0),
    )
    manager.startup()
    config = ReplicationConfig(num_replica_fetchers=2, replica_fetch_backoff_ms=50)
    context = FetcherContext(manager, config, CONSUMER, SystemClock())
    fetchers = ReplicaFetcherManager(context, connector(config))
    host, _, port = address.rpartition(":")
    followed = {
        number: Followed(
            TopicIdPartition(topic_id, topic, number),
            manager.create_log(TopicPartition(topic, number), topic_id, CONFIG),
            0,
        )
        for number in range(PARTITIONS)
    }
    try:
        endpoint = Endpoint("PLAINTEXT", host, int(port))
        fetchers.add([Target(each, 1, endpoint) for each in followed.values()])
        action(followed, fetchers)
        assert fetchers.failed_partitions() == frozenset()
        fetchers.remove([followed[0].topic_id_partition.topic_partition])
        assert TopicPartition(topic, 0) not in fetchers.lags()
    finally:
        assert fetchers.stop(WAIT_S)
        manager.shutdown()


def connector(config: ReplicationConfig) -> Connect:
    return connect_to_leaders(
        config,
        broker_id=CONSUMER,
        broker_epoch=lambda: -1,
        metadata_version=lambda: 30,
        batch_bytes_max=2**20,
    )


def stored(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def check_follower(root: Path, address: str, leader_directory: Callable[[str, int], Path]) -> None:
    topic = "followed"
    topic_id = create_topic(address, topic)
    produce(address, topic, 600)

    def grow(followed: dict[int, Followed], fetchers: ReplicaFetcherManager) -> None:
        for each in followed.values():
            each.wait_for_end(200)
        produce(address, topic, 300, transactional=True)
        # While they fetch: num.replica.fetchers is dynamic.
        fetchers.resize(1)
        produce(address, topic, 3000)
        fetchers.resize(3)
        assert {each.name for each in fetchers._all()} == {
            f"isotherm-replica-fetcher-{number}-1" for number in range(3)
        }
        for each in followed.values():
            # Each transaction ends with a marker.
            each.wait_for_end(1301)
        for number, each in followed.items():
            assert each.log.high_watermark == each.log.log_end_offset == 1301
            assert each.log.last_stable_offset == 1301
            assert len(each.log.segments()[-1].aborted_transactions()) == 1
            assert stored(each.log.directory) == stored(leader_directory(topic, number))
            assert [entry.epoch for entry in each.log.leader_epochs.entries] == [0]

    follow(root / "follower", address, topic, topic_id, grow)
    leader = connector(ReplicationConfig())(
        NodeAddress("127.0.0.1", int(address.rpartition(":")[2])), "test"
    )
    place = TopicIdPartition(topic_id, topic, 1)
    assert leader.find_offset(place, 0, LATEST) == (1301, 0)
    assert leader.find_offset(place, 0, EARLIEST) == (0, 0)
    assert leader.find_epoch_end(place, 0, 0) == (0, 1301)
    with pytest.raises(LookUpError) as refused:
        leader.find_offset(place, 1, LATEST)
    assert refused.value.error_code == ErrorCode.unknown_leader_epoch
    leader.close()


def test_follower_of_isotherm_gets_the_same_bytes(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "leader") as broker:
        check_follower(
            tmp_path,
            broker.bootstrap_servers,
            lambda topic, number: tmp_path / "leader" / "log" / f"{topic}-{number}",
        )


@pytest.mark.oracle
@pytest.mark.usefixtures("kafka_tools")
def test_follower_of_kafka_gets_the_same_bytes(tmp_path: Path) -> None:
    with running_kafka(tmp_path / "kafka") as kafka:
        check_follower(tmp_path, kafka.bootstrap_server, kafka.partition_directory)
