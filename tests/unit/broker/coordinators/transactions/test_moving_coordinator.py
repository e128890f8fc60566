"""Three transaction coordinators over a model of replicated logs, while their partition moves.

A client runs transactions of version 2 and retries after every error that a move explains. A seed
determines what happens around it: moves that lose uncommitted records, late notifications of
leadership, markers that are written late or refused.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import pytest

from isotherm.broker.coordinators.coordinator_topic import CoordinatorTopic
from isotherm.broker.coordinators.transactions import transaction_endings
from isotherm.broker.coordinators.transactions.transaction_coordinator import TransactionCoordinator
from isotherm.broker.coordinators.transactions.transaction_endings import (
    SETTLED,
    EndMarker,
    MarkerOutcome,
    MarkerResult,
)
from isotherm.broker.coordinators.transactions.transaction_log import (
    TRANSACTION_STATE_TOPIC,
    TransactionLog,
)
from isotherm.broker.coordinators.transactions.transaction_records import decode_record
from isotherm.broker.coordinators.transactions.transaction_snapshot import transaction_of_value
from isotherm.broker.coordinators.transactions.transaction_state import (
    TRANSACTION_V2,
    ProducerIdAndEpoch,
    TransactionMetadata,
    TransactionState,
)
from isotherm.broker.metadata.internal_topics import InternalTopic
from isotherm.config.transactions import TransactionConfig
from isotherm.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    FencedError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    NotCoordinatorError,
)
from isotherm.record.batch import iterate_batches, read_records
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicPartition
from tests.support.conditions import one_poll, until
from tests.support.model_replicas import (
    LateEvents,
    ModelPartition,
    ModelReplicaManager,
    model_metadata,
)

BROKERS = 3
COME_AGAIN = (
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    NotCoordinatorError,
)
DATA = [TopicPartition("t", index) for index in range(3)]

Result = TypeVar("Result")


class Written(NamedTuple):
    """A marker and the data partition that has it."""

    marker: EndMarker
    topic_partition: TopicPartition


class Cluster:
    """The replicated state partition, its coordinators, and the data partitions' leaders, which
    fence as Kafka's do. `written` are the markers of the data partitions."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.state = ModelPartition(TopicPartition(TRANSACTION_STATE_TOPIC, 0), leader=0)
        self.written: list[Written] = []
        self.unanswered: list[asyncio.Future[MarkerOutcome]] = []
        self._producer_ids = iter(range(1000))
        self._seen: dict[tuple[TopicPartition, int], tuple[int, int]] = {}
        self.coordinators = [self._coordinator(number) for number in range(BROKERS)]
        self.late = LateEvents(self.coordinators)
        self.late.moved(self.state)
        self.late.deliver_all()

    def _coordinator(self, broker_id: int) -> TransactionCoordinator:
        replicas: Any = ModelReplicaManager({self.state.name: self.state}, broker_id)
        nothing: Any = None
        topic = CoordinatorTopic(
            model_metadata(__transaction_state=1),
            replicas,
            nothing,
            InternalTopic(name=TRANSACTION_STATE_TOPIC, partitions=1),
        )
        config, clock = TransactionConfig(), SimClock()

        async def new_producer_id() -> int:
            return next(self._producer_ids)

        return TransactionCoordinator(
            config,
            TransactionLog(config, topic, clock),
            self,
            clock=clock,
            new_producer_id=new_producer_id,
        )

    # ---- markers

    def write(
        self, marker: EndMarker, topic_partition: TopicPartition
    ) -> MarkerOutcome | asyncio.Future[MarkerOutcome]:
        self._check_decided(marker)
        if self.rng.random() < 0.3:
            return MarkerOutcome(MarkerResult.RETRY, "the leader has moved")
        key = (topic_partition, marker.producer.producer_id)
        epoch, coordinator_epoch = self._seen.get(key, (-1, -1))
        if marker.coordinator_epoch < coordinator_epoch:
            return MarkerOutcome(MarkerResult.FENCED, "a newer coordinator")
        if marker.producer.epoch < epoch:
            return MarkerOutcome(MarkerResult.SETTLED, "an older producer")
        self._seen[key] = (marker.producer.epoch, marker.coordinator_epoch)
        self.written.append(Written(marker, topic_partition))
        if self.rng.random() < 0.5:
            return SETTLED
        self.unanswered.append(asyncio.get_running_loop().create_future())
        return self.unanswered[-1]

    def answer_markers(self) -> None:
        for future in self.unanswered:
            if not future.done():
                future.set_result(SETTLED)
        self.unanswered.clear()

    def _check_decided(self, marker: EndMarker) -> None:
        """Fail if the marker's decision is not committed: the next coordinator could decide
        otherwise."""
        wanted = (
            TransactionState.PREPARE_COMMIT if marker.commit else TransactionState.PREPARE_ABORT
        )
        assert any(
            record.state is wanted and record.producer == marker.producer
            for record in self.committed_records()
        ), "PREPARE is not committed"

    def committed_records(self) -> Iterator[TransactionMetadata]:
        read = self.state.read(0)
        for position, header in iterate_batches(read):
            for record in read_records(read, position, header):
                decoded = decode_record(record.key, record.value)
                if record.offset < self.state.high_watermark and decoded and decoded.value:
                    yield transaction_of_value(decoded.key.transactional_id, decoded.value)

    # ---- moves

    def move(self, leader: int, *, kept: int = 0, is_known: bool = True) -> None:
        self.state.move(leader, kept=kept)
        self.late.moved(self.state)
        if is_known:
            self.late.deliver_all()

    def disturb(self) -> None:
        action, anyone = self.rng.random(), self.rng.randrange(BROKERS)
        if action < 0.35:
            self.state.replicate()
        elif action < 0.4:
            self.move(anyone, kept=self.rng.randrange(3), is_known=False)
        elif action < 0.8:
            self.late.deliver(anyone)
        elif action < 0.9:
            self.answer_markers()

    async def stop(self) -> None:
        for coordinator in self.coordinators:
            await coordinator.stop()


class Client:
    """Runs transactions, and keeps the producer, decision and partitions of each confirmed one."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.ended: list[tuple[ProducerIdAndEpoch, bool, frozenset[TopicPartition]]] = []

    async def run(self, count: int) -> None:
        rng = self._cluster.rng
        producer = await self._insist(
            lambda coordinator: coordinator.init_producer_id("tx", 60_000, None)
        )
        for _ in range(count):
            partitions = frozenset(rng.sample(DATA, rng.randrange(1, len(DATA) + 1)))
            commit = rng.random() < 0.5
            await self._insist(self._add(producer, partitions))
            following = await self._insist(self._end(producer, commit))
            ending = ProducerIdAndEpoch(producer.producer_id, producer.epoch + 1)
            self.ended.append((ending, commit, partitions))
            producer = following

    def _add(self, producer: ProducerIdAndEpoch, partitions: frozenset[TopicPartition]) -> Any:
        async def add(coordinator: TransactionCoordinator) -> None:
            coordinator.add_partitions("tx", producer, partitions, client_version=TRANSACTION_V2)
            if (waiting := coordinator.uncommitted("tx")) is not None:
                await waiting

        return add

    def _end(self, producer: ProducerIdAndEpoch, commit: bool) -> Any:
        return lambda coordinator: coordinator.end_transaction(
            "tx", producer, commit=commit, client_version=TRANSACTION_V2
        )

    async def _insist(
        self, request: Callable[[TransactionCoordinator], Awaitable[Result]]
    ) -> Result:
        while True:
            cluster = self._cluster
            is_right = cluster.rng.random() < 0.8
            asked = cluster.state.leader if is_right else cluster.rng.randrange(BROKERS)
            is_late = cluster.late.is_late(asked)
            try:
                return await request(cluster.coordinators[asked])
            except COME_AGAIN:
                await asyncio.sleep(0)
            except (FencedError, InvalidProducerIdMappingError, InvalidTxnStateError):
                # A coordinator that does not know its successor yet refuses newer producers and
                # does not know their transactions, as Kafka's does. A confirmation from it would be
                # an error.
                if not is_late:
                    raise
                await asyncio.sleep(0)


def run(scenario: Callable[[Cluster], Awaitable[None]], seed: int = 0) -> None:
    async def main() -> None:
        cluster = Cluster(random.Random(seed))
        try:
            await scenario(cluster)
        finally:
            await cluster.stop()

    asyncio.run(main())


@pytest.fixture(autouse=True)
def short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_endings, "RETRY_BACKOFF_MS", 1)
    monkeypatch.setattr(transaction_endings, "RETRY_BACKOFF_MS_MAX", 1)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def replicated(cluster: Cluster, request: Awaitable[Result]) -> Result:
    """The answer to a request whose records are replicated at once."""
    asked = asyncio.ensure_future(request)
    while not asked.done():
        await turns(1)
        cluster.state.replicate()
    return await asked


async def ongoing(cluster: Cluster) -> ProducerIdAndEpoch:
    coordinator = cluster.coordinators[0]
    producer = await replicated(cluster, coordinator.init_producer_id("tx", 60_000, None))
    coordinator.add_partitions("tx", producer, DATA, client_version=TRANSACTION_V2)
    cluster.state.replicate()
    return producer


async def settled(cluster: Cluster, state: TransactionState) -> None:
    coordinator = cluster.coordinators[cluster.state.leader]
    await coordinator.wait_until_loaded()

    def is_settled() -> bool:
        cluster.answer_markers()
        cluster.state.replicate()
        return coordinator.describe("tx").state is state

    await until(is_settled)


def test_decision_that_a_move_loses_was_none() -> None:
    async def scenario(cluster: Cluster) -> None:
        producer = await ongoing(cluster)
        ending = asyncio.ensure_future(
            cluster.coordinators[0].end_transaction(
                "tx", producer, commit=True, client_version=TRANSACTION_V2
            )
        )
        await turns()
        assert not ending.done()
        assert cluster.written == []
        cluster.move(1)
        with pytest.raises(NotCoordinatorError):
            await ending
        await cluster.coordinators[1].wait_until_loaded()
        assert cluster.coordinators[1].describe("tx").state is TransactionState.ONGOING
        await replicated(
            cluster,
            cluster.coordinators[1].end_transaction(
                "tx", producer, commit=False, client_version=TRANSACTION_V2
            ),
        )
        await settled(cluster, TransactionState.COMPLETE_ABORT)
        assert {each.marker.commit for each in cluster.written} == {False}

    run(scenario)


def test_decision_that_survives_is_carried_out_by_the_next_coordinator() -> None:
    async def scenario(cluster: Cluster) -> None:
        producer = await ongoing(cluster)
        ending = asyncio.ensure_future(
            cluster.coordinators[0].end_transaction(
                "tx", producer, commit=True, client_version=TRANSACTION_V2
            )
        )
        await turns()
        cluster.move(1, kept=1)
        with pytest.raises(NotCoordinatorError):
            await ending
        await cluster.coordinators[1].wait_until_loaded()
        await turns()
        assert cluster.written == []
        await settled(cluster, TransactionState.COMPLETE_COMMIT)
        assert {
            (each.marker.commit, each.marker.coordinator_epoch) for each in cluster.written
        } == {(True, 2)}
        assert {each.topic_partition for each in cluster.written} == set(DATA)
        # The client retries, because the answer was lost.
        following = await replicated(
            cluster,
            cluster.coordinators[1].end_transaction(
                "tx", producer, commit=True, client_version=TRANSACTION_V2
            ),
        )
        assert following == (producer.producer_id, producer.epoch + 1)

    run(scenario)


def test_timeout_of_an_open_transaction_moves_along() -> None:
    async def scenario(cluster: Cluster) -> None:
        coordinator = cluster.coordinators[0]
        producer = await replicated(cluster, coordinator.init_producer_id("tx", 1, None))
        coordinator.add_partitions("tx", producer, DATA[:1], client_version=TRANSACTION_V2)
        cluster.move(1, kept=1)
        cluster.state.replicate()
        for each in cluster.coordinators:
            each._clock.advance(5)  # type: ignore[attr-defined]
        await settled(cluster, TransactionState.COMPLETE_ABORT)
        assert {each.marker.coordinator_epoch for each in cluster.written} == {2}

    run(scenario)


@pytest.mark.parametrize("seed", range(12))
def test_ends_match_the_answers_to_the_client_in_every_schedule(seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        client = Client(cluster)
        running = asyncio.ensure_future(client.run(8))
        while not running.done():
            cluster.disturb()
            await turns(cluster.rng.randrange(4))
            await one_poll()
        await running
        cluster.late.deliver_all()
        _, last, _ = client.ended[-1]
        S = TransactionState
        await settled(cluster, S.COMPLETE_COMMIT if last else S.COMPLETE_ABORT)
        outcomes: dict[ProducerIdAndEpoch, set[bool]] = {}
        for marker, _ in cluster.written:
            outcomes.setdefault(marker.producer, set()).add(marker.commit)
        for producer, commit, partitions in client.ended:
            marked = {
                each.topic_partition for each in cluster.written if each.marker.producer == producer
            }
            assert (outcomes[producer], marked) == ({commit}, set(partitions))
        assert len(client.ended) == 8

    run(scenario, seed)
