"""How near the coordinators are to their bounds."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from isotherm.broker.coordinators.groups.shards import GroupShards
from isotherm.broker.coordinators.shares.share_coordinator import ShareCoordinator
from isotherm.broker.coordinators.transactions.transaction_coordinator import TransactionCoordinator


class CoordinatorMetrics(Collector):
    """Collected on any thread."""

    def __init__(
        self, groups: GroupShards, transactions: TransactionCoordinator, shares: ShareCoordinator
    ) -> None:
        self._groups = groups
        self._transactions = transactions
        self._shares = shares

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "isotherm_coordinator_groups",
            "Groups that this broker coordinates; group.coordinator.groups.max bounds them.",
            self._groups.count,
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
