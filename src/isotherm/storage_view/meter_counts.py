"""Errors and traffic of the remote tier in the last hour, from the metrics that brokers expose. Pure.

A broker counts from its own start, and a reader cannot ask for an earlier time: the first reading is what
later ones are compared with. A counter that goes back belongs to a broker that was
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
ERRORS = (
    "RemoteCopyErrors",
    "RemoteFetchErrors",
    "RemoteDeleteErrors",
    "BuildRemoteLogAuxStateErrors",
    "FailedProduceRequests",
    "FailedFetchRequests",
)
COPIES, COPIED_BYTES = "RemoteCopyRequests", "RemoteCopyBytes"
READS, READ_BYTES = "RemoteFetchRequests", "RemoteFetchBytes"
DELETIONS = "RemoteDeleteRequests"
_METERS = {
    f"kafka_server_brokertopicmetrics_{meter.lower()}": meter
    for meter in (*ERRORS, COPIES, COPIED_BYTES, READS, READ_BYTES, DELETIONS)
}
_NAMES = tuple(name.encode() for name in _METERS)
HOUR_MS = 3_600_000
_STEP_MS = 60_000

MeterKey = tuple[str, str]
"""Meter and topic; the topic of a broker's sums is empty."""


@dataclass(frozen=True, slots=True)
class CountsSeen:
    """From the reading at `since_ms`, the first one or one that is old enough, to that at `until_ms`."""

    since_ms: TimestampMs
    until_ms: TimestampMs
    counts: Mapping[MeterKey, int]


def read_meter_counts(text: bytes) -> dict[MeterKey, int]:
    """The counters of _METERS in a broker's exposition, those of 0 left out. ValueError if it is not one: what
    else answers at an address has no errors, either."""
    if _PREFIX not in text:
        raise ValueError("the answer has no metrics of a broker")
    lines = [line for line in text.splitlines() if line.startswith(_NAMES)]
    found: Counter[MeterKey] = Counter()
    for family in text_string_to_metric_families(b"\n".join([*lines, b""]).decode()):
        for sample in family.samples:
            meter = _METERS.get(sample.name.removesuffix("_total"))
            if meter is not None and sample.value:
                found[meter, sample.labels.get("topic", "")] += int(sample.value)
    return dict(found)


class MeterHistory:
    """The readings of one broker. Not thread-safe. Of an hour it keeps one reading a minute."""

    def __init__(self) -> None:
        self._last: Mapping[MeterKey, int] | None = None
        self._readings: deque[tuple[TimestampMs, Counter[MeterKey]]] = deque()

    def note(self, counts: Mapping[MeterKey, int], now_ms: TimestampMs) -> None:
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

    def seen(self, window_ms: int = HOUR_MS) -> CountsSeen | None:
        """Of the window, an hour at most. None before the first reading."""
        if not self._readings:
            return None
        until_ms, now = self._readings[-1]
        old_enough = [each for each in self._readings if until_ms - each[0] >= window_ms]
        since_ms, before = old_enough[-1] if old_enough else self._readings[0]
        return CountsSeen(since_ms, until_ms, dict(now - before))
