"""Which log is cleaned, and which part of it. The vectors are those of Kafka's
LogCleanerManagerTest."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from isotherm.config.topic import TopicConfig
from isotherm.log.cleaner.choice import LogToClean, first_dirty_offset, plan_log_to_clean
from isotherm.types import Offset, TimestampMs

NOW = 1_700_000_000_000
HOUR = 3_600_000


@dataclass
class Segment:
    base_offset: Offset
    size_in_bytes: int = 100
    largest_timestamp_ms: TimestampMs = NOW
    first_batch_timestamp_ms: TimestampMs | None = NOW


@dataclass
class Log:
    segments: list[Segment]
    log_end_offset: Offset
    last_stable_offset: Offset
    log_start_offset: Offset = 0


def log_of(*bases: Offset, end: Offset, stable: Offset | None = None, start: Offset = 0) -> Log:
    """A log with segments of 100 bytes at these base offsets. The last one is active."""
    stable = end if stable is None else stable
    return Log([Segment(base) for base in bases], end, stable, start)


def plan(log: Log, first_dirty: Offset, **config: int) -> LogToClean:
    return plan_log_to_clean(log, first_dirty, TopicConfig(**config), NOW)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("checkpoint", "expected"),
    [(None, 10), (9, 10), (10, 10), (25, 25), (30, 30), (31, 10)],
    ids=["none", "below start", "at start", "within", "at end", "above end"],
)
def test_first_dirty_offset_outside_the_log_is_its_start(
    checkpoint: Offset | None, expected: Offset
) -> None:
    assert first_dirty_offset(log_of(0, 20, end=30, start=10), checkpoint) == expected


def test_plan_ends_at_the_active_segment() -> None:
    assert plan(log_of(0, 10, 20, end=25), 10) == LogToClean(10, 20, 100, 100, 0)


def test_plan_with_an_open_transaction_ends_at_the_segment_it_begins_in() -> None:
    """Source: testUndecidedTransactionalDataNotCleanable."""
    assert plan(log_of(0, 10, 20, 30, end=35, stable=15), 0) == LogToClean(0, 10, 0, 100, 0)


def test_segment_that_the_first_dirty_offset_lies_in_counts_on_both_sides() -> None:
    planned = plan(log_of(0, 10, 20, end=25), 15)
    assert planned == LogToClean(15, 20, 200, 100, 0)
    assert planned.cleanable_ratio == 1 / 3


def test_plan_of_a_single_active_segment_is_empty() -> None:
    planned = plan(log_of(0, end=25), 0)
    assert planned == LogToClean(0, 0, 0, 0, 0)
    assert planned.cleanable_ratio == 0


def test_plan_with_the_first_dirty_offset_in_the_active_segment_has_nothing_to_clean() -> None:
    planned = plan(log_of(0, 10, end=25), 20)
    assert (planned.clean_size, planned.cleanable_size) == (200, 0)
    assert planned.first_uncleanable_offset == 10


@pytest.mark.parametrize(("lag_ms", "end"), [(0, 40), (HOUR, 20), (HOUR + 1, 10)])
def test_plan_leaves_records_that_are_younger_than_the_compaction_lag(
    lag_ms: int, end: Offset
) -> None:
    """Source: testCleanableOffsetsForTime. A record exactly as old as the lag may be cleaned."""
    log = log_of(0, 10, 20, 40, end=45)
    ages = [2 * HOUR, HOUR, HOUR - 1, 0]
    for segment, age in zip(log.segments, ages, strict=True):
        segment.largest_timestamp_ms = NOW - age
    assert plan(log, 0, min_compaction_lag_ms=lag_ms).first_uncleanable_offset == end


def test_records_of_the_future_may_be_cleaned_without_a_compaction_lag() -> None:
    log = log_of(0, 10, 20, end=25)
    log.segments[0].largest_timestamp_ms = NOW + HOUR
    assert plan(log, 0, min_compaction_lag_ms=0).first_uncleanable_offset == 20
    assert plan(log, 0, min_compaction_lag_ms=1).first_uncleanable_offset == 0


def test_compaction_lag_does_not_look_at_clean_segments() -> None:
    log = log_of(0, 10, 20, end=25)
    log.segments[1].largest_timestamp_ms = NOW - 2 * HOUR
    assert plan(log, 10, min_compaction_lag_ms=HOUR).first_uncleanable_offset == 20


@pytest.mark.parametrize(
    ("timestamps", "first_dirty", "delay_ms"),
    [
        ([NOW - HOUR, NOW, NOW], 0, 0),
        ([NOW - HOUR - 7, NOW, NOW], 0, 7),
        ([NOW, NOW - HOUR - 7, NOW], 0, 7),
        ([NOW - 9 * HOUR, NOW, NOW], 10, 0),
        ([NOW, NOW, NOW - 9 * HOUR], 0, 0),
        ([-1, None, NOW], 0, 0),
        ([0, NOW, NOW], 0, 0),
        ([1, NOW, NOW], 0, NOW - HOUR - 1),
    ],
    ids=["at the limit", "overdue", "any segment", "clean", "active", "none", "zero", "one"],
)
def test_compaction_delay_is_that_of_the_oldest_dirty_closed_segment(
    timestamps: list[TimestampMs | None], first_dirty: Offset, delay_ms: int
) -> None:
    """Source: testLogsUnderMinCleanableDirtyRatioEligibleForCompactionNow."""
    log = log_of(0, 10, 20, end=25)
    for segment, timestamp in zip(log.segments, timestamps, strict=True):
        segment.first_batch_timestamp_ms = timestamp
    assert plan(log, first_dirty, max_compaction_lag_ms=HOUR).compaction_delay_ms == delay_ms


@pytest.mark.parametrize(
    ("clean", "cleanable", "delay_ms", "expected"),
    [
        (50, 50, 0, False),
        (49, 51, 0, True),
        (99, 1, 1, True),
        (100, 0, 1, False),
        (0, 0, 1, False),
    ],
)
def test_log_must_be_strictly_above_the_ratio_or_overdue(
    clean: int, cleanable: int, delay_ms: int, expected: bool
) -> None:
    assert LogToClean(0, 10, clean, cleanable, delay_ms).must_be_cleaned(0.5) is expected
