"""Counts and times of requests by API: Kafka's RequestMetrics.

`kafka.network:type=RequestMetrics,name=RequestsPerSec,request=Produce,version=11` becomes
`kafka_network_requestmetrics_requests_total{request="Produce",version="11"}`. TotalTimeMs is a
Prometheus histogram by request, in milliseconds, from the arrival of the whole request to the
handover of the response to the socket, including waits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

# Upper bounds in milliseconds. Longer times are in the bucket of infinity.
TIME_BUCKETS_MS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0)


class _Times:
    __slots__ = ("counts", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(TIME_BUCKETS_MS) + 1)
        self.sum_ms = 0.0


class RequestMetrics(Collector):
    """Marked on the event loop thread only; collected on any thread."""

    def __init__(self, request_names: Mapping[int, str]) -> None:
        """`request_names` has Kafka's name of each API, by key."""
        self._names = request_names
        self._counts: dict[tuple[int, int], int] = {}
        self._times: dict[int, _Times] = {key: _Times() for key in request_names}

    def mark(self, api_key: int, api_version: int, total_ms: float) -> None:
        """Count an answered request of a served API and version."""
        kind = (api_key, api_version)
        self._counts[kind] = self._counts.get(kind, 0) + 1
        times = self._times[api_key]
        times.counts[bisect_left(TIME_BUCKETS_MS, total_ms)] += 1
        times.sum_ms += total_ms

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            "kafka_network_requestmetrics_requests",
            "Kafka's RequestsPerSec.",
            labels=("request", "version"),
        )
        for (api_key, api_version), count in list(self._counts.items()):
            requests.add_metric((self._names[api_key], str(api_version)), count)
        yield requests
        total_time = HistogramMetricFamily(
            "kafka_network_requestmetrics_totaltimems",
            "Kafka's TotalTimeMs: milliseconds from a request's arrival to its answer.",
            labels=("request",),
        )
        for api_key, times in self._times.items():
            if any(times.counts):
                total_time.add_metric((self._names[api_key],), _buckets(times), times.sum_ms)
        yield total_time


def _buckets(times: _Times) -> list[tuple[str, float]]:
    """Cumulative counts, as Prometheus defines buckets."""
    bounds = [*(str(bound) for bound in TIME_BUCKETS_MS), "+Inf"]
    return list(zip(bounds, accumulate(times.counts), strict=True))
