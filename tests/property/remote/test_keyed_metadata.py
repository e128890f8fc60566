"""Feature level 1 against its two models: level 0 for one leader, Scenario 2 of KIP-1266 for
several."""

from __future__ import annotations

import uuid
from concurrent.futures import Future
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.errors import RemoteResourceNotFoundError
from isotherm.metrics.registry import Metrics
from isotherm.remote.metadata.topic.event_writer import KeyedMetadata
from isotherm.remote.metadata.topic.keyed_writes import key_of
from isotherm.remote.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from isotherm.remote.metadata.wire.serde import encode_keyed_event
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.testing.sim_clock import SimClock
from isotherm.types import NO_LEADER_EPOCH, TopicIdPartition
from tests.support.memory_metadata_topic import MemoryMetadataTopic

PARTITION = TopicIdPartition(uuid.UUID(int=1), "flights", 0)
STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
OFFSETS = range(41)
EPOCHS = range(4)


class Topics:
    """The metadata topic and the audit topic. Each `manager` is a broker that has just started over
    them."""

    def __init__(self) -> None:
        self.metadata = MemoryMetadataTopic(1)
        self.audit = MemoryMetadataTopic(1)

    def manager(self, level: int = 1) -> TopicBasedRemoteLogMetadataManager:
        manager = TopicBasedRemoteLogMetadataManager(
            self.metadata,
            clock=SimClock(auto_advance=True),
            metrics=Metrics(),
            keyed=KeyedMetadata(self.audit, lambda _: level),
        )
        manager.on_partition_leadership_changes([PARTITION], ())
        manager.poll()
        return manager


def publish(
    manager: TopicBasedRemoteLogMetadataManager,
    metadata: RemoteLogSegmentMetadata,
    state: RemoteLogSegmentState,
    leader_epoch: int,
) -> None:
    """Publish an event as a task does. An update of a segment that is gone is dropped, as at level
    0."""
    if state is STARTED:
        manager.add_remote_log_segment_metadata(metadata).result()
        return
    update = RemoteLogSegmentMetadataUpdate(
        segment_id=metadata.segment_id,
        event_timestamp_ms=7,
        state=state,
        broker_id=0,
        broker_leader_epoch=leader_epoch,
    )
    try:
        stored: Future[None] = manager.update_remote_log_segment_metadata(update)
    except RemoteResourceNotFoundError:
        return
    stored.result()


@st.composite
def segments(draw: st.DrawFn) -> list[RemoteLogSegmentMetadata]:
    """Segments with different end offsets, so that one leader has a key for each. Start offsets and
    epochs are arbitrary."""
    ends = draw(st.lists(st.integers(3, 40), min_size=1, max_size=5, unique=True))
    made = []
    for number, end in enumerate(ends):
        start = draw(st.integers(0, end))
        epochs = draw(st.lists(st.sampled_from(EPOCHS), min_size=1, max_size=2, unique=True))
        count = min(len(epochs), end - start + 1)
        borders = {epoch: start + index for index, epoch in enumerate(sorted(epochs)[:count])}
        made.append(
            RemoteLogSegmentMetadata(
                segment_id=RemoteLogSegmentId(PARTITION, uuid.UUID(int=number)),
                start_offset=start,
                end_offset_inclusive=end,
                max_timestamp_ms=0,
                broker_id=0,
                event_timestamp_ms=0,
                segment_size_in_bytes=10,
                segment_leader_epochs=borders,
                broker_leader_epoch=3,
            )
        )
    return made


def unkeyed(metadata: RemoteLogSegmentMetadata | None) -> RemoteLogSegmentMetadata | None:
    return None if metadata is None else replace(metadata, broker_leader_epoch=NO_LEADER_EPOCH)


def listed(manager: TopicBasedRemoteLogMetadataManager) -> set[object]:
    """All segments, and the segments of each epoch, without `broker_leader_epoch`."""
    return {
        (
            epoch,
            segment.segment_id,
            segment.state,
            segment.start_offset,
            segment.end_offset_inclusive,
        )
        for epoch in (None, *EPOCHS)
        for segment in manager.list_remote_log_segments(PARTITION, epoch)
    }


def offsets_of_epoch(metadata: RemoteLogSegmentMetadata, epoch: int) -> range:
    """The offsets of a segment that belong to a leader epoch."""
    borders = [*sorted(metadata.segment_leader_epochs.items())]
    ends = [start for _, start in borders[1:]] + [metadata.end_offset_inclusive + 1]
    for (each, start), end in zip(borders, ends, strict=True):
        if each == epoch:
            return range(start, end)
    return range(0)


def covers(outer: range, inner: range) -> bool:
    return bool(inner) and outer.start <= inner.start and inner.stop <= outer.stop


def deletion_uncovers(
    made: list[RemoteLogSegmentMetadata], deleted: list[RemoteLogSegmentMetadata]
) -> bool:
    """Whether a deleted segment covers another one in an epoch.

    Level 0 never finds a covered segment again. Level 1 has to: compaction drops the deleted
    segment, and a start after it finds the other one.
    """
    return any(
        covers(offsets_of_epoch(each, epoch), offsets_of_epoch(other, epoch))
        for each in deleted
        for other in made
        if other is not each
        for epoch in EPOCHS
    )


def assert_finds_what_is_finished(manager: TopicBasedRemoteLogMetadataManager) -> None:
    """A look-up finds a finished segment that holds the offset, if there is one."""
    for epoch in EPOCHS:
        holding = [
            (segment.segment_id, offsets_of_epoch(segment, epoch))
            for segment in manager.list_remote_log_segments(PARTITION, epoch)
            if segment.state is FINISHED
        ]
        for offset in OFFSETS:
            found = manager.remote_log_segment_metadata(PARTITION, epoch, offset)
            answers = {segment_id for segment_id, offsets in holding if offset in offsets}
            assert (found is None) if not answers else (found and found.segment_id in answers)


@given(segments(), st.data())
@settings(max_examples=100)
def test_level_1_tells_of_one_leader_what_level_0_does(
    made: list[RemoteLogSegmentMetadata], data: st.DataObject
) -> None:
    """The events are arbitrary, also transitions that are not allowed. A compaction follows at the
    end."""
    topics = Topics()
    old, new = Topics().manager(0), topics.manager()
    deleted: list[RemoteLogSegmentMetadata] = []
    for _ in range(data.draw(st.integers(1, 15))):
        segment = data.draw(st.sampled_from(made))
        state = data.draw(st.sampled_from(RemoteLogSegmentState))
        for manager in (old, new):
            publish(manager, segment, state, 3)
        if state is DELETE_STARTED:
            deleted.append(segment)
        assert listed(old) == listed(new)
        assert_finds_what_is_finished(new)
        for epoch in EPOCHS:
            assert old.highest_offset_for_epoch(PARTITION, epoch) == (
                new.highest_offset_for_epoch(PARTITION, epoch)
            )
        if deletion_uncovers(made, deleted):
            continue
        for epoch in EPOCHS:
            for offset in OFFSETS:
                found = old.remote_log_segment_metadata(PARTITION, epoch, offset)
                assert unkeyed(found) == unkeyed(
                    new.remote_log_segment_metadata(PARTITION, epoch, offset)
                )
    topics.metadata.compact()
    compacted = topics.manager()
    assert listed(compacted) == listed(old)
    # Compaction drops the highest offset of deleted segments, and decides which of two overlapping
    # segments answers.
    assert_finds_what_is_finished(compacted)


def upload(leader_epoch: int, end_offset: int) -> RemoteLogSegmentMetadata:
    """The metadata of an upload of the ten offsets up to `end_offset`, by the leader of an
    epoch."""
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(PARTITION, uuid.UUID(int=100 * leader_epoch + end_offset)),
        start_offset=end_offset - 9,
        end_offset_inclusive=end_offset,
        max_timestamp_ms=0,
        broker_id=leader_epoch,
        event_timestamp_ms=0,
        segment_size_in_bytes=10,
        segment_leader_epochs={0: end_offset - 9},
        broker_leader_epoch=leader_epoch,
    )


@given(st.data())
@settings(max_examples=100)
def test_uploads_of_several_leaders_end_as_scenario_2_says_in_whatever_order(
    data: st.DataObject,
) -> None:
    topics = Topics()
    leaders = {epoch: topics.manager() for epoch in (3, 4, 5)}
    steps = {(epoch, end): [STARTED, FINISHED] for epoch in leaders for end in (9, 19)}
    while steps:
        epoch, end = data.draw(st.sampled_from(sorted(steps)))
        leaders[epoch].poll()
        publish(leaders[epoch], upload(epoch, end), steps[(epoch, end)].pop(0), epoch)
        steps = {place: states for place, states in steps.items() if states}
    for _ in ("as written", "compacted"):
        manager = topics.manager()
        assert len(manager.list_remote_log_segments(PARTITION)) == 6
        for offset in range(20):
            found = manager.remote_log_segment_metadata(PARTITION, 0, offset)
            assert found is not None
            assert found.broker_leader_epoch == 5
        topics.metadata.compact()


def make_way(
    manager: TopicBasedRemoteLogMetadataManager, metadata: RemoteLogSegmentMetadata
) -> set[RemoteLogSegmentId]:
    """Delete the predecessor, as the copy task does before a start. Return the ids deleted."""
    predecessor = manager.predecessor(metadata)
    if predecessor is None:
        return set()
    for state in (DELETE_STARTED, DELETE_FINISHED):
        publish(manager, predecessor, state, metadata.broker_leader_epoch)
    return {predecessor.segment_id}


@given(st.data())
@settings(max_examples=150)
def test_deletions_amid_the_uploads_of_several_leaders_lose_nothing_else(
    data: st.DataObject,
) -> None:
    """The leader of the last epoch deletes uploads, also its own, while other leaders still write.

    Deleted segments stay deleted. Of the others, the segment of the latest leader answers.
    Compaction changes nothing.
    """
    topics = Topics()
    leaders = {epoch: topics.manager() for epoch in (3, 4, 5)}
    steps = {(epoch, end): [STARTED, FINISHED] for epoch in leaders for end in (9, 19)}
    for epoch, end in data.draw(st.lists(st.sampled_from(sorted(steps)), max_size=4, unique=True)):
        steps[(epoch, -end)] = [DELETE_STARTED, DELETE_FINISHED]
    deleted: set[RemoteLogSegmentId] = set()
    finished: set[RemoteLogSegmentId] = set()
    while steps:
        epoch, end = data.draw(st.sampled_from(sorted(steps)))
        state = steps[(epoch, end)].pop(0)
        metadata = upload(epoch, abs(end))
        by = 5 if end < 0 else epoch
        leaders[by].poll()
        if state is STARTED:
            deleted |= make_way(leaders[by], metadata)
        is_known = any(
            segment.segment_id == metadata.segment_id
            for segment in leaders[by].list_remote_log_segments(PARTITION)
        )
        publish(leaders[by], metadata, state, by)
        if is_known and state is DELETE_STARTED:
            deleted.add(metadata.segment_id)
        if state is FINISHED:
            finished.add(metadata.segment_id)
        steps = {place: states for place, states in steps.items() if states}
    expected = finished - deleted
    for _ in ("as written", "compacted"):
        manager = topics.manager()
        left = manager.list_remote_log_segments(PARTITION)
        assert {segment.segment_id for segment in left if segment.state is FINISHED} == expected
        for offset in range(20):
            found = manager.remote_log_segment_metadata(PARTITION, 0, offset)
            holding = [
                segment.broker_leader_epoch
                for segment in left
                if segment.segment_id in expected
                and segment.start_offset <= offset <= segment.end_offset_inclusive
            ]
            assert (found.broker_leader_epoch if found else None) == max(holding, default=None)
        topics.metadata.compact()


@given(st.data())
@settings(max_examples=100)
def test_records_of_leaders_that_do_not_see_each_other_end_alike_in_whatever_order(
    data: st.DataObject,
) -> None:
    """No fence stops the late append of a deposed leader. It undoes no later event."""
    first, second = upload(3, 9), upload(4, 9)
    histories = {
        3: [replace(first, state=state) for state in (STARTED, FINISHED)],
        4: [replace(second, state=state) for state in (STARTED, FINISHED)],
        5: [
            replace(first, state=state, broker_leader_epoch=5)
            for state in (DELETE_STARTED, DELETE_FINISHED)
        ],
    }
    topics = Topics()
    while histories:
        leader = data.draw(st.sampled_from(sorted(histories)))
        state = histories[leader].pop(0)
        topics.metadata.append(0, key_of(state).encode(), encode_keyed_event(state), 0)
        histories = {each: states for each, states in histories.items() if states}
    for _ in ("as written", "compacted"):
        manager = topics.manager()
        assert manager.list_remote_log_segments(PARTITION) == [replace(second, state=FINISHED)]
        found = manager.remote_log_segment_metadata(PARTITION, 0, 5)
        assert found is not None
        assert found.segment_id == second.segment_id
        topics.metadata.compact()
