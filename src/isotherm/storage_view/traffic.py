"""Computes the brokers' traffic by topic, with clients and with the remote tier, from their
counters, and what that with the tier costs. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from isotherm.storage_view.meter_counts import (
    BYTES_IN,
    BYTES_OUT,
    COPIED_BYTES,
    COPIES,
    DELETIONS,
    MESSAGES_IN,
    READ_BYTES,
    READS,
    CountsSeen,
)
from isotherm.storage_view.prices import RequestPrices

ALL_TOPICS = ""
OBJECTS_OF_A_COPY = 3
"""PUTs for one copied segment: log, indexes and manifest.

A log larger than a part takes more requests.
"""
_MONTH_S = 30 * 86_400


@dataclass(frozen=True, slots=True)
class Traffic:
    """Rates per second, summed over all brokers. `reads` are Kafka's RemoteFetchRequests. Each
    makes one ranged GET if the indexes are in the broker's cache. The last three are the traffic
    with clients."""

    copies: float = 0.0
    copied_bytes: float = 0.0
    reads: float = 0.0
    read_bytes: float = 0.0
    deletions: float = 0.0
    messages_in: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0


def traffic_by_topic(brokers: Iterable[CountsSeen]) -> dict[str, Traffic] | None:
    """The traffic by topic. ALL_TOPICS has the sums that the brokers themselves report. None until
    some broker has a second reading."""
    measured = [broker for broker in brokers if broker.until_ms > broker.since_ms]
    if not measured:
        return None
    rates: Counter[tuple[str, str]] = Counter()
    topics = {ALL_TOPICS}
    for counts in measured:
        seconds = (counts.until_ms - counts.since_ms) / 1000
        for (meter, topic), count in counts.counts.items():
            rates[meter, topic] += count / seconds  # type: ignore[assignment]
            topics.add(topic)
    meters = (
        *(COPIES, COPIED_BYTES, READS, READ_BYTES, DELETIONS),
        *(MESSAGES_IN, BYTES_IN, BYTES_OUT),
    )
    return {topic: Traffic(*(rates[meter, topic] for meter in meters)) for topic in topics}


def requests_a_month(traffic: Traffic) -> tuple[float, float]:
    """The least numbers of PUTs and GETs in a month with this traffic. Deletions are free."""
    return traffic.copies * OBJECTS_OF_A_COPY * _MONTH_S, traffic.reads * _MONTH_S


def request_cost(traffic: Traffic, prices: RequestPrices) -> float:
    """The cost of the requests, in dollars per month."""
    puts, gets = requests_a_month(traffic)
    return (puts * prices.put_per_1000 + gets * prices.get_per_1000) / 1000
