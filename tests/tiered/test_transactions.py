"""Kafka's transaction scenarios of tiered storage: each segment holds one batch and goes remote.

Source: TransactionsWithTieredStoreTest and TransactionsExpirationTest, their methods named in the
docstrings; TransactionsTest plays the same without tiers (tests/interop/test_transactions.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from isotherm.testing.local_servers import free_ports

TIMEOUT_S = 300
FENCED = {
    KafkaError._FENCED,
    KafkaError._STATE,
    KafkaError._PURGE_QUEUE,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
}
"""The error codes with which librdkafka reports fencing, depending on its current operation."""
READ_COMMITTED = {"isolation_level": "read_committed"}
FORGETS_IDS = {
    # Longer than a producer takes from its id to its first record, on a busy machine too.
    "transactional.id.expiration.ms": "3000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "100",
}
LOOKS_FOR_PRODUCERS = {
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "100",
}


@pytest.fixture
def begin(tiers: Any) -> Iterator[Callable[..., Producer]]:
    """Creates producers with initialised transactions; unsent records are dropped at the end."""
    made: list[Producer] = []

    def begin(transactional_id: str = "t", **settings: Any) -> Producer:
        made.append(transactional(tiers, transactional_id, **settings))
        return made[-1]

    yield begin
    for producer in made:
        producer.purge()


def transactional(tiers: Any, transactional_id: str, **settings: Any) -> Producer:
    made = {
        **tiers.client,
        "transactional.id": transactional_id,
        "transaction.timeout.ms": 900_000,
        "linger.ms": 0,
        **settings,
    }
    producer = Producer(made)
    producer.init_transactions(TIMEOUT_S)
    return producer


def write(producer: Producer, topic: str, *values: bytes, partition: int = 0) -> None:
    """Produce each value in a batch of its own; KafkaException if one is refused."""
    refused: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: object) -> None:
        if error is not None:
            refused.append(error)

    for value in values:
        producer.produce(topic, value, b"k", partition, on_delivery=delivered)
        assert flush(producer) == 0
    if refused:
        raise KafkaException(refused[0])


def flush(producer: Producer) -> int:
    """Flush; return the number of records without an answer. KafkaException for a fatal error."""
    try:
        return producer.flush(TIMEOUT_S)
    except SystemError as error:
        # confluent-kafka sets a fatal error although `on_delivery` is still to run: the
        # interpreter then finds an exception behind a call that succeeded.
        raise error.__cause__ or error from None


def run_transaction(producer: Producer, topic: str, *values: bytes, commit: bool = True) -> None:
    producer.begin_transaction()
    write(producer, topic, *values)
    if commit:
        producer.commit_transaction(TIMEOUT_S)
    else:
        producer.abort_transaction(TIMEOUT_S)


def values(records: list[tuple[bytes, bytes]]) -> list[bytes]:
    return [value for _, value in records]


def error_of(work: Callable[[], object]) -> KafkaError:
    with pytest.raises(KafkaException) as raised:
        work()
    return raised.value.args[0]


def test_undecided_data_is_neither_copied_nor_read_committed(
    tiers: Any, begin: Callable[..., Producer]
) -> None:
    """testReadCommittedConsumerShouldNotSeeUndecidedData,
    testDelayedFetchIncludesAbortedTransaction, testEmptyAbortAfterCommit: what lies at and above
    the last stable offset stays local; the remote tier reports aborted transactions."""
    tiers.create_topic("a")
    first, second = begin("one"), begin("two")
    run_transaction(first, "a", b"committed")
    second.begin_transaction()
    write(second, "a", b"open")
    write_alone(tiers, "a", b"alone-1", b"alone-2")
    tiers.expect_remote_ends("a", 0, 1)
    tiers.expect_earliest_local("a", 2)
    assert tiers.log("a").last_stable_offset == 2
    assert values(tiers.consume("a", 1, **READ_COMMITTED)) == [b"committed"]
    everything = [b"committed", b"open", b"alone-1", b"alone-2"]
    assert values(tiers.consume("a", 4, isolation_level="read_uncommitted")) == everything
    second.abort_transaction(TIMEOUT_S)
    first.begin_transaction()
    first.abort_transaction(TIMEOUT_S)
    run_transaction(first, "a", b"after")
    tiers.expect_earliest_local("a", tiers.log("a").log_end_offset - 1)
    decided = [b"committed", b"alone-1", b"alone-2", b"after"]
    assert values(tiers.consume("a", 4, **READ_COMMITTED)) == decided


def write_alone(tiers: Any, topic: str, *found: bytes) -> None:
    tiers.produce(topic, *((b"k", value) for value in found))


def test_offsets_are_sent_with_the_group_that_read_the_remote_tier(
    tiers: Any, begin: Callable[..., Producer]
) -> None:
    """testSendOffsetsWithGroupMetadata, testOffsetMetadataInSendOffsetsToTransaction, by both
    group protocols."""
    tiers.create_topic("in")
    write_alone(tiers, "in", *(b"%d" % number for number in range(6)))
    tiers.expect_earliest_local("in", 5)
    for protocol in ("classic", "consumer"):
        tiers.create_topic(protocol)
        committed = copy_in_transactions(tiers, begin(protocol), "in", protocol)
        assert (committed.offset, committed.metadata) == (5, "metadata 4")
        found = values(tiers.consume(protocol, 5, **READ_COMMITTED))
        assert found == [b"out-%d" % number for number in range(5)]


def copy_in_transactions(
    tiers: Any, producer: Producer, source: str, protocol: str
) -> TopicPartition:
    """Six records to the topic named like the group's protocol, the last of them aborted; what
    the group has committed then."""
    consumer = Consumer(
        {
            **tiers.client,
            "group.id": protocol,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([source])
    try:
        for number in range(6):
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            assert message.error() is None
            producer.begin_transaction()
            write(producer, protocol, b"out-" + message.value())
            position = TopicPartition(source, 0, number + 1, f"metadata {number}")
            producer.send_offsets_to_transaction(
                [position], consumer.consumer_group_metadata(), TIMEOUT_S
            )
            if number == 5:
                producer.abort_transaction(TIMEOUT_S)
            else:
                producer.commit_transaction(TIMEOUT_S)
        (committed,) = consumer.committed([TopicPartition(source, 0)], TIMEOUT_S)
    finally:
        consumer.close()
    return committed


def test_producer_whose_id_another_one_took_is_fenced(
    tiers: Any, begin: Callable[..., Producer]
) -> None:
    """testFencingOnCommit, OnSend, OnSendOffsets, OnAddPartitions."""
    for step in ("commit", "send", "offsets", "add_partitions"):
        tiers.create_topic(step, partitions=2)
        old = begin(step)
        old.begin_transaction()
        if step != "add_partitions":
            write(old, step, b"old")
        new = begin(step)
        assert error_of(late_step(tiers, old, step)).code() in FENCED
        run_transaction(new, step, b"new-1", b"new-2")
        tiers.expect_earliest_local(step, tiers.log(step).log_end_offset - 1)
        assert values(tiers.consume(step, 2, **READ_COMMITTED)) == [b"new-1", b"new-2"]


def late_step(tiers: Any, old: Producer, step: str) -> Callable[[], object]:
    group = Consumer({**tiers.client, "group.id": "g"}).consumer_group_metadata()
    position = [TopicPartition(step, 0, 1)]
    return {
        "commit": lambda: old.commit_transaction(TIMEOUT_S),
        "send": lambda: write(old, step, b"late"),
        "offsets": lambda: old.send_offsets_to_transaction(position, group, TIMEOUT_S),
        "add_partitions": lambda: write(old, step, b"late", partition=1),
    }[step]


def test_transaction_over_many_partitions_ends_in_all_of_them(
    tiers: Any, begin: Callable[..., Producer]
) -> None:
    """testMultipleMarkersOneLeader."""
    partitions = 6
    tiers.create_topic("a", partitions=partitions)
    producer = begin()
    for commit in (False, True):
        producer.begin_transaction()
        for partition in range(partitions):
            write(producer, "a", b"%d-%d" % (commit, partition), partition=partition)
        if commit:
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.abort_transaction(TIMEOUT_S)
    for partition in range(partitions):
        tiers.expect_earliest_local("a", 3, partition)
        found = tiers.consume("a", 1, partition=partition, **READ_COMMITTED)
        assert values(found) == [b"1-%d" % partition]


def test_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(
    tiers: Any, begin: Callable[..., Producer]
) -> None:
    """testFencingOnTransactionExpiration."""
    tiers.create_topic("a")
    producer = begin(**{"transaction.timeout.ms": 3000})
    producer.begin_transaction()
    write(producer, "a", b"slow")
    log = tiers.log("a")
    tiers.expect(lambda: log.log_end_offset == 2, "the marker of the abort")
    assert error_of(lambda: producer.commit_transaction(TIMEOUT_S)).code() in FENCED
    run_transaction(begin(), "a", b"next")
    tiers.expect_earliest_local("a", log.log_end_offset - 1)
    assert values(tiers.consume("a", 1, **READ_COMMITTED)) == [b"next"]


@pytest.fixture
def tiers_with(tmp_path: Path, open_tiers: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """A broker with the test's settings, stopped at the end of the test."""
    opened: list[Any] = []

    def tiers_with(settings: dict[str, str]) -> Any:
        opened.append(open_tiers(tmp_path / "own", settings))
        return opened[-1]

    yield tiers_with
    for each in opened:
        each.stop()


@pytest.mark.parametrize("commit", [True, False])
def test_end_of_a_transaction_waits_for_a_broker_that_is_away(
    tiers_with: Callable[..., Any], commit: bool
) -> None:
    """testInitTransactionsTimeout, testCommitTransactionTimeout, testAbortTransactionTimeout and
    testSendOffsetsToTransactionTimeout: time runs out, and once the broker is back the same call
    ends the transaction."""
    tiers = tiers_with({"listeners": f"PLAINTEXT://127.0.0.1:{free_ports(1)[0]}"})
    tiers.create_topic("a")
    producer = transactional(tiers, "t")
    producer.begin_transaction()
    write(producer, "a", b"1")
    end = producer.commit_transaction if commit else producer.abort_transaction
    tiers.stop()
    late = Producer({**tiers.client, "transactional.id": "late"})
    for call in (end, late.init_transactions):
        error = error_of(lambda call=call: call(0.3))
        assert error.code() == KafkaError._TIMED_OUT
        assert error.retriable()
    tiers.start()
    end(TIMEOUT_S)
    run_transaction(producer, "a", b"2")
    tiers.expect_earliest_local("a", 3)
    expected = [b"1", b"2"] if commit else [b"2"]
    assert values(tiers.consume("a", len(expected), **READ_COMMITTED)) == expected


def test_id_that_expired_begins_anew(tiers_with: Callable[..., Any]) -> None:
    """testFatalErrorAfterInvalidProducerIdMapping."""
    tiers = tiers_with(FORGETS_IDS)
    tiers.create_topic("a")
    producer = transactional(tiers, "t")
    run_transaction(producer, "a", b"aborted", commit=False)
    tiers.expect(lambda: not is_known(tiers, "t"), "the id expires")
    producer.begin_transaction()
    error = error_of(lambda: write(producer, "a", b"late"))
    assert error.code() in (KafkaError.INVALID_PRODUCER_ID_MAPPING, KafkaError._PURGE_QUEUE)
    producer.purge()
    run_transaction(transactional(tiers, "t"), "a", b"new")
    tiers.expect_earliest_local("a", 3)
    assert values(tiers.consume("a", 1, **READ_COMMITTED)) == [b"new"]


def is_known(tiers: Any, transactional_id: str) -> bool:
    coordinator = tiers.broker.node.services.transaction_coordinator
    return transactional_id in [
        transaction.transactional_id for transaction in coordinator.transactions()
    ]


def test_producer_that_the_log_forgot_goes_on_under_its_id(tiers_with: Callable[..., Any]) -> None:
    """testTransactionAfterProducerIdExpires."""
    tiers = tiers_with(LOOKS_FOR_PRODUCERS)
    tiers.create_topic("a")
    run_transaction(transactional(tiers, "t"), "a", b"aborted", commit=False)
    log = tiers.log("a")
    (before,) = log.producers.snapshot_entries()
    forget_producers_after(tiers, ms=1)
    tiers.expect(lambda: log.producers.snapshot_entries() == [], "the producer expires")
    forget_producers_after(tiers, ms=86_400_000)
    run_transaction(transactional(tiers, "t"), "a", b"new")
    (after,) = log.producers.snapshot_entries()
    assert after.producer_id == before.producer_id
    assert after.producer_epoch >= before.producer_epoch + 1
    tiers.expect_earliest_local("a", 3)
    assert values(tiers.consume("a", 1, **READ_COMMITTED)) == [b"new"]


def forget_producers_after(tiers: Any, ms: int) -> None:
    value = ConfigEntry(
        "producer.id.expiration.ms", str(ms), incremental_operation=AlterConfigOpType.SET
    )
    broker = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[value])
    tiers.admin.incremental_alter_configs([broker])[broker].result(TIMEOUT_S)
