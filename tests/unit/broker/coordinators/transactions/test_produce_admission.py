"""Produce at a leader whose transactional ids are coordinated by another broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.apis import produce
from isotherm.broker.coordinators.transactions.transaction_endings import EndMarker
from isotherm.broker.coordinators.transactions.transaction_state import ProducerIdAndEpoch
from isotherm.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    NotCoordinatorError,
    ProducerFencedError,
    TransactionAbortableError,
)
from isotherm.protocol.api_keys import ApiKey
from isotherm.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic
from isotherm.record.batch import build_batch
from isotherm.types import TopicPartition

E = ErrorCode
PRODUCER = ProducerIdAndEpoch(7, 0)


class Elsewhere:
    """The coordinator on another broker. It answers when the test sets the result."""

    def __init__(self) -> None:
        self.asked: list[tuple[TopicPartition, bool]] = []
        self.answers: list[asyncio.Future[None]] = []

    def is_elsewhere(self, transactional_id: str) -> bool:
        return True

    async def _wait(self, answer: asyncio.Future[None]) -> None:
        await answer

    def ask(self, transactional_id: str, producer: Any, partition: Any, *, adds: bool) -> Any:
        self.asked.append((partition, adds))
        self.answers.append(asyncio.get_running_loop().create_future())
        return self._wait(self.answers[-1])


def request_of(*indexes: int, sequence: int = 0, producer: Any = PRODUCER) -> ProduceRequest:
    def batch() -> memoryview:
        built = build_batch(
            [(1000, None, b"value", ())],
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        return memoryview(built)

    partitions = [ProducePartition.of(index, batch()) for index in indexes]
    return ProduceRequest("tx", -1, 1000, [ProduceTopic("t", None, partitions)])


class Leader:
    """A leader of t-0 and t-1 whose requests about transactions go to `Elsewhere`."""

    def __init__(self, broker: Any) -> None:
        self.broker = broker
        self.coordinator = Elsewhere()
        broker.services.remote_admission = self.coordinator
        broker.create_topic(partitions=2)

    def produce(self, version: int, request: ProduceRequest) -> asyncio.Future[list[ErrorCode]]:
        async def answered() -> list[ErrorCode]:
            answer = produce.handle(self.broker.context(ApiKey.PRODUCE, version), request)
            response = await answer if asyncio.iscoroutine(answer) else answer
            assert response is not None
            return [ErrorCode(partition.error_code) for partition in response.topics[0].partitions]

        return asyncio.ensure_future(answered())

    def end_offset(self, index: int) -> int:
        return int(self.broker.partition(index).log.log_end_offset)


@pytest.mark.parametrize(("version", "adds"), [(9, False), (11, False), (12, True)])
def test_first_batches_wait_for_the_coordinator_and_later_ones_do_not(
    broker: Any, version: int, adds: bool
) -> None:
    async def scenario() -> None:
        leader = Leader(broker)
        producing = leader.produce(version, request_of(0, 1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert leader.coordinator.asked == [
            (TopicPartition("t", 0), adds),
            (TopicPartition("t", 1), adds),
        ]
        assert not producing.done()
        assert (leader.end_offset(0), leader.end_offset(1)) == (0, 0)
        for answer in leader.coordinator.answers:
            answer.set_result(None)
        assert await producing == [E.none, E.none]
        assert (leader.end_offset(0), leader.end_offset(1)) == (1, 1)
        assert await leader.produce(version, request_of(0, sequence=1)) == [E.none]
        assert len(leader.coordinator.asked) == 2

    broker.run(scenario)


@pytest.mark.parametrize(
    ("version", "error", "code"),
    [
        # Kafka: ReplicaManager.handleProduceAppend, AddPartitionsToTxnManager
        (9, TransactionAbortableError(), E.invalid_txn_state),
        (11, TransactionAbortableError(), E.transaction_abortable),
        (12, ProducerFencedError(), E.invalid_producer_epoch),
        (11, ConcurrentTransactionsError(), E.not_enough_replicas),
        (12, ConcurrentTransactionsError(), E.concurrent_transactions),
        (12, CoordinatorLoadInProgressError(), E.not_enough_replicas),
        (12, CoordinatorNotAvailableError(), E.not_enough_replicas),
        (12, NotCoordinatorError(), E.not_enough_replicas),
    ],
)
def test_refusal_is_that_of_its_partition_alone(
    broker: Any, version: int, error: Exception, code: ErrorCode
) -> None:
    async def scenario() -> None:
        leader = Leader(broker)
        producing = leader.produce(version, request_of(0, 1))
        await asyncio.sleep(0)
        leader.coordinator.answers[0].set_exception(error)
        await asyncio.sleep(0)
        leader.coordinator.answers[1].set_result(None)
        assert await producing == [code, E.none]
        assert (leader.end_offset(0), leader.end_offset(1)) == (0, 1)

    broker.run(scenario)


@pytest.mark.parametrize("records", [None, b"", b"\0" * 60], ids=["none", "empty", "short"])
def test_records_that_are_no_batch_are_not_asked_for(broker: Any, records: bytes | None) -> None:
    async def scenario() -> None:
        leader = Leader(broker)
        request = request_of(0, 1)
        request.topics[0].partitions[0] = ProducePartition.of(
            0, None if records is None else memoryview(records)
        )
        producing = leader.produce(12, request)
        await asyncio.sleep(0)
        assert leader.coordinator.asked == [(TopicPartition("t", 1), True)]
        leader.coordinator.answers[0].set_result(None)
        assert await producing == [E.invalid_record, E.none]
        assert (leader.end_offset(0), leader.end_offset(1)) == (0, 1)

    broker.run(scenario)


@pytest.mark.parametrize(("epoch", "is_asked"), [(999, True), (1000, False), (1001, True)])
def test_open_transaction_of_another_epoch_admits_nothing(
    broker: Any, epoch: int, is_asked: bool
) -> None:
    async def scenario() -> None:
        leader = Leader(broker)
        broker.append(ProducerIdAndEpoch(7, 1000))
        request = request_of(0, sequence=1, producer=ProducerIdAndEpoch(7, epoch))
        producing = leader.produce(11, request)
        await asyncio.sleep(0)
        assert bool(leader.coordinator.asked) is is_asked
        for answer in leader.coordinator.answers:
            answer.set_exception(ProducerFencedError())
        assert await producing == [E.invalid_producer_epoch if is_asked else E.none]

    broker.run(scenario)


def test_producers_of_one_request_are_asked_for_each_by_itself(broker: Any) -> None:
    async def scenario() -> None:
        leader = Leader(broker)
        both = request_of(0)
        (other,) = request_of(1, producer=ProducerIdAndEpoch(8, 0)).topics
        both.topics[0].partitions.extend(other.partitions)
        producing = leader.produce(12, both)
        await asyncio.sleep(0)
        leader.coordinator.answers[0].set_result(None)
        leader.coordinator.answers[1].set_exception(ProducerFencedError())
        assert await producing == [E.none, E.invalid_producer_epoch]
        assert (leader.end_offset(0), leader.end_offset(1)) == (1, 0)

    broker.run(scenario)


def test_marker_before_the_last_answer_refuses_what_was_admitted_already(broker: Any) -> None:
    """The admitted records would lie behind the marker that ends their transaction."""

    async def scenario() -> None:
        leader = Leader(broker)
        producing = leader.produce(11, request_of(0, 1))
        await asyncio.sleep(0)
        leader.coordinator.answers[0].set_result(None)
        await asyncio.sleep(0)
        broker.markers.append(EndMarker(PRODUCER, False, 0), TopicPartition("t", 0))
        leader.coordinator.answers[1].set_result(None)
        assert await producing == [E.transaction_abortable, E.none]
        assert (leader.end_offset(0), leader.end_offset(1)) == (1, 1)

    broker.run(scenario)
