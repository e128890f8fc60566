"""Coordinators move between Isotherm and Apache Kafka while their clients keep working.

Each kind loads what the other has written to `__consumer_offsets` and `__transaction_state`: groups
of both protocols, committed offsets, open transactions, fenced producers.
"""

from __future__ import annotations

import contextlib
import datetime
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.coordinator_partition import coordinator_partition
from isotherm.client.node_address import NodeAddress
from isotherm.client.node_connection import NodeConnection
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.entities import entity_of
from oracle.mixed_cluster import ISOTHERM, KAFKA, OTHER_ISOTHERM, MixedCluster
from oracle.topics import wait_until

pytestmark = [pytest.mark.oracle, pytest.mark.slow, pytest.mark.timeout(1800)]

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
PARTITIONS = 3  # of both, see CLUSTER_SETTINGS
SESSION_MS = 300_000
TIMEOUT_S = 300
ALL = [[ISOTHERM, KAFKA, OTHER_ISOTHERM], [KAFKA, OTHER_ISOTHERM, ISOTHERM],
       [OTHER_ISOTHERM, ISOTHERM, KAFKA]]  # fmt: skip


@pytest.fixture(scope="module")
def cluster(kafka_tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    settings = {
        "group.consumer.max.session.timeout.ms": str(SESSION_MS),
        "group.consumer.session.timeout.ms": str(SESSION_MS),
    }
    folder = tmp_path_factory.mktemp("coordinators")
    with MixedCluster(folder, settings=settings) as cluster:
        yield cluster


class GroupMember:
    """A consumer in a thread, which commits what it has read. `stop` ends it."""

    def __init__(self, cluster: MixedCluster, group_id: str, topic: str, protocol: str) -> None:
        self.values: list[bytes] = []
        self.assignments = 0
        self.revocations = 0
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.servers,
                "group.id": group_id,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                # A member that is given no processor must not lose its membership.
                **({"session.timeout.ms": SESSION_MS} if protocol == "classic" else {}),
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._topic = topic
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        self._consumer.subscribe(
            [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke
        )
        while not self._ends.is_set():
            found = [
                message for message in self._consumer.consume(500, 0.1) if message.error() is None
            ]
            if found:
                self.values.extend(each.value() or b"" for each in found)
                self._commit()
        self._consumer.close()

    def _commit(self) -> None:
        # librdkafka passes the errors of a moving coordinator on to the application.
        while not self._ends.is_set():
            with contextlib.suppress(KafkaException):
                self._consumer.commit(asynchronous=False)
                return

    def _on_assign(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.assignments += bool(partitions)

    def _on_revoke(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self.revocations += not self._ends.is_set()


def produce(cluster: MixedCluster, topic: str, partitions: int, numbers: range) -> None:
    producer = Producer(
        {"bootstrap.servers": cluster.servers, "enable.idempotence": True, "log_level": 0}
    )
    for number in numbers:
        producer.produce(topic, b"%d" % number, partition=number % partitions)
    assert producer.flush(TIMEOUT_S) == 0


def ensure_internal_topics(cluster: MixedCluster) -> None:
    """Create both internal topics, by a transaction that commits an offset."""
    if TRANSACTIONS in cluster.admin.list_topics(timeout=300).topics:
        return
    cluster.create("first", ALL[0])
    producer = transactional(cluster, "first")
    producer.begin_transaction()
    commit_offset_in(cluster, producer, "first", TopicPartition("first", 0, 1))
    producer.commit_transaction(TIMEOUT_S)
    for topic in (OFFSETS, TRANSACTIONS):
        for index in range(PARTITIONS):
            cluster.await_isr(topic, set(cluster.members), index)


def transactional(cluster: MixedCluster, transactional_id: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": cluster.servers,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 120_000,
            "log_level": 0,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    return producer


def commit_offset_in(
    cluster: MixedCluster, producer: Producer, group_id: str, offset: TopicPartition
) -> None:
    consumer = Consumer({"bootstrap.servers": cluster.servers, "group.id": group_id})
    metadata = consumer.consumer_group_metadata()
    producer.send_offsets_to_transaction([offset], metadata, TIMEOUT_S)
    consumer.close()


def committed(cluster: MixedCluster, group_id: str, partitions: int = 1) -> list[int]:
    """The group's offsets: negative without a commit, and empty while no coordinator answers."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.servers, "group.id": group_id, "log_level": 0}
    )
    topic = group_id
    try:
        asked = [TopicPartition(topic, index) for index in range(partitions)]
        return [each.offset for each in consumer.committed(asked, timeout=300)]
    except KafkaException:
        return []
    finally:
        consumer.close()


def member_ids(cluster: MixedCluster, group_id: str) -> set[str]:
    """The member ids of a stable group. Waits for its coordinator."""
    found: set[str] = set()

    def is_listed() -> bool:
        # A new client: librdkafka keeps sending this request to the coordinator that it found
        # first.
        admin = AdminClient({"bootstrap.servers": cluster.servers, "log_level": 0})
        (future,) = admin.describe_consumer_groups([group_id], request_timeout=300).values()
        try:
            group = future.result(TIMEOUT_S)
        except KafkaException:
            return False
        found.update(member.member_id for member in group.members)
        return bool(group.state is ConsumerGroupState.STABLE)

    wait_until(is_listed, f"the members of {group_id}", TIMEOUT_S)
    return found


def read_committed(cluster: MixedCluster, topic: str, partitions: int) -> Counter[bytes]:
    """All records that a read_committed consumer gets up to the last stable offsets."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.servers,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found: Counter[bytes] = Counter()
    ended: set[int] = set()

    def is_read() -> bool:
        for message in consumer.consume(1000, 0.5):
            error = message.error()
            if error is None:
                found[message.value() or b""] += 1
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition() or 0)
        return len(ended) == partitions

    wait_until(is_read, f"the ends of {topic}", TIMEOUT_S)
    consumer.close()
    return found


@pytest.mark.parametrize(
    ("protocol", "killed"),
    [("classic", KAFKA), pytest.param("consumer", ISOTHERM, marks=pytest.mark.nightly)],
)
def test_members_go_on_when_their_coordinator_moves(
    cluster: MixedCluster, protocol: str, killed: int
) -> None:
    ensure_internal_topics(cluster)
    topic = group_id = f"moved-{protocol}"
    index = coordinator_partition(group_id, PARTITIONS)
    cluster.create(topic, *ALL[:2])
    cluster.move_leader(OFFSETS, index, KAFKA)
    members = [GroupMember(cluster, group_id, topic, protocol) for _ in range(2)]
    written = 0

    def check_goes_on() -> None:
        nonlocal written
        produce(cluster, topic, 2, range(written, written + 200))
        written += 200
        half = written // 2
        wait_until(
            lambda: committed(cluster, group_id, 2) == [half, half],
            f"offsets {half} of {group_id}",
            TIMEOUT_S,
        )

    try:
        wait_until(lambda: all(member.assignments for member in members), "members", TIMEOUT_S)
        check_goes_on()
        known, assignments = (
            member_ids(cluster, group_id),
            [member.assignments for member in members],
        )
        revocations = [member.revocations for member in members]
        assert len(known) == 2
        for node_id in (ISOTHERM, OTHER_ISOTHERM, KAFKA, ISOTHERM):
            cluster.move_leader(OFFSETS, index, node_id)
            check_goes_on()
            assert member_ids(cluster, group_id) == known
        cluster.move_leader(OFFSETS, index, killed)
        cluster.members[killed].kill()
        try:
            check_goes_on()
            assert member_ids(cluster, group_id) == known
        finally:
            cluster.members[killed].start()
        cluster.await_isr(OFFSETS, set(cluster.members), index)
        assert [member.assignments for member in members] == assignments
        assert [member.revocations for member in members] == revocations
    finally:
        for member in members:
            member.stop()
    values = Counter(value for member in members for value in member.values)
    assert values == Counter(b"%d" % number for number in range(written))


@pytest.mark.nightly
def test_open_transactions_move_with_their_coordinators(cluster: MixedCluster) -> None:
    ensure_internal_topics(cluster)
    topic = group_id = transactional_id = "in-transactions"
    at_offsets = coordinator_partition(group_id, PARTITIONS)
    at_transactions = coordinator_partition(transactional_id, PARTITIONS)
    cluster.create(topic, *ALL)
    cluster.move_leader(TRANSACTIONS, at_transactions, KAFKA)
    producer = transactional(cluster, transactional_id)
    expected: Counter[bytes] = Counter()
    number = 0
    for turn, commits in enumerate((True, False, True)):
        producer.begin_transaction()
        sent = []
        for node_id in (ISOTHERM, KAFKA, OTHER_ISOTHERM):
            for _ in range(30):
                value = b"%d" % number
                producer.produce(topic, value, partition=number % 3)
                sent.append(value)
                number += 1
            assert producer.flush(TIMEOUT_S) == 0
            if node_id == ISOTHERM:
                offset = TopicPartition(topic, 0, turn + 1)
                commit_offset_in(cluster, producer, group_id, offset)
            cluster.move_leader(TRANSACTIONS, at_transactions, node_id)
            cluster.move_leader(OFFSETS, at_offsets, node_id)
            cluster.move_leader(topic, turn, node_id)
            assert read_committed(cluster, topic, 3) == expected
        if commits:
            producer.commit_transaction(TIMEOUT_S)
            expected.update(sent)
        else:
            producer.abort_transaction(TIMEOUT_S)
        wait_until(
            lambda: read_committed(cluster, topic, 3).total() >= expected.total(),
            "the committed records",
            TIMEOUT_S,
        )
        assert read_committed(cluster, topic, 3) == expected
        committed_turn = 1 if turn < 2 else 3
        wait_until(
            lambda: committed(cluster, group_id) == [committed_turn],  # noqa: B023
            f"offset {committed_turn}",
            TIMEOUT_S,
        )


@pytest.mark.parametrize("leader", [ISOTHERM, pytest.param(KAFKA, marks=pytest.mark.nightly)])
def test_a_killed_coordinator_loses_no_transaction(cluster: MixedCluster, leader: int) -> None:
    ensure_internal_topics(cluster)
    topic = transactional_id = f"killed-in-transaction-{leader}"
    index = coordinator_partition(transactional_id, PARTITIONS)
    cluster.create(topic, *ALL)
    cluster.move_leader(TRANSACTIONS, index, leader)
    producer = transactional(cluster, transactional_id)
    producer.begin_transaction()
    for number in range(90):
        producer.produce(topic, b"%d" % number, partition=number % 3)
    assert producer.flush(TIMEOUT_S) == 0
    cluster.members[leader].kill()
    try:
        for number in range(90, 180):
            producer.produce(topic, b"%d" % number, partition=number % 3)
        producer.commit_transaction(TIMEOUT_S)
        expected = Counter(b"%d" % number for number in range(180))
        wait_until(
            lambda: read_committed(cluster, topic, 3) == expected,
            "the committed records",
            TIMEOUT_S,
        )
    finally:
        cluster.members[leader].start()
    for each in range(3):
        cluster.await_isr(topic, set(cluster.members), each)
    # A new leader learns the high watermark with a delay.
    wait_until(
        lambda: read_committed(cluster, topic, 3).total() >= expected.total(), "all", TIMEOUT_S
    )
    assert read_committed(cluster, topic, 3) == expected


@pytest.mark.parametrize("first", [ISOTHERM, KAFKA])
def test_a_producer_is_fenced_across_a_move(cluster: MixedCluster, first: int) -> None:
    ensure_internal_topics(cluster)
    second = KAFKA if first == ISOTHERM else ISOTHERM
    topic = transactional_id = f"fenced-{first}"
    index = coordinator_partition(transactional_id, PARTITIONS)
    cluster.create(topic, *ALL)
    cluster.move_leader(TRANSACTIONS, index, first)
    old = transactional(cluster, transactional_id)
    old.begin_transaction()
    old.produce(topic, b"old", partition=0)
    assert old.flush(TIMEOUT_S) == 0

    cluster.move_leader(TRANSACTIONS, index, second)
    new = transactional(cluster, transactional_id)
    cluster.move_leader(TRANSACTIONS, index, first)
    with pytest.raises(KafkaException) as refused:
        old.commit_transaction(TIMEOUT_S)
    assert refused.value.args[0].code() in {KafkaError._FENCED, KafkaError.PRODUCER_FENCED}
    new.begin_transaction()
    new.produce(topic, b"new", partition=0)
    cluster.move_leader(TRANSACTIONS, index, second)
    new.commit_transaction(TIMEOUT_S)
    wait_until(
        lambda: read_committed(cluster, topic, 3) == Counter([b"new"]), "the record", TIMEOUT_S
    )


def test_a_share_group_moves_between_kafka_and_isotherm(cluster: MixedCluster) -> None:
    """Its member keeps its epoch, and no other group can have its id."""
    ensure_internal_topics(cluster)
    group_id = "shared"
    index = coordinator_partition(group_id, PARTITIONS)
    cluster.move_leader(OFFSETS, index, KAFKA)
    member = {"group_id": group_id, "member_id": "4c1a3e4e-3b5c-4d38-9b0f-5f1f7a6d7c11"}
    epochs = [0]

    def share(node_id: int) -> ErrorCode:
        names = None if epochs[-1] else ("first",)
        beat = {"member_epoch": epochs[-1], "rack_id": None, "subscribed_topic_names": names}
        answer = ask(cluster, node_id, ApiKey.SHARE_GROUP_HEARTBEAT, 1, member | beat)
        if answer.error_code is ErrorCode.none:
            epochs.append(answer.member_epoch)
        return answer.error_code

    consuming = {
        **member,
        "member_epoch": 0,
        "rebalance_timeout": datetime.timedelta(seconds=30),
        "subscribed_topic_names": ("first",),
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": (),
    }

    def consume(node_id: int) -> ErrorCode:
        return ask(cluster, node_id, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, consuming).error_code

    moving = {
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
    }
    wait_until(lambda: share(KAFKA) is ErrorCode.none, "the share group", TIMEOUT_S)
    for node_id in (ISOTHERM, KAFKA, ISOTHERM):
        cluster.move_leader(OFFSETS, index, node_id)
        codes: list[ErrorCode] = []

        def is_there(node_id: int = node_id, codes: list[ErrorCode] = codes) -> bool:
            codes.append(share(node_id))
            return codes[-1] not in moving

        wait_until(is_there, "the coordinator", TIMEOUT_S)
        assert codes[-1] is ErrorCode.none
        assert consume(node_id) is ErrorCode.group_id_not_found
    assert epochs == sorted(epochs)


def ask(
    cluster: MixedCluster, node_id: int, key: ApiKey, version: int, fields: Mapping[str, Any]
) -> Any:
    host, _, port = cluster.members[node_id].bootstrap_server.rpartition(":")
    connection = NodeConnection(
        NodeAddress(host, int(port)),
        client_id="test",
        connect_timeout_s=TIMEOUT_S,
        request_timeout_s=TIMEOUT_S,
        response_bytes_max=1 << 20,
    )
    try:
        return connection.send(entity_of(request_class(key, version), fields))
    finally:
        connection.close()


def test_internal_topics_have_kafkas_replication(cluster: MixedCluster) -> None:
    ensure_internal_topics(cluster)
    for topic in (OFFSETS, TRANSACTIONS):
        found = cluster.admin.list_topics(topic, timeout=300).topics[topic].partitions
        assert len(found) == PARTITIONS
        assert {len(each.replicas) for each in found.values()} == {3}
