"""The fold over the metadata partitions of a topic, and what it says of a record that it cannot
apply.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

import pytest

from isotherm.errors import CorruptMetadataError
from isotherm.remote.metadata.api import MetadataColumns, MetadataTopicRecord, NewMetadataRecord
from isotherm.remote.metadata.folding.fold import (
    fold_metadata_partition,
    fold_metadata_topic,
    has_all_below,
)
from isotherm.remote.metadata.wire.serde import encode_event
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.types import Offset, TimestampMs, TopicIdPartition
from tests.support.memory_metadata_topic import MemoryMetadataTopic

MakeSegment = Callable[..., RemoteLogSegmentMetadata]


def partition(name: str, number: int = 0) -> TopicIdPartition:
    return TopicIdPartition(uuid.uuid5(uuid.NAMESPACE_DNS, name), name, number)


def test_partitions_of_all_metadata_partitions_are_found_in_order(
    make_segment: MakeSegment,
) -> None:
    topic = MemoryMetadataTopic(3)
    owners = [partition("b"), partition("a", 1), partition("c"), partition("a")]
    segments = {owner: make_segment(0, 9, partition=owner) for owner in owners}
    for number, owner in enumerate(owners):
        topic.append(number % 3, None, encode_event(segments[owner]), 0)
    caches = fold_metadata_topic(topic, lambda owner: owner.topic != "c")
    assert [*caches] == sorted([each for each in owners if each.topic != "c"], key=str)
    for owner, cache in caches.items():
        assert cache.partition == owner
        assert cache.segments() == [segments[owner]]


@pytest.mark.parametrize("columnar_records_min", [0, 100])
@pytest.mark.parametrize("run_max_bytes", [1, 1 << 20])
def test_damaged_record_is_named_with_its_place_and_is_skipped(
    make_segment: MakeSegment, columnar_records_min: int, run_max_bytes: int
) -> None:
    topic = MemoryMetadataTopic(3)
    owner = partition("a")
    first, second = make_segment(0, 9, partition=owner), make_segment(10, 19, partition=owner)
    for value in (encode_event(first), b"odd", encode_event(second)):
        topic.append(2, None, value, 0)
    problems: list[CorruptMetadataError] = []
    folded = fold_metadata_partition(
        topic,
        2,
        lambda _: True,
        problems.append,
        columnar_records_min=columnar_records_min,
        run_max_bytes=run_max_bytes,
    )
    place = "topic=__remote_log_metadata partition=2 offset=1 reason="
    assert [place in str(problem) for problem in problems] == [True]
    assert [each.cache.segments() for each in folded.partitions] == [[first, second]]
    assert folded.next_offset == 3
    with pytest.raises(CorruptMetadataError, match=place):
        fold_metadata_partition(topic, 2, lambda _: True, columnar_records_min=columnar_records_min)


class PlainTopic:
    """A topic without conditional appends, as any Kafka cluster has it: `is_current` decides."""

    def __init__(self, topic: MemoryMetadataTopic, *, is_current: bool) -> None:
        self._topic = topic
        self._is_current = is_current

    @property
    def partition_count(self) -> int:
        return self._topic.partition_count

    def append(
        self, partition: int, key: bytes | None, value: bytes | None, timestamp_ms: TimestampMs
    ) -> Offset:
        return self._topic.append(partition, key, value, timestamp_ms)

    def append_all(self, partition: int, records: Sequence[NewMetadataRecord]) -> Offset:
        return self._topic.append_all(partition, records)

    def read(
        self, partition: int, start_offset: Offset, max_bytes: int
    ) -> list[MetadataTopicRecord]:
        return self._topic.read(partition, start_offset, max_bytes)

    def read_columns(self, partition: int, start_offset: Offset, max_bytes: int) -> MetadataColumns:
        return self._topic.read_columns(partition, start_offset, max_bytes)

    def offsets(self, partition: int) -> tuple[Offset, Offset]:
        return self._topic.offsets(partition)

    def is_current(self, partition: int) -> bool:
        return self._is_current

    def close(self) -> None:
        self._topic.close()


@pytest.mark.parametrize("columnar_records_min", [0, 100])
@pytest.mark.parametrize("is_current", [True, False])
def test_end_without_records_is_passed_only_by_a_reader_that_has_all(
    make_segment: MakeSegment, columnar_records_min: int, *, is_current: bool
) -> None:
    """A replica that is behind may still get the records.

    Compaction has removed those of another.
    """
    topic = MemoryMetadataTopic(1)
    topic.append(0, b"kept", encode_event(make_segment(0, 9)), 0)
    for value in (b"v", None):
        topic.append(0, b"key", value, 0)
    topic.compact()
    plain = PlainTopic(topic, is_current=is_current)
    assert plain.offsets(0) == (0, 3)
    assert has_all_below(plain, 0, 3) is is_current
    problems: list[CorruptMetadataError] = []
    folded = fold_metadata_partition(
        plain, 0, lambda _: True, problems.append, columnar_records_min=columnar_records_min
    )
    assert folded.next_offset == (3 if is_current else 1)
