"""Which segments are copied. Cases of Kafka's RemoteLogManagerTest (candidates) and
RemoteLagCopyTest."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from isotherm.config.topic import TopicConfig
from isotherm.remote.tasks.copy_plan import CopyLag, plan_copies

AT_ONCE = CopyLag(0, -1)
NOW_MS = 1_000_000


@dataclass(frozen=True)
class Segment:
    base_offset: int
    size_in_bytes: int = 100
    largest_timestamp_ms: int = NOW_MS - 1000


SEGMENTS = [Segment(5), Segment(10), Segment(15), Segment(20)]


def planned(
    from_offset: int, last_stable_offset: int, lag: CopyLag = AT_ONCE
) -> list[tuple[int, int]]:
    plan = plan_copies(SEGMENTS, from_offset, last_stable_offset, lag, NOW_MS)
    return [(each.segment.base_offset, each.next_base_offset) for each in plan]


def test_candidates_end_below_the_last_stable_offset() -> None:
    assert planned(5, 15) == [(5, 10), (10, 15)]
    assert planned(5, 14) == [(5, 10)]


def test_active_segment_is_never_a_candidate() -> None:
    assert planned(5, 1000) == [(5, 10), (10, 15), (15, 20)]
    assert planned(20, 1000) == []


def test_candidates_begin_with_the_segment_that_holds_the_offset() -> None:
    assert planned(12, 1000) == [(10, 15), (15, 20)]
    assert planned(0, 1000) == [(5, 10), (10, 15), (15, 20)]


@pytest.mark.parametrize(
    ("lag", "passed"),
    [
        (CopyLag(0, -1), True),
        (CopyLag(-1, 0), True),
        (CopyLag(-1, -1), False),
        (CopyLag(1000, -1), True),
        (CopyLag(1001, -1), False),
        (CopyLag(-1, 300), True),
        (CopyLag(-1, 301), False),
        (CopyLag(1001, 300), True),
        (CopyLag(1000, 301), True),
    ],
)
def test_copy_lag_passes_when_either_measure_is_reached(lag: CopyLag, passed: bool) -> None:
    assert bool(planned(5, 10, lag)) is passed


def test_copy_lag_by_size_holds_back_the_youngest_bytes() -> None:
    """Segments of 100 bytes, with the active one counted: 300 bytes follow the first, then 200,
    then 100."""
    assert planned(5, 1000, CopyLag(-1, 200)) == [(5, 10), (10, 15)]


def test_copy_lag_of_segment_with_a_timestamp_in_the_future_has_passed() -> None:
    assert CopyLag(1000, -1).has_passed(NOW_MS + 1, 0, NOW_MS)


@pytest.mark.parametrize(
    ("age_ms", "lag_ms", "passed"),
    [(0, 1, False), (1, 1, True), (1, 2, False), (2, 2, True), (-1, 2, True)],
)
def test_copy_lag_in_time_passes_at_its_end(age_ms: int, lag_ms: int, passed: bool) -> None:
    assert CopyLag(lag_ms, -1).has_passed(NOW_MS - age_ms, 0, NOW_MS) is passed


@pytest.mark.parametrize(("bytes_after", "passed"), [(0, False), (1, True)])
def test_copy_lag_of_one_byte_passes_with_one_byte(bytes_after: int, passed: bool) -> None:
    assert CopyLag(-1, 1).has_passed(NOW_MS - 1, bytes_after, NOW_MS) is passed


def test_copy_lag_minus_one_is_the_local_retention() -> None:
    config = replace(
        TopicConfig(),
        remote_copy_lag_ms=-1,
        remote_copy_lag_bytes=-1,
        local_retention_ms=7000,
        retention_bytes=9000,
    )
    assert CopyLag.from_config(config) == CopyLag(7000, 9000)
    assert CopyLag.from_config(TopicConfig()) == CopyLag(0, -1)
