"""Behaviour of the topic-based manager beyond the interface: replay, damage, bounds, failures."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from isotherm.clock import SystemClock
from isotherm.errors import (
    CorruptMetadataError,
    NotEnoughMemoryError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RemoteStorageNotReadyError,
    RequestTimedOutError,
)
from isotherm.metrics.registry import Metrics
from isotherm.remote.metadata.api import MetadataTopicRecord
from isotherm.remote.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from isotherm.remote.metadata.topic_based_settings import TopicBasedSettings
from isotherm.remote.metadata.wire.keys import metadata_partition
from isotherm.remote.metadata.wire.serde import encode_event
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicIdPartition
from tests.support.conditions import wait_until
from tests.support.memory_metadata_topic import MemoryMetadataTopic

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED

MakeSegment = Callable[..., RemoteLogSegmentMetadata]
MakeUpdate = Callable[..., RemoteLogSegmentMetadataUpdate]
NEIGHBOUR = TopicIdPartition(uuid.UUID(int=8), "neighbour", 0)


@pytest.fixture
def topic() -> MemoryMetadataTopic:
    """A topic of one partition, which all user partitions share."""
    return MemoryMetadataTopic(partition_count=1)


@pytest.fixture
def clock() -> SimClock:
    return SimClock(auto_advance=True)


@pytest.fixture
def open_manager(
    topic: MemoryMetadataTopic, clock: SimClock
) -> Callable[..., TopicBasedRemoteLogMetadataManager]:
    def open_manager(**settings: object) -> TopicBasedRemoteLogMetadataManager:
        return TopicBasedRemoteLogMetadataManager(
            topic,
            clock=clock,
            metrics=Metrics(),
            settings=TopicBasedSettings(**settings),  # type: ignore[arg-type]
        )

    return open_manager


@pytest.fixture
def manager(
    open_manager: Callable[..., TopicBasedRemoteLogMetadataManager], partition: TopicIdPartition
) -> TopicBasedRemoteLogMetadataManager:
    manager = open_manager()
    manager.on_partition_leadership_changes([partition], [])
    manager.poll()
    return manager


def finished(
    manager: TopicBasedRemoteLogMetadataManager,
    segment: RemoteLogSegmentMetadata,
    make_update: MakeUpdate,
) -> None:
    manager.add_remote_log_segment_metadata(segment).result(0)
    manager.update_remote_log_segment_metadata(make_update(segment, FINISHED)).result(0)


def test_event_goes_to_the_partition_of_kafkas_choice_without_a_key(
    partition: TopicIdPartition, clock: SimClock, make_segment: MakeSegment
) -> None:
    topic = MemoryMetadataTopic(50)
    manager = TopicBasedRemoteLogMetadataManager(topic, clock=clock, metrics=Metrics())
    manager.on_partition_leadership_changes([partition], [])
    segment = make_segment(0, 9)
    manager.add_remote_log_segment_metadata(segment)
    (record,) = topic.records()
    assert record.partition == metadata_partition(partition, 50)
    assert record.key is None
    assert record.timestamp_ms == clock.now_ms()
    assert record.value == encode_event(segment)


def test_replay_gives_the_state_that_was_there(
    manager: TopicBasedRemoteLogMetadataManager,
    open_manager: Callable[..., TopicBasedRemoteLogMetadataManager],
    partition: TopicIdPartition,
    make_segment: MakeSegment,
    make_update: MakeUpdate,
) -> None:
    for start in range(0, 100, 10):
        finished(manager, make_segment(start, start + 9), make_update)
    again = open_manager(remote_log_metadata_read_max_bytes=1)
    again.on_partition_leadership_changes([partition], [])
    assert not again.is_ready(partition)
    with pytest.raises(RemoteStorageNotReadyError):
        again.list_remote_log_segments(partition)
    again.poll()
    assert again.is_ready(partition)
    assert again.list_remote_log_segments(partition) == manager.list_remote_log_segments(partition)


def test_partition_assigned_later_gets_its_earlier_events_and_the_others_get_none_twice(
    manager: TopicBasedRemoteLogMetadataManager,
    open_manager: Callable[..., TopicBasedRemoteLogMetadataManager],
    partition: TopicIdPartition,
    make_segment: MakeSegment,
    make_update: MakeUpdate,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = make_segment(0, 9), make_segment(0, 9, partition=NEIGHBOUR)
    manager.on_partition_leadership_changes([NEIGHBOUR], [])
    finished(manager, first, make_update)
    finished(manager, second, make_update)
    later = open_manager()
    later.on_partition_leadership_changes([partition], [])
    later.poll()
    later.on_partition_leadership_changes([NEIGHBOUR], [])
    later.poll()
    assert [segment.segment_id for segment in later.list_remote_log_segments(NEIGHBOUR)] == [
        second.segment_id
    ]
    assert later.is_ready(partition)
    assert caplog.messages == [], "a repeated start would be dropped with an error"


def test_follower_sees_what_another_manager_writes(
    manager: TopicBasedRemoteLogMetadataManager,
    open_manager: Callable[..., TopicBasedRemoteLogMetadataManager],
    partition: TopicIdPartition,
    make_segment: MakeSegment,
) -> None:
    follower = open_manager()
    follower.on_partition_leadership_changes([], [partition])
    follower.poll()
    segment = make_segment(0, 9)
    manager.add_remote_log_segment_metadata(segment).result(0)
    assert follower.list_remote_log_segments(partition) == []
    follower.poll()
    assert follower.list_remote_log_segments(partition) == [segment]


def test_damaged_record_is_named_and_refuses_its_partitions(
    manager: TopicBasedRemoteLogMetadataManager,
    topic: MemoryMetadataTopic,
    partition: TopicIdPartition,
    make_segment: MakeSegment,
) -> None:
    manager.add_remote_log_segment_metadata(make_segment(0, 9)).result(0)
    topic.append(0, None, b"\x01\x00\x00garbage", 0)
    manager.poll()
    named = "topic=__remote_log_metadata partition=0 offset=1"
    assert not manager.is_ready(partition)
    with pytest.raises(CorruptMetadataError, match=named):
        manager.list_remote_log_segments(partition)
    with pytest.raises(CorruptMetadataError, match=named):
        manager.add_remote_log_segment_metadata(make_segment(10, 19))


@pytest.mark.parametrize("value", [None, b"", b"\x02\x00\x00", b"\x01\x07\x00"])
def test_damaged_record_is_passed_over_by_the_policy_skip(
    open_manager: Callable[..., TopicBasedRemoteLogMetadataManager],
    topic: MemoryMetadataTopic,
    partition: TopicIdPartition,
    make_segment: MakeSegment,
    caplog: pytest.LogCaptureFixture,
    value: bytes | None,
) -> None:
    before, after = make_segment(0, 9), make_segment(10, 19)
    topic.append(0, None, encode_event(before), 0)
    topic.append(0, None, value, 0)
    topic.append(0, None, encode_event(after), 0)
    manager = open_manager(remote_log_metadata_corrupt_record_policy="skip")
    manager.on_partition_leadership_changes([partition], [])
    manager.poll()
    assert manager.list_remote_log_segments(partition) == [before, after]
    assert "partition=0 offset=1" in caplog.text


def test_segment_added_in_a_later_state_is_damage(
    manager: TopicBasedRemoteLogMetadataManager,
    topic: MemoryMetadataTopic,
    partition: TopicIdPartition,
    make_segment: MakeSegment,
    make_update: MakeUpdate,
) -> None:
    segment = make_segment(0, 9)
    topic.append(0, None, encode_event(segment.updated(make_update(segment, FINISHED))), 0)
    manager.poll()
    with pytest.raises(CorruptMetadataError, match="offset=0"):
        manager.list_remote_log_segments(partition)


def test_update_of_unknown_segment_is_dropped(
    manager: TopicBasedRemoteLogMetadataManager,
    topic: MemoryMetadataTopic,
    partition: TopicIdPartition,
    make_segment: MakeSegment,
    make_update: MakeUpdate,
) -> None:
    topic.append(0, None, encode_event(make_update(make_segment(0, 9), FINISHED)), 0)
    manager.poll()
    assert manager.list_remote_log_segments(partition) == []


def test_write_that_is_stored_but_not_shown_yet_is_done_once_it_is_read_back(
    manager: TopicBasedRemoteLogMetadataManager,
    topic: MemoryMetadataTopic,
    partition: TopicIdPartition,
    make_segment: MakeSegment,
) -> None:
    topic.append_visible = False
    future = manager.add_remote_log_segment_metadata(make_segment(0, 9))
    manager.poll()
    assert not future.done()
    topic.show_all()
    manager.poll()
    assert future.done()
    assert len(manager.list_remote_log_segments(partition)) == 1


def test_write_that_is_never_read_back_fails_in_time(
    topic: MemoryMetadataTopic, partition: TopicIdPartition, make_segment: MakeSegment
) -> None:
    clock = SimClock()
    manager = TopicBasedRemoteLogMetadataManager(topic, clock=clock, metrics=Metrics())
    manager.on_partition_leadership_changes([partition], [])
    manager.poll()
    topic.append_visible = False
    future = manager.add_remote_log_segment_metadata(make_segment(0, 9))
    manager.start()
    try:
        clock.await_waiters(1)
        clock.advance(119_000)
        clock.await_waiters(1)
        assert not future.done()
        clock.advance(1_001)
        with pytest.raises(RequestTimedOutError):
            future.result(300)
    finally:
        topic.show_all()
        manager.close()


def test_writes_that_wait_are_bounded(
    open_manager: Callable[..., TopicBasedRemoteLogMetadataManager],
    topic: MemoryMetadataTopic,
    partition: TopicIdPartition,
    make_segment: MakeSegment,
) -> None:
    manager = open_manager(remote_log_metadata_pending_writes_max=2)
    manager.on_partition_leadership_changes([partition], [])
    topic.append_visible = False
    for start in (0, 10):
        manager.add_remote_log_segment_metadata(make_segment(start, start + 9))
    with pytest.raises(NotEnoughMemoryError, match="count=2"):
        manager.add_remote_log_segment_metadata(make_segment(20, 29))
    assert len(topic.records()) == 2


def test_write_that_waits_fails_when_its_partition_is_stopped_or_the_manager_closed(
    manager: TopicBasedRemoteLogMetadataManager,
    topic: MemoryMetadataTopic,
    partition: TopicIdPartition,
    make_segment: MakeSegment,
) -> None:
    topic.append_visible = False
    stopped = manager.add_remote_log_segment_metadata(make_segment(0, 9))
    manager.on_stop_partitions([partition])
    with pytest.raises(RemoteResourceNotFoundError):
        stopped.result(0)
    manager.on_partition_leadership_changes([partition], [])
    closed = manager.add_remote_log_segment_metadata(make_segment(10, 19))
    manager.close()
    with pytest.raises(RemoteStorageNotReadyError):
        closed.result(0)


def test_append_that_fails_is_raised_and_nothing_waits(
    manager: TopicBasedRemoteLogMetadataManager,
    topic: MemoryMetadataTopic,
    partition: TopicIdPartition,
    make_segment: MakeSegment,
) -> None:
    def refuse(number: int, value: bytes | None) -> None:
        raise RemoteStorageError("topic is down")

    topic.before_append = refuse
    with pytest.raises(RemoteStorageError, match="topic is down"):
        manager.add_remote_log_segment_metadata(make_segment(0, 9))
    assert manager.list_remote_log_segments(partition) == []


def test_topic_that_cannot_be_read_is_tried_again(
    topic: MemoryMetadataTopic,
    partition: TopicIdPartition,
    make_segment: MakeSegment,
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = [RemoteStorageError("down"), ValueError("unforeseen")]
    read = topic.read

    def fail_first(*args: int) -> object:
        if failures:
            raise failures.pop()
        return read(*args)

    topic.read = fail_first  # type: ignore
    topic.append(0, None, encode_event(make_segment(0, 9)), 0)
    metrics = Metrics()
    manager = TopicBasedRemoteLogMetadataManager(
        topic,
        clock=SystemClock(),
        metrics=metrics,
        settings=TopicBasedSettings(
            remote_log_metadata_poll_interval_ms=1, remote_log_metadata_read_wait_ms=30_000
        ),
    )
    manager.on_partition_leadership_changes([partition], [])
    manager.start()
    try:
        assert len(manager.list_remote_log_segments(partition)) == 1
    finally:
        manager.close()
    assert metrics.value("isotherm_remote_log_metadata_follow_errors_total") == 2
    assert caplog.text.count("metadata topic cannot be read") == 1


def test_writers_in_many_threads_all_see_their_own_events(
    topic: MemoryMetadataTopic, partition: TopicIdPartition, make_segment: MakeSegment
) -> None:
    manager = TopicBasedRemoteLogMetadataManager(topic, clock=SystemClock(), metrics=Metrics())
    manager.on_partition_leadership_changes([partition], [])
    manager.start()
    segments = [make_segment(start, start + 9) for start in range(0, 800, 10)]

    def write(segment: RemoteLogSegmentMetadata) -> bool:
        manager.add_remote_log_segment_metadata(segment).result(300)
        return segment in manager.list_remote_log_segments(partition)

    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(write, segments))
    finally:
        manager.close()


def test_partition_of_a_replica_that_is_behind_is_not_ready(
    topic: MemoryMetadataTopic,
    open_manager: Callable[..., TopicBasedRemoteLogMetadataManager],
    partition: TopicIdPartition,
) -> None:
    topic.is_behind = True
    manager = open_manager()
    manager.on_partition_leadership_changes([partition], [])
    manager.poll()
    assert not manager.is_ready(partition)
    topic.is_behind = False
    manager.poll()
    assert manager.is_ready(partition)


def test_events_that_a_replica_lacked_when_it_was_folded_are_applied_later(
    topic: MemoryMetadataTopic,
    manager: TopicBasedRemoteLogMetadataManager,
    open_manager: Callable[..., TopicBasedRemoteLogMetadataManager],
    partition: TopicIdPartition,
    make_segment: MakeSegment,
) -> None:
    """The leader's log end is above the replica's, as on a broker that has just started."""
    manager.add_remote_log_segment_metadata(make_segment(0, 9)).result(0)
    topic.append_visible = False
    manager.add_remote_log_segment_metadata(make_segment(10, 19))
    topic.is_behind = True
    other = open_manager()
    other.on_partition_leadership_changes([partition], [])
    other.poll()
    assert not other.is_ready(partition)
    topic.show_all()
    topic.is_behind = False
    other.poll()
    assert [segment.start_offset for segment in other.list_remote_log_segments(partition)] == [
        0,
        10,
    ]


def test_nothing_is_decided_on_a_replica_that_is_behind(
    topic: MemoryMetadataTopic,
    manager: TopicBasedRemoteLogMetadataManager,
    partition: TopicIdPartition,
    make_segment: MakeSegment,
) -> None:
    topic.is_behind = True
    with pytest.raises(RemoteStorageNotReadyError):
        manager.add_remote_log_segment_metadata(make_segment(0, 9)).result(0)
    with pytest.raises(RemoteStorageNotReadyError), manager.exclusively(partition):
        raise AssertionError("decided without what another broker may have written")
    assert topic.offsets(0) == (0, 0)
    topic.is_behind = False
    manager.add_remote_log_segment_metadata(make_segment(0, 9)).result(0)


class _CountedUsers(dict[TopicIdPartition, Any]):
    """Counts how often all entries are looked at."""

    looks = 0

    def __iter__(self) -> Iterator[TopicIdPartition]:
        self.looks += 1
        return super().__iter__()

    def keys(self) -> Any:
        self.looks += 1
        return super().keys()

    def items(self) -> Any:
        self.looks += 1
        return super().items()

    def values(self) -> Any:
        self.looks += 1
        return super().values()


def test_idle_poll_looks_at_no_partition(
    manager: TopicBasedRemoteLogMetadataManager, partition: TopicIdPartition
) -> None:
    (reader,) = manager._readers.values()
    users = reader._users = _CountedUsers(reader._users)
    for _ in range(3):
        manager.poll()
    assert users.looks == 0
    manager.on_partition_leadership_changes([NEIGHBOUR], [])
    manager.poll()
    assert manager.is_ready(NEIGHBOUR)
    assert users.looks > 0, "a new partition makes a poll look at all of them"
    users.looks = 0
    manager.poll()
    assert users.looks == 0


class _RequestsTopic(MemoryMetadataTopic):
    """A topic whose reads are counted, and the questions for the ends of partitions."""

    def __init__(self) -> None:
        super().__init__(2)
        self.reads: list[int] = []
        self.questions: list[set[int]] = []
        self.untold: set[int] = set()

    def read(self, partition: int, *arguments: int) -> list[MetadataTopicRecord]:
        self.reads.append(partition)
        return super().read(partition, *arguments)

    def end_offsets(self, partitions: Collection[int]) -> dict[int, int]:
        self.questions.append({*partitions})
        return {
            number: self.offsets(number)[1] for number in partitions if number not in self.untold
        }


def test_partitions_of_a_topic_that_tells_its_ends_are_read_when_they_grow(
    clock: SimClock, make_segment: MakeSegment
) -> None:
    topic = _RequestsTopic()
    users: dict[int, TopicIdPartition] = {}
    for number in range(100):
        user = TopicIdPartition(uuid.UUID(int=7), "flights", number)
        users.setdefault(metadata_partition(user, 2), user)
    writer = TopicBasedRemoteLogMetadataManager(topic, clock=clock, metrics=Metrics())
    reader = TopicBasedRemoteLogMetadataManager(topic, clock=clock, metrics=Metrics())
    for manager in (writer, reader):
        manager.on_partition_leadership_changes([*users.values()], [])
        manager.poll()
    for number in (0, 1, 1, 0):
        writer.add_remote_log_segment_metadata(make_segment(0, 9, partition=users[number]))
        topic.reads, topic.questions = [], []
        reader.poll()
        assert {*topic.reads} == {number}
        assert topic.questions == [{0, 1}]
    assert len(list(reader.list_remote_log_segments(users[1]))) == 2

    topic.reads = []
    reader.poll()
    assert topic.reads == []
    topic.untold = {1}
    reader.poll()
    assert topic.reads == [1], "the read says why an end is unknown"
    # A new partition is folded, though its metadata partition has not grown.
    reader.on_partition_leadership_changes([NEIGHBOUR], [])
    reader.poll()
    assert reader.is_ready(NEIGHBOUR)


def test_topic_is_read_though_its_ends_are_unknown(
    clock: SimClock, make_segment: MakeSegment, partition: TopicIdPartition
) -> None:
    topic = _RequestsTopic()
    manager = TopicBasedRemoteLogMetadataManager(
        topic,
        clock=SystemClock(),
        metrics=Metrics(),
        settings=TopicBasedSettings(remote_log_metadata_poll_interval_ms=1),
    )
    manager.on_partition_leadership_changes([partition], [])
    manager.poll()

    def fail(partitions: Collection[int]) -> dict[int, int]:
        raise RemoteStorageError("down")

    topic.end_offsets = fail  # type: ignore[method-assign]
    topic.append(metadata_partition(partition, 2), None, encode_event(make_segment(0, 9)), 0)
    manager.start()
    try:
        wait_until(lambda: len(list(manager.list_remote_log_segments(partition))) == 1)
    finally:
        manager.close()
