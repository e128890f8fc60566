"""The transaction coordinator when the epochs of a producer id run out."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from isotherm.broker.coordinators.transactions import transaction_coordinator
from isotherm.broker.coordinators.transactions.transaction_state import (
    EPOCH_EXHAUSTED,
    EPOCH_MAX,
    ProducerIdAndEpoch,
    TransactionState,
)
from isotherm.errors import NotControllerError
from isotherm.record.control import ControlRecordType
from tests.support.conditions import timers_fire

S = TransactionState
TIMEOUT_MS = 60_000


def test_exhausted_epoch_gives_a_new_producer_id(broker: Any) -> None:
    first: list[int] = []

    async def before() -> None:
        producer = await broker.begin()
        first.append(producer.producer_id)
        known = broker.coordinator.describe("tx")
        broker.store(broker.index_of(), replace(known, producer_epoch=EPOCH_EXHAUSTED))

    async def after() -> None:
        producer = await broker.begin()
        assert producer.epoch == 0
        assert producer.producer_id != first[0]

    broker.run(before)
    broker.run(after)


def test_end_of_version_2_with_the_last_epoch_gives_a_new_producer_id(broker: Any) -> None:
    async def before() -> None:
        broker.create_topic()
        producer = await broker.begin()
        broker.add("tx", producer, 0)
        known = broker.coordinator.describe("tx")
        broker.store(broker.index_of(), replace(known, producer_epoch=EPOCH_EXHAUSTED))

    async def after() -> None:
        old = broker.coordinator.describe("tx").producer
        new = await broker.end(old, version=2)
        assert new.epoch == 0
        assert new.producer_id != old.producer_id
        ((producer_id, epoch, _),) = broker.markers_in()
        assert (producer_id, epoch) == (old.producer_id, old.epoch + 1)
        assert await broker.end(old, version=2) == new

    broker.run(before)
    broker.run(after)


def begun_under_the_last_epoch(broker: Any) -> ProducerIdAndEpoch:
    """Store an open transaction under the last epoch that times out before the next start. Returns
    its producer."""
    producers: list[ProducerIdAndEpoch] = []

    async def before() -> None:
        broker.create_topic()
        producer = await broker.begin()
        broker.add("tx", producer, 0)
        known = broker.coordinator.describe("tx")
        broker.store(broker.index_of(), replace(known, producer_epoch=EPOCH_EXHAUSTED))
        producers.append(ProducerIdAndEpoch(producer.producer_id, EPOCH_EXHAUSTED))

    broker.run(before)
    broker.clock.advance(TIMEOUT_MS)
    return producers[0]


def test_late_transaction_under_the_last_epoch_ends_with_a_new_producer_id(
    broker: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(transaction_coordinator, "ABORT_RETRY_S", 0.001)
    old = begun_under_the_last_epoch(broker)

    async def scenario() -> None:
        caplog.set_level(logging.INFO)
        new_producer_id = broker.coordinator.new_producer_id
        refused: list[None] = []

        async def refused_at_first() -> int:
            if len(refused) < 2:
                refused.append(None)
                raise NotControllerError("no id now")
            return int(await new_producer_id())

        broker.coordinator.new_producer_id = refused_at_first
        await broker.load()
        await broker.until(lambda: broker.state("tx") is S.COMPLETE_ABORT)
        assert len(refused) == 2
        logged = [record for record in caplog.records if "is not aborted yet" in record.message]
        assert [(each.levelname, each.exc_info) for each in logged] == [("INFO", None)]
        assert "transactional_id=tx: no id now" in caplog.text
        assert "a timed-out transaction is aborted transactional_id=tx" in caplog.text
        new = broker.coordinator.describe("tx").producer
        assert (new.producer_id != old.producer_id, new.epoch) == (True, 0)
        ((producer_id, epoch, marker),) = broker.markers_in()
        assert (producer_id, epoch) == (old.producer_id, EPOCH_EXHAUSTED + 1)
        assert marker.type is ControlRecordType.ABORT
        assert await broker.end(old, commit=False, version=2) == new

    broker.run(scenario, load=False)


@pytest.mark.parametrize("is_refused", [True, False])
def test_late_transaction_that_is_ended_while_an_id_is_asked_for_stays_as_it_ended(
    broker: Any, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    monkeypatch.setattr(transaction_coordinator, "ABORT_RETRY_S", 0.001)
    old = begun_under_the_last_epoch(broker)

    async def scenario() -> None:
        asked, may_answer = asyncio.Event(), asyncio.Event()

        async def slowly() -> int:
            asked.set()
            await may_answer.wait()
            if is_refused:
                raise NotControllerError("no id now")
            return 12345

        broker.coordinator.new_producer_id = slowly
        await broker.load()
        await asked.wait()
        await broker.end(old)
        broker.add("tx", old, 0)
        may_answer.set()
        await timers_fire()
        # The next transaction has not timed out. Both ends were under the producer's own epoch.
        assert broker.state("tx") is S.ONGOING
        assert [epoch for _, epoch, _ in broker.markers_in()] == [EPOCH_EXHAUSTED]

    broker.run(scenario, load=False)


def test_late_transaction_under_the_epoch_that_is_kept_for_fencing_is_ended(broker: Any) -> None:
    """An older version wrote the record. The marker's epoch cannot be higher than the records'."""

    async def before() -> None:
        broker.create_topic()
        producer = await broker.begin()
        broker.add("tx", producer, 0)
        broker.append(ProducerIdAndEpoch(producer.producer_id, EPOCH_MAX))
        known = broker.coordinator.describe("tx")
        broker.store(broker.index_of(), replace(known, producer_epoch=EPOCH_MAX))

    async def after() -> None:
        await broker.until(lambda: broker.state("tx") is S.COMPLETE_ABORT)
        assert [epoch for _, epoch, _ in broker.markers_in()] == [EPOCH_MAX]
        assert broker.partition().log.last_stable_offset == 2
        assert broker.coordinator.describe("tx").producer.epoch == 0

    broker.run(before)
    broker.clock.advance(TIMEOUT_MS)
    broker.run(after)
