"""How fast a group reads, from what it commits."""

from __future__ import annotations

import itertools

import pytest

from isotherm.storage_view.group_progress import LOOKS_MAX, WINDOW_MS, GroupProgress
from isotherm.storage_view.group_reader import GroupState
from isotherm.types import TopicPartition

PLACE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


def group(**committed: int) -> GroupState:
    places = {"first": PLACE, "other": OTHER}
    return GroupState("g", "Stable", "classic", {places[k]: at for k, at in committed.items()})


def test_rate_is_that_of_the_window() -> None:
    progress = GroupProgress()
    assert progress.offsets_per_s("g") == {}
    progress.note([group(first=0)], 0)
    assert progress.offsets_per_s("g") == {}
    progress.note([group(first=1000, other=5)], 10_000)
    assert progress.offsets_per_s("g") == {PLACE: 100.0}
    progress.note([group(first=1000, other=5)], 10_000 + WINDOW_MS)
    assert progress.offsets_per_s("g") == {PLACE: 0.0, OTHER: 0.0}
    assert progress.offsets_per_s("none") == {}


def test_group_that_was_set_back_has_no_rate() -> None:
    progress = GroupProgress()
    progress.note([group(first=1000)], 0)
    progress.note([group(first=10)], 10_000)
    assert progress.offsets_per_s("g") == {}


def test_looks_are_bounded_at_any_rhythm() -> None:
    progress = GroupProgress()
    for n in range(1000):
        progress.note([group(first=n)], n)
    assert len(progress._looks) <= LOOKS_MAX
    assert progress.offsets_per_s("g") == {PLACE: 1000.0}


@pytest.mark.parametrize("rhythm_ms", [(1000,), (1, 8_600), (4_999,), (5_000,), (50_000,)])
def test_window_is_reached_at_any_rhythm(rhythm_ms: tuple[int, ...]) -> None:
    """A look each second once had a window of half a minute."""
    progress, now_ms, steps = GroupProgress(), 0, itertools.cycle(rhythm_ms)
    while now_ms < 3 * WINDOW_MS:
        progress.note([group(first=now_ms)], now_ms)
        assert progress.is_whole_window == (now_ms >= WINDOW_MS)
        assert len(progress._looks) <= LOOKS_MAX
        now_ms += next(steps)
