"""Metrics of the leader's side of share groups: share partitions, sessions and acknowledgements
(Kafka: ShareGroupMetrics, SharePartitionMetrics, ShareSessionCache).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from isotherm.broker.share_partitions.acknowledgement import AcknowledgeType
from isotherm.broker.share_partitions.share_partition_manager import SharePartitionManager

_GROUPS = "kafka_server_sharegroupmetrics_"
_PARTITIONS = "kafka_server_sharepartitionmetrics_"
_SESSIONS = "kafka_server_sharesessioncache_"
_LABELS = ("group", "topic", "partition")


class ShareMetrics(Collector):
    """Collected on any thread."""

    def __init__(self, manager: SharePartitionManager) -> None:
        self._manager = manager

    def collect(self) -> Iterable[Metric]:
        yield from self._groups()
        yield from self._sessions()
        yield from self._partitions()

    def _groups(self) -> Iterable[Metric]:
        marks = self._manager.marks
        records = CounterMetricFamily(
            f"{_GROUPS}recordacknowledgements", "Records acknowledged.", labels=("ackType",)
        )
        counts = Counter(marks.acknowledged)
        for kind in AcknowledgeType:
            if kind is not AcknowledgeType.GAP:
                records.add_metric((kind.name.capitalize(),), counts[kind])
        yield records
        yield SummaryMetricFamily(
            f"{_GROUPS}partitionloadtimems",
            "Milliseconds to load a share partition.",
            count_value=marks.load_count,
            sum_value=marks.load_time_ms,
        )

    def _sessions(self) -> Iterable[Metric]:
        sessions = self._manager.sessions
        yield GaugeMetricFamily(
            f"{_SESSIONS}sharesessionscount", "Share sessions of members.", len(sessions)
        )
        yield GaugeMetricFamily(
            f"{_SESSIONS}sharepartitionscount",
            "Partitions in all share sessions.",
            sessions.partition_count,
        )
        yield CounterMetricFamily(
            f"{_SESSIONS}sharesessionevictions",
            "Share sessions that ended with their connection.",
            sessions.eviction_count,
        )

    def _partitions(self) -> Iterable[Metric]:
        records = GaugeMetricFamily(
            f"{_PARTITIONS}inflightmessagecount", "Offsets in flight.", labels=_LABELS
        )
        batches = GaugeMetricFamily(
            f"{_PARTITIONS}inflightbatchcount", "Batches in flight.", labels=_LABELS
        )
        timeouts = CounterMetricFamily(
            f"{_PARTITIONS}acquisitionlocktimeout", "Records whose lock ended.", labels=_LABELS
        )
        for share_partition in self._manager.share_partitions():
            if not share_partition.is_active:
                continue
            window = share_partition.window
            topic, partition = share_partition.partition.topic_partition
            labels = (share_partition.key.group_id, topic, str(partition))
            records.add_metric(labels, window.record_count)
            batches.add_metric(labels, window.batch_count)
            timeouts.add_metric(labels, share_partition.lock_timeout_count)
        yield from (records, batches, timeouts)
