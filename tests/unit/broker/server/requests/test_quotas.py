"""Quotas with Kafka's arithmetic: the expected numbers follow from Rate, SampledStat and
QuotaUtils."""

from __future__ import annotations

import pytest

from isotherm.broker.metadata.client_quotas import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from isotherm.broker.server.requests.quotas import (
    Client,
    ClientQuotaManager,
    find_limit,
)
from isotherm.testing.sim_clock import SimClock

ME = Client("me", "c")


def entity(**parts):
    return frozenset((kind.replace("_", "-"), name) for kind, name in parts.items())


SPECIFIC_FIRST = [
    (entity(user="me", client_id="c"), ("me", "c")),
    (entity(user="me", client_id=None), ("me", "c")),
    (entity(user="me"), ("me", None)),
    (entity(user=None, client_id="c"), ("me", "c")),
    (entity(user=None, client_id=None), ("me", "c")),
    (entity(user=None), ("me", None)),
    (entity(client_id="c"), (None, "c")),
    (entity(client_id=None), (None, "c")),
]


def test_most_specific_quota_counts():
    for begin, (_, key) in enumerate(SPECIFIC_FIRST):
        quotas = {
            each: {PRODUCER_BYTE_RATE: float(number)}
            for number, (each, _) in enumerate(SPECIFIC_FIRST)
            if number >= begin
        }
        assert find_limit(quotas, ME, PRODUCER_BYTE_RATE) == (key, float(begin))


def test_quota_of_another_kind_or_client_does_not_count():
    quotas = {
        entity(user="me"): {CONSUMER_BYTE_RATE: 1.0},
        entity(user="you"): {PRODUCER_BYTE_RATE: 1.0},
        entity(ip="10.0.0.1"): {PRODUCER_BYTE_RATE: 1.0},
    }
    assert find_limit(quotas, ME, PRODUCER_BYTE_RATE) is None


@pytest.fixture
def clock():
    return SimClock()


@pytest.fixture
def manager(clock):
    return ClientQuotaManager(clock, window_ms=1000, window_count=11)


def test_nothing_is_measured_without_quotas_that_are_enforced(manager):
    assert not manager.is_active
    manager.update({entity(ip="192.0.2.1"): {"connection_creation_rate": 1.0}})
    assert not manager.is_active
    manager.update({entity(user="me"): {PRODUCER_BYTE_RATE: 1.0}})
    assert manager.is_active
    manager.update({})
    assert not manager.is_active


def test_producer_waits_while_it_is_over_its_quota(manager, clock):
    manager.update({entity(user="me"): {PRODUCER_BYTE_RATE: 100.0}})
    assert manager.record_produce(ME, 1000) == 0
    assert manager.record_produce(ME, 500) == 5_000
    clock.advance(5_000)
    assert manager.record_produce(ME, 0) == 5_000  # missing windows count as empty
    clock.advance(6_000)
    assert manager.record_produce(ME, 0) == 0


def test_clients_of_one_quota_share_its_rate(manager):
    manager.update({entity(user="me"): {PRODUCER_BYTE_RATE: 100.0}})
    manager.record_produce(Client("me", "a"), 1000)
    assert manager.record_produce(Client("me", "b"), 1000) == 10_000


def test_clients_of_a_default_have_a_rate_each(manager):
    manager.update({entity(client_id=None): {PRODUCER_BYTE_RATE: 100.0}})
    manager.record_produce(Client("me", "a"), 1000)
    assert manager.record_produce(Client("me", "b"), 1000) == 0


def test_fetch_that_is_taken_back_is_not_counted(manager):
    manager.update({entity(client_id="c"): {CONSUMER_BYTE_RATE: 100.0}})
    assert manager.record_fetch(ME, 3000) == 20_000
    manager.record_fetch(ME, -3000)
    assert manager.record_fetch(ME, 1000) == 0


def test_request_time_is_made_good_one_window_at_a_time(manager):
    manager.update({entity(user="me"): {REQUEST_PERCENTAGE: 1.0}})
    assert manager.record_request(ME, 0.1) == 0
    assert manager.record_request(ME, 0.001) == 100
    assert manager.record_request(ME, 9.0) == 1000
