"""Waits for markers: a client that disconnects cancels no other's wait, and a marker that was not
committed is written again."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from isotherm.broker.apis import write_txn_markers
from isotherm.broker.coordinators.coordinator_shards import CoordinatorShard
from isotherm.broker.coordinators.transactions.transaction_endings import (
    MARKERS_PER_TURN,
    SETTLED,
    EndMarker,
    MarkerOutcome,
    MarkerResult,
    TransactionEndings,
)
from isotherm.broker.coordinators.transactions.transaction_markers import LocalMarkers
from isotherm.broker.coordinators.transactions.transaction_shard import TransactionShard
from isotherm.broker.coordinators.transactions.transaction_state import ProducerIdAndEpoch
from isotherm.errors import (
    CoordinatorNotAvailableError,
    IsothermError,
    NotCoordinatorError,
    NotLeaderOrFollowerError,
    RecordTooLargeError,
    TransactionCoordinatorFencedError,
)
from isotherm.types import TopicPartition

MARKER = EndMarker(ProducerIdAndEpoch(7, 0), True, 0)


def test_a_client_that_disconnects_cancels_no_append() -> None:
    """The group coordinator waits for the same append: see
    `GroupCoordinator.complete_transaction`."""

    async def scenario() -> None:
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        marker = SimpleNamespace(
            producer_id=1,
            producer_epoch=0,
            transaction_result=True,
            coordinator_epoch=0,
            transaction_version=0,
            topics=[SimpleNamespace(name="__consumer_offsets", partition_indexes=[0])],
        )
        markers = SimpleNamespace(append=lambda *_: committed)
        context: Any = SimpleNamespace(
            header=SimpleNamespace(api_version=2),
            services=SimpleNamespace(transaction_markers=markers),
        )
        request = SimpleNamespace(markers=[marker])
        shard = CoordinatorShard(0)
        shard.note_append(committed)

        handling = asyncio.create_task(write_txn_markers.handle(context, request))
        await asyncio.sleep(0)
        handling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await handling
        waiting = asyncio.create_task(shard.wait_committed())
        await asyncio.sleep(0)
        committed.set_result(None)
        await waiting

    asyncio.run(scenario())


def test_a_cancelled_append_does_not_cancel_the_request_that_waits_for_it() -> None:
    async def scenario() -> None:
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        shard = CoordinatorShard(0)
        shard.note_append(committed)
        committed.cancel()
        assert not shard.is_committed
        with pytest.raises(CoordinatorNotAvailableError):
            await shard.wait_committed()

    asyncio.run(scenario())


def local_markers(*, partitions: int, append: Any) -> LocalMarkers:
    topic = SimpleNamespace(partitions=range(partitions))
    metadata: Any = SimpleNamespace(image=SimpleNamespace(topics_by_name={"t": topic}))
    markers: Any = SimpleNamespace(append=append)
    return LocalMarkers(metadata, markers)


@pytest.mark.parametrize("index", [1, 2, 7])
def test_partition_that_a_new_topic_of_the_name_has_not_needs_no_marker(index: int) -> None:
    def append(*_: Any) -> None:
        raise AssertionError("there is no such partition")

    writer = local_markers(partitions=1, append=append)
    assert writer.write(MARKER, TopicPartition("t", index)) == SETTLED


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (None, MarkerResult.SETTLED),
        (NotLeaderOrFollowerError("moved"), MarkerResult.RETRY),
        (TransactionCoordinatorFencedError("newer"), MarkerResult.FENCED),
    ],
)
def test_marker_that_is_not_committed_is_written_again(
    error: Exception | None, result: MarkerResult
) -> None:
    async def scenario() -> None:
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        writer = local_markers(partitions=1, append=lambda *_: committed)
        outcome = writer.write(MARKER, TopicPartition("t", 0))
        assert isinstance(outcome, asyncio.Future)
        if error is None:
            committed.set_result(None)
        else:
            committed.set_exception(error)
        assert (await outcome).result is result

    asyncio.run(scenario())


def test_marker_is_committed_when_the_replicas_have_it(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        broker.create_topic()
        partition = broker.partition()
        waited: list[tuple[int, int]] = []
        monkeypatch.setattr(
            type(partition), "when_committed", lambda _, end, term: waited.append((end, term))
        )
        broker.markers.append(MARKER, TopicPartition("t", 0))
        assert waited == [(partition.log.log_end_offset, partition.term)]

    broker.run(scenario)


def prepared_end(*partitions: int) -> Any:
    return SimpleNamespace(
        producer=MARKER.producer,
        is_commit=True,
        client_transaction_version=0,
        partitions={TopicPartition("t", partition) for partition in partitions},
        transactional_id="tx",
    )


def test_markers_that_are_refused_are_tried_again_at_growing_intervals(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    delays_s: list[float] = []

    class Refusing:
        def write(self, marker: EndMarker, topic_partition: TopicPartition) -> MarkerOutcome:
            return MarkerOutcome(MarkerResult.RETRY, "the leader moves")

    async def scenario() -> None:
        loop: Any = SimpleNamespace(
            create_future=asyncio.get_running_loop().create_future,
            call_later=lambda delay_s, act, ending: delays_s.append(delay_s),
        )
        shard = TransactionShard(0)
        endings = TransactionEndings(Refusing(), lambda *_: None, loop)
        endings.begin(shard, prepared_end(0))
        (ending,) = shard.endings
        for _ in range(7):
            endings._write_markers(ending)

    asyncio.run(scenario())
    assert delays_s == [0.1, 0.2, 0.4, 0.8, 1.6, 2, 2, 2]
    (logged,) = caplog.messages
    assert logged.endswith("partition=t-0 transactional_id=tx result=retry reason=the leader moves")


def unused(*_: Any) -> None:
    raise AssertionError("it is not complete")


def test_end_whose_decision_is_lost_is_left_to_the_next_coordinator(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        shard = TransactionShard(0)
        committed: asyncio.Future[None] = loop.create_future()
        shard.note_append(committed)
        nobody: Any = None
        endings = TransactionEndings(nobody, unused, loop)
        assert endings.begin(shard, prepared_end(0)).done(), "the client waits for the record"
        committed.set_exception(NotLeaderOrFollowerError("moved"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not shard.endings
        assert not endings._tasks

    asyncio.run(scenario())
    assert (
        "the next coordinator completes the transaction transactional_id=tx partition=0"
        in caplog.text
    )


def test_end_of_a_coordinator_that_resigns_stops_and_its_client_is_answered() -> None:
    cancelled: list[str] = []

    class Refusing:
        def write(self, marker: EndMarker, topic_partition: TopicPartition) -> MarkerOutcome:
            return MarkerOutcome(MarkerResult.RETRY)

    async def scenario() -> None:
        timer = SimpleNamespace(cancel=lambda: cancelled.append("timer"))
        loop: Any = SimpleNamespace(
            create_future=asyncio.get_running_loop().create_future,
            call_later=lambda *_: timer,
            call_soon=lambda *_: None,
        )
        shard = TransactionShard(0)
        endings = TransactionEndings(Refusing(), unused, loop)
        endings.begin(shard, prepared_end(0))
        large = endings.begin(shard, prepared_end(*range(MARKERS_PER_TURN + 1)))
        assert not large.done(), "markers are left for the next turn"
        shard.close()
        assert large.done()
        assert cancelled == ["timer"]
        assert not shard.endings

    asyncio.run(scenario())


def test_end_of_a_coordinator_that_is_fenced_is_left_to_the_newer_one() -> None:
    """Kafka:

    TransactionMarkerRequestCompletionHandler removes the markers, and appends no COMPLETE.
    """

    class Fencing:
        def write(self, marker: EndMarker, topic_partition: TopicPartition) -> MarkerOutcome:
            fenced = topic_partition.partition == 1
            return MarkerOutcome(MarkerResult.FENCED if fenced else MarkerResult.RETRY)

    async def scenario() -> None:
        # The loop has no timers, so that a retry fails.
        loop: Any = SimpleNamespace(create_future=asyncio.get_running_loop().create_future)
        shard = TransactionShard(0)
        for partitions in ((1,), (0, 1)):
            endings = TransactionEndings(Fencing(), unused, loop)
            settled = endings.begin(shard, prepared_end(*partitions))
            assert settled.done()
            assert not shard.endings

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (NotCoordinatorError("moved"), logging.INFO),
        (CoordinatorNotAvailableError("too few replicas"), logging.INFO),
        (RecordTooLargeError("too large"), logging.ERROR),
    ],
)
def test_transaction_that_is_completed_later_is_no_error(
    caplog: pytest.LogCaptureFixture, error: IsothermError, level: int
) -> None:
    """As in Kafka (TransactionMarkerChannelManager.tryAppendToLog): the partition moves, or too few
    replicas are in sync. Another error is one, however often it is tried."""
    caplog.set_level(logging.INFO)
    refusals = [error, error, NotCoordinatorError("moved")]
    completed: list[Any] = []

    class Settling:
        def write(self, marker: EndMarker, topic_partition: TopicPartition) -> MarkerOutcome:
            return SETTLED

    def complete(_: TransactionShard, prepared: Any) -> None:
        if refusals:
            raise refusals.pop()
        completed.append(prepared)

    async def scenario() -> None:
        loop: Any = SimpleNamespace(
            create_future=asyncio.get_running_loop().create_future,
            call_later=lambda _, act, ending: asyncio.get_running_loop().call_soon(act, ending),
        )
        shard = TransactionShard(0)
        prepared = prepared_end(0)
        TransactionEndings(Settling(), complete, loop).begin(shard, prepared)
        for _ in range(20):
            await asyncio.sleep(0)
        assert completed == [prepared]
        assert not shard.endings

    asyncio.run(scenario())
    logged = [record for record in caplog.records if str(error) in record.message]
    assert [each.levelno for each in logged] == [level]
    assert len(caplog.records) == (1 if isinstance(error, NotCoordinatorError) else 2)
    assert all("transactional_id=tx" in record.message for record in caplog.records)
