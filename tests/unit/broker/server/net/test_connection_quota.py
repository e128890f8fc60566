"""KIP-612's quota of connections by IP address."""

from __future__ import annotations

import pytest

from isotherm.broker.server.net.connection_quota import ConnectionQuota
from isotherm.testing.sim_clock import SimClock

KEY = "connection_creation_rate"
HERE, THERE = "192.0.2.1", "192.0.2.2"


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


@pytest.fixture
def quota(clock: SimClock) -> ConnectionQuota:
    return ConnectionQuota(clock, window_ms=1000, window_count=2)


def of(address: str | None, rate: float) -> dict:
    return {frozenset({("ip", address)}): {KEY: rate}}


def test_addresses_without_a_quota_are_not_slowed_down(quota: ConnectionQuota) -> None:
    quota.update({**of(THERE, 1.0), frozenset({("client-id", "c")}): {"producer_byte_rate": 1.0}})
    assert [quota.record(HERE) for _ in range(100)] == [0] * 100


def test_connection_too_many_waits_and_is_not_counted(
    quota: ConnectionQuota, clock: SimClock
) -> None:
    quota.update(of(HERE, 5.0))
    assert [quota.record(HERE) for _ in range(5)] == [0] * 5
    assert [quota.record(HERE) for _ in range(3)] == [200, 200, 200]
    clock.advance(2000)
    assert quota.record(HERE) == 0


def test_wait_is_a_window_at_most(quota: ConnectionQuota) -> None:
    quota.update(of(HERE, 0.1))
    assert quota.record(HERE) == 1000


def test_quota_of_all_counts_each_address_alone_and_gives_way_to_one_of_its_own(
    quota: ConnectionQuota,
) -> None:
    quota.update({**of(None, 1.0), **of(THERE, 3.0)})
    assert [quota.record(HERE) > 0 for _ in range(2)] == [False, True]
    assert [quota.record("192.0.2.9") > 0 for _ in range(2)] == [False, True]
    assert [quota.record(THERE) > 0 for _ in range(4)] == [False, False, False, True]


@pytest.mark.parametrize(
    ("named", "connected"),
    [
        ("0:0:0:0:0:0:0:1", "::1"),
        ("2001:DB8::1", "2001:db8::1"),
        (HERE, f"::ffff:{HERE}"),
        (HERE, HERE),
    ],
)
def test_address_may_be_spelled_in_any_way(
    quota: ConnectionQuota, named: str, connected: str
) -> None:
    quota.update({**of(named, 1.0), **of("a.host", 1.0)})
    assert [quota.record(connected) > 0 for _ in range(2)] == [False, True]


def test_quota_that_is_taken_away_counts_no_more(quota: ConnectionQuota) -> None:
    quota.update(of(HERE, 1.0))
    quota.record(HERE)
    quota.update({})
    assert quota.record(HERE) == 0
