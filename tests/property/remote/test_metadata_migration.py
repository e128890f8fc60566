"""Migration to keyed records: the compacted topic has the same segments as the whole topic had.

Histories are those of level 0: uploads that overlap or are tried again, deletions at every stage,
deleted partitions. Events go on arriving between the rounds. The migration is killed at any of its
appends and starts again.
"""

from __future__ import annotations

import contextlib
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.clock import SystemClock
from isotherm.errors import LogDirFailedError
from isotherm.remote.history.lineage import epoch_spans
from isotherm.remote.metadata.folding.fold import fold_metadata_partition
from isotherm.remote.metadata.state.cache import RemoteLogMetadataCache
from isotherm.remote.metadata.upkeep import migration
from isotherm.remote.metadata.upkeep.migration import PartitionMigration
from isotherm.remote.metadata.wire.serde import encode_event
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from isotherm.types import TopicIdPartition
from tests.support.memory_metadata_topic import MemoryMetadataTopic

PARTITIONS = [TopicIdPartition(uuid.UUID(int=7), "flights", number) for number in range(3)]

STATES = RemoteLogSegmentState


@st.composite
def histories(draw: st.DrawFn) -> list[bytes]:
    """Events of a few partitions, as encoded records. Transitions may be ones that are not
    allowed."""
    events: list[bytes] = []
    live: list[RemoteLogSegmentId] = []
    for number in range(draw(st.integers(0, 30))):
        partition = draw(st.sampled_from(PARTITIONS))
        kind = draw(st.sampled_from(["upload"] * 4 + ["update"] * 5 + ["delete partition"]))
        if kind == "upload" or not live:
            start = draw(st.integers(0, 8))
            end = draw(st.integers(start, 9))
            epochs = {draw(st.integers(0, 1)): start}
            if end > start and draw(st.booleans()):
                epochs[2] = draw(st.integers(start + 1, end))
            segment_id = RemoteLogSegmentId(partition, uuid.UUID(int=number))
            live.append(segment_id)
            events.append(
                encode_event(
                    RemoteLogSegmentMetadata(
                        segment_id=segment_id,
                        start_offset=start,
                        end_offset_inclusive=end,
                        max_timestamp_ms=number,
                        broker_id=0,
                        event_timestamp_ms=number,
                        segment_size_in_bytes=number,
                        segment_leader_epochs=epochs,
                        txn_index_empty=draw(st.booleans()),
                    )
                )
            )
            if draw(st.booleans()):
                events.append(_update(segment_id, STATES.COPY_SEGMENT_FINISHED, number))
        elif kind == "update":
            state = draw(st.sampled_from([state for state in STATES if state]))
            events.append(_update(draw(st.sampled_from(live)), state, number))
        else:
            deletion = RemotePartitionDeleteMetadata(
                topic_id_partition=partition,
                state=draw(st.sampled_from(RemotePartitionDeleteState)),
                event_timestamp_ms=number,
                broker_id=0,
            )
            events.append(encode_event(deletion))
    return events


def _update(segment_id: RemoteLogSegmentId, state: RemoteLogSegmentState, time: int) -> bytes:
    return encode_event(
        RemoteLogSegmentMetadataUpdate(
            segment_id=segment_id,
            event_timestamp_ms=time,
            state=state,
            broker_id=1,
            custom_metadata=b"custom" if time % 2 else None,
        )
    )


def append(topic: MemoryMetadataTopic, events: list[bytes]) -> None:
    for event in events:
        topic.append(0, None, event, 0)


def compacted(topic: MemoryMetadataTopic) -> MemoryMetadataTopic:
    """A copy of the topic as compaction leaves it in the end: the last record of each key, no
    tombstones, and no records without a key."""
    last = {record.key: record for record in topic.records() if record.key is not None}
    left = MemoryMetadataTopic(1)
    for record in sorted(last.values(), key=lambda record: record.offset):
        if record.value is not None:
            left.append(0, record.key, record.value, 0)
    return left


def caches(topic: MemoryMetadataTopic) -> dict[TopicIdPartition, RemoteLogMetadataCache]:
    folded = fold_metadata_partition(topic, 0, lambda _: True)
    return {partition.cache.partition: partition.cache for partition in folded.partitions}


def assert_compaction_changes_nothing(topic: MemoryMetadataTopic) -> None:
    before, after = caches(topic), caches(compacted(topic))
    for partition in PARTITIONS:
        expected = before.get(partition) or RemoteLogMetadataCache(partition)
        left = after.get(partition) or RemoteLogMetadataCache(partition)
        assert left.segments() == expected.segments()
        for segment in expected.segments():
            for epoch, *ends in epoch_spans(segment):
                for offset in ends:
                    found = expected.find(epoch, offset)
                    if found is not None:
                        assert left.find(epoch, offset) is not None
        for epoch in range(3):
            assert left.segments(epoch) == expected.segments(epoch)


class Killed(Exception):
    """The migration ends here, as at a crash."""


@pytest.fixture(autouse=True)
def small_appends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "RECORDS_PER_APPEND", 3)


@given(histories(), histories())
def test_migrated_partition_can_be_compacted_and_tells_the_same(
    before: list[bytes], meanwhile: list[bytes]
) -> None:
    topic = MemoryMetadataTopic(1)
    append(topic, before)
    expected = {partition: cache.segments() for partition, cache in caches(topic).items()}
    moving = PartitionMigration(topic, 0, clock=SystemClock())
    assert moving.run(rounds_max=2)
    assert moving.differences() == []
    assert {
        partition: [_without_key_epoch(segment) for segment in cache.segments()]
        for partition, cache in caches(topic).items()
    } == expected
    assert_compaction_changes_nothing(topic)
    append(topic, meanwhile)
    assert moving.run(rounds_max=2)
    assert moving.differences() == []
    assert_compaction_changes_nothing(topic)
    assert PartitionMigration(topic, 0, clock=SystemClock()).plan().is_migrated


def _without_key_epoch(segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(**{**segment._fields(), "broker_leader_epoch": -1})


@given(histories(), histories(), st.integers(0, 40))
def test_migration_killed_at_an_append_goes_on_from_there(
    before: list[bytes], meanwhile: list[bytes], appends_until_killed: int
) -> None:
    topic = MemoryMetadataTopic(1)
    append(topic, before)
    left = appends_until_killed

    def kill(_partition: int, _value: bytes | None) -> None:
        nonlocal left
        if left == 0:
            raise Killed
        left -= 1

    topic.before_append = kill
    with contextlib.suppress(Killed):
        PartitionMigration(topic, 0, clock=SystemClock()).run()
    topic.before_append = None
    append(topic, meanwhile)
    resumed = PartitionMigration(topic, 0, clock=SystemClock())
    assert resumed.run(rounds_max=2)
    assert resumed.differences() == []
    assert_compaction_changes_nothing(topic)


def upload(number: int, start: int, end: int) -> tuple[RemoteLogSegmentId, bytes]:
    segment_id = RemoteLogSegmentId(PARTITIONS[0], uuid.UUID(int=number))
    started = RemoteLogSegmentMetadata(
        segment_id=segment_id,
        start_offset=start,
        end_offset_inclusive=end,
        max_timestamp_ms=0,
        broker_id=0,
        event_timestamp_ms=0,
        segment_size_in_bytes=1,
        segment_leader_epochs={0: start},
    )
    return segment_id, encode_event(started)


def test_progress_counts_over_rounds_and_appends() -> None:
    topic = MemoryMetadataTopic(1)
    append(topic, [upload(number, 10 * number, 10 * number + 9)[1] for number in range(7)])
    meanwhile = [upload(number, 10 * number, 10 * number + 9)[1] for number in range(7, 11)]
    seen: list[tuple[int, int]] = []

    def progress(written: int, known: int) -> None:
        seen.append((written, known))
        append(topic, meanwhile[:])
        meanwhile.clear()

    assert PartitionMigration(topic, 0, clock=SystemClock()).run(progress)
    assert seen == [(3, 7), (6, 7), (7, 7), (10, 11), (11, 11)]


def test_segment_that_ends_where_a_migrated_one_does_gets_a_key_of_its_own() -> None:
    topic = MemoryMetadataTopic(1)
    for number in (1, 2, 3):
        segment_id, started = upload(number, 0, 9)
        append(topic, [started, _update(segment_id, STATES.COPY_SEGMENT_FINISHED, number)])
        assert PartitionMigration(topic, 0, clock=SystemClock()).run(rounds_max=2)
        assert len(compacted(topic).records()) == number
        assert_compaction_changes_nothing(topic)


def test_only_a_finished_copy_that_another_covers_has_a_lower_key() -> None:
    (covered, *events), (wider, started), (unfinished, alone), (deleted, going) = (
        upload(1, 3, 9),
        upload(2, 0, 19),
        upload(3, 20, 29),
        upload(4, 30, 39),
    )
    events += [_update(covered, STATES.COPY_SEGMENT_FINISHED, 1)]
    events += [started, _update(wider, STATES.COPY_SEGMENT_FINISHED, 2), alone, going]
    events += [_update(deleted, STATES.COPY_SEGMENT_FINISHED, 3)]
    events += [_update(deleted, STATES.DELETE_SEGMENT_STARTED, 4)]
    topic = MemoryMetadataTopic(1)
    append(topic, events)
    assert PartitionMigration(topic, 0, clock=SystemClock()).run()
    migrated = caches(topic)[PARTITIONS[0]].segments()
    assert {segment.segment_id: segment.broker_leader_epoch for segment in migrated} == {
        covered: -2,
        wider: -1,
        unfinished: -1,
        deleted: -1,
    }


def test_error_of_the_topic_is_raised_and_nothing_is_lost() -> None:
    topic = MemoryMetadataTopic(1)
    segment_id = RemoteLogSegmentId(PARTITIONS[0], uuid.UUID(int=1))
    append(topic, [_update(segment_id, STATES.COPY_SEGMENT_FINISHED, 1)])
    assert PartitionMigration(topic, 0, clock=SystemClock()).run()

    def fail(_partition: int, _value: bytes | None) -> None:
        raise LogDirFailedError("the disk is full")

    append(topic, [upload(1, 0, 9)[1]])
    topic.before_append = fail
    with pytest.raises(LogDirFailedError):
        PartitionMigration(topic, 0, clock=SystemClock()).run()
    assert len(caches(topic)[PARTITIONS[0]]) == 1
