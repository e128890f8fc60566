"""Errors of brokers in the last hour, from the metrics that they publish for Prometheus. Pure.

Kafka's meters count from a broker's start. What came in an hour is the difference of two readings, so the first
reading is only what later ones are compared with. A counter that goes back belongs to a broker that was
started again: all that it has came since. Names are those that a JMX exporter's usual rules give
Kafka's meters, which are Isotherm's.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from isotherm.types import TimestampMs

_PREFIX = b"kafka_server_brokertopicmetrics_"
_METERS = {
    f"kafka_server_brokertopicmetrics_{meter.lower()}": meter
    for meter in (
        "RemoteCopyErrors",
        "RemoteFetchErrors",
        "RemoteDeleteErrors",
        "BuildRemoteLogAuxStateErrors",
        "FailedProduceRequests",
        "FailedFetchRequests",
    )
}
_NAMES = tuple(name.encode() for name in _METERS)
HOUR_MS = 3_600_000
_STEP_MS = 60_000

ErrorKey = tuple[str, str]
"""Meter and topic; the topic of a broker's sums is empty."""


@dataclass(frozen=True, slots=True)
class ErrorsSeen:
    """Since the reading at `since_ms`, which is about an hour old, or the first one."""

    since_ms: TimestampMs
    counts: Mapping[ErrorKey, int]


def read_error_counts(text: bytes) -> dict[ErrorKey, int]:
    """The counters of errors in a broker's exposition, those of 0 left out. ValueError if it is not one: what
    else answers at an address has no errors, either."""
    if _PREFIX not in text:
        raise ValueError("the answer has no metrics of a broker")
    lines = [line for line in text.splitlines() if line.startswith(_NAMES)]
    found: Counter[ErrorKey] = Counter()
    for family in text_string_to_metric_families(b"\n".join([*lines, b""]).decode()):
        for sample in family.samples:
            meter = _METERS.get(sample.name.removesuffix("_total"))
            if meter is not None and sample.value:
                found[meter, sample.labels.get("topic", "")] += int(sample.value)
    return dict(found)


class ErrorHistory:
    """The readings of one broker. Not thread-safe. Of an hour it keeps one reading a minute."""

    def __init__(self) -> None:
        self._last: Mapping[ErrorKey, int] | None = None
        self._readings: deque[tuple[TimestampMs, Counter[ErrorKey]]] = deque()

    def note(self, counts: Mapping[ErrorKey, int], now_ms: TimestampMs) -> None:
        """A reading. Time does not go back."""
        readings = self._readings
        if self._last is None:
            readings.append((now_ms, Counter()))
        else:
            grown = Counter(readings[-1][1])
            for key, count in counts.items():
                before = self._last.get(key, 0)
                grown[key] += count - before if count >= before else count
            # The first one is what the others are compared with.
            if len(readings) > 1 and now_ms - readings[-2][0] < _STEP_MS:
                readings.pop()
            readings.append((now_ms, +grown))
        self._last = counts
        while len(readings) > 1 and now_ms - readings[1][0] >= HOUR_MS:
            readings.popleft()

    def seen(self) -> ErrorsSeen | None:
        """None before the first reading."""
        if not self._readings:
            return None
        (since_ms, before), (_, now) = self._readings[0], self._readings[-1]
        return ErrorsSeen(since_ms, dict(now - before))
