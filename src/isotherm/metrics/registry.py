"""The registry of metrics: prometheus-client objects, created once per name. Thread-safe.

Metrics of Kafka have the names that the JMX exporter's usual rules produce
(`kafka_server_brokertopicmetrics_remotecopybytes_total{topic="..."}`). Isotherm's own start with
`isotherm_` and use base units.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Summary

MetricT = TypeVar("MetricT", Counter, Gauge, Summary)


class Metrics:
    """One registry. The same name always gives the same object."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._lock = threading.Lock()
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._summaries: dict[str, Summary] = {}

    def counter(self, name: str, documentation: str, labels: tuple[str, ...] = ()) -> Counter:
        """A counter; `_total` is added to its name."""
        return self._once(
            self._counters,
            name,
            lambda: Counter(name, documentation, labels, registry=self.registry),
        )

    def gauge(self, name: str, documentation: str, labels: tuple[str, ...] = ()) -> Gauge:
        return self._once(
            self._gauges, name, lambda: Gauge(name, documentation, labels, registry=self.registry)
        )

    def computed_gauge(self, name: str, documentation: str, compute: Callable[[], float]) -> None:
        """A gauge that is computed when it is read. A later `compute` replaces an earlier one."""
        self.gauge(name, documentation).set_function(compute)

    def summary(self, name: str, documentation: str) -> Summary:
        """Count and sum of observed values: `_count` and `_sum` are added to its name."""
        return self._once(
            self._summaries, name, lambda: Summary(name, documentation, registry=self.registry)
        )

    def value(self, sample_name: str, **labels: str) -> float:
        """The current value of a sample; 0 without one."""
        return self.registry.get_sample_value(sample_name, labels) or 0.0

    def _once(self, made: dict[str, MetricT], name: str, make: Callable[[], MetricT]) -> MetricT:
        with self._lock:
            metric = made.get(name)
            if metric is None:
                metric = made[name] = make()
            return metric
