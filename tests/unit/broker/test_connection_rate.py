"""KIP-612's rate of the whole broker: the waits are those of Kafka's Acceptor, which sleeps between connections."""

from __future__ import annotations

import pytest

from isotherm.broker.net.connection_rate import ConnectionRate
from isotherm.testing.sim_clock import SimClock

MANY = 1000


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


@pytest.fixture
def rate(clock: SimClock) -> ConnectionRate:
    return ConnectionRate(clock, window_ms=1000, window_count=2)


def test_connections_below_the_limit_are_served_at_once(rate: ConnectionRate) -> None:
    assert [rate.turn_in_ms(10, waiting_max=MANY) for _ in range(10)] == [0] * 10


def test_each_above_it_waits_for_those_before_it(rate: ConnectionRate, clock: SimClock) -> None:
    assert [rate.turn_in_ms(5, waiting_max=MANY) for _ in range(5)] == [0] * 5
    waits = [rate.turn_in_ms(5, waiting_max=MANY) for _ in range(20)]
    assert waits == sorted(waits)
    # Five connections per second, over two windows.
    assert 20 / 5 * 1000 - 2000 <= waits[-1] <= 20 / 5 * 1000 + 2000
    clock.advance(waits[-1] + 2000)
    assert rate.turn_in_ms(5, waiting_max=MANY) == 0


def test_what_is_served_stays_below_the_limit_under_a_flood(
    rate: ConnectionRate, clock: SimClock
) -> None:
    served = []
    for step in range(20_000):
        wait_ms = rate.turn_in_ms(50, waiting_max=20)
        if wait_ms is not None:
            served.append(step + wait_ms)
        clock.advance(1)
    for start in range(0, 18_000, 1000):
        in_two_windows = sum(start <= each < start + 2000 for each in served)
        assert in_two_windows <= 50 * 2 * 1.5
    assert len(served) >= 50 * 20 * 0.6


def test_so_many_wait_and_others_are_refused_uncounted(
    rate: ConnectionRate, clock: SimClock
) -> None:
    waits = [rate.turn_in_ms(1, waiting_max=3) for _ in range(10)]
    assert waits[:1] == [0]
    assert all(waits[1:4])
    assert waits[4:] == [None] * 6
    clock.advance(waits[3])
    assert rate.turn_in_ms(1, waiting_max=3) is not None


def test_limit_of_nothing_is_a_window_between_connections(rate: ConnectionRate) -> None:
    """As in Kafka: the wait is bounded by a window."""
    assert [rate.turn_in_ms(0, waiting_max=MANY) for _ in range(3)] == [1000, 2000, 3000]
