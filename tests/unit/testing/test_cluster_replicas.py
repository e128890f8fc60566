"""The checks of a cluster at rest: what they call an anomaly, and what they do not."""

from __future__ import annotations

from isotherm.testing.correctness.history import Kind, Operation, Outcome, Poll, Read
from isotherm.types import TopicPartition
from tests.support.cluster.replicas import differences, vanished_reads

PLACE = TopicPartition("events", 0)
FINAL = 9


def poll(process: int, *values: int) -> Operation:
    """Of the first offsets."""
    reads = tuple(Read(PLACE, offset, value) for offset, value in enumerate(values))
    return Operation(process, Kind.POLL, Outcome.OK, (Poll(reads),))


def test_replicas_are_equal_from_the_later_start_on() -> None:
    whole = {0: b"a", 3: b"b", 5: b"c"}
    assert list(differences({1: whole, 2: {3: b"b", 5: b"c"}, 3: dict(whole)})) == []


def test_replicas_that_differ_or_end_at_other_offsets() -> None:
    whole = {0: b"a", 3: b"b", 5: b"cc"}
    assert list(differences({1: whole, 2: {0: b"a", 3: b"b"}, 3: {**whole, 3: b"B"}})) == [
        "offset=5 brokers=1,2 bytes=[2, 0] from=0",
        "offset=3 brokers=1,3 bytes=[1, 1] from=0",
    ]


def test_record_that_was_read_stays() -> None:
    assert list(vanished_reads([poll(1, 4, 5), poll(FINAL, 4, 5, 6)], FINAL)) == []
    gone = list(vanished_reads([poll(1, 4, 5), poll(2, 4, 7), poll(FINAL, 4)], FINAL))
    assert [(each.name, each.detail) for each in gone] == [
        ("vanished-read", "events-0@1 value=5 process=1 now=None"),
        ("vanished-read", "events-0@1 value=7 process=2 now=None"),
    ]
