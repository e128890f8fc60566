"""KIP-612's connection creation rates, of the broker and of a listener.

`tests/oracle/test_connection_limits.py` compares the waits with those of Apache Kafka.
"""

from __future__ import annotations

import pytest

from isotherm.broker.server.net.connection_rate import ConnectionRates
from isotherm.testing.sim_clock import SimClock

MANY = 2**31 - 1


class Acceptors:
    """The waits of each listener, one after the other, as Kafka's acceptors sleep."""

    def __init__(self, *, limit: int = MANY, **limits: int) -> None:
        self.clock = SimClock()
        self.rates = ConnectionRates(
            self.clock, window_ms=1000, window_count=2, protected="brokers"
        )
        self.broker_limit = limit
        self.limits = limits

    def record(self, listener: str) -> int:
        return self.rates.record(
            listener,
            limit=self.limits.get(listener, MANY),
            broker_limit=self.broker_limit,
        )

    def turns(self, listener: str, count: int) -> list[int]:
        """When each of `count` simultaneous connections is accepted, in ms."""
        turns = [0]
        for _ in range(count):
            wait_ms = self.record(listener)
            self.clock.advance(wait_ms)
            turns.append(turns[-1] + wait_ms)
        return turns[1:]


def test_connections_below_the_limits_are_served_at_once() -> None:
    assert Acceptors(limit=10, a=10).turns("a", 10) == [0] * 10


@pytest.mark.parametrize("acceptors", [Acceptors(limit=5), Acceptors(a=5), Acceptors(limit=5, a=9)])
def test_each_above_a_limit_waits_for_its_turn(acceptors: Acceptors) -> None:
    turns = acceptors.turns("a", 25)
    assert turns[:5] == [0] * 5
    assert turns[5] > 0
    # Five connections per second, over two windows.
    assert 20 / 5 * 1000 - 2000 <= turns[-1] <= 20 / 5 * 1000 + 2000
    acceptors.clock.advance(2000)
    assert acceptors.record("a") == 0


def test_rate_of_a_listener_is_its_own_and_that_of_the_broker_is_shared() -> None:
    acceptors = Acceptors(limit=20, a=5)
    assert acceptors.turns("b", 15) == [0] * 15
    assert acceptors.turns("a", 5) == [0] * 5
    assert acceptors.record("b") > 0


def test_brokers_are_in_no_rate_but_their_own() -> None:
    acceptors = Acceptors(limit=5, brokers=10)
    assert acceptors.turns("brokers", 10) == [0] * 10
    assert acceptors.record("brokers") > 0
    assert acceptors.turns("a", 5) == [0] * 5


def test_what_is_served_stays_below_the_limit_under_a_flood() -> None:
    turns = Acceptors(limit=50).turns("a", 1000)
    for start in range(0, 18_000, 1000):
        in_two_windows = sum(start <= turn < start + 2000 for turn in turns)
        assert in_two_windows <= 50 * 2 * 1.5
    assert turns[-1] <= 20_000 * 1.5


def test_limit_of_nothing_is_a_window_between_connections() -> None:
    """As in Kafka, one window bounds the wait."""
    assert Acceptors(limit=0).turns("a", 3) == [1000, 2000, 3000]
