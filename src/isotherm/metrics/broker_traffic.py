"""What clients write and read, counted by topic: the meters of Kafka's BrokerTopicMetrics.

`kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec,topic=t` becomes
`kafka_server_brokertopicmetrics_bytesin_total{topic="t"}`, and with an empty label, which
Prometheus takes for none, the sum over all topics. Plain numbers, read when somebody asks for the
metrics: a produce request marks them for a tenth of a microsecond each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

_PREFIX = "kafka_server_brokertopicmetrics_"
_ALL_TOPICS = ""


@dataclass(slots=True, eq=False)
class TopicTraffic:
    """Counts of one topic since the start. Produce requests and fetch requests are counted once
    for each partition, as in Kafka; a failed one is counted as a request too."""

    messages_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    bytes_rejected: int = 0
    total_produce_requests: int = 0
    failed_produce_requests: int = 0
    total_fetch_requests: int = 0
    failed_fetch_requests: int = 0


class BrokerTraffic(Collector):
    """Marked in the event loop's thread alone; collected on any."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicTraffic] = {}
        self._forgotten = TopicTraffic()

    def of(self, topic: str) -> TopicTraffic:
        """The counts of a topic that exists: what clients make up is not counted."""
        traffic = self._topics.get(topic)
        if traffic is None:
            traffic = self._topics[topic] = TopicTraffic()
        return traffic

    def forget(self, topic: str) -> None:
        """The topic is deleted; the sums keep what it had."""
        gone = self._topics.pop(topic, None)
        if gone is not None:
            for each in fields(TopicTraffic):
                sum_before = getattr(self._forgotten, each.name)
                setattr(self._forgotten, each.name, sum_before + getattr(gone, each.name))

    def collect(self) -> Iterable[CounterMetricFamily]:
        topics = list(self._topics.items())
        for each in fields(TopicTraffic):
            kafka_name = "".join(word.capitalize() for word in each.name.split("_")) + "PerSec"
            family = CounterMetricFamily(
                _PREFIX + each.name.replace("_", ""), f"Kafka's {kafka_name}.", labels=("topic",)
            )
            counts = [(name, getattr(traffic, each.name)) for name, traffic in topics]
            total = getattr(self._forgotten, each.name) + sum(count for _, count in counts)
            for name, count in ((_ALL_TOPICS, total), *counts):
                family.add_metric((name,), count)
            yield family
