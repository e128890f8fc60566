"""How near the coordinators are to their bounds."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from isotherm.broker.coordinators.groups.shards import GroupShards
from isotherm.broker.coordinators.transactions.transaction_coordinator import TransactionCoordinator


class CoordinatorMetrics(Collector):
    """Collected on any thread."""

    def __init__(self, groups: GroupShards, transactions: TransactionCoordinator) -> None:
        self._groups = groups
        self._transactions = transactions

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
