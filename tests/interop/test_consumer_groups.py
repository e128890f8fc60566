"""Consumer groups with librdkafka, kafka-python and aiokafka against a broker of the test's own."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import aiokafka
import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

with warnings.catch_warnings():
    # It reads its schemas, at import, with a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer
    from kafka import TopicPartition as PythonTopicPartition

from isotherm.testing.embedded_broker import EmbeddedBroker
from isotherm.testing.local_servers import free_ports

PARTITIONS = 4
RECORDS = 40
TIMEOUT_S = 300
SETTINGS = {
    "group.initial.rebalance.delay.ms": "100",
    "group.min.session.timeout.ms": "500",
    "offsets.topic.num.partitions": "5",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "200",
}
_names = itertools.count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), SETTINGS) as started:
        yield started


def make_topic(broker: EmbeddedBroker, records: int = RECORDS) -> str:
    """A topic with `records` records over its partitions."""
    topic = f"topic-{next(_names)}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result()
    produce(broker, topic, records)
    return topic


def produce(broker: EmbeddedBroker, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for index in range(count):
        producer.produce(topic, str(index).encode(), partition=index % PARTITIONS)
    assert producer.flush(TIMEOUT_S) == 0


def group_name() -> str:
    return f"group-{next(_names)}"


def consumer(broker: EmbeddedBroker, group: str, **settings: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )


def poll_until(consumers: Sequence[Consumer], is_enough: Callable[[], bool]) -> list[object]:
    """Poll all consumers in turn; return their records. Fails after TIMEOUT_S."""
    deadline = time.monotonic() + TIMEOUT_S
    messages = []
    while not is_enough():
        assert time.monotonic() < deadline, [each.assignment() for each in consumers]
        for each in consumers:
            message = each.poll(0.05)
            if message is not None:
                assert message.error() is None, message.error()
                messages.append(message)
    return messages


def read(each: Consumer, count: int) -> list[bytes]:
    values: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(values) < count:
        assert time.monotonic() < deadline, values
        message = each.poll(0.2)
        if message is not None:
            assert message.error() is None, message.error()
            values.append(message.value())
    return values


def shares(consumers: Sequence[Consumer]) -> list[int]:
    return sorted(len(each.assignment()) for each in consumers)


def values_of(records: int) -> list[bytes]:
    return sorted(str(index).encode() for index in range(records))


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_librdkafka_members_share_the_partitions_and_take_over_when_one_leaves(
    broker: EmbeddedBroker, strategy: str
) -> None:
    topic, group = make_topic(broker), group_name()
    first = consumer(broker, group, partition_assignment_strategy=strategy)
    second = consumer(broker, group, partition_assignment_strategy=strategy)
    first.subscribe([topic])
    second.subscribe([topic])
    poll_until([first, second], lambda: shares([first, second]) == [2, 2])
    second.close()
    poll_until([first], lambda: shares([first]) == [PARTITIONS])
    first.close()


def test_librdkafka_member_that_is_not_heard_of_loses_its_partitions(
    broker: EmbeddedBroker,
) -> None:
    topic, group = make_topic(broker), group_name()
    settings = {"heartbeat.interval.ms": 300}
    first = consumer(broker, group, **settings, session_timeout_ms=6000)
    # A static member does not leave when it closes.
    static = consumer(
        broker, group, **settings, session_timeout_ms=1000, group_instance_id="goes silent"
    )
    first.subscribe([topic])
    static.subscribe([topic])
    poll_until([first, static], lambda: shares([first, static]) == [2, 2])
    static.close()
    poll_until([first], lambda: shares([first]) == [PARTITIONS])
    first.close()


_DYING = """
import sys
from confluent_kafka import Consumer
member = Consumer({"bootstrap.servers": sys.argv[1], "group.id": sys.argv[2],
                   "session.timeout.ms": 1000, "heartbeat.interval.ms": 300})
member.subscribe([sys.argv[3]])
while True:
    member.poll(0.05)
"""


def test_partitions_of_a_killed_process_go_to_the_others(broker: EmbeddedBroker) -> None:
    topic, group = make_topic(broker), group_name()
    first = consumer(broker, group, **{"heartbeat.interval.ms": 300})
    first.subscribe([topic])
    command = [sys.executable, "-c", _DYING, broker.bootstrap_servers, group, topic]
    with subprocess.Popen(command) as dying:
        try:
            poll_until([first], lambda: shares([first]) == [PARTITIONS // 2])
        finally:
            dying.kill()
    poll_until([first], lambda: shares([first]) == [PARTITIONS])
    first.close()


def test_librdkafka_static_member_that_restarts_keeps_its_partitions(
    broker: EmbeddedBroker,
) -> None:
    topic, group = make_topic(broker), group_name()
    revoked = []
    first = consumer(broker, group, group_instance_id="one")
    second = consumer(broker, group, group_instance_id="two")
    first.subscribe([topic], on_revoke=lambda _, partitions: revoked.extend(partitions))
    second.subscribe([topic])
    poll_until([first, second], lambda: shares([first, second]) == [2, 2])
    held = second.assignment()
    revoked.clear()
    second.close()
    restarted = consumer(broker, group, group_instance_id="two")
    restarted.subscribe([topic])
    poll_until([first, restarted], lambda: len(restarted.assignment()) == 2)
    assert restarted.assignment() == held
    assert revoked == []
    first.close()
    restarted.close()


def test_librdkafka_member_whose_instance_id_is_taken_is_fenced(broker: EmbeddedBroker) -> None:
    topic, group = make_topic(broker), group_name()
    first = consumer(broker, group, group_instance_id="one", **{"heartbeat.interval.ms": 200})
    first.subscribe([topic])
    poll_until([first], lambda: len(first.assignment()) == PARTITIONS)
    second = consumer(broker, group, group_instance_id="one")
    second.subscribe([topic])
    poll_until([second], lambda: len(second.assignment()) == PARTITIONS)
    deadline = time.monotonic() + TIMEOUT_S
    error = None
    while error is None and time.monotonic() < deadline:
        message = first.poll(0.1)
        error = message.error() if message is not None else None
    assert error is not None
    assert error.code() == KafkaError._FATAL
    second.close()
    first.close()


def test_librdkafka_member_resumes_where_the_group_committed(broker: EmbeddedBroker) -> None:
    topic, group = make_topic(broker), group_name()
    first = consumer(broker, group)
    first.subscribe([topic])
    assert sorted(read(first, RECORDS)) == values_of(RECORDS)
    committed = first.commit(asynchronous=False)
    assert sorted(each.offset for each in committed) == [RECORDS // PARTITIONS] * PARTITIONS
    first.close()
    produce(broker, topic, PARTITIONS)
    second = consumer(broker, group)
    second.subscribe([topic])
    assert sorted(read(second, PARTITIONS)) == values_of(PARTITIONS)
    second.close()


def test_committed_offsets_and_groups_outlive_a_restart(
    start_broker: Callable[..., EmbeddedBroker], tmp_path: Path
) -> None:
    group = group_name()
    broker = start_broker(SETTINGS)
    topic = make_topic(broker)
    with closing(consumer(broker, group)) as first:
        first.subscribe([topic])
        read(first, RECORDS)
        first.commit(asynchronous=False)
    broker.stop()
    broker = start_broker(SETTINGS)
    wanted = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    with closing(consumer(broker, group)) as second:
        assert {each.offset for each in second.committed(wanted)} == {RECORDS // PARTITIONS}
        produce(broker, topic, PARTITIONS)
        second.subscribe([topic])
        assert sorted(read(second, PARTITIONS)) == values_of(PARTITIONS)


def test_member_goes_on_in_its_generation_after_a_restart(
    start_broker: Callable[..., EmbeddedBroker],
) -> None:
    group = group_name()
    settings = {**SETTINGS, "listeners": f"PLAINTEXT://127.0.0.1:{free_ports(1)[0]}"}
    broker = start_broker(settings)
    topic = make_topic(broker)
    revoked: list[TopicPartition] = []
    with closing(consumer(broker, group)) as member:
        member.subscribe([topic], on_revoke=lambda _, partitions: revoked.extend(partitions))
        read(member, RECORDS)
        broker.stop()
        broker = start_broker(settings)
        produce(broker, topic, PARTITIONS)
        assert sorted(read(member, PARTITIONS)) == values_of(PARTITIONS)
        assert revoked == []
        member.commit(asynchronous=False)


def test_librdkafka_admin_sees_alters_and_deletes_groups(broker: EmbeddedBroker) -> None:
    topic, group = make_topic(broker), group_name()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    member = consumer(broker, group, client_id="described")
    member.subscribe([topic])
    read(member, RECORDS)
    member.commit(asynchronous=False)
    described = admin.describe_consumer_groups([group])[group].result()
    assert described.state == ConsumerGroupState.STABLE
    assert [each.client_id for each in described.members] == ["described"]
    assert len(described.members[0].assignment.topic_partitions) == PARTITIONS
    listed = admin.list_consumer_groups().result().valid
    assert group in [each.group_id for each in listed]
    with pytest.raises(KafkaException) as refused:
        admin.delete_consumer_groups([group])[group].result()
    assert refused.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    member.close()
    moved = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 3)])]
    admin.alter_consumer_group_offsets(moved)[group].result()
    asked = [ConsumerGroupTopicPartitions(group)]
    fetched = admin.list_consumer_group_offsets(asked)[group].result().topic_partitions
    assert {each.partition: each.offset for each in fetched} == {0: 3, 1: 10, 2: 10, 3: 10}
    admin.delete_consumer_groups([group])[group].result()
    listed = admin.list_consumer_groups().result().valid
    assert group not in [each.group_id for each in listed]


def test_offsets_of_a_deleted_topic_are_forgotten(broker: EmbeddedBroker) -> None:
    topic, group = make_topic(broker), group_name()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    with closing(consumer(broker, group)) as client:
        client.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
        admin.delete_topics([topic])[topic].result()
        admin.create_topics([NewTopic(topic, 1)])[topic].result()
        (committed,) = client.committed([TopicPartition(topic, 0)])
        assert committed.offset == OFFSET_INVALID


def test_kafka_python_group_reads_commits_and_resumes(broker: EmbeddedBroker) -> None:
    topic, group = make_topic(broker), group_name()

    def member() -> KafkaConsumer:
        return KafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap_servers,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            consumer_timeout_ms=TIMEOUT_S * 1000,
        )

    with closing(member()) as first:
        values = sorted(each.value for each in itertools.islice(first, RECORDS))
        assert values == values_of(RECORDS)
        first.commit()
        assert first.committed(PythonTopicPartition(topic, 0)) == RECORDS // PARTITIONS
    produce(broker, topic, PARTITIONS)
    with closing(member()) as second:
        values = sorted(each.value for each in itertools.islice(second, PARTITIONS))
        assert values == values_of(PARTITIONS)


def test_aiokafka_members_share_the_partitions_and_resume(broker: EmbeddedBroker) -> None:
    topic, group = make_topic(broker), group_name()

    async def scenario() -> None:
        def member() -> aiokafka.AIOKafkaConsumer:
            return aiokafka.AIOKafkaConsumer(
                topic,
                bootstrap_servers=broker.bootstrap_servers,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                heartbeat_interval_ms=200,
            )

        async with member() as first:
            values = [(await first.getone()).value for _ in range(RECORDS)]
            assert sorted(values) == values_of(RECORDS)
            await first.commit()
            produce(broker, topic, PARTITIONS)
            async with member() as second:
                values = [(await second.getone()).value for _ in range(2)]
                assert len(second.assignment()) == 2
        async with member() as third:
            values = [(await third.getone()).value for _ in range(PARTITIONS)]
            assert sorted(values) == values_of(PARTITIONS)

    asyncio.run(scenario())


# ---- the consumer protocol (KIP-848)


def modern(broker: EmbeddedBroker, group: str, **settings: object) -> Consumer:
    """A librdkafka consumer of the consumer protocol: the broker assigns."""
    return consumer(broker, group, group_protocol="consumer", **settings)


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_broker_shares_the_partitions_and_gives_them_on_when_a_member_leaves(
    broker: EmbeddedBroker, assignor: str
) -> None:
    topic, group = make_topic(broker), group_name()
    members = [modern(broker, group, group_remote_assignor=assignor) for _ in range(3)]
    for member in members:
        member.subscribe([topic])
    values = [each.value() for each in poll_until(members, lambda: shares(members) == [1, 1, 2])]
    members.pop().close()
    values += [each.value() for each in poll_until(members, lambda: shares(members) == [2, 2])]
    # Records that were read but not committed are read again after a move.
    while len(set(values)) < RECORDS:
        values += [each.value() for each in (m.poll(0.05) for m in members) if each is not None]
    assert sorted(set(values)) == values_of(RECORDS)
    for member in members:
        member.close()


def test_modern_member_commits_and_another_resumes_after_a_restart(
    start_broker: Callable[..., EmbeddedBroker],
) -> None:
    group = group_name()
    broker = start_broker(SETTINGS)
    topic = make_topic(broker)
    with closing(modern(broker, group)) as first:
        first.subscribe([topic])
        assert sorted(read(first, RECORDS)) == values_of(RECORDS)
        first.commit(asynchronous=False)
    broker.stop()
    broker = start_broker(SETTINGS)
    produce(broker, topic, PARTITIONS)
    with closing(modern(broker, group)) as second:
        second.subscribe([topic])
        assert sorted(read(second, PARTITIONS)) == values_of(PARTITIONS)


def test_modern_member_keeps_its_epoch_and_partitions_over_a_restart(
    start_broker: Callable[..., EmbeddedBroker],
) -> None:
    group = group_name()
    settings = {**SETTINGS, "listeners": f"PLAINTEXT://127.0.0.1:{free_ports(1)[0]}"}
    broker = start_broker(settings)
    topic = make_topic(broker)
    revoked: list[TopicPartition] = []
    with closing(modern(broker, group)) as member:
        member.subscribe([topic], on_revoke=lambda _, partitions: revoked.extend(partitions))
        read(member, RECORDS)
        broker.stop()
        broker = start_broker(settings)
        produce(broker, topic, PARTITIONS)
        assert sorted(read(member, PARTITIONS)) == values_of(PARTITIONS)
        assert revoked == []
        member.commit(asynchronous=False)


def test_modern_member_follows_a_pattern(broker: EmbeddedBroker) -> None:
    topic, group = make_topic(broker), group_name()
    with closing(modern(broker, group)) as member:
        member.subscribe([f"^{topic}(-.*)?$"])
        read(member, RECORDS)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        later = f"{topic}-later"
        admin.create_topics([NewTopic(later, 1)])[later].result()
        poll_until([member], lambda: len(member.assignment()) == PARTITIONS + 1)


def test_modern_static_member_comes_back_to_its_partitions(broker: EmbeddedBroker) -> None:
    topic, group = make_topic(broker), group_name()
    first = modern(broker, group, group_instance_id="one")
    second = modern(broker, group, group_instance_id="two")
    first.subscribe([topic])
    second.subscribe([topic])
    poll_until([first, second], lambda: shares([first, second]) == [2, 2])
    held = sorted(each.partition for each in second.assignment())
    second.close()
    second = modern(broker, group, group_instance_id="two")
    second.subscribe([topic])
    poll_until([first, second], lambda: len(second.assignment()) == 2)
    assert sorted(each.partition for each in second.assignment()) == held
    first.close()
    second.close()


def test_admin_sees_a_modern_group_and_its_type(broker: EmbeddedBroker) -> None:
    topic, group = make_topic(broker), group_name()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    with closing(modern(broker, group, client_id="described")) as member:
        member.subscribe([topic])
        read(member, RECORDS)
        described = admin.describe_consumer_groups([group])[group].result()
        assert (described.state, described.type) == (
            ConsumerGroupState.STABLE,
            ConsumerGroupType.CONSUMER,
        )
        (shown,) = described.members
        assert shown.client_id == "described"
        assert len(shown.assignment.topic_partitions) == PARTITIONS
        assert len(shown.target_assignment.topic_partitions) == PARTITIONS
    listed = {each.group_id: each.type for each in admin.list_consumer_groups().result().valid}
    assert listed[group] == ConsumerGroupType.CONSUMER
    admin.delete_consumer_groups([group])[group].result()


def test_group_changes_its_protocol_while_it_is_empty(broker: EmbeddedBroker) -> None:
    topic, group = make_topic(broker), group_name()
    for make in (consumer, modern, consumer):
        with closing(make(broker, group)) as member:
            member.subscribe([topic])
            count = (
                RECORDS if make is consumer and not committed(broker, group, topic) else PARTITIONS
            )
            assert sorted(read(member, count)) == values_of(count)
            member.commit(asynchronous=False)
        produce(broker, topic, PARTITIONS)


def committed(broker: EmbeddedBroker, group: str, topic: str) -> bool:
    with closing(consumer(broker, group)) as asking:
        (found,) = asking.committed([TopicPartition(topic, 0)], TIMEOUT_S)
    return found.offset != OFFSET_INVALID


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_group_changes_its_protocol_under_its_members(
    broker: EmbeddedBroker, strategy: str
) -> None:
    """Upgrade, a member at a time, and back (KIP-848's online migration)."""
    topic, group = make_topic(broker), group_name()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})

    def classic() -> Consumer:
        made = consumer(
            broker, group, partition_assignment_strategy=strategy, heartbeat_interval_ms=100
        )
        made.subscribe([topic])
        return made

    def group_type() -> ConsumerGroupType:
        return admin.describe_consumer_groups([group])[group].result().type

    members = [classic(), classic()]
    poll_until(members, lambda: shares(members) == [2, 2])
    assert group_type() == ConsumerGroupType.CLASSIC
    members.append(modern(broker, group))
    members[-1].subscribe([topic])
    poll_until(members, lambda: shares(members) == [1, 1, 2])
    assert group_type() == ConsumerGroupType.CONSUMER
    members.pop(0).close()
    poll_until(members, lambda: shares(members) == [2, 2])
    produce(broker, topic, PARTITIONS)
    for member in members:
        read(member, 1)
        member.commit(asynchronous=False)
    members.insert(0, classic())
    poll_until(members, lambda: shares(members) == [1, 1, 2])
    members.pop().close()
    poll_until(members, lambda: shares(members) == [2, 2])
    assert group_type() == ConsumerGroupType.CLASSIC
    for member in members:
        member.close()
