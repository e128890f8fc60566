"""Kafka's metrics of replicas: `kafka.server:type=ReplicaManager` and `type=ReplicaFetcherManager`.

Gauges are computed from the partitions when the metrics are collected.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from isotherm.broker.partitions.partition import Partition
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.partitions.replica_roles import ReplicaFetchers
from isotherm.broker.partitions.replication.cluster_view import IsrCounts
from isotherm.errors import LogDirFailedError

_PREFIX = "kafka_server_replicamanager_"
_FETCHER_PREFIX = "kafka_server_replicafetchermanager_"


@dataclass(frozen=True, slots=True)
class _Gauge:
    name: str
    counts: Callable[[Partition], bool]


_GAUGES = (
    _Gauge("PartitionCount", lambda partition: True),
    _Gauge("LeaderCount", lambda partition: partition.is_leader),
    _Gauge("UnderReplicatedPartitions", lambda partition: partition.is_under_replicated),
    _Gauge("UnderMinIsrPartitionCount", lambda partition: partition.is_under_min_isr),
    _Gauge("AtMinIsrPartitionCount", lambda partition: partition.is_at_min_isr),
    _Gauge("ReassigningPartitions", lambda partition: partition.is_reassigned),
)


class ReplicaMetrics(Collector):
    """Collected on any thread."""

    def __init__(self, replica_manager: ReplicaManager, isr_counts: IsrCounts) -> None:
        self._replica_manager = replica_manager
        self._isr_counts = isr_counts

    def collect(self) -> Iterable[Metric]:
        topics = self._replica_manager.topics()
        partitions = [partition for topic in topics for partition in topic.partitions.values()]
        for gauge in _GAUGES:
            value = sum(map(gauge.counts, partitions))
            name = _PREFIX + gauge.name.lower()
            yield GaugeMetricFamily(name, f"Kafka's {gauge.name}.", value)
        offline = sum(len(topic.offline) for topic in topics)
        yield GaugeMetricFamily(
            f"{_PREFIX}offlinereplicacount", "Kafka's OfflineReplicaCount.", offline
        )
        ids = [partition.log.producers.id_count for partition in partitions]
        yield GaugeMetricFamily(f"{_PREFIX}produceridcount", "Kafka's ProducerIdCount.", sum(ids))
        yield GaugeMetricFamily(
            "isotherm_partition_producer_ids_max",
            "Producer ids of the partition with most of them; producer.ids.per.partition.max bounds"
            " it.",
            max(ids, default=0),
        )
        yield from self._volumes()
        counts: Mapping[str, int] = {
            "IsrShrinks": self._isr_counts.shrinks,
            "IsrExpands": self._isr_counts.expands,
            "FailedIsrUpdates": self._isr_counts.failures,
        }
        for kafka_name, count in counts.items():
            yield CounterMetricFamily(
                _PREFIX + kafka_name.lower(), f"Kafka's {kafka_name}PerSec.", count
            )

    def _volumes(self) -> Iterable[Metric]:
        """The sizes of the log directories' volumes. One that is offline has none."""
        total = GaugeMetricFamily(
            "isotherm_log_directory_volume_bytes",
            "Bytes of the volume of a log directory.",
            labels=("directory",),
        )
        usable = GaugeMetricFamily(
            "isotherm_log_directory_usable_bytes",
            "Bytes that are free on the volume of a log directory, which goes offline when a write"
            " finds none.",
            labels=("directory",),
        )
        for log_dir in self._replica_manager.log_dirs():
            with contextlib.suppress(LogDirFailedError):
                volume = log_dir.volume()
                total.add_metric((str(log_dir.path),), volume.total_bytes)
                usable.add_metric((str(log_dir.path),), volume.usable_bytes)
        yield total
        yield usable


class FetcherMetrics(Collector):
    """Collected on any thread.

    The label clientid is `Replica`, as for all replica fetchers of Kafka.
    """

    def __init__(self, fetchers: ReplicaFetchers) -> None:
        self._fetchers = fetchers

    def collect(self) -> Iterable[Metric]:
        gauges = {
            "MaxLag": max(self._fetchers.lags().values(), default=0),
            "FailedPartitionsCount": len(self._fetchers.failed_partitions()),
        }
        for kafka_name, value in gauges.items():
            family = GaugeMetricFamily(
                _FETCHER_PREFIX + kafka_name.lower(), f"Kafka's {kafka_name}.", labels=("clientid",)
            )
            family.add_metric(("Replica",), value)
            yield family
