"""A follower that starts from the remote tier knows the producers of the segments that it does not
have.

    offset    0 ..            .. 97 | 98 ..
              open transaction ─────|──► its ABORT marker
              segment in the bucket | active segment of the leader: here the follower starts

The transaction is open where the segment ends, so only the producer snapshot in the bucket knows
where it began. A follower without it writes no entry for the marker into its transaction index.
Once it leads, it hands out the aborted record to read_committed consumers.

Apache Kafka 4.3.1 is such a follower: `TierStateMachine.buildProducerSnapshotFile` stores the
snapshot under the name of one that the truncation before has just written, and
`ProducerStateManager.truncateFullyAndReloadSnapshots` deletes both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, PartitionMetadata
from confluent_kafka.cimpl import NewTopic

from oracle.leader_moves import elect_leader
from oracle.topics import wait_until
from tests.support.cluster.links import Links
from tests.support.cluster.members import LinkedCluster

pytestmark = [pytest.mark.oracle, pytest.mark.slow, pytest.mark.usefixtures("kafka_tools")]

LEADER, FOLLOWER = 1, 2
TOPIC = "flights"
WAIT_S = 300
ABORTED = b"aborted"
CONFIG = {
    "min.insync.replicas": "1",
    "remote.storage.enable": "true",
    "local.retention.bytes": "1",
    "internal.segment.bytes": "65536",
    "file.delete.delay.ms": "100",
}
VALUE = bytes(800)
ROLLING_COUNT = 105
"""This many records fill more than one segment, and fewer than two."""


class TieredTopic:
    """TOPIC with one partition; LEADER leads it and FOLLOWER follows. Not thread-safe."""

    def __init__(self, cluster: LinkedCluster) -> None:
        self.cluster = cluster
        self._admin = AdminClient({"bootstrap.servers": cluster.servers, "log_level": 0})
        self._producer = Producer(self._client(acks="all", batch_size=20_000))
        new = NewTopic(TOPIC, 1, 2, config=CONFIG)
        self._admin.create_topics([new])[TOPIC].result(WAIT_S)
        self.lead(LEADER, FOLLOWER)
        self.await_in_sync()

    def _client(self, **settings: object) -> dict[str, object]:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        return {"bootstrap.servers": self.cluster.servers, "log_level": 0, **named}

    def lead(self, leader: int, follower: int) -> None:
        def leads() -> bool:
            elected = elect_leader(self.cluster.servers, TOPIC, 0, [leader, follower])
            return elected and self._partition_is(lambda found: found.leader == leader)

        wait_until(leads, f"{leader} leads", WAIT_S)

    def await_in_sync(self) -> None:
        replicas = [LEADER, FOLLOWER]
        wait_until(
            lambda: self._partition_is(lambda found: sorted(found.isrs) == replicas),
            "both replicas are in sync",
            WAIT_S,
        )

    def _partition_is(self, is_true: Callable[[PartitionMetadata], bool]) -> bool:
        found = self._admin.list_topics(TOPIC, timeout=WAIT_S).topics[TOPIC].partitions.get(0)
        return found is not None and is_true(found)

    def send(self, count: int) -> None:
        for _ in range(count):
            self._producer.produce(TOPIC, VALUE, partition=0)
        assert self._producer.flush(WAIT_S) == 0

    def open_transaction(self) -> Producer:
        producer = Producer(self._client(transactional_id="aborts", transaction_timeout_ms=600_000))
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        producer.produce(TOPIC, ABORTED, partition=0)
        assert producer.flush(WAIT_S) == 0
        return producer

    def await_one_copied_segment(self) -> None:
        """Wait until the first segment is in the bucket, and gone from the leader's disk."""
        local = self.cluster.members[LEADER].data_dir / f"{TOPIC}-0"

        def is_gone() -> bool:
            segments = [path.stem for path in local.glob("*.log")]
            return len(segments) == 1 and int(segments[0]) > 0

        wait_until(is_gone, "the first segment is only in the bucket", WAIT_S)

    def read_committed(self) -> Iterator[bytes]:
        consumer = Consumer(
            self._client(
                group_id="unused",
                isolation_level="read_committed",
                enable_partition_eof=True,
                auto_offset_reset="error",
            )
        )
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        try:
            while True:
                message = consumer.poll(WAIT_S)
                assert message is not None, "the consumer gets nothing"
                if message.error():
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    return
                yield message.value()
        finally:
            consumer.close()


OTHER_PLACEMENTS = (
    pytest.param("KIK", False, id="Isotherm follows Apache Kafka"),
    pytest.param("IKI", True, id="Apache Kafka follows Isotherm"),
    pytest.param("KKK", True, id="Apache Kafka follows Apache Kafka"),
)


def values_after_the_follower_leads(directory: Path, kinds: str) -> list[bytes]:
    """The values that a read_committed consumer gets.

    `kinds` has a letter for each broker, as LinkedCluster.
    """
    with Links() as links:
        cluster = LinkedCluster(directory, kinds, links)
        try:
            cluster.start()
            topic = TieredTopic(cluster)
            cluster.members[FOLLOWER].stop()
            transaction = topic.open_transaction()
            topic.send(ROLLING_COUNT)
            transaction.abort_transaction(WAIT_S)
            topic.await_one_copied_segment()
            cluster.start_member(FOLLOWER)
            topic.await_in_sync()
            topic.lead(FOLLOWER, LEADER)
            return list(topic.read_committed())
        finally:
            cluster.close()


def test_a_follower_from_the_tier_knows_the_open_transactions(tmp_path: Path) -> None:
    values = values_after_the_follower_leads(tmp_path, "III")
    assert values.count(VALUE) == ROLLING_COUNT
    assert ABORTED not in values


@pytest.mark.soak
@pytest.mark.parametrize(("kinds", "hands_out_aborted"), OTHER_PLACEMENTS)
def test_which_followers_hand_out_aborted_records(
    tmp_path: Path, kinds: str, hands_out_aborted: bool
) -> None:
    """Kafka's follower does.

    So mixed runs keep more on the local disks (tests.support.cluster.run).
    """
    values = values_after_the_follower_leads(tmp_path, kinds)
    assert values.count(VALUE) == ROLLING_COUNT
    assert (ABORTED in values) is hands_out_aborted
