"""The remote tier's part of Kafka's BrokerTopicMetrics, per topic and for the whole broker.

`kafka.server:type=BrokerTopicMetrics,name=RemoteCopyBytesPerSec,topic=t` becomes
`kafka_server_brokertopicmetrics_remotecopybytes_total{topic="t"}`, and without the topic the sum
over all of them. The sum carries an empty label, which Prometheus takes for no label.
"""

from __future__ import annotations

import enum
import threading

from isotherm.metrics.registry import Metrics

_PREFIX = "kafka_server_brokertopicmetrics_"
_ALL_TOPICS = ""


class TopicMeter(enum.StrEnum):
    """Kafka's meters; the exporter gives their counts, and Prometheus makes the rates."""

    REMOTE_COPY_BYTES = "RemoteCopyBytesPerSec"
    REMOTE_COPY_REQUESTS = "RemoteCopyRequestsPerSec"
    REMOTE_COPY_ERRORS = "RemoteCopyErrorsPerSec"
    REMOTE_FETCH_BYTES = "RemoteFetchBytesPerSec"
    REMOTE_FETCH_REQUESTS = "RemoteFetchRequestsPerSec"
    REMOTE_FETCH_ERRORS = "RemoteFetchErrorsPerSec"
    REMOTE_DELETE_REQUESTS = "RemoteDeleteRequestsPerSec"
    REMOTE_DELETE_ERRORS = "RemoteDeleteErrorsPerSec"


class TopicGauge(enum.StrEnum):
    """Kafka's gauges: a topic's value is the sum over its partitions."""

    REMOTE_COPY_LAG_BYTES = "RemoteCopyLagBytes"
    REMOTE_COPY_LAG_SEGMENTS = "RemoteCopyLagSegments"
    REMOTE_DELETE_LAG_BYTES = "RemoteDeleteLagBytes"
    REMOTE_DELETE_LAG_SEGMENTS = "RemoteDeleteLagSegments"
    REMOTE_LOG_METADATA_COUNT = "RemoteLogMetadataCount"
    REMOTE_LOG_SIZE_BYTES = "RemoteLogSizeBytes"
    REMOTE_LOG_SIZE_COMPUTATION_TIME = "RemoteLogSizeComputationTime"


class BrokerTopicMetrics:
    """Thread-safe."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._lock = threading.Lock()
        self._values: dict[tuple[TopicGauge, str], dict[int, int]] = {}
        self._sums: dict[TopicGauge, int] = {}

    def mark(self, meter: TopicMeter, topic: str, count: int = 1) -> None:
        """Add to the topic's count and to the broker's."""
        name = _PREFIX + meter.removesuffix("PerSec").lower()
        counter = self._metrics.counter(name, f"Kafka's {meter.value}.", ("topic",))
        counter.labels(topic=topic).inc(count)
        counter.labels(topic=_ALL_TOPICS).inc(count)

    def set(self, gauge: TopicGauge, topic: str, partition: int, value: int) -> None:
        """Set one partition's share of the topic's and of the broker's value."""
        with self._lock:
            shares = self._values.setdefault((gauge, topic), {})
            self._sums[gauge] = self._sums.get(gauge, 0) + value - shares.get(partition, 0)
            shares[partition] = value
            published = self._metrics.gauge(
                _PREFIX + gauge.lower(), f"Kafka's {gauge.value}.", ("topic",)
            )
            published.labels(topic=topic).set(sum(shares.values()))
            published.labels(topic=_ALL_TOPICS).set(self._sums[gauge])

    def forget(self, topic: str, partition: int) -> None:
        """Take a partition that this broker does not lead any more out of the gauges."""
        for gauge in TopicGauge:
            if (gauge, topic) in self._values:
                self.set(gauge, topic, partition, 0)
