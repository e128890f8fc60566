"""What the brokers' metrics tell about the copies of a topic: failures, lag, partitions that are
not copied and why. Pure.

No request and no metadata tells that a copy failed and left nothing behind. Sources: Kafka
BrokerTopicMetrics.RemoteCopyLagBytes, KIP-917 for the halt.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from isotherm.remote.tasks.copy_block import METADATA_UNREAD
from isotherm.storage_view.meter_counts import CountsSeen, MeterKey

COPY_ERRORS = "RemoteCopyErrors"
LAG_BYTES, HALTED_PARTITIONS = "RemoteCopyLagBytes", "copy halted partitions"
_GAUGES = {
    "kafka_server_brokertopicmetrics_remotecopylagbytes": LAG_BYTES,
    "isotherm_remote_log_copy_halted_partitions": HALTED_PARTITIONS,
}
_BLOCKED = "isotherm_remote_log_copy_blocked_partitions"
_NAMES = tuple(name.encode() for name in (*_GAUGES, _BLOCKED))


@dataclass(frozen=True, slots=True)
class CopyGauges:
    """The gauges of one broker. `blocked` counts partitions by topic and reason."""

    values: Mapping[MeterKey, int]
    blocked: Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class CopySigns:
    """`failures` are the copies that failed in the last minutes. `lag_bytes` are the closed
    segments that are not copied, None if a broker does not tell. `halted_partitions` are copied no
    further (KIP-917), and `blocked` counts the partitions that cannot be copied now, by reason;
    only Isotherm has these two."""

    failures: int = 0
    lag_bytes: int | None = None
    halted_partitions: int = 0
    blocked: Mapping[str, int] = field(default_factory=dict)

    @property
    def store_reasons(self) -> list[str]:
        """Why copies fail, as the brokers say it: the reason of most partitions first."""
        reasons = Counter(self.blocked).most_common()
        return [reason for reason, count in reasons if count and reason != METADATA_UNREAD]

    @property
    def is_metadata_unread(self) -> bool:
        """Whether a leader still reads the remote metadata, and does not know its lag yet."""
        return self.blocked.get(METADATA_UNREAD, 0) > 0


def read_copy_gauges(text: bytes) -> CopyGauges:
    """The gauges in a broker's exposition, by topic. Raises ValueError as the parser."""
    lines = [line for line in text.splitlines() if line.startswith(_NAMES)]
    samples = [
        sample
        for family in text_string_to_metric_families(b"\n".join([*lines, b""]).decode())
        for sample in family.samples
        if sample.labels.get("topic")
    ]
    return CopyGauges(
        {
            (_GAUGES[sample.name], sample.labels["topic"]): int(sample.value)
            for sample in samples
            if sample.name in _GAUGES
        },
        {
            (sample.labels["topic"], sample.labels["reason"]): int(sample.value)
            for sample in samples
            if sample.name == _BLOCKED
        },
    )


def copy_signs(
    seen: Iterable[CountsSeen], gauges: Iterable[CopyGauges], *, is_whole: bool
) -> dict[str, CopySigns]:
    """The signs of each topic, from the counts and gauges of all brokers. `is_whole` tells whether
    every broker has answered; if not, lags are unknown."""
    sums: Counter[MeterKey] = Counter()
    blocked: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for counts in seen:
        sums.update({key: n for key, n in counts.counts.items() if key[0] == COPY_ERRORS})
    for gauge in gauges:
        sums.update(gauge.values)
        for (topic, reason), count in gauge.blocked.items():
            blocked[topic][reason] += count
    with_lag = {topic for name, topic in sums if name == LAG_BYTES and is_whole}
    # A leader knows its lag when it has read the metadata.
    with_lag -= {topic for topic, reasons in blocked.items() if reasons[METADATA_UNREAD]}
    return {
        topic: CopySigns(
            sums[COPY_ERRORS, topic],
            sums[LAG_BYTES, topic] if topic in with_lag else None,
            sums[HALTED_PARTITIONS, topic],
            dict(blocked[topic]),
        )
        for topic in {topic for _, topic in sums if topic} | set(blocked)
    }
