"""Counts errors and traffic of the remote tier in the last hour, from the metrics that brokers
expose. Pure.

A broker's counters begin at its start, and earlier values cannot be read. So readings are compared
with the first one. A counter that falls belongs to a broker that was restarted, and its whole value
is new. Names are those that the usual rules of a JMX exporter give Kafka's meters. Isotherm has the
same names.
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
MESSAGES_IN, BYTES_IN, BYTES_OUT = "MessagesIn", "BytesIn", "BytesOut"
_METERS = {
    f"kafka_server_brokertopicmetrics_{meter.lower()}": meter
    for meter in (
        *ERRORS,
        *(COPIES, COPIED_BYTES, READS, READ_BYTES, DELETIONS),
        *(MESSAGES_IN, BYTES_IN, BYTES_OUT),
    )
}
_NAMES = tuple(name.encode() for name in _METERS)
HOUR_MS = 3_600_000
_STEP_MS = 60_000

MeterKey = tuple[str, str]
"""Meter and topic. The topic is empty for the sum over all topics of a broker."""


@dataclass(frozen=True, slots=True)
class CountsSeen:
    """The growth of the counters from the reading at `since_ms` to that at `until_ms`. The first of
    them is old enough for the window, or the oldest one there is."""

    since_ms: TimestampMs
    until_ms: TimestampMs
    counts: Mapping[MeterKey, int]


def read_meter_counts(text: bytes) -> dict[MeterKey, int]:
    """The counters of _METERS in a broker's exposition, without those that are 0. Raises ValueError
    if the text is no broker's exposition: another server at the address would look like a broker
    without errors."""
    if _PREFIX not in text:
        raise ValueError("the answer has no metrics of a broker")
    lines = [line for line in text.splitlines() if line.startswith(_NAMES)]
    counts: Counter[MeterKey] = Counter()
    for family in text_string_to_metric_families(b"\n".join([*lines, b""]).decode()):
        for sample in family.samples:
            meter = _METERS.get(sample.name.removesuffix("_total"))
            if meter is not None and sample.value:
                counts[meter, sample.labels.get("topic", "")] += int(sample.value)
    return dict(counts)


class MeterHistory:
    """The readings of one broker in the last hour, of which it keeps one a minute.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self._last: Mapping[MeterKey, int] | None = None
        self._readings: deque[tuple[TimestampMs, Counter[MeterKey]]] = deque()

    def note(self, counts: Mapping[MeterKey, int], now_ms: TimestampMs) -> None:
        """Add a reading. `now_ms` must not fall."""
        readings = self._readings
        if self._last is None:
            readings.append((now_ms, Counter()))
        else:
            grown = Counter(readings[-1][1])
            for key, count in counts.items():
                before = self._last.get(key, 0)
                grown[key] += count - before if count >= before else count
            # Keep the first reading, with which the others are compared. Of the others, the newest
            # replaces the one before it until that is a step older than its predecessor.
            if len(readings) > 1 and now_ms - readings[-2][0] < _STEP_MS:
                readings.pop()
            readings.append((now_ms, +grown))
        self._last = counts
        while len(readings) > 1 and now_ms - readings[1][0] >= HOUR_MS:
            readings.popleft()

    def seen(
        self, window_ms: int = HOUR_MS, now_ms: TimestampMs | None = None
    ) -> CountsSeen | None:
        """The counts of the window before `now_ms`, or before the last reading; it is an hour at
        most. None before the first reading, and if the last one is older than the window, as of a
        broker that is gone."""
        if not self._readings:
            return None
        until_ms, last = self._readings[-1]
        begin_ms = (until_ms if now_ms is None else now_ms) - window_ms
        if until_ms < begin_ms:
            return None
        old_enough = [reading for reading in self._readings if reading[0] <= begin_ms]
        since_ms, before = old_enough[-1] if old_enough else self._readings[0]
        return CountsSeen(since_ms, until_ms, dict(last - before))
