"""The sources of the list of segments: the cost of each, and the work left to the tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from isotherm.remote.metadata.api import MetadataColumns
from isotherm.remote.metadata.wire.keys import metadata_partition
from isotherm.remote.metadata.wire.serde import encode_event
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.spark.tier.segment_list_sources import TopicSegmentSource
from isotherm.types import TopicIdPartition
from tests.support.memory_metadata_topic import MemoryMetadataTopic

SegmentFactory = Callable[..., RemoteLogSegmentMetadata]
STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


def test_many_events_in_small_partitions_of_the_metadata_topic_are_folded_by_columns(
    segment: SegmentFactory, owner: TopicIdPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isotherm.spark.tier.segment_list_sources.COLUMNAR_RECORDS_MIN", 8)
    topic = MemoryMetadataTopic(8)
    owners = [owner._replace(partition=number) for number in range(6)]
    for number in range(6):
        started = replace(segment(0, 99, partition=number), state=STARTED)
        update = RemoteLogSegmentMetadataUpdate(
            segment_id=started.segment_id, event_timestamp_ms=1, state=FINISHED, broker_id=1
        )
        for event in (started, update):
            topic.append(metadata_partition(owners[number], 8), None, encode_event(event), 0)
    folded_by_columns: list[int] = []
    read = topic.read_columns

    def counted(partition: int, start_offset: int, max_bytes: int) -> MetadataColumns:
        folded_by_columns.append(partition)
        return read(partition, start_offset, max_bytes)

    topic.read_columns = counted  # type: ignore[method-assign]
    few = TopicSegmentSource(topic).visible_segments(lambda name: True, owners[:3])
    assert len(few) == 3
    assert not folded_by_columns
    all_of_them = TopicSegmentSource(topic).visible_segments(lambda name: True, owners)
    assert len(all_of_them) == 6
    assert folded_by_columns
