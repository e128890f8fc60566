"""Reads how many offsets of share partitions are in flight, from their leaders' metrics. Pure.

Only a leader knows: what members hold is in no state that it writes. The metric has the name that
the usual rules of a JMX exporter give Kafka's (SharePartitionMetrics); Isotherm has the same name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from prometheus_client.parser import text_string_to_metric_families

from isotherm.types import TopicPartition

_NAME = "kafka_server_sharepartitionmetrics_inflightmessagecount"

InFlight: TypeAlias = Mapping[tuple[str, TopicPartition], int]
"""By group and partition the offsets from the start offset to the last one that was delivered:
those that members hold, those that were released, and those that are done behind others."""


def read_in_flight(text: bytes) -> InFlight:
    """The counts in a broker's exposition. Raises ValueError as the parser."""
    lines = [line for line in text.splitlines() if line.startswith(_NAME.encode())]
    return {
        (
            sample.labels["group"],
            TopicPartition(sample.labels["topic"], int(sample.labels["partition"])),
        ): int(sample.value)
        for family in text_string_to_metric_families(b"\n".join([*lines, b""]).decode())
        for sample in family.samples
        if sample.name == _NAME and {"group", "topic", "partition"} <= sample.labels.keys()
    }


def in_flight_of_all(brokers: Iterable[InFlight]) -> InFlight:
    """The counts of all brokers. Where a partition moves, two may have one: the larger counts."""
    counts: dict[tuple[str, TopicPartition], int] = {}
    for of_broker in brokers:
        for place, count in of_broker.items():
            counts[place] = max(count, counts.get(place, 0))
    return counts
