"""How near the coordinators are to their bounds, and the share groups of the group coordinator
(Kafka: GroupCoordinatorMetrics)."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from isotherm.broker.coordinators.groups.group_coordinator import GroupCoordinator
from isotherm.broker.coordinators.groups.share_group import SHARE_GROUP_STATES
from isotherm.broker.coordinators.shares.share_coordinator import ShareCoordinator
from isotherm.broker.coordinators.transactions.transaction_coordinator import TransactionCoordinator

_PREFIX = "kafka_server_group_coordinator_metrics_"


class CoordinatorMetrics(Collector):
    """Collected on any thread."""

    def __init__(
        self,
        groups: GroupCoordinator,
        transactions: TransactionCoordinator,
        shares: ShareCoordinator,
    ) -> None:
        self._groups = groups
        self._transactions = transactions
        self._shares = shares

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
        yield GaugeMetricFamily(
            "kafka_server_share_coordinator_metrics_write_total",
            "Writes of the state of share partitions since the start.",
            self._shares.write_count,
        )

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
