"""What is in flight, from the metrics of the brokers."""

from __future__ import annotations

from isotherm.storage_view.in_flight import in_flight_of_all, read_in_flight
from isotherm.types import TopicPartition

METRICS = b"""\
# TYPE kafka_server_sharepartitionmetrics_inflightmessagecount gauge
kafka_server_sharepartitionmetrics_inflightmessagecount{group="g",topic="a b",partition="3"} 12.0
kafka_server_sharepartitionmetrics_inflightmessagecount{group="h",topic="t",partition="0"} 0.0
kafka_server_sharepartitionmetrics_inflightmessagecount_total{group="h",topic="t",partition="1"} 7
kafka_server_sharepartitionmetrics_inflightbatchcount{group="g",topic="t",partition="3"} 2.0
other_metric 1.0
"""
FIRST, SECOND = ("g", TopicPartition("a b", 3)), ("h", TopicPartition("t", 0))


def test_offsets_in_flight_by_group_and_partition() -> None:
    assert read_in_flight(METRICS) == {FIRST: 12, SECOND: 0}
    assert read_in_flight(b"other_metric 1.0\n") == {}


def test_larger_count_is_the_leaders() -> None:
    assert in_flight_of_all([{FIRST: 3, SECOND: 1}, {FIRST: 2}, {}]) == {FIRST: 3, SECOND: 1}
