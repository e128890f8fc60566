"""Metrics of the leader's side of share groups: share partitions, sessions and acknowledgements
(Kafka: ShareGroupMetrics, SharePartitionMetrics, ShareSessionCache).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from isotherm.broker.share_partitions.acknowledgement import AcknowledgeType
from isotherm.broker.share_partitions.share_partition_manager import SharePartitionManager
from isotherm.metrics.tally import Tally

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
            count_value=marks.load_times_ms.count,
            sum_value=marks.load_times_ms.total,
        )
        ratios = SummaryMetricFamily(
            f"{_GROUPS}requesttopicpartitionsfetchratio",
            "Percentage of a share fetch's partitions that it could read.",
            labels=("group",),
        )
        times = SummaryMetricFamily(
            f"{_GROUPS}topicpartitionsacquiretimems",
            "Milliseconds until a share fetch could read its partitions.",
            labels=("group",),
        )
        for group_id, of_group in tuple(marks.fetches.items()):
            _add(ratios, (group_id,), of_group.read_percentage)
            _add(times, (group_id,), of_group.wait_ms)
        yield from (ratios, times)
        yield CounterMetricFamily(
            "kafka_server_delayedsharefetchmetrics_expires",
            "Share fetches that waited as long as they may.",
            marks.expired_fetches,
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
            f"{_PARTITIONS}acquisitionlocktimeout",
            "Records whose acquisition lock timed out.",
            labels=_LABELS,
        )
        sizes = SummaryMetricFamily(
            f"{_PARTITIONS}inflightbatchmessagecount",
            "Offsets of a batch that came in flight.",
            labels=_LABELS,
        )
        held = SummaryMetricFamily(
            f"{_PARTITIONS}fetchlocktimems",
            "Milliseconds that a fetch held the share partition.",
            labels=_LABELS,
        )
        held_ratios = SummaryMetricFamily(
            f"{_PARTITIONS}fetchlockratio",
            "Percentage of the time since the fetch before.",
            labels=_LABELS,
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
            _add(sizes, labels, window.batch_sizes)
            _add(held, labels, share_partition.fetch_times.held_ms)
            _add(held_ratios, labels, share_partition.fetch_times.held_percentage)
        yield from (records, batches, timeouts, sizes, held, held_ratios)


def _add(metric: SummaryMetricFamily, labels: Sequence[str], tally: Tally) -> None:
    metric.add_metric(labels, tally.count, tally.total)
