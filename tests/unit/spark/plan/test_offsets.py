"""The offset options of the Kafka source, and their resolution to offsets."""

from __future__ import annotations

import pytest

from isotherm.errors import ConfigError, OffsetOutOfRangeError
from isotherm.spark.plan.offsets import (
    EarliestOffsets,
    GlobalTimestamp,
    LatestOffsets,
    OffsetBounds,
    OffsetRange,
    SpecificOffsets,
    SpecificTimestamps,
    check_range,
    clip_range,
    parse_partition_offsets,
    parse_partitions,
    resolve_end,
    resolve_start,
    timestamps_to_find,
)
from isotherm.types import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
BOUNDS = {A0: OffsetBounds(5, 100), A1: OffsetBounds(0, 50)}


def test_partition_offsets_are_read_from_the_kafka_sources_json() -> None:
    text = '{"a":{"0":23,"1":-1},"b":{"0":-2}}'
    assert parse_partition_offsets(text, "startingOffsets") == {A0: 23, A1: -1, B0: -2}


@pytest.mark.parametrize(
    "text",
    ["", "earliest-ish", "[1]", '{"a":3}', '{"a":{"x":1}}', '{"a":{"0":"1"}}', '{"a":{"0":true}}'],
)
def test_partition_offsets_of_another_form_are_refused_naming_the_option(text: str) -> None:
    with pytest.raises(ConfigError, match="option=endingOffsets"):
        parse_partition_offsets(text, "endingOffsets")


def test_assigned_partitions_are_read_from_the_kafka_sources_json() -> None:
    assert parse_partitions('{"a":[0,1],"b":[0]}', "assign") == {A0, A1, B0}


@pytest.mark.parametrize("text", ["a-0", "{}", '{"a":[]}', '{"a":0}', '{"a":[-1]}', '{"a":["0"]}'])
def test_assigned_partitions_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="option=assign"):
        parse_partitions(text, "assign")


def test_earliest_and_latest_resolve_to_the_bounds() -> None:
    assert resolve_start(EarliestOffsets(), BOUNDS, {}, latest_when_not_found=False) == {
        A0: 5,
        A1: 0,
    }
    assert resolve_end(LatestOffsets(), BOUNDS, {}) == {A0: 100, A1: 50}


def test_specific_offsets_resolve_their_symbols_to_the_bounds() -> None:
    limit = SpecificOffsets({A0: -2, A1: 20})
    assert resolve_start(limit, BOUNDS, {}, latest_when_not_found=False) == {A0: 5, A1: 20}
    assert resolve_end(SpecificOffsets({A0: -1, A1: 20}), BOUNDS, {}) == {A0: 100, A1: 20}


@pytest.mark.parametrize(
    ("offsets", "words"),
    [({A0: 1}, r"missing=\[a-1\] unknown=\[\]"), ({A0: 1, A1: 1, B0: 1}, r"unknown=\[b-0\]")],
)
def test_specific_offsets_must_name_exactly_the_partitions_read(
    offsets: dict[TopicPartition, int], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve_start(SpecificOffsets(offsets), BOUNDS, {}, latest_when_not_found=False)


def test_timestamps_to_find_asks_for_each_partition() -> None:
    assert timestamps_to_find(GlobalTimestamp(7), BOUNDS) == {A0: 7, A1: 7}
    assert timestamps_to_find(SpecificTimestamps({A0: 3}), BOUNDS) == {A0: 3}
    assert timestamps_to_find(EarliestOffsets(), BOUNDS) == {}


def test_starting_timestamp_without_a_record_is_an_error_or_the_end() -> None:
    found = {A0: 17, A1: None}
    with pytest.raises(OffsetOutOfRangeError, match=r"topic-partition a-1 and timestamp 7\."):
        resolve_start(GlobalTimestamp(7), BOUNDS, found, latest_when_not_found=False)
    assert resolve_start(GlobalTimestamp(7), BOUNDS, found, latest_when_not_found=True) == {
        A0: 17,
        A1: 50,
    }


def test_ending_timestamp_without_a_record_is_the_end() -> None:
    assert resolve_end(GlobalTimestamp(7), BOUNDS, {A0: 17, A1: None}) == {A0: 17, A1: 50}


def test_timestamps_by_partition_must_name_exactly_the_partitions_read() -> None:
    with pytest.raises(ConfigError, match="endingOffsetsByTimestamp"):
        resolve_end(SpecificTimestamps({A0: 3}), BOUNDS, {A0: 1})


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [
        (5, 100, None),
        (50, 50, None),
        (0, 0, None),
        (4, 100, "no longer kept"),
        (5, 101, "beyond the end"),
        (200, 200, None),
        (50, 40, "below the starting offset"),
    ],
)
def test_check_range_says_what_cannot_be_read(start: int, end: int, words: str | None) -> None:
    problem = check_range(OffsetRange(A0, start, end), OffsetBounds(5, 100))
    assert (problem is None) if words is None else (problem is not None and words in problem)


@pytest.mark.parametrize(
    ("start", "end", "clipped"),
    [(0, 200, (5, 100)), (50, 40, (50, 50)), (200, 300, (100, 100)), (0, 3, (5, 5))],
)
def test_clip_range_keeps_what_can_be_read(start: int, end: int, clipped: tuple) -> None:
    assert clip_range(OffsetRange(A0, start, end), OffsetBounds(5, 100))[1:] == clipped
