"""A fold ends at the end of its replica, and does not wait for records that it cannot get."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from isotherm.remote.metadata.api import MetadataTopicRecord
from isotherm.remote.metadata.folding.fold import fold_metadata_partition
from isotherm.remote.metadata.wire.serde import encode_event
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from tests.support.memory_metadata_topic import MemoryMetadataTopic


class Replica(MemoryMetadataTopic):
    """A replica with one record. Its leader, which is asked for the end, has all."""

    def read(self, partition: int, start_offset: int, max_bytes: int) -> list[MetadataTopicRecord]:
        return [
            each for each in super().read(partition, start_offset, max_bytes) if each.offset < 1
        ]

    def has_all_below(self, partition: int, end_offset: int) -> bool:
        return end_offset <= 1


def test_fold_of_a_replica_that_is_behind_ends_where_the_replica_ends(
    make_segment: Callable[..., RemoteLogSegmentMetadata],
) -> None:
    topic, segment = Replica(1), make_segment(0, 9)
    for _ in range(3):
        topic.append(0, None, encode_event(segment), 0)
    assert topic.offsets(0) == (0, 3)
    assert fold_metadata_partition(topic, 0, lambda _: True).next_offset == 1


@pytest.mark.parametrize("columnar_records_min", [0, 100])
def test_fold_of_a_compacted_topic_ends_at_its_end(
    make_segment: Callable[..., RemoteLogSegmentMetadata], columnar_records_min: int
) -> None:
    """Compaction may have removed the last records. A reader that waited for an offset below the
    end would wait for ever."""
    topic = MemoryMetadataTopic(1)
    for value in (encode_event(make_segment(0, 9)), None):
        topic.append(0, b"key", value, 0)
    topic.compact()
    assert topic.read(0, 0, 1000) == []
    folded = fold_metadata_partition(
        topic, 0, lambda _: True, columnar_records_min=columnar_records_min
    )
    assert folded.next_offset == topic.offsets(0)[1] == 2
