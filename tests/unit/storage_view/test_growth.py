"""How the remote tier grows, and how much of it retention leaves."""

from __future__ import annotations

import pytest

from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.storage_view.growth import DAY_MS, MONTH_MS, forecast_bytes, growth
from isotherm.storage_view.partition_storage import Retention
from isotherm.storage_view.remote_segments import RemoteSegments
from tests.support.scripted_cluster import NOW_MS, remote_segment

SIZE = 1000


def daily(days: int) -> RemoteSegments:
    """A segment for each of the last days, copied as soon as its records were there."""
    listed: list[RemoteLogSegmentMetadata] = [
        remote_segment(n + 1, n * 10, n * 10 + 9, size=SIZE, age_ms=(days - n) * DAY_MS)
        for n in range(days)
    ]
    return RemoteSegments.of_metadata(listed)


def test_growth_is_that_of_the_last_month() -> None:
    assert (growth(daily(10), NOW_MS).bytes_per_ms or 0) * DAY_MS == pytest.approx(SIZE)
    old = growth(daily(100), NOW_MS)
    assert (old.span_ms, old.size_in_bytes) == (MONTH_MS, 29 * SIZE)


def test_history_that_is_too_short_tells_nothing() -> None:
    short = RemoteSegments.of_metadata([remote_segment(1, 0, 9, age_ms=60_000)])
    assert growth(short, NOW_MS).bytes_per_ms is None
    assert forecast_bytes(short, Retention(), NOW_MS, MONTH_MS) is None
    assert forecast_bytes(RemoteSegments.of_metadata([]), Retention(), NOW_MS, 1) is None


@pytest.mark.parametrize(
    ("retention", "ahead_days", "expected"),
    [
        (Retention(), 30, 10 + 30),
        # Nothing of today's history is left. The retention is full of new segments.
        (Retention(ms=7 * DAY_MS), 30, 7),
        # Of the ten segments those of the last two days are left, and five are new.
        (Retention(ms=7 * DAY_MS), 5, 2 + 5),
        (Retention(bytes=12 * SIZE), 30, 12),
    ],
)
def test_forecast_is_growth_within_retention(
    retention: Retention, ahead_days: int, expected: int
) -> None:
    found = forecast_bytes(daily(10), retention, NOW_MS, ahead_days * DAY_MS)
    assert found == pytest.approx(expected * SIZE)
