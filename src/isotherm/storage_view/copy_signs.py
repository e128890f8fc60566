"""What the brokers' metrics tell about the copies of a topic: failures, lag, halted partitions.
Pure.

No request and no metadata tells that a copy failed and left nothing behind. Sources: Kafka
BrokerTopicMetrics.RemoteCopyLagBytes, KIP-917 for the halt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from isotherm.storage_view.meter_counts import CountsSeen, MeterKey

COPY_ERRORS = "RemoteCopyErrors"
LAG_BYTES, HALTED_PARTITIONS = "RemoteCopyLagBytes", "copy halted partitions"
_GAUGES = {
    "kafka_server_brokertopicmetrics_remotecopylagbytes": LAG_BYTES,
    "isotherm_remote_log_copy_halted_partitions": HALTED_PARTITIONS,
}
_NAMES = tuple(name.encode() for name in _GAUGES)


@dataclass(frozen=True, slots=True)
class CopySigns:
    """`failures` are the copies that failed in the last minutes. `lag_bytes` are the closed
    segments that are not copied, None if a broker does not tell. `halted_partitions` are copied no
    further (KIP-917); only Isotherm counts them."""

    failures: int = 0
    lag_bytes: int | None = None
    halted_partitions: int = 0


def read_copy_gauges(text: bytes) -> dict[MeterKey, int]:
    """The gauges of _GAUGES in a broker's exposition, by topic. Raises ValueError as the parser."""
    lines = [line for line in text.splitlines() if line.startswith(_NAMES)]
    return {
        (_GAUGES[sample.name], sample.labels["topic"]): int(sample.value)
        for family in text_string_to_metric_families(b"\n".join([*lines, b""]).decode())
        for sample in family.samples
        if sample.name in _GAUGES and sample.labels.get("topic")
    }


def copy_signs(
    seen: Iterable[CountsSeen], gauges: Iterable[Mapping[MeterKey, int]], *, is_whole: bool
) -> dict[str, CopySigns]:
    """The signs of each topic, from the counts and gauges of all brokers. `is_whole` tells whether
    every broker has answered; if not, lags are unknown."""
    sums: Counter[MeterKey] = Counter()
    for counts in seen:
        sums.update({key: n for key, n in counts.counts.items() if key[0] == COPY_ERRORS})
    for each in gauges:
        sums.update(each)
    with_lag = {topic for name, topic in sums if name == LAG_BYTES and is_whole}
    return {
        topic: CopySigns(
            sums[COPY_ERRORS, topic],
            sums[LAG_BYTES, topic] if topic in with_lag else None,
            sums[HALTED_PARTITIONS, topic],
        )
        for topic in {topic for _, topic in sums if topic}
    }
