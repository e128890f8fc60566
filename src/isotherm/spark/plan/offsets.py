"""Parses the offsets of a query in the JSON forms of the Kafka source, and resolves them. Pure.

A limit (startingOffsets, endingOffsets and their timestamp forms) is parsed without knowledge of
the partitions. Later it is resolved to one offset per partition. Timestamps need a look-up in the
log in between: `timestamps_to_find` lists them, and `resolve_start` and `resolve_end` take the
results.

The text forms are the Kafka source's:

    partitions          {"topicA":[0,1],"topicB":[2]}
    offsets             {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}     -2 earliest, -1 latest
    timestamps          {"topicA":{"0":1700000000000}}                   milliseconds

Error messages begin like the Kafka source's, because users search for these, and end with our
`key=value` pairs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from isotherm.errors import ConfigError, OffsetOutOfRangeError
from isotherm.types import Offset, TimestampMs, TopicPartition

LATEST: Offset = -1
EARLIEST: Offset = -2

_OFFSETS_EXAMPLE = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
_PARTITIONS_EXAMPLE = '{"topicA":[0,1],"topicB":[0,1]}'
_TIMESTAMPS_EXAMPLE = (
    '{"topicA": {"0": 123456789, "1": 123456789}, "topicB": {"0": 123456789, "1": 123456789}}'
)
_SHOWN_PARTITIONS = 10
# The Kafka source's term for the end of a range, by its term for the start.
_ENDING_KINDS = {
    "specified start offset": "end offset",
    "specified start timestamp": "end timestamp",
    "resolved start offset": "resolved end offset",
}


@dataclass(frozen=True, slots=True)
class EarliestOffsets:
    """Every partition at its log start."""


@dataclass(frozen=True, slots=True)
class LatestOffsets:
    """Every partition at its end."""


@dataclass(frozen=True, slots=True)
class SpecificOffsets:
    """An offset for each partition; EARLIEST and LATEST stand for the two ends."""

    offsets: Mapping[TopicPartition, Offset]


@dataclass(frozen=True, slots=True)
class SpecificTimestamps:
    """A time for each partition: the first offset whose record is not older than it."""

    timestamps_ms: Mapping[TopicPartition, TimestampMs]


@dataclass(frozen=True, slots=True)
class GlobalTimestamp:
    """One time for all partitions."""

    timestamp_ms: TimestampMs


OffsetLimit: TypeAlias = (
    EarliestOffsets | LatestOffsets | SpecificOffsets | SpecificTimestamps | GlobalTimestamp
)


class OffsetRange(NamedTuple):
    """Offsets [start, end) of one partition."""

    topic_partition: TopicPartition
    start: Offset
    end: Offset

    @property
    def size(self) -> int:
        return self.end - self.start


class OffsetBounds(NamedTuple):
    """The readable offsets of a partition: from its log start up to its end, exclusive."""

    start: Offset
    end: Offset


def parse_partition_offsets(text: str, option: str) -> dict[TopicPartition, Offset]:
    """Offsets by partition. Raises ConfigError, which names `option`, for an invalid text."""
    return _parse_by_partition(text, option, _OFFSETS_EXAMPLE)


def parse_partition_timestamps(text: str, option: str) -> dict[TopicPartition, TimestampMs]:
    """As `parse_partition_offsets`, for times."""
    timestamps = _parse_by_partition(text, option, _TIMESTAMPS_EXAMPLE)
    negative = [partition for partition, time in timestamps.items() if time < 0]
    if negative:
        raise ConfigError(f"a timestamp is negative option={option} partition={negative[0]}")
    return timestamps


def parse_partitions(text: str, option: str) -> frozenset[TopicPartition]:
    """The partitions of `assign`. Raises ConfigError, which names `option`, for an invalid or empty
    text."""
    assigned: set[TopicPartition] = set()
    for topic, partitions in _parse_json_object(text, option, _PARTITIONS_EXAMPLE).items():
        if not isinstance(partitions, list) or not all(
            _is_number(partition) and partition >= 0 for partition in partitions
        ):
            reason = f"a topic needs a list of partitions: topic={topic} value={partitions!r}"
            raise _not_like(text, option, _PARTITIONS_EXAMPLE, reason)
        assigned.update(TopicPartition(topic, partition) for partition in partitions)
    if not assigned:
        raise ConfigError(f"no partition is assigned option={option} value={text!r}")
    return frozenset(assigned)


def _parse_by_partition(text: str, option: str, example: str) -> dict[TopicPartition, int]:
    numbers: dict[TopicPartition, int] = {}
    for topic, partitions in _parse_json_object(text, option, example).items():
        if not isinstance(partitions, dict):
            reason = f"a topic needs a number for each partition: topic={topic}"
            raise _not_like(text, option, example, reason)
        for partition, number in partitions.items():
            if not partition.isdecimal() or not _is_number(number):
                reason = f"not a number: topic={topic} partition={partition!r} value={number!r}"
                raise _not_like(text, option, example, reason)
            numbers[TopicPartition(topic, int(partition))] = number
    return numbers


def _parse_json_object(text: str, option: str, example: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        raise _not_like(text, option, example, f"not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise _not_like(text, option, example, "not a JSON object")
    return parsed


def _not_like(text: str, option: str, example: str, reason: str) -> ConfigError:
    return ConfigError(f"Expected e.g. {example}, got {text} option={option} reason={reason!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def timestamps_to_find(
    limit: OffsetLimit, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, TimestampMs]:
    """The times to look up in the log before `limit` can be resolved."""
    match limit:
        case GlobalTimestamp(timestamp_ms):
            return dict.fromkeys(partitions, timestamp_ms)
        case SpecificTimestamps(timestamps_ms):
            return dict(timestamps_ms)
        case _:
            return {}


def resolve_start(
    limit: OffsetLimit,
    bounds: Mapping[TopicPartition, OffsetBounds],
    by_time: Mapping[TopicPartition, Offset | None],
    *,
    latest_when_not_found: bool,
) -> dict[TopicPartition, Offset]:
    """The first offset to read of each partition in `bounds`.

    `by_time` has an offset for each of `timestamps_to_find`, or None if no record is that new. Such
    a partition starts at its end with `latest_when_not_found`; otherwise OffsetOutOfRangeError is
    raised. Explicit offsets are not compared with the bounds: `check_range` does that.
    """
    starts = _resolve(limit, bounds, by_time, option="startingOffsets")
    missing = sorted(partition for partition, offset in starts.items() if offset is None)
    if missing and not latest_when_not_found:
        raise OffsetOutOfRangeError(
            f"No offset matched from request of topic-partition {missing[0]} and timestamp"
            f" {timestamps_to_find(limit, bounds)[missing[0]]}."
            " hint='use an earlier time, or startingOffsetsByTimestampStrategy=latest'"
        )
    return {p: bounds[p].end if offset is None else offset for p, offset in starts.items()}


def resolve_end(
    limit: OffsetLimit,
    bounds: Mapping[TopicPartition, OffsetBounds],
    by_time: Mapping[TopicPartition, Offset | None],
) -> dict[TopicPartition, Offset]:
    """The offset after the last one to read of each partition. A time that is not found means the
    end."""
    ends = _resolve(limit, bounds, by_time, option="endingOffsets")
    return {p: bounds[p].end if offset is None else offset for p, offset in ends.items()}


def _resolve(
    limit: OffsetLimit,
    bounds: Mapping[TopicPartition, OffsetBounds],
    by_time: Mapping[TopicPartition, Offset | None],
    *,
    option: str,
) -> dict[TopicPartition, Offset | None]:
    match limit:
        case EarliestOffsets():
            return {partition: bound.start for partition, bound in bounds.items()}
        case LatestOffsets():
            return {partition: bound.end for partition, bound in bounds.items()}
        case SpecificOffsets(offsets):
            _check_all_named(offsets, bounds, option)
            symbolic = {
                partition: {EARLIEST: bound.start, LATEST: bound.end}
                for partition, bound in bounds.items()
            }
            return {
                partition: symbolic[partition].get(offset, offset)
                for partition, offset in offsets.items()
            }
        case SpecificTimestamps(timestamps_ms):
            _check_all_named(timestamps_ms, bounds, f"{option}ByTimestamp")
            return {partition: by_time[partition] for partition in bounds}
        case GlobalTimestamp():
            return {partition: by_time[partition] for partition in bounds}


def _check_all_named(
    named: Mapping[TopicPartition, int], assigned: Iterable[TopicPartition], option: str
) -> None:
    assigned_partitions = set(assigned)
    if named.keys() != assigned_partitions:
        edge = "start" if option.startswith("starting") else "end"
        kind = f"timestamp based {edge}" if option.endswith("ByTimestamp") else edge
        raise ConfigError(
            f"Partitions specified for Kafka {kind} offsets don't match what are assigned."
            f" option={option} missing={_shown(assigned_partitions - named.keys())}"
            f" unknown={_shown(named.keys() - assigned_partitions)}"
            " hint='name every partition that is read; -2 stands for earliest and -1 for latest'"
        )


def check_order(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], kind: str
) -> None:
    """Raise ConfigError if a partition would end before it starts. EARLIEST and LATEST are always
    valid.

    `kind` names the numbers, in the Kafka source's words: `specified start offset`, `specified
    start timestamp` or `resolved start offset`.
    """
    symbols = () if kind.endswith("timestamp") else (EARLIEST, LATEST)
    for partition in sorted(starts.keys() & ends.keys()):
        start, end = starts[partition], ends[partition]
        if start > end and start not in symbols and end not in symbols:
            ending = _ENDING_KINDS[kind]
            raise ConfigError(
                f"The {kind} {start} is greater than the {ending} {end} for topic"
                f" {partition.topic} partition {partition.partition}."
            )


def _shown(partitions: Iterable[TopicPartition]) -> str:
    names = [str(partition) for partition in sorted(partitions)]
    more = f",...({len(names)} in all)" if len(names) > _SHOWN_PARTITIONS else ""
    return "[" + ",".join(names[:_SHOWN_PARTITIONS]) + more + "]"


def check_range(offsets: OffsetRange, bounds: OffsetBounds) -> str | None:
    """A message about the unreadable part of `offsets`. None if all of it is readable, or if it is
    empty: nothing is lost of it, wherever it lies."""
    if offsets.size == 0:
        return None
    place = (
        f"partition={offsets.topic_partition} start_offset={offsets.start} end_offset={offsets.end}"
        f" first_available={bounds.start} available_end={bounds.end}"
    )
    if offsets.end < offsets.start:
        return f"the ending offset is below the starting offset {place}"
    if offsets.start < bounds.start:
        return f"the starting offset is no longer kept {place}"
    if offsets.end > bounds.end:
        return f"the offsets reach beyond the end of the partition {place}"
    return None


def clip_range(offsets: OffsetRange, bounds: OffsetBounds) -> OffsetRange:
    """The readable part of `offsets`; empty (never negative) if there is none."""
    start = min(max(offsets.start, bounds.start), bounds.end)
    end = max(start, min(offsets.end, bounds.end))
    return OffsetRange(offsets.topic_partition, start, end)
