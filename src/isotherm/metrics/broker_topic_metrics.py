"""The remote tier's part of Kafka's BrokerTopicMetrics, per topic and for the whole broker.

`kafka.server:type=BrokerTopicMetrics,name=RemoteCopyBytesPerSec,topic=t` becomes
`kafka_server_brokertopicmetrics_remotecopybytes_total{topic="t"}`. The sum over all topics has an
empty label, which Prometheus treats as no label.
"""

from __future__ import annotations

import enum
import threading

from prometheus_client import Counter, Gauge

from isotherm.metrics.registry import Metrics
from isotherm.types import TopicPartition

_PREFIX = "kafka_server_brokertopicmetrics_"
_ALL_TOPICS = ""


class TopicMeter(enum.StrEnum):
    """Kafka's meters. The exporter has their counts; Prometheus computes the rates."""

    REMOTE_COPY_BYTES = "RemoteCopyBytesPerSec"
    REMOTE_COPY_REQUESTS = "RemoteCopyRequestsPerSec"
    REMOTE_COPY_ERRORS = "RemoteCopyErrorsPerSec"
    REMOTE_FETCH_BYTES = "RemoteFetchBytesPerSec"
    REMOTE_FETCH_REQUESTS = "RemoteFetchRequestsPerSec"
    REMOTE_FETCH_ERRORS = "RemoteFetchErrorsPerSec"
    REMOTE_DELETE_REQUESTS = "RemoteDeleteRequestsPerSec"
    REMOTE_DELETE_ERRORS = "RemoteDeleteErrorsPerSec"


class TopicGauge(enum.StrEnum):
    """Kafka's gauges, and one of Isotherm. A topic's value is the sum over its partitions."""

    REMOTE_COPY_LAG_BYTES = "RemoteCopyLagBytes"
    REMOTE_COPY_LAG_SEGMENTS = "RemoteCopyLagSegments"
    REMOTE_DELETE_LAG_BYTES = "RemoteDeleteLagBytes"
    REMOTE_DELETE_LAG_SEGMENTS = "RemoteDeleteLagSegments"
    REMOTE_LOG_METADATA_COUNT = "RemoteLogMetadataCount"
    REMOTE_LOG_SIZE_BYTES = "RemoteLogSizeBytes"
    REMOTE_LOG_SIZE_COMPUTATION_TIME = "RemoteLogSizeComputationTime"
    COPY_HALTED_PARTITIONS = "isotherm_remote_log_copy_halted_partitions"
    """Isotherm's own: partitions whose copying stopped: custom metadata too large (KIP-917)."""


COPY_BLOCKED = "isotherm_remote_log_copy_blocked_partitions"
"""Isotherm's own: partitions that cannot be copied now, by a reason of a closed set."""


class BrokerTopicMetrics:
    """Thread-safe.

    The broker's values exist from the start, a topic's from the first `follow` of one of its
    partitions to the last `forget`. Events of other topics count for the broker only.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._lock = threading.Lock()
        self._values: dict[tuple[TopicGauge, str], dict[int, int]] = {}
        self._sums = dict.fromkeys(TopicGauge, 0)
        self._followed: dict[str, set[int]] = {}
        self._blocked: dict[str, dict[int, str]] = {}
        self._show(_ALL_TOPICS)

    def follow(self, topic: str, partition: int) -> None:
        """Add a partition that this broker leads now. Idempotent."""
        with self._lock:
            if topic not in self._followed:
                self._show(topic)
            self._followed.setdefault(topic, set()).add(partition)

    def mark(self, meter: TopicMeter, topic: str, count: int = 1) -> None:
        """Add to the counts of the topic and the broker."""
        counter = self._counter(meter)
        with self._lock:
            if topic in self._followed:
                counter.labels(topic=topic).inc(count)
        counter.labels(topic=_ALL_TOPICS).inc(count)

    def set(self, gauge: TopicGauge, topic: str, partition: int, value: int) -> None:
        """Set one partition's part of the topic's and the broker's value."""
        with self._lock:
            if partition in self._followed.get(topic, ()):
                self._set(gauge, topic, partition, value)

    def block(self, topic: str, partition: int, reason: str | None) -> None:
        """Set why a partition cannot be copied now; None if it can. `reason` must be of a closed
        set: each one that a topic ever had is a time series."""
        with self._lock:
            if partition in self._followed.get(topic, ()):
                self._block(topic, partition, reason)

    def values_of(self, gauge: TopicGauge) -> dict[TopicPartition, int]:
        """The parts of the followed partitions."""
        with self._lock:
            return {
                TopicPartition(topic, partition): self._values.get((gauge, topic), {}).get(
                    partition, 0
                )
                for topic, partitions in self._followed.items()
                for partition in partitions
            }

    def forget(self, topic: str, partition: int) -> None:
        """Remove a partition that this broker no longer leads, with its part of the values.

        The topic's values are removed with its last partition.
        """
        with self._lock:
            followed = self._followed.get(topic, set())
            if partition not in followed:
                return
            for gauge in TopicGauge:
                self._set(gauge, topic, partition, 0)
                del self._values[gauge, topic][partition]
            self._block(topic, partition, None)
            followed.remove(partition)
            if not followed:
                del self._followed[topic]
                self._hide(topic)

    # ---- under the lock, or from the constructor

    def _set(self, gauge: TopicGauge, topic: str, partition: int, value: int) -> None:
        shares = self._values.setdefault((gauge, topic), {})
        self._sums[gauge] += value - shares.get(partition, 0)
        shares[partition] = value
        published = self._gauge(gauge)
        published.labels(topic=topic).set(sum(shares.values()))
        published.labels(topic=_ALL_TOPICS).set(self._sums[gauge])

    def _block(self, topic: str, partition: int, reason: str | None) -> None:
        blocked = self._blocked.setdefault(topic, {})
        changed = {blocked.pop(partition, None), reason}
        if reason is not None:
            blocked[partition] = reason
        if not blocked:
            del self._blocked[topic]
        for blocking in changed - {None}:
            count = sum(one == blocking for one in blocked.values())
            series = self._blocked_partitions()
            if count:
                series.labels(topic=topic, reason=blocking).set(count)
            else:
                series.remove(topic, blocking)

    def _show(self, topic: str) -> None:
        """Publish all values as 0: a rate needs a first sample."""
        for meter in TopicMeter:
            self._counter(meter).labels(topic=topic)
        for gauge in TopicGauge:
            self._gauge(gauge).labels(topic=topic)

    def _hide(self, topic: str) -> None:
        for meter in TopicMeter:
            self._counter(meter).remove(topic)
        for gauge in TopicGauge:
            self._gauge(gauge).remove(topic)
            self._values.pop((gauge, topic), None)

    def _blocked_partitions(self) -> Gauge:
        text = "Partitions that cannot be copied now, by reason."
        return self._metrics.gauge(COPY_BLOCKED, text, ("topic", "reason"))

    def _counter(self, meter: TopicMeter) -> Counter:
        name = _PREFIX + meter.removesuffix("PerSec").lower()
        return self._metrics.counter(name, f"Kafka's {meter.value}.", ("topic",))

    def _gauge(self, gauge: TopicGauge) -> Gauge:
        if gauge is TopicGauge.COPY_HALTED_PARTITIONS:
            text = "Partitions that are copied no further: custom metadata is too large (KIP-917)."
            return self._metrics.gauge(gauge.value, text, ("topic",))
        return self._metrics.gauge(_PREFIX + gauge.lower(), f"Kafka's {gauge.value}.", ("topic",))
