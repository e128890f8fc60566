"""Brokers that write to one metadata partition lose no event, and no segment goes back to an
earlier state."""

from __future__ import annotations

import pytest

from tests.support.metadata_writers import World
from tests.support.schedules.oracle import Violation

SEEDS = range(80)


def test_no_order_of_several_writers_loses_an_event_or_sets_a_state_back() -> None:
    recorded = 0
    for seed in SEEDS:
        world = World(seed)
        world.play()
        recorded += world.recorded
    assert recorded > 10 * len(SEEDS)


def test_the_model_notices_leaders_that_ignore_the_condition() -> None:
    expected = {
        "decided on a state that is over",
        "an event is audited before the last one is applied",
    }
    noticed: set[str] = set()
    for seed in SEEDS:
        try:
            World(seed, has_conditions=False).play()
        except Violation as violation:
            noticed.add(str(violation).split(" segment=", maxsplit=1)[0])
        if expected <= noticed:
            return
    assert expected <= noticed


@pytest.mark.soak
def test_very_many_orders() -> None:
    for seed in range(1_000_000, 1_020_000):
        World(seed).play()
