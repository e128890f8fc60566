"""How near the coordinators are to their bounds, and the share groups of the group coordinator
(Kafka: GroupCoordinatorMetrics)."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from isotherm.broker.coordinators.groups.group_coordinator import GroupCoordinator
from isotherm.broker.coordinators.groups.share_group import SHARE_GROUP_STATES
from isotherm.broker.coordinators.shares.share_coordinator import ShareCoordinator
from isotherm.broker.coordinators.transactions.transaction_coordinator import TransactionCoordinator
from isotherm.clock import Clock
from isotherm.metrics.sampled_rate import SampledRate

_PREFIX = "kafka_server_group_coordinator_metrics_"
_SHARE_PREFIX = "kafka_server_share_coordinator_metrics_"


class CoordinatorMetrics(Collector):
    """Collected on any thread."""

    def __init__(
        self,
        groups: GroupCoordinator,
        transactions: TransactionCoordinator,
        shares: ShareCoordinator,
        clock: Clock,
    ) -> None:
        self._groups = groups
        self._transactions = transactions
        self._shares = shares
        self._rebalances = _CountRate(clock)
        self._writes = _CountRate(clock)

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "isotherm_coordinator_groups",
            "Groups that this broker coordinates; group.coordinator.groups.max bounds them.",
            self._groups.shards.count,
        )
        yield GaugeMetricFamily(
            "isotherm_coordinator_transactional_ids",
            "Transactional ids that this broker coordinates;"
            " transaction.coordinator.transactional.ids.max bounds them.",
            self._transactions.id_count,
        )
        yield GaugeMetricFamily(
            "isotherm_coordinator_share_partitions",
            "Share partitions whose state this broker coordinates;"
            " share.coordinator.share.partitions.max bounds them.",
            self._shares.share_partition_count,
        )
        yield from self._share_groups()
        yield from self._share_coordinator()

    def _share_groups(self) -> Iterable[Metric]:
        states = self._groups.shards.share_group_states()
        counts = GaugeMetricFamily(
            f"{_PREFIX}group_count", "Groups of a protocol.", labels=["protocol"]
        )
        counts.add_metric(["share"], states.total())
        yield counts
        by_state = GaugeMetricFamily(
            f"{_PREFIX}share_group_count", "Share groups in a state.", labels=["state"]
        )
        # Kafka shows the state that a group never has in a list, too.
        for state in (*SHARE_GROUP_STATES, "Dead"):
            by_state.add_metric([state], states[state])
        yield by_state
        yield GaugeMetricFamily(
            f"{_PREFIX}share_group_rebalance_count",
            "New epochs of share groups since the start.",
            self._groups.share.rebalance_count,
        )
        yield GaugeMetricFamily(
            f"{_PREFIX}share_group_rebalance_rate",
            "New epochs of share groups per second, over the last minute.",
            self._rebalances.measure(self._groups.share.rebalance_count),
        )

    def _share_coordinator(self) -> Iterable[Metric]:
        shares = self._shares
        partitions = GaugeMetricFamily(
            f"{_SHARE_PREFIX}num_partitions",
            "Partitions of __share_group_state that this broker leads, by their state.",
            labels=["state"],
        )
        for state, count in shares.partition_counts().items():
            partitions.add_metric([state], count)
        yield partitions
        yield GaugeMetricFamily(
            f"{_SHARE_PREFIX}write_total",
            "Writes of the state of share partitions since the start.",
            shares.write_count,
        )
        yield GaugeMetricFamily(
            f"{_SHARE_PREFIX}write_rate",
            "Writes of the state of share partitions per second, over the last minute.",
            self._writes.measure(shares.write_count),
        )


class _CountRate:
    """The rate of a count, which is looked at when metrics are collected: what it counts pays
    nothing for it. The windows are those of Kafka's metrics. Any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rate = SampledRate(window_ms=30_000, window_count=2)
        self._lock = threading.Lock()
        self._count = 0

    def measure(self, count: int) -> float:
        """`count` is the present one, which only grows."""
        with self._lock:
            now_ms = self._clock.now_ms()
            self._rate.record(count - self._count, now_ms)
            self._count = count
            return self._rate.measure(now_ms)
