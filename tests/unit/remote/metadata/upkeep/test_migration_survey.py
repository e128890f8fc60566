"""The memory of a survey of the metadata topic depends on the live segments, not on the number of
events."""

from __future__ import annotations

import tracemalloc
import uuid
from typing import Any

import pytest

from isotherm.clock import SystemClock
from isotherm.remote.metadata.upkeep.migration import PartitionMigration
from isotherm.remote.metadata.wire.keys import segment_key
from isotherm.remote.metadata.wire.serde import encode_event
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.types import TopicIdPartition
from tests.support.memory_metadata_topic import MemoryMetadataTopic

PARTITION = TopicIdPartition(uuid.UUID(int=1 << 100), "flights", 0)
STATE = RemoteLogSegmentState
LIVE = 50


def topic_of(segments: int, live: int = LIVE) -> MemoryMetadataTopic:
    """A topic with copied segments. All but the last `live` were deleted again."""
    topic = MemoryMetadataTopic(partition_count=1)
    for number in range(segments):
        segment_id = RemoteLogSegmentId(PARTITION, uuid.UUID(int=(number + 1) << 70))
        copied = RemoteLogSegmentMetadata(
            segment_id=segment_id,
            start_offset=10 * number,
            end_offset_inclusive=10 * number + 9,
            max_timestamp_ms=0,
            broker_id=1,
            event_timestamp_ms=0,
            segment_size_in_bytes=1,
            segment_leader_epochs={0: 10 * number},
        )
        states = [STATE.COPY_SEGMENT_FINISHED]
        if number < segments - live:
            states += [STATE.DELETE_SEGMENT_STARTED, STATE.DELETE_SEGMENT_FINISHED]
        topic.append(0, None, encode_event(copied), 0)
        for state in states:
            update = RemoteLogSegmentMetadataUpdate(
                segment_id=segment_id, event_timestamp_ms=0, state=state, broker_id=1
            )
            topic.append(0, None, encode_event(update), 0)
    return topic


def memory_of(topic: MemoryMetadataTopic, *, is_survey: bool) -> int:
    """The peak of traced memory in bytes."""
    migration = PartitionMigration(topic, 0, clock=SystemClock())
    tracemalloc.start()
    try:
        if is_survey:
            migration.survey()
        else:
            migration.plan()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_what_would_be_written_is_counted_and_not_held() -> None:
    topic = topic_of(1_000, live=1_000)
    memory_of(topic, is_survey=True)  # warm up: code is loaded once
    surveyed, planned = (
        # The least of three: the garbage collector runs when it likes.
        min(memory_of(topic, is_survey=is_survey) for _ in range(3))
        for is_survey in (True, False)
    )
    # A value takes more than 100 bytes. The margin of 30 is for other allocations, which vary.
    assert surveyed < planned - 1_000 * 70


@pytest.mark.slow
def test_what_is_gone_is_not_held() -> None:
    gone, live = topic_of(600, live=20), topic_of(600, live=600)
    memory_of(gone, is_survey=True)
    assert memory_of(gone, is_survey=True) < memory_of(live, is_survey=True) / 4


@pytest.mark.parametrize("live", [0, LIVE])
def test_survey_tells_what_a_plan_would_write(live: int) -> None:
    topic = topic_of(200, live)
    plan = PartitionMigration(topic, 0, clock=SystemClock()).plan()
    survey = PartitionMigration(topic, 0, clock=SystemClock()).survey()
    assert survey == plan.survey
    assert survey.states_to_write + survey.tombstones_to_write == len(plan.writes)
    assert survey.states_to_write == survey.live_segments == live
    assert survey.is_migrated == plan.is_migrated == (live == 0)


def test_survey_counts_records_and_their_bytes() -> None:
    topic = topic_of(20, live=5)
    assert PartitionMigration(topic, 0, clock=SystemClock()).run()
    topic.append(0, segment_key(PARTITION, 7, 3).encode(), None, 0)
    survey = PartitionMigration(topic, 0, clock=SystemClock()).survey()
    records = topic.records()
    keyed = [record for record in records if record.key is not None]
    plain = [record for record in records if record.key is None]

    def size(some: list[Any]) -> int:
        return sum(len(record.key or b"") + len(record.value or b"") for record in some)

    counts = survey.counts
    assert (counts.without_key, counts.with_key, counts.tombstones) == (len(plain), 6, 1)
    assert (counts.size_without_key, counts.size_with_key) == (size(plain), size(keyed))
    assert survey.size_compacted == size(keyed[:5])
