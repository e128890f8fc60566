"""The transaction coordinator: markers in every partition, restarts, timeouts, and ids that are
forgotten."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from isotherm.broker.coordinators.coordinator_metrics import CoordinatorMetrics
from isotherm.broker.coordinators.transactions import transaction_coordinator, transaction_endings
from isotherm.broker.coordinators.transactions.transaction_endings import (
    MARKERS_PER_TURN,
    EndMarker,
)
from isotherm.broker.coordinators.transactions.transaction_log import TRANSACTION_STATE_TOPIC
from isotherm.broker.coordinators.transactions.transaction_state import (
    ProducerIdAndEpoch,
    TransactionMetadata,
    TransactionState,
)
from isotherm.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    NotCoordinatorError,
    NotLeaderOrFollowerError,
    PolicyViolationError,
    ProducerFencedError,
    TransactionalIdNotFoundError,
)
from isotherm.record.batch import build_batch
from isotherm.record.control import ControlRecordType
from isotherm.record.validation import AppendOrigin
from isotherm.types import TopicPartition
from tests.support.conditions import timers_fire

S = TransactionState
TIMEOUT_MS = 60_000


def prepared(broker: Any, producer: ProducerIdAndEpoch, **fields: Any) -> TransactionMetadata:
    """The metadata of a decided commit of which no marker has been written."""
    known = broker.coordinator.describe("tx")
    assert known.producer == producer
    return replace(known, state=S.PREPARE_COMMIT, **fields)


def test_ids_have_producers_of_their_own_and_rising_epochs(broker: Any) -> None:
    async def scenario() -> None:
        first, other = await broker.begin(), await broker.begin("other")
        assert (first.epoch, other.epoch) == (0, 0)
        assert first.producer_id != other.producer_id
        assert await broker.begin() == (first.producer_id, 1)

    broker.run(scenario)


def test_two_producers_that_begin_at_once_get_different_epochs(broker: Any) -> None:
    async def scenario() -> None:
        first, second = await asyncio.gather(broker.begin(), broker.begin())
        assert first.producer_id == second.producer_id
        assert {first.epoch, second.epoch} == {0, 1}

    broker.run(scenario)


def test_transactional_ids_are_bounded(broker: Any) -> None:
    async def scenario() -> None:
        first = await broker.begin("a")
        await broker.begin("b")
        named = r"count=2 key=transaction\.coordinator\.transactional\.ids\.max"
        with pytest.raises(PolicyViolationError, match=named):
            await broker.begin("c")
        assert broker.coordinator.id_count == 2
        # Those that exist go on.
        assert await broker.begin("a") == (first.producer_id, 1)
        shards = SimpleNamespace(count=7, share_group_states=Counter)
        groups = SimpleNamespace(shards=shards, share=SimpleNamespace(rebalance_count=0))
        shares = SimpleNamespace(share_partition_count=5, write_count=0, partition_counts=dict)
        collector = CoordinatorMetrics(groups, broker.coordinator, shares, broker.clock)
        metrics = [*collector.collect()]
        assert [metric.samples[0].value for metric in metrics[:3]] == [7, 2, 5]

    broker.run(scenario, transaction_coordinator_transactional_ids_max=2)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_timeout_out_of_bounds_is_refused(broker: Any, timeout_ms: int) -> None:
    async def scenario() -> None:
        with pytest.raises(InvalidTransactionTimeoutError):
            await broker.begin(timeout_ms=timeout_ms)
        assert broker.log.partitions.partition_count is None

    broker.run(scenario)


@pytest.mark.parametrize("commit", [True, False])
def test_end_writes_a_marker_into_every_partition(broker: Any, commit: bool) -> None:
    async def scenario() -> None:
        broker.create_topic(partitions=3)
        producer = await broker.begin()
        broker.add("tx", producer, 0, 2)
        broker.append(producer, 0)
        broker.append(producer, 2)
        assert broker.partition(0).log.last_stable_offset == 0
        assert await broker.end(producer, commit=commit) == producer
        wanted = ControlRecordType.COMMIT if commit else ControlRecordType.ABORT
        for index in (0, 2):
            ((producer_id, epoch, marker),) = broker.markers_in(index)
            assert (producer_id, epoch) == producer
            assert marker.type is wanted
            assert marker.coordinator_epoch == broker.epoch_of(broker.index_of())
            assert broker.partition(index).log.last_stable_offset == 2
        assert broker.markers_in(1) == []
        assert broker.state("tx") is (S.COMPLETE_COMMIT if commit else S.COMPLETE_ABORT)

    broker.run(scenario)


def test_marker_of_committed_offsets_reaches_the_group_coordinator(broker: Any) -> None:
    async def scenario() -> None:
        broker.create_topic("__consumer_offsets", partitions=2)
        producer = await broker.begin()
        # A name from a request is equal to the constant, and another object.
        broker.add("tx", producer, 1, topic=b"__consumer_offsets".decode())
        await broker.end(producer)
        assert broker.groups.completed == [(1, producer.producer_id, True)]
        assert len(broker.markers_in(1, "__consumer_offsets")) == 1

    broker.run(scenario)


def test_producer_that_begins_again_aborts_what_was_open(broker: Any) -> None:
    async def scenario() -> None:
        broker.create_topic()
        zombie = await broker.begin()
        broker.add("tx", zombie, 0)
        broker.append(zombie)
        with pytest.raises(ConcurrentTransactionsError):
            await broker.begin()
        ((_, epoch, marker),) = broker.markers_in()
        assert (epoch, marker.type) == (1, ControlRecordType.ABORT)
        assert await broker.begin() == (zombie.producer_id, 2)
        with pytest.raises(ProducerFencedError):
            await broker.end(zombie)
        with pytest.raises(ProducerFencedError):
            broker.add("tx", zombie, 0)

    broker.run(scenario)


def test_large_transaction_is_ended_over_several_turns_of_the_loop(broker: Any) -> None:
    async def scenario() -> None:
        count = MARKERS_PER_TURN * 2 + 1
        broker.create_topic(partitions=count)
        producer = await broker.begin()
        broker.add("tx", producer, *range(count))
        ending = asyncio.ensure_future(broker.end(producer))
        await asyncio.sleep(0)
        assert broker.state("tx") is S.PREPARE_COMMIT
        with pytest.raises(ConcurrentTransactionsError):
            broker.add("tx", producer, 0)
        # The client disconnects, and the coordinator still ends its transaction.
        ending.cancel()
        await broker.until(lambda: broker.state("tx") is S.COMPLETE_COMMIT)
        assert all(len(broker.markers_in(index)) == 1 for index in range(count))

    broker.run(scenario)


def test_partition_deleted_meanwhile_does_not_hold_up_the_end(broker: Any) -> None:
    async def scenario() -> None:
        broker.create_topic("gone")
        broker.create_topic()
        producer = await broker.begin()
        broker.add("tx", producer, 0, topic="gone")
        broker.add("tx", producer, 0)
        broker.controller.delete_topics(["gone"])
        await broker.end(producer)
        assert broker.state("tx") is S.COMPLETE_COMMIT
        assert len(broker.markers_in()) == 1

    broker.run(scenario)


def test_partition_that_cannot_be_written_leaves_the_end_to_the_next_start(broker: Any) -> None:
    async def cut_off() -> None:
        broker.create_topic(partitions=2)
        producer = await broker.begin()
        broker.add("tx", producer, 0, 1)
        broker.partition(0).log.abandon()
        await broker.end(producer)
        assert broker.state("tx") is S.PREPARE_COMMIT
        assert len(broker.markers_in(1)) == 1

    async def taken_up() -> None:
        await broker.until(lambda: broker.state("tx") is S.COMPLETE_COMMIT)
        assert len(broker.markers_in(0)) == 1

    broker.run(cut_off)
    broker.run(taken_up)


# ---- restarts


def test_everything_is_there_after_a_restart(broker: Any) -> None:
    known: list[Any] = []

    async def before() -> None:
        broker.create_topic(partitions=2)
        for name in ("tx", "other", "third"):
            producer = await broker.begin(name)
            broker.add(name, producer, 0, 1)
        known.extend(broker.coordinator.transactions())

    async def after() -> None:
        assert sorted(broker.coordinator.transactions(), key=str) == sorted(known, key=str)
        producer = broker.coordinator.describe("tx").producer
        await broker.end(producer)
        assert len(broker.markers_in(0)) == len(broker.markers_in(1)) == 1

    broker.run(before)
    broker.run(after)


def test_decided_end_is_carried_out_after_a_crash(broker: Any) -> None:
    epochs: list[int] = []

    async def cut_off() -> None:
        broker.create_topic(partitions=2)
        producer = await broker.begin()
        broker.add("tx", producer, 0, 1)
        broker.append(producer, 0)
        broker.append(producer, 1)
        index = broker.index_of()
        epochs.append(broker.epoch_of(index))
        broker.store(index, prepared(broker, producer))
        # One marker was written before the crash. The restarted coordinator writes it again.
        broker.markers.append(EndMarker(producer, True, epochs[0]), TopicPartition("t", 0))

    async def taken_up() -> None:
        await broker.until(lambda: broker.state("tx") is S.COMPLETE_COMMIT)
        assert len(broker.markers_in(0)) == 2
        ((_, _, marker),) = broker.markers_in(1)
        assert marker.type is ControlRecordType.COMMIT
        assert marker.coordinator_epoch > epochs[0]
        assert broker.partition(1).log.last_stable_offset == 2

    broker.run(cut_off)
    broker.run(taken_up)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [0, 2])
def test_requests_after_a_crash_wait_until_the_decided_end_is_carried_out(
    broker: Any, monkeypatch: pytest.MonkeyPatch, commit: bool, version: int
) -> None:
    monkeypatch.setattr(transaction_endings, "RETRY_BACKOFF_MS", 1)
    monkeypatch.setattr(transaction_endings, "RETRY_BACKOFF_MS_MAX", 1)
    known: list[ProducerIdAndEpoch] = []

    async def cut_off() -> None:
        broker.create_topic()
        producer = await broker.begin()
        broker.add("tx", producer, 0)
        broker.append(producer)
        broker.partition().log.abandon()
        known.extend((producer, await broker.end(producer, commit=commit, version=version)))

    async def taken_up() -> None:
        ended, following = known

        def away(*_: Any) -> None:
            raise NotLeaderOrFollowerError("the leader moves")

        append, broker.markers.append = broker.markers.append, away
        await broker.load()
        assert broker.state("tx") is (S.PREPARE_COMMIT if commit else S.PREPARE_ABORT)
        for either in (True, False):
            with pytest.raises(ConcurrentTransactionsError):
                await broker.end(ended, commit=either, version=version)
        with pytest.raises(ConcurrentTransactionsError):
            broker.add("tx", following, 0)
        with pytest.raises(ConcurrentTransactionsError):
            await broker.begin()
        broker.markers.append = append
        await broker.until(lambda: broker.state("tx").name.startswith("COMPLETE"))
        # The client retries, because the answer was lost.
        assert await broker.end(ended, commit=commit, version=version) == following
        with pytest.raises(InvalidTxnStateError):
            await broker.end(ended, commit=not commit, version=version)
        broker.add("tx", following, 0)
        assert len(broker.markers_in()) == 1

    broker.run(cut_off)
    broker.run(taken_up, load=False)


def test_transaction_overdue_at_start_is_aborted(broker: Any) -> None:
    async def before() -> None:
        broker.create_topic()
        producer = await broker.begin()
        broker.add("tx", producer, 0)

    async def after() -> None:
        await broker.until(lambda: broker.state("tx") is S.COMPLETE_ABORT)
        assert [epoch for _, epoch, _ in broker.markers_in()] == [1]

    broker.run(before)
    broker.clock.advance(TIMEOUT_MS)
    broker.run(after)


def test_requests_before_the_load_get_a_retriable_error(broker: Any) -> None:
    async def before() -> None:
        await broker.begin()

    async def after() -> None:
        with pytest.raises(NotCoordinatorError):
            await broker.begin()
        loading = asyncio.ensure_future(broker.load())
        await asyncio.sleep(0)
        with pytest.raises(CoordinatorLoadInProgressError):
            await broker.begin()
        with pytest.raises(CoordinatorLoadInProgressError):
            broker.add("tx", ProducerIdAndEpoch(0, 0), 0)
        with pytest.raises(CoordinatorLoadInProgressError):
            list(broker.coordinator.transactions())
        await loading
        assert (await broker.begin()).epoch == 1

    broker.run(before)
    broker.run(after, load=False)


def test_damaged_record_makes_only_its_partition_unavailable(broker: Any) -> None:
    names = [f"id-{number}" for number in range(8)]

    async def before() -> None:
        for name in names:
            await broker.begin(name)
        damaged = broker.index_of(names[0])
        batch = build_batch([(broker.clock.now_ms(), b"\0\0", b"\0\x09", ())])
        broker.partition(damaged, TRANSACTION_STATE_TOPIC).append(
            batch,
            required_acks=1,
            now_ms=broker.clock.now_ms(),
            origin=AppendOrigin.COORDINATOR,
        )

    async def after() -> None:
        with pytest.raises(NotCoordinatorError):
            broker.coordinator.describe(names[0])
        found = 0
        for name in names[1:]:
            try:
                broker.coordinator.describe(name)
                found += 1
            except NotCoordinatorError:
                pass
        assert found > 0

    broker.run(before)
    broker.run(after)


def test_unassigned_id_is_not_known(broker: Any) -> None:
    async def scenario() -> None:
        for _ in range(2):  # without the topic, and with it
            with pytest.raises(InvalidProducerIdMappingError):
                broker.add("unknown", ProducerIdAndEpoch(0, 0), 0)
            with pytest.raises(TransactionalIdNotFoundError):
                broker.coordinator.describe("unknown")
            await broker.begin()

    broker.run(scenario)


# ---- time


def test_transaction_is_aborted_once_its_timeout_has_passed(broker: Any) -> None:
    async def scenario() -> None:
        broker.create_topic()
        producer = await broker.begin(timeout_ms=5)
        broker.add("tx", producer, 0)
        broker.append(producer)
        broker.clock.advance(4)
        await timers_fire()  # the clock says it is early
        assert broker.state("tx") is S.ONGOING
        broker.clock.advance(1)
        await broker.until(lambda: broker.state("tx") is S.COMPLETE_ABORT)
        ((_, epoch, marker),) = broker.markers_in()
        assert (epoch, marker.type) == (1, ControlRecordType.ABORT)
        with pytest.raises(ProducerFencedError):
            await broker.end(producer)

    broker.run(scenario)


def test_timer_of_a_transaction_fires_at_its_timeout(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays_s: list[float] = []

    def call_later(delay_s: float, *_: Any) -> Any:
        delays_s.append(delay_s)
        return SimpleNamespace(cancel=lambda: None)

    async def scenario() -> None:
        broker.create_topic()
        producer = await broker.begin(timeout_ms=1500)
        loop = SimpleNamespace(call_later=call_later)
        monkeypatch.setattr(broker.coordinator, "_loop", loop)
        broker.add("tx", producer, 0)
        # It fires early if the wall clock went back, and is set again for the rest.
        (shard,) = (each for each in broker.coordinator._shards.active() if "tx" in each.by_id)
        broker.clock.advance(500)
        broker.coordinator._on_timeout(shard, "tx")
        assert delays_s == [1.5, 1.0]
        assert broker.state("tx") is S.ONGOING

    broker.run(scenario)


def test_late_transaction_stays_open_until_the_log_takes_its_end(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise NotCoordinatorError("moved")

    async def scenario() -> None:
        broker.create_topic()
        broker.add("tx", await broker.begin(), 0)
        (shard,) = (each for each in broker.coordinator._shards.active() if "tx" in each.by_id)
        broker.clock.advance(TIMEOUT_MS)
        first = shard.timeouts["tx"]
        with monkeypatch.context() as patch:
            patch.setattr(broker.log, "append", refuse)
            broker.coordinator._on_timeout(shard, "tx")
        assert broker.state("tx") is S.ONGOING
        assert (first.cancelled(), shard.timeouts["tx"].cancelled()) == (True, False)
        broker.coordinator._on_timeout(shard, "tx")
        assert broker.state("tx") is S.COMPLETE_ABORT
        assert shard.timeouts == {}

    broker.run(scenario)


def test_ended_transaction_does_not_time_out(broker: Any) -> None:
    async def scenario() -> None:
        broker.create_topic()
        producer = await broker.begin(timeout_ms=1)
        broker.add("tx", producer, 0)
        await broker.end(producer)
        broker.clock.advance(10)
        await timers_fire()  # one that was not cancelled
        assert broker.state("tx") is S.COMPLETE_COMMIT

    broker.run(scenario)


def test_idle_id_is_forgotten_for_good(broker: Any) -> None:
    async def before() -> None:
        broker.create_topic()
        await broker.begin("idle")
        producer = await broker.begin("busy")
        broker.add("busy", producer, 0)
        broker.clock.advance(1000)
        await broker.begin("recent")
        names = {"idle", "busy", "recent"}
        await broker.until(
            lambda: (
                {transaction.transactional_id for transaction in broker.coordinator.transactions()}
                != names
            )
        )
        left = {transaction.transactional_id for transaction in broker.coordinator.transactions()}
        assert left == {"busy", "recent"}

    async def after() -> None:
        left = {transaction.transactional_id for transaction in broker.coordinator.transactions()}
        assert left == {"busy", "recent"}

    settings = {"transactional_id_expiration_ms": 1000}
    broker.run(before, transaction_remove_expired_transaction_cleanup_interval_ms=1, **settings)
    broker.run(after, **settings)


def test_idle_id_stays_until_the_log_takes_its_removal(
    broker: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise NotCoordinatorError("moved")

    async def scenario() -> None:
        await broker.begin()
        broker.clock.advance(1000)
        with monkeypatch.context() as patch:
            patch.setattr(broker.log, "forget", refuse)
            caplog.set_level(logging.INFO)
            broker.coordinator._expire_ids()
        assert "transactional ids cannot be expired partition=" in caplog.text
        assert broker.state("tx") is S.EMPTY
        broker.coordinator._expire_ids()
        assert [*broker.coordinator.transactions()] == []

    broker.run(scenario, transactional_id_expiration_ms=1000)


def test_many_idle_ids_are_forgotten_batch_by_batch(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_coordinator, "FORGOTTEN_PER_BATCH", 2)
    sizes: list[int] = []

    async def scenario() -> None:
        for index in range(8):
            await broker.begin(f"idle {index}")
        broker.clock.advance(1000)
        forget = broker.log.forget

        def note(shard: Any, ids: list[str]) -> None:
            sizes.append(len(ids))
            forget(shard, ids)

        monkeypatch.setattr(broker.log, "forget", note)
        broker.coordinator._expire_ids()
        assert [*broker.coordinator.transactions()] == []

    broker.run(scenario, transactional_id_expiration_ms=1000)
    assert (sum(sizes), max(sizes)) == (8, 2)
    assert min(sizes) > 0


def test_deleted_topic_takes_its_transactions_along(broker: Any) -> None:
    async def scenario() -> None:
        broker.create_topic()
        producer = await broker.begin(timeout_ms=1)
        broker.add("tx", producer, 0)
        broker.controller.delete_topics([TRANSACTION_STATE_TOPIC])
        broker.clock.advance(10)
        await timers_fire()
        with pytest.raises(InvalidProducerIdMappingError):
            await broker.end(producer)
        again = await broker.begin()
        assert again.epoch == 0
        assert again.producer_id != producer.producer_id

    broker.run(scenario)
