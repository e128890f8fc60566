"""Rates of several brokers, and the price of requests."""

from __future__ import annotations

import pytest

from isotherm.storage_view.meter_counts import CountsSeen
from isotherm.storage_view.prices import RequestPrices
from isotherm.storage_view.traffic import ALL_TOPICS, Traffic, request_cost, traffic_by_topic


def test_rates_of_brokers_are_added_each_by_its_own_time() -> None:
    first = CountsSeen(
        0, 10_000, {("RemoteFetchRequests", "t"): 20, ("RemoteFetchRequests", ""): 30}
    )
    second = CountsSeen(
        5_000, 10_000, {("RemoteFetchRequests", "t"): 5, ("RemoteFetchBytes", "t"): 500}
    )
    unread = CountsSeen(10_000, 10_000, {})
    found = traffic_by_topic([first, second, unread])
    assert found == {
        "t": Traffic(reads=3.0, read_bytes=100.0),
        ALL_TOPICS: Traffic(reads=3.0),
    }
    assert traffic_by_topic([unread]) is None


def test_a_copy_a_second_and_four_reads_cost_by_the_thousand() -> None:
    """30 days have 2,592,000 seconds: 7,776 thousand PUT and 10,368 thousand GET."""
    cost = request_cost(Traffic(copies=1, reads=4), RequestPrices(0.005, 0.0004))
    assert cost == pytest.approx(7776 * 0.005 + 10_368 * 0.0004)
