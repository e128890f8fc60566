"""How much is acquired at once. The expectations are those of Kafka's SharePartition."""

from __future__ import annotations

from typing import Any

import pytest

from isotherm.broker.coordinators.shares.state_batches import StateBatch
from isotherm.broker.share_partitions.acknowledgement import (
    Acknowledgement,
    AcknowledgeType,
    Deliveries,
    acknowledge,
    end_transition,
    release,
)
from isotherm.broker.share_partitions.acquisition import (
    Acquisition,
    LogBatch,
    acquire,
    without_aborted,
)
from isotherm.broker.share_partitions.window import Window
from isotherm.errors import InvalidRecordStateError, InvalidRequestError

TENS = [LogBatch(base, base + 9) for base in range(0, 100, 10)]
DELIVERIES = Deliveries(5, 100)


def asked(member: str = "a", **fields: Any) -> Acquisition:
    defaults = {
        "record_count_max": 500,
        "batch_size": 500,
        "is_record_limit": False,
        "lock_end_ms": 100,
        "delivery_count_max": 5,
        "record_locks_max": 2000,
    }
    return Acquisition(member, **{**defaults, **fields})


def acquired(window: Window, log: Any = TENS, **fields: Any) -> list[tuple[int, int, int]]:
    return [
        tuple(each) for each in acquire(window, asked(**fields), window.next_fetch_offset(), log)
    ]


def give_back(window: Window, member: str = "a") -> None:
    transition = release(window, member, DELIVERIES)
    end_transition(window, transition, DELIVERIES, 0, is_committed=True)


def say(window: Window, first: int, last: int, *types: int, member: str = "a") -> None:
    given = [Acknowledgement(first, last, types)]
    transition = acknowledge(window, member, given, DELIVERIES, 0)
    end_transition(window, transition, DELIVERIES, 0, is_committed=True)


def test_new_records_are_acquired_by_the_logs_batches() -> None:
    window = Window.load(3, ())
    assert acquired(window, record_count_max=15) == [(3, 19, 1)]
    assert acquired(window, TENS[2:], record_count_max=5, batch_size=10) == [(20, 29, 1)]
    assert acquired(window, TENS[3:], batch_size=15) == [
        (30, 49, 1),
        (50, 69, 1),
        (70, 89, 1),
        (90, 99, 1),
    ]


def test_a_record_limit_is_exact() -> None:
    window = Window.load(0, ())
    assert acquired(window, record_count_max=4, is_record_limit=True) == [(0, 3, 1)]
    assert window.end_offset == 9
    assert acquired(window, record_count_max=8, is_record_limit=True, member="b") == [
        (4, 9, 1),
        (10, 11, 1),
    ]


def test_locks_are_limited() -> None:
    window = Window.load(0, ())
    assert acquired(window, record_locks_max=15) == [(0, 19, 1)]
    assert acquired(window, TENS[2:], record_locks_max=15) == []
    assert not window.can_acquire(15)
    say(window, 5, 6, AcknowledgeType.RELEASE)
    # There is no room for new records, but released ones are delivered again.
    assert window.can_acquire(15)
    assert acquired(window, TENS, record_locks_max=15) == [(5, 6, 2)]


def test_records_that_failed_often_come_in_small_numbers() -> None:
    window = Window.load(0, ())
    for count in (1, 2, 3):
        assert acquired(window, TENS[:1]) == [(0, 9, count)]
        give_back(window)
    # The fourth delivery: half of the batch. The last one: record by record.
    assert acquired(window, TENS) == [(0, 4, 4)]
    give_back(window)
    assert acquired(window, TENS) == [(0, 0, 5)]
    assert acquired(window, TENS) == [(1, 1, 5)]


def test_a_record_that_was_delivered_too_often_is_archived() -> None:
    window = Window.load(0, ())
    for _ in range(2):
        assert acquired(window, TENS[:1], delivery_count_max=2)
        transition = release(window, "a", Deliveries(2, 100))
        end_transition(window, transition, Deliveries(2, 100), 0, is_committed=True)
    assert (window.start_offset, window.batches) == (10, [])


def test_gaps_of_a_loaded_state_are_acquired_first() -> None:
    window = Window.load(
        0, [StateBatch(5, 7, 1, 2), StateBatch(12, 13, 2, 0), StateBatch(20, 24, 1, 4)]
    )
    assert window.next_fetch_offset() == 0
    assert acquired(window) == [(0, 4, 1), (8, 11, 1), (12, 13, 3), (14, 19, 1), (25, 99, 1)]
    say(window, 0, 4, AcknowledgeType.ACCEPT)
    assert window.start_offset == 8
    assert window.delivery_complete_count == 5


def test_aborted_records_are_delivered_to_nobody() -> None:
    window = Window.load(0, ())
    got = acquire(window, asked(), 0, TENS)
    kept = without_aborted(window, got, [LogBatch(0, 9), LogBatch(40, 49)])
    assert [tuple(each) for each in kept] == [(10, 39, 1), (50, 99, 1)]
    say(window, 10, 39, AcknowledgeType.ACCEPT)
    assert window.start_offset == 50


@pytest.mark.parametrize(
    ("first", "last", "types", "member", "error"),
    [
        (0, 9, [9], "a", InvalidRequestError),
        (0, 9, [-1], "a", InvalidRequestError),
        (0, 9, [1], "b", InvalidRecordStateError),
        (40, 45, [1], "a", InvalidRequestError),
        (15, 20, [1], "a", InvalidRequestError),
        (12, 14, [1], "a", InvalidRecordStateError),
        (2**62, 2**63 - 1, [1], "a", InvalidRequestError),
    ],
)
def test_what_was_not_acquired_is_not_acknowledged(
    first: int, last: int, types: list[int], member: str, error: type[Exception]
) -> None:
    window = Window.load(0, ())
    acquired(window, TENS[:2])
    say(window, 12, 13, AcknowledgeType.RELEASE)
    before = repr(list(window.runs()))
    with pytest.raises(error):
        say(window, first, last, *types, member=member)
    assert repr(list(window.runs())) == before


def test_an_acknowledgement_in_progress_is_not_repeated() -> None:
    window = Window.load(0, ())
    acquired(window, TENS[:1])
    given = [Acknowledgement(0, 4, [AcknowledgeType.ACCEPT])]
    transition = acknowledge(window, "a", given, DELIVERIES, 0)
    with pytest.raises(InvalidRecordStateError, match="already"):
        acknowledge(window, "a", given, DELIVERIES, 0)
    overlapping = [Acknowledgement(5, 9, [1]), Acknowledgement(9, 9, [1])]
    with pytest.raises(InvalidRecordStateError, match="already"):
        acknowledge(window, "a", overlapping, DELIVERIES, 0)
    end_transition(window, transition, DELIVERIES, 0, is_committed=True)
    assert window.start_offset == 5
    say(window, 5, 9, AcknowledgeType.ACCEPT)
    assert window.start_offset == 10


def test_locks_are_renewed_only_if_the_group_allows_it() -> None:
    window = Window.load(0, ())
    acquired(window, TENS[:1])
    given = [Acknowledgement(0, 9, [AcknowledgeType.RENEW])]
    with pytest.raises(InvalidRecordStateError, match="renew"):
        acknowledge(window, "a", given, Deliveries(5, None), 0)
    assert acknowledge(window, "a", given, Deliveries(5, 900), 0).batches == []
    assert [run.lock_end_ms for run in window.runs()] == [900]


def test_a_range_of_millions_is_one_run() -> None:
    window = Window.load(0, ())
    log = [LogBatch(0, 5_000_000)]
    assert acquired(window, log, record_locks_max=10_000) == [(0, 5_000_000, 1)]
    say(window, 1_000_000, 4_000_000, AcknowledgeType.ACCEPT)
    assert len(list(window.runs())) == 3
    say(window, 0, 999_999, AcknowledgeType.ACCEPT)
    assert window.start_offset == 4_000_001


def test_the_start_never_goes_back_below_the_log_start() -> None:
    window = Window.load(0, ())
    acquired(window, TENS[:1])
    given = [Acknowledgement(0, 9, [AcknowledgeType.ACCEPT])]
    transition = acknowledge(window, "a", given, DELIVERIES, 0)
    window.move_start(20)
    end_transition(window, transition, DELIVERIES, 0, is_committed=True)
    assert (window.start_offset, window.next_fetch_offset(), window.batches) == (20, 20, [])
