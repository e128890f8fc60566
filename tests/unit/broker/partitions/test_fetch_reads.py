"""A fetch that finds nothing is not read: the read, which would find it, is the oracle."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.partitions.fetch_reads import FetchReader
from isotherm.broker.partitions.fetch_target import FetchTarget, PartitionKey
from isotherm.log.log_read import FetchIsolation
from isotherm.protocol.fetch import FetchPartition
from isotherm.record.batch import build_batch
from isotherm.types import NO_LEADER_EPOCH
from tests.support.led_topic import delete_topic

ISOLATIONS = (FetchIsolation.HIGH_WATERMARK, FetchIsolation.TXN_COMMITTED)
END = 2
LEADER_EPOCH = 3


def target_of(
    parts: Any, offset: int, epoch: int = NO_LEADER_EPOCH, last_epoch: int = NO_LEADER_EPOCH
) -> FetchTarget:
    request = FetchPartition(0, offset, 1000, epoch, last_epoch)
    target = FetchTarget(PartitionKey("t", None, 0), request)
    target.find(parts.partition(), parts.services.traffic.topics["t"])
    return target


def noted(target: FetchTarget) -> tuple[object, ...]:
    return target.leader_epoch, target.size_before, target.read_size, target.hidden_from


def check(parts: Any, isolation: FetchIsolation, place: tuple[int, int, int]) -> None:
    reader = FetchReader(isolation)
    target, other = target_of(parts, *place), target_of(parts, *place)
    other.read_size, other.hidden_from = 5, 1
    reads = reader.read_partitions([target], 1000)
    finds_nothing = not reads.size and not reads.is_decided
    awaits = reader.awaits_appends([other])
    if awaits:
        assert noted(other) == noted(target)
    # With an open transaction it is left to the read what its end makes readable.
    is_stable = parts.partition().log.last_stable_offset == END
    assert awaits == (finds_nothing and is_stable and place[2] == NO_LEADER_EPOCH)
    assert not reader.awaits_appends([other, target_of(parts, 0)])


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("has_open_transaction", [False, True])
def test_a_fetch_awaits_appends_where_a_read_finds_nothing(
    parts: Any, has_open_transaction: bool, isolation: FetchIsolation
) -> None:
    async def scenario() -> None:
        records = [(parts.clock.now_ms(), None, b"v", ())] * END
        batch = build_batch(
            records,
            producer_id=7,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=has_open_transaction,
        )
        parts.partition().append(batch, required_acks=1, now_ms=parts.clock.now_ms())
        offsets, epochs = (0, END - 1, END, END + 1), (NO_LEADER_EPOCH, 2, LEADER_EPOCH, 4)
        for place in product(offsets, epochs, (NO_LEADER_EPOCH, LEADER_EPOCH)):
            check(parts, isolation, place)

    parts.run(scenario)


def lose(parts: Any, target: FetchTarget) -> None:
    target.lose(ErrorCode.topic_authorization_failed)


def delete(parts: Any, target: FetchTarget) -> None:
    delete_topic(parts.replica_manager, "t")


def fail(parts: Any, target: FetchTarget) -> None:
    parts.partition().log.log_dir.failed_by(OSError("broken"), "test")


def send_on(parts: Any, target: FetchTarget) -> None:
    parts.partition().goes_on_at = 5


@pytest.mark.parametrize("change", [lose, delete, fail, send_on])
def test_a_fetch_that_has_an_error_does_not_await_appends(
    parts: Any, change: Callable[[Any, FetchTarget], None]
) -> None:
    async def scenario() -> None:
        reader = FetchReader(FetchIsolation.HIGH_WATERMARK)
        target = target_of(parts, 0)
        assert reader.awaits_appends([target])
        change(parts, target)
        assert not reader.awaits_appends([target])
        assert reader.read_partitions([target], 1000).is_decided

    parts.run(scenario)
