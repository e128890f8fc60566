"""A leader and a follower of Isotherm over TCP, with a producer that waits for both.

A model controller accepts every change of the ISR: this broker's embedded controller knows no
second broker.
"""

from __future__ import annotations

import contextlib
import random
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.metadata.image import BrokerImage, PartitionImage
from isotherm.broker.partitions.partition import Partition
from isotherm.broker.partitions.replication.cluster_view import ClusterView, OnIsrAnswer
from isotherm.broker.partitions.replication.in_sync_replicas import IsrAnswer, IsrChange
from isotherm.broker.partitions.replication.replica_fetcher import FetcherContext
from isotherm.broker.partitions.replication.replica_fetcher_manager import (
    LeaderToFetch,
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
from isotherm.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from isotherm.testing.embedded_broker import EmbeddedBroker
from isotherm.types import TopicIdPartition
from tests.support.led_topic import NobodyWaits

LEADER, FOLLOWER = 1, 2
FOLLOWER_EPOCH = 50
LAG_MS = 1000
WAIT_S = 300


class _LeadersView(ClusterView):
    def __init__(self, isr_changed: threading.Condition) -> None:
        super().__init__(LEADER, SystemClock(), lag_time_max_ms=LAG_MS)
        self._isr_changed = isr_changed

    def find_broker(self, broker_id: int) -> BrokerImage | None:
        if broker_id not in (LEADER, FOLLOWER):
            return None
        return BrokerImage(broker_id, FOLLOWER_EPOCH, uuid.UUID(int=broker_id), None, fenced=False)

    def alter_isr(
        self, partition: TopicIdPartition, change: IsrChange, on_answer: OnIsrAnswer
    ) -> None:
        def accept() -> None:
            epoch = change.partition_epoch + 1
            on_answer(IsrAnswer(ErrorCode.none, change.isr, change.leader_epoch, epoch))
            with self._isr_changed:
                self._isr_changed.notify_all()

        threading.Thread(target=accept).start()


class Pair:
    """Partition t-0 of a broker, and a follower in this process."""

    def __init__(self, broker: EmbeddedBroker, directory: Path) -> None:
        self.broker = broker
        self.isr_changed = threading.Condition()
        manager = broker.node.services.replica_manager
        self.leader = manager.find_partition("t", None, 0)
        self.place = self.leader.topic_id_partition
        self.leader._cluster = _LeadersView(self.isr_changed)
        self.leader.make_leader(self.image())
        config = BrokerConfig(log_dirs=(directory,))
        self.log_manager = LogManager(
            (directory,),
            config=config,
            topic_config_for=lambda topic: TopicConfig(),
            clock=SystemClock(),
            fs=OsFileSystem(),
            rng=random.Random(0),
        )
        self.log_manager.startup()
        log = self.log_manager.create_log(
            self.place.topic_partition, self.place.topic_id, TopicConfig()
        )
        view = ClusterView(FOLLOWER, SystemClock())
        self.follower = Partition(self.place, log, view, NobodyWaits())
        self.follower.make_follower(self.image())
        replication = ReplicationConfig(replica_fetch_backoff_ms=50)
        self.connect = connect_to_leaders(
            replication,
            broker_id=FOLLOWER,
            broker_epoch=lambda: FOLLOWER_EPOCH,
            metadata_version=lambda: 30,
            batch_bytes_max=2**20,
        )
        context = FetcherContext(self.log_manager, replication, FOLLOWER, SystemClock())
        self.fetchers = ReplicaFetcherManager(context, self.connect)

    @property
    def address(self) -> Endpoint:
        return self.broker.node.endpoints[0]

    def image(self, **more: Any) -> PartitionImage:
        values: dict[str, Any] = {
            "replicas": (LEADER, FOLLOWER),
            "isr": (LEADER,),
            "leader": LEADER,
            "leader_epoch": 1,
            "partition_epoch": 5,
        }
        return PartitionImage(0, **{**values, **more})

    def wait_for_isr(self, *isr: int) -> None:
        with self.isr_changed:
            assert self.isr_changed.wait_for(lambda: self.leader.isr == isr, WAIT_S)

    def follow(self) -> None:
        self.fetchers.add([LeaderToFetch(self.follower, LEADER, self.address)])

    def close(self) -> None:
        assert self.fetchers.stop(WAIT_S)
        self.log_manager.shutdown()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with EmbeddedBroker(tmp_path / "leader") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        topic = NewTopic("t", 1, 1, config={"min.insync.replicas": "2"})
        admin.create_topics([topic])["t"].result(WAIT_S)
        with contextlib.closing(Pair(broker, tmp_path / "follower")) as made:
            yield made


def produce(pair: Pair, count: int, *, timeout_ms: int = WAIT_S * 1000) -> list[KafkaError | None]:
    """Produce records; return the error of each, None for a record that both replicas have."""
    producer = Producer(
        {
            "bootstrap.servers": pair.broker.bootstrap_servers,
            "acks": "all",
            "linger.ms": 5,
            "message.timeout.ms": timeout_ms,
        }
    )
    errors: list[KafkaError | None] = []
    for number in range(count):
        producer.produce("t", str(number), on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(WAIT_S) == 0
    return errors


def stored(partition: Partition) -> bytes:
    partition.log.flush()
    return b"".join(path.read_bytes() for path in sorted(partition.log.directory.glob("*.log")))


def test_records_are_acknowledged_when_both_have_them(pair: Pair) -> None:
    # Below min.insync.replicas no record is accepted.
    assert all(produce(pair, 3, timeout_ms=300))
    assert pair.leader.log.log_end_offset == 0
    pair.follow()
    pair.wait_for_isr(LEADER, FOLLOWER)
    assert produce(pair, 500) == [None] * 500
    assert pair.leader.log.high_watermark == 500
    assert pair.follower.log.log_end_offset == 500
    assert stored(pair.follower) == stored(pair.leader)
    consumer = Consumer({"bootstrap.servers": pair.broker.bootstrap_servers, "group.id": "g"})
    consumer.assign([ClientPartition("t", 0, 0)])
    read: list[Any] = []
    while len(read) < 500:
        read += consumer.consume(500 - len(read), timeout=WAIT_S)
    assert [message.value() for message in read] == [b"%d" % number for number in range(500)]
    consumer.close()


def test_follower_that_is_gone_leaves_and_comes_back(pair: Pair) -> None:
    pair.follow()
    pair.wait_for_isr(LEADER, FOLLOWER)
    assert produce(pair, 10) == [None] * 10
    pair.fetchers.remove([pair.place.topic_partition])
    # These are not acknowledged.
    assert all(produce(pair, 1, timeout_ms=LAG_MS + 500))
    pair.leader.shrink_isr()
    pair.wait_for_isr(LEADER)
    end = pair.leader.log.log_end_offset
    assert (end, pair.leader.log.high_watermark) == (11, 10)
    pair.follow()
    pair.wait_for_isr(LEADER, FOLLOWER)
    assert produce(pair, 5) == [None] * 5
    assert pair.leader.log.high_watermark == pair.follower.log.log_end_offset


@pytest.mark.parametrize(
    ("replica", "epoch", "leader_epoch", "error"),
    [
        (FOLLOWER, FOLLOWER_EPOCH, 1, ErrorCode.none),
        (FOLLOWER, FOLLOWER_EPOCH, 0, ErrorCode.fenced_leader_epoch),
        (FOLLOWER, FOLLOWER_EPOCH, 2, ErrorCode.unknown_leader_epoch),
        (FOLLOWER, FOLLOWER_EPOCH - 1, 1, ErrorCode.not_leader_or_follower),
        (9, FOLLOWER_EPOCH, 1, ErrorCode.unknown_leader_epoch),
    ],
)
@pytest.mark.parametrize("metadata_version", [21, 30])
def test_first_frame_of_a_connection_may_be_a_followers_fetch(
    pair: Pair, replica: int, epoch: int, leader_epoch: int, error: ErrorCode, metadata_version: int
) -> None:
    """Versions 17 and 18, without ApiVersions, as Kafka's fetchers send them."""
    connect = connect_to_leaders(
        ReplicationConfig(),
        broker_id=replica,
        broker_epoch=lambda: epoch,
        metadata_version=lambda: metadata_version,
        batch_bytes_max=2**20,
    )
    asked = FetchPartition(0, 0, 1 << 20, leader_epoch, -1, 0)
    request = FetchRequest(
        replica, 0, 1, 1 << 20, 0, 0, -1, [FetchTopic(None, pair.place.topic_id, [asked])], [], ""
    )
    with contextlib.closing(
        connect(NodeAddress(pair.address.host, pair.address.port), "broker-2-fetcher-0")
    ) as leader:
        response = leader.fetch(request)
    (answer,) = response.topics[0].partitions
    assert answer.error_code == error
    names_leader = error in (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)
    assert answer.current_leader == ((LEADER, 1) if names_leader else None)
    assert not response.node_endpoints
