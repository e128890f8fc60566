"""Which segments retention deletes, without and with a remote tier."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from isotherm.config.topic import TopicConfig
from isotherm.log.retention import (
    DeletionReason,
    RetentionState,
    deleted_segments,
    plan_retention,
    plan_without_copies,
)

NOW = 10_000
NEVER = {"retention_ms": -1, "retention_bytes": -1}


@dataclass(frozen=True)
class Segment:
    base_offset: int
    size_in_bytes: int
    largest_timestamp_ms: int


def state(**changes: Any) -> RetentionState:
    """Segments [0,10) [10,20) [20,30) and the active one [30,40), of 100 bytes each and 40, 30, 20
    and 10 ms old."""
    active_size = changes.pop("active_size", 100)
    fields = {
        "segments": [
            Segment(0, 100, NOW - 40),
            Segment(10, 100, NOW - 30),
            Segment(20, 100, NOW - 20),
            Segment(30, active_size, NOW - 10),
        ],
        "log_end_offset": 40 if active_size else 30,
        "high_watermark": 40 if active_size else 30,
        "log_start_offset": 0,
        "local_log_start_offset": 0,
        "highest_offset_in_remote_storage": -1,
        "remote_log_enabled": False,
    }
    return RetentionState(**(fields | changes))


def planned(retention: RetentionState, **config: Any) -> tuple[list[int], bool]:
    plan = plan_retention(retention, TopicConfig(**(NEVER | config)), NOW)
    return [deletion.base_offset for deletion in plan.deletions], plan.roll_active


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, []),
        ({"retention_ms": 40}, []),
        ({"retention_ms": 39}, [0]),
        ({"retention_ms": 15}, [0, 10, 20]),
        ({"retention_ms": 0}, [0, 10, 20, 30]),
        ({"retention_bytes": 400}, []),
        ({"retention_bytes": 301}, []),
        ({"retention_bytes": 300}, [0]),
        ({"retention_bytes": 299}, [0]),
        ({"retention_bytes": 100}, [0, 10, 20]),
        ({"retention_bytes": 0}, [0, 10, 20, 30]),
        ({"retention_bytes": 300, "retention_ms": 29}, [0, 10]),
        ({"retention_ms": 0, "retention_bytes": 0, "cleanup_policy": ("compact",)}, []),
        ({"retention_ms": 0, "cleanup_policy": ()}, []),
        ({"retention_ms": 0, "cleanup_policy": ("compact", "delete")}, [0, 10, 20, 30]),
        # Local limits have no effect without a remote tier.
        ({"local_retention_ms": 0, "local_retention_bytes": 0}, []),
    ],
)
def test_retention_without_remote_goes_by_the_total_limits(
    config: dict[str, Any], expected: list[int]
) -> None:
    assert planned(state(), **config) == (expected, False)


def test_retention_by_time_counts_from_the_records_time() -> None:
    old = [Segment(0, 100, 1), Segment(10, 100, NOW - 5001), Segment(20, 100, NOW - 5000)]
    active = Segment(30, 100, NOW)
    assert planned(state(segments=[*old, active]), retention_ms=5000) == ([0, 10], False)


def test_retention_never_passes_the_high_watermark() -> None:
    assert planned(state(high_watermark=19), retention_ms=0) == ([0], False)
    assert planned(state(high_watermark=20), retention_ms=0) == ([0, 10], False)
    assert planned(state(high_watermark=39), retention_ms=0) == ([0, 10, 20], False)


def test_retention_stops_at_the_first_segment_that_stays() -> None:
    segments = [Segment(0, 100, NOW), Segment(10, 100, 0), Segment(20, 0, 0)]
    retention = state(segments=segments, log_end_offset=20, high_watermark=20)
    assert planned(retention, retention_ms=100) == ([], False)


def test_retention_keeps_an_empty_active_segment() -> None:
    assert planned(state(active_size=0), retention_ms=0) == ([0, 10, 20], False)


@pytest.mark.parametrize(
    ("start", "expected"), [(9, []), (10, [0]), (25, [0, 10]), (40, [0, 10, 20])]
)
def test_segments_below_the_log_start_go_whatever_the_policy(
    start: int, expected: list[int]
) -> None:
    retention = state(log_start_offset=start, local_log_start_offset=start)
    for policy in (("delete",), ("compact",), ()):
        plan = plan_retention(retention, TopicConfig(**NEVER, cleanup_policy=policy), NOW)
        assert [deletion.base_offset for deletion in plan.deletions] == expected
        assert all(deletion.reason is DeletionReason.LOG_START for deletion in plan.deletions)


def test_reasons_are_reported_in_order() -> None:
    retention = state(log_start_offset=10, local_log_start_offset=10)
    config = TopicConfig(retention_bytes=200, retention_ms=15)
    plan = plan_retention(retention, config, NOW)
    assert [deletion.reason for deletion in plan.deletions] == [
        DeletionReason.LOG_START,
        DeletionReason.SIZE,
        DeletionReason.TIME,
    ]


TIERED = {"remote_storage_enable": True, "local_retention_ms": 15, "local_retention_bytes": -2}


@pytest.mark.parametrize(
    ("highest_remote", "expected"), [(-1, []), (8, []), (9, [0]), (19, [0, 10]), (29, [0, 10, 20])]
)
def test_local_retention_deletes_only_what_the_remote_tier_has(
    highest_remote: int, expected: list[int]
) -> None:
    retention = state(remote_log_enabled=True, highest_offset_in_remote_storage=highest_remote)
    assert planned(retention, **TIERED) == (expected, False)


def test_active_segment_in_breach_is_rolled_when_remote_is_on() -> None:
    retention = state(remote_log_enabled=True, highest_offset_in_remote_storage=29)
    assert planned(retention, **TIERED | {"local_retention_ms": 5}) == ([0, 10, 20], True)
    empty = state(remote_log_enabled=True, highest_offset_in_remote_storage=29, active_size=0)
    assert planned(empty, **TIERED | {"local_retention_ms": 5}) == ([0, 10, 20], False)


def test_local_segments_below_the_log_start_go_without_a_remote_copy() -> None:
    retention = state(
        remote_log_enabled=True,
        log_start_offset=20,
        local_log_start_offset=20,
    )
    assert planned(retention, **TIERED) == ([0, 10], False)


def test_local_limits_of_minus_two_are_the_total_limits() -> None:
    retention = state(remote_log_enabled=True, highest_offset_in_remote_storage=39)
    config = {"remote_storage_enable": True, "retention_bytes": 300}
    assert planned(retention, **config) == ([0], False)


def test_total_limits_hold_locally_when_copying_is_disabled() -> None:
    retention = state(remote_log_enabled=True, highest_offset_in_remote_storage=-1)
    config = {"remote_storage_enable": True, "remote_log_copy_disable": True, "retention_ms": 25}
    assert planned(retention, **config) == ([], False), "the log starts above them first"
    assert plan_without_copies(retention, TopicConfig(**(NEVER | config)), NOW) == (2, 20)
    raised = replace(retention, log_start_offset=20, local_log_start_offset=20)
    assert planned(raised, **config) == ([0, 10], False)


def test_empty_policy_applies_local_retention_only_under_remote_copy() -> None:
    retention = state(remote_log_enabled=True, highest_offset_in_remote_storage=39)
    assert planned(retention, **TIERED, cleanup_policy=()) == ([0, 10, 20], False)


def test_compacted_log_is_not_subject_to_local_retention() -> None:
    retention = state(remote_log_enabled=True, highest_offset_in_remote_storage=39)
    assert planned(retention, **TIERED, cleanup_policy=("compact",)) == ([], False)


def test_start_of_the_local_log_deletes_only_what_the_remote_tier_has() -> None:
    """The local log start is above the log start.

    The segments between them are in the tier only.
    """
    local_start = {"remote_log_enabled": True, "local_log_start_offset": 20}
    assert planned(state(**local_start)) == ([], False)
    copied = state(**local_start, highest_offset_in_remote_storage=9)
    assert planned(copied) == ([0], False)
    copied = state(**local_start, highest_offset_in_remote_storage=39)
    assert planned(copied) == ([0, 10], False)


@pytest.mark.parametrize("highest_remote", [-1, 39])
def test_copies_do_not_count_once_copying_is_disabled(highest_remote: int) -> None:
    retention = state(remote_log_enabled=True, highest_offset_in_remote_storage=highest_remote)
    config = {"remote_storage_enable": True, "remote_log_copy_disable": True, "retention_ms": 25}
    assert planned(retention, **config) == ([], False)


def test_segment_of_a_single_record_goes_once_it_is_copied() -> None:
    segments = [Segment(0, 100, 0), Segment(1, 100, 0), Segment(2, 100, NOW)]
    ends = {"segments": segments, "log_end_offset": 3, "high_watermark": 3}
    for highest, expected in ((-1, []), (0, [0]), (1, [0, 1])):
        retention = state(**ends, remote_log_enabled=True, highest_offset_in_remote_storage=highest)
        assert planned(retention, **TIERED) == (expected, False)


def test_log_that_is_no_longer_copied_keeps_its_start_if_nothing_is_due() -> None:
    retention = state(remote_log_enabled=True, log_start_offset=3, local_log_start_offset=3)
    assert plan_without_copies(retention, TopicConfig(**NEVER), NOW) == (0, 3)


class Copies:
    """The remote copies of a log, which reach `held_to`."""

    def __init__(self, held_to: int) -> None:
        self.held_to = held_to
        self.asked: list[tuple[int, int]] = []

    def held(self, start_offset: int, end_offset: int) -> AbstractContextManager[int]:
        self.asked.append((start_offset, end_offset))
        return nullcontext(self.held_to)


@pytest.mark.parametrize(
    ("count", "log_start_offset", "asked"), [(1, 0, (0, 10)), (3, 0, (0, 30)), (2, 7, (7, 20))]
)
def test_remote_tier_is_asked_for_what_is_to_go(
    count: int, log_start_offset: int, asked: tuple[int, int]
) -> None:
    copies = Copies(8)
    retention = state(remote_log_enabled=True, log_start_offset=log_start_offset)
    with retention.held_remotely(copies, TopicConfig(**TIERED), count) as held:
        assert held == 8
    assert copies.asked == [asked]


def test_remote_tier_is_not_asked_when_nothing_depends_on_it() -> None:
    disabled = TopicConfig(**TIERED, remote_log_copy_disable=True)
    copies = Copies(8)
    for retention, config, asked in (
        (state(), TopicConfig(**TIERED), copies),
        (state(remote_log_enabled=True), disabled, copies),
        (state(remote_log_enabled=True), TopicConfig(**TIERED), None),
    ):
        with retention.held_remotely(asked, config, 2) as held:
            assert held == 20
    assert copies.asked == []


@pytest.mark.parametrize(("held_end", "highest"), [(20, 19), (30, 29), (40, 29), (0, -1)])
def test_only_confirmed_copies_count(held_end: int, highest: int) -> None:
    retention = state(remote_log_enabled=True, highest_offset_in_remote_storage=29)
    assert retention.confirmed(held_end).highest_offset_in_remote_storage == highest


@pytest.mark.parametrize(("log_start_offset", "local_start"), [(5, 10), (10, 10), (15, 15)])
def test_state_of_a_log_has_the_start_of_its_local_records(
    log_start_offset: int, local_start: int
) -> None:
    """In a tiered log the records below the first segment are in the tier alone."""
    view: Any = SimpleNamespace(
        segments=[Segment(10, 100, NOW), Segment(20, 100, NOW)],
        log_end_offset=30,
        high_watermark=25,
    )
    found = RetentionState.of(view, 12, log_start_offset, remote_log_enabled=True)
    assert found == RetentionState(
        view.segments, 30, 25, log_start_offset, local_start, 12, remote_log_enabled=True
    )
    assert [found.upper_bound_offset(index) for index in (0, 1)] == [20, 30]


def test_deleted_segments_are_reported_with_their_sizes_and_reasons() -> None:
    plan = plan_retention(state(), TopicConfig(**(NEVER | {"retention_ms": 39})), NOW)
    assert deleted_segments(state().segments[:1], plan.deletions) == [(0, 100, DeletionReason.TIME)]
