"""Kafka's metrics of the remote tier that are not counted by topic; those are TopicMeter's.

    kafka.log.remote:type=RemoteLogManager       idle copiers, reads and their time, retention
    kafka.log.remote:type=RemoteStorageThreadPool  the reader pool
    kafka.server:type=RemoteLogManager           throttle time of the quotas
    kafka.server:type=RLMCopy, RLMFetch          bytes per second under the quotas
    kafka.server:type=DelayedRemoteFetchMetrics, DelayedRemoteListOffsetsMetrics

Names follow the usual rules of the JMX exporter: lower case, `_total` for `PerSec`, `_percent` for
`Percent`. docs/metrics.md lists them all. Source: Kafka RemoteStorageMetrics, RLMQuotaMetrics.
"""

from __future__ import annotations

from collections.abc import Callable

from isotherm.clock import Clock
from isotherm.metrics.registry import Metrics
from isotherm.remote.bounded_pool import BoundedPool
from isotherm.remote.periodic_tasks import PeriodicTasks
from isotherm.remote.quota import RemoteQuota

_MANAGER = "kafka_log_remote_remotelogmanager_"
_THREAD_POOL = "kafka_log_remote_remotestoragethreadpool_"
_QUOTA = "kafka_server_remotelogmanager_remote_"

COPIERS_IDLE = _MANAGER + "remotelogmanagertasksavgidle_percent"
READ_TIME = _MANAGER + "remotelogreaderfetchrateandtimems"
RETENTION_SIZE = _MANAGER + "retentionsizein_percent"
LOCAL_RETENTION_SIZE = _MANAGER + "localretentionsizein_percent"
FETCHES_EXPIRED = "kafka_server_delayedremotefetchmetrics_expires"
LOOKUPS_EXPIRED = "kafka_server_delayedremotelistoffsetsmetrics_expires"
READER_QUEUE = _THREAD_POOL + "remotelogreadertaskqueuesize"
READ_AHEAD_MEMORY = "isotherm_remote_read_ahead_memory_bytes"
READERS_IDLE = _THREAD_POOL + "remotelogreaderavgidle_percent"


class ReadTimes:
    """The times of reads of the remote tier (Kafka: RemoteLogReaderFetchRateAndTimeMs)."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._clock = clock
        self._summary = metrics.summary(
            READ_TIME, "Kafka's RemoteLogReaderFetchRateAndTimeMs: reads, and their time in ms."
        )

    def begin(self) -> float:
        return self._clock.monotonic_s()

    def end(self, began_s: float) -> None:
        self._summary.observe((self._clock.monotonic_s() - began_s) * 1000)


class Expirations:
    """Requests that were answered before the remote tier had answered them (Kafka:
    DelayedRemoteFetchMetrics and DelayedRemoteListOffsetsMetrics, ExpiresPerSec)."""

    def __init__(self, metrics: Metrics) -> None:
        self._fetches = metrics.counter(FETCHES_EXPIRED, "Kafka's ExpiresPerSec of remote fetches.")
        self._lookups = metrics.counter(
            LOOKUPS_EXPIRED,
            "Kafka's ExpiresPerSec of look-ups by time in the remote tier.",
            ("topic", "partition"),
        )
        self._lookups.labels(topic="", partition="")

    def count_fetch(self) -> None:
        self._fetches.inc()

    def count_lookup(self, topic: str, partition: int) -> None:
        """Count it for the partition, and with empty labels for all partitions."""
        self._lookups.labels(topic=topic, partition=str(partition)).inc()
        self._lookups.labels(topic="", partition="").inc()

    def forget(self, topic: str, partition: int) -> None:
        """Take out a partition that this broker does not lead any more."""
        self._lookups.remove_by_labels({"topic": topic, "partition": str(partition)})


class RetentionShares:
    """The size of a partition's log in percent of its retention limits; 0 without a limit."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def follow(self, topic: str, partition: int) -> None:
        """Add a partition that this broker leads now. Its values are 0 until they are set."""
        self.set(topic, partition, total=(0, 0), local=(0, 0))

    def set(
        self, topic: str, partition: int, *, total: tuple[int, int], local: tuple[int, int]
    ) -> None:
        """`total` and `local`: size in bytes and its limit, of both tiers and of the local one."""
        for name, (size, limit) in ((RETENTION_SIZE, total), (LOCAL_RETENTION_SIZE, local)):
            gauge = self._metrics.gauge(
                name, "Size of a log in percent of its retention.", ("topic", "partition")
            )
            percent = size * 100 // limit if limit > 0 else 0
            gauge.labels(topic=topic, partition=str(partition)).set(percent)

    def forget(self, topic: str, partition: int) -> None:
        """Take out a partition that this broker does not lead any more."""
        for name in (RETENTION_SIZE, LOCAL_RETENTION_SIZE):
            gauge = self._metrics.gauge(
                name, "Size of a log in percent of its retention.", ("topic", "partition")
            )
            gauge.remove_by_labels({"topic": topic, "partition": str(partition)})


def publish_copiers(metrics: Metrics, copiers: PeriodicTasks) -> None:
    """The gauge of idle copiers, computed at each scrape."""
    metrics.computed_gauge(
        COPIERS_IDLE,
        "Kafka's RemoteLogManagerTasksAvgIdlePercent: share of copiers without work.",
        lambda: copiers.idle_share,
    )


def publish_readers(
    metrics: Metrics, readers: BoundedPool, read_ahead_bytes: Callable[[], int]
) -> None:
    """Gauges of idle readers, waiting reads and their memory, computed at each scrape."""
    metrics.computed_gauge(
        READER_QUEUE,
        "Kafka's RemoteLogReaderTaskQueueSize: remote reads that wait for a thread.",
        lambda: readers.pending_count,
    )
    metrics.computed_gauge(
        READERS_IDLE,
        "Kafka's RemoteLogReaderAvgIdlePercent: share of readers without work.",
        lambda: readers.idle_share,
    )
    metrics.computed_gauge(
        READ_AHEAD_MEMORY,
        "Memory of ranges that are read ahead of the remote tier, and of those kept for the next.",
        read_ahead_bytes,
    )


def publish_quotas(metrics: Metrics, copy: RemoteQuota, fetch: RemoteQuota) -> None:
    """Rates under the quotas of KIP-956, and their throttle times."""
    for kind, group, quota in (("copy", "rlmcopy", copy), ("fetch", "rlmfetch", fetch)):
        metrics.computed_gauge(
            f"kafka_server_{group}_byte_rate",
            f"Kafka's byte-rate: bytes per second of remote {kind} over the quota's windows.",
            quota.byte_rate,
        )
        metrics.computed_gauge(
            f"{_QUOTA}{kind}_throttle_time_avg",
            f"Kafka's remote-{kind}-throttle-time-avg, in ms.",
            quota.throttle_ms_average,
        )
        metrics.computed_gauge(
            f"{_QUOTA}{kind}_throttle_time_max",
            f"Kafka's remote-{kind}-throttle-time-max, in ms.",
            quota.throttle_ms_max,
        )
