"""What brokers do with the remote tier a second, by topic, from their counters; and what its requests cost. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from isotherm.storage_view.meter_counts import (
    COPIED_BYTES,
    COPIES,
    DELETIONS,
    READ_BYTES,
    READS,
    CountsSeen,
)
from isotherm.storage_view.prices import RequestPrices

ALL_TOPICS = ""
OBJECTS_OF_A_COPY = 3
"""Log, indexes and manifest. A log above the size of a part takes more requests."""
_MONTH_S = 30 * 86_400


@dataclass(frozen=True, slots=True)
class Traffic:
    """A second, all brokers together. `reads` are Kafka's RemoteFetchRequests: what each begins is one ranged
    GET, if its indexes are in the broker's cache."""

    copies: float = 0.0
    copied_bytes: float = 0.0
    reads: float = 0.0
    read_bytes: float = 0.0
    deletions: float = 0.0


def traffic_by_topic(brokers: Iterable[CountsSeen]) -> dict[str, Traffic] | None:
    """ALL_TOPICS has the sums that the brokers themselves give. None before a second reading of any."""
    found = [each for each in brokers if each.until_ms > each.since_ms]
    if not found:
        return None
    rates: Counter[tuple[str, str]] = Counter()
    topics = {ALL_TOPICS}
    for each in found:
        seconds = (each.until_ms - each.since_ms) / 1000
        for (meter, topic), count in each.counts.items():
            rates[meter, topic] += count / seconds  # type: ignore[assignment]
            topics.add(topic)
    meters = (COPIES, COPIED_BYTES, READS, READ_BYTES, DELETIONS)
    return {topic: Traffic(*(rates[meter, topic] for meter in meters)) for topic in topics}


def requests_a_month(traffic: Traffic) -> tuple[float, float]:
    """PUT and GET at least, if it goes on like that. Deletions cost nothing."""
    return traffic.copies * OBJECTS_OF_A_COPY * _MONTH_S, traffic.reads * _MONTH_S


def request_cost(traffic: Traffic, prices: RequestPrices) -> float:
    """Dollars a month."""
    puts, gets = requests_a_month(traffic)
    return (puts * prices.put_per_1000 + gets * prices.get_per_1000) / 1000
