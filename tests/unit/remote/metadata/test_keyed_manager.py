"""The topic-based manager at feature level 1: its two topics, the order of events, and damage."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from isotherm.errors import (
    CorruptMetadataError,
    EventOvertakenError,
    LogEndMovedError,
    RemoteResourceNotFoundError,
    RequestTimedOutError,
    SegmentKeyTakenError,
)
from isotherm.metrics.registry import Metrics
from isotherm.remote.metadata.api import MetadataTopicRecord
from isotherm.remote.metadata.topic import event_writer
from isotherm.remote.metadata.topic.event_writer import LOST_TOMBSTONES, KeyedMetadata
from isotherm.remote.metadata.topic.metadata_partition_reader import SKIPPED_RECORDS
from isotherm.remote.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from isotherm.remote.metadata.topic_based_settings import TopicBasedSettings
from isotherm.remote.metadata.wire.keys import partition_key, segment_key
from isotherm.remote.metadata.wire.serde import KeyedEvent, decode_event, encode_keyed_event
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicIdPartition
from tests.support.memory_metadata_topic import MemoryMetadataTopic

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
PARTITION_STARTED = RemotePartitionDeleteState.DELETE_PARTITION_STARTED
PARTITION_FINISHED = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED

MakeSegment = Callable[..., RemoteLogSegmentMetadata]


class World:
    """Both topics, and managers over them, one after the other as after restarts."""

    def __init__(self, partition: TopicIdPartition, level: int = 1) -> None:
        self.partition = partition
        self.level = level
        self.topic = MemoryMetadataTopic(1)
        self.audit = MemoryMetadataTopic(1)
        self.metrics = Metrics()
        self.manager = self.start()

    def start(self, **settings: object) -> TopicBasedRemoteLogMetadataManager:
        self.manager = TopicBasedRemoteLogMetadataManager(
            self.topic,
            clock=SimClock(auto_advance=True),
            metrics=self.metrics,
            settings=TopicBasedSettings(**settings),  # type: ignore[arg-type]
            keyed=KeyedMetadata(self.audit, lambda _: self.level),
        )
        self.manager.on_partition_leadership_changes([self.partition], ())
        self.manager.poll()
        return self.manager

    def add(self, segment: RemoteLogSegmentMetadata) -> None:
        self.manager.add_remote_log_segment_metadata(segment).result(0)

    def replace(self, compacted: RemoteLogSegmentMetadata) -> None:
        self.manager.replace_remote_log_segment(compacted).result(0)

    def move(self, segment: RemoteLogSegmentMetadata, *states: RemoteLogSegmentState) -> None:
        for state in states:
            self.manager.update_remote_log_segment_metadata(update(segment, state)).result(0)

    def delete(self, *states: RemotePartitionDeleteState) -> None:
        for state in states:
            self.manager.put_remote_partition_delete_metadata(
                deletion(self.partition, state)
            ).result(0)

    def publish(self, event: KeyedEvent) -> None:
        match event:
            case RemoteLogSegmentMetadata():
                self.manager.add_remote_log_segment_metadata(event).result(0)
            case RemoteLogSegmentMetadataUpdate():
                self.manager.update_remote_log_segment_metadata(event).result(0)
            case RemotePartitionDeleteMetadata():
                self.manager.put_remote_partition_delete_metadata(event).result(0)

    def states(self) -> dict[uuid.UUID, RemoteLogSegmentState]:
        listed = self.manager.list_remote_log_segments(self.partition)
        return {each.segment_id.id: each.state for each in listed}


def update(
    segment: RemoteLogSegmentMetadata, state: RemoteLogSegmentState, epoch: int = 5
) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(
        segment_id=segment.segment_id,
        event_timestamp_ms=9,
        state=state,
        broker_id=2,
        broker_leader_epoch=epoch,
    )


def deletion(
    partition: TopicIdPartition, state: RemotePartitionDeleteState
) -> RemotePartitionDeleteMetadata:
    return RemotePartitionDeleteMetadata(
        topic_id_partition=partition, state=state, event_timestamp_ms=1, broker_id=2
    )


def shown(topic: MemoryMetadataTopic) -> list[tuple[str, str | None]]:
    return [
        (
            (record.key or b"").decode().partition(":")[2],
            None if record.value is None else decode_event(record.value).state.name,
        )
        for record in topic.records()
    ]


def refuse(*_: object) -> None:
    raise RequestTimedOutError("injected")


@pytest.fixture
def world(partition: TopicIdPartition) -> World:
    return World(partition)


@pytest.fixture
def segment(make_segment: MakeSegment) -> RemoteLogSegmentMetadata:
    return replace(make_segment(0, 9), broker_leader_epoch=5)


def test_event_is_in_the_audit_topic_before_its_state_is_in_the_metadata_topic(
    world: World, segment: RemoteLogSegmentMetadata
) -> None:
    counts = []
    world.topic.before_append = lambda *_: counts.append(len(world.audit.records()))
    world.add(segment)
    world.move(segment, FINISHED, DELETE_STARTED, DELETE_FINISHED)
    assert shown(world.audit) == [
        ("0:9:5", "COPY_SEGMENT_STARTED"),
        ("0:9:5", "COPY_SEGMENT_FINISHED"),
        ("0:9:5", "DELETE_SEGMENT_STARTED"),
        ("0:9:5", "DELETE_SEGMENT_FINISHED"),
    ]
    assert shown(world.topic) == [*shown(world.audit), ("0:9:5", None)]
    assert counts == [1, 2, 3, 4, 4]


def test_every_value_of_the_metadata_topic_is_the_whole_state(
    world: World, segment: RemoteLogSegmentMetadata
) -> None:
    world.add(segment)
    world.move(segment, FINISHED)
    last = decode_event(world.topic.records()[-1].value or b"")
    assert last == segment.updated(update(segment, FINISHED))


def test_level_0_writes_the_event_alone_and_without_a_key(
    partition: TopicIdPartition, segment: RemoteLogSegmentMetadata
) -> None:
    world = World(partition, level=0)
    world.add(segment)
    assert [record.key for record in world.topic.records()] == [None]
    assert world.audit.records() == []


def test_event_that_the_audit_topic_refuses_happens_nowhere(
    world: World, segment: RemoteLogSegmentMetadata
) -> None:
    world.audit.before_append = refuse
    with pytest.raises(RequestTimedOutError):
        world.add(segment)
    world.audit.before_append = None
    world.manager.poll()
    assert world.topic.records() == world.audit.records() == []


def test_event_that_another_broker_overtook_is_left_to_its_caller(
    world: World, segment: RemoteLogSegmentMetadata
) -> None:
    """Only the caller knows what it decided on, and whether that is still so."""
    refused = 0

    def overtake(number: int, value: bytes | None) -> None:
        nonlocal refused
        refused += 1
        raise LogEndMovedError("injected")

    world.audit.before_append = overtake
    with pytest.raises(EventOvertakenError):
        world.add(segment)
    assert refused == 1
    world.audit.before_append = None
    world.add(segment)
    assert world.states() == {segment.segment_id.id: STARTED}


@pytest.mark.parametrize("level", [0, 1])
def test_what_is_stored_is_read_once_for_a_decision_and_its_event(
    partition: TopicIdPartition, segment: RemoteLogSegmentMetadata, level: int
) -> None:
    world = World(partition, level)
    world.add(segment)
    reads, read, at_append = 0, world.topic.read, -1

    def counted_read(*arguments: int) -> list[MetadataTopicRecord]:
        nonlocal reads
        reads += 1
        return read(*arguments)

    def note(number: int, value: bytes | None) -> None:
        nonlocal at_append
        at_append = reads

    world.topic.read = counted_read  # type: ignore[method-assign, assignment]
    (world.audit if level else world.topic).before_append = note
    with world.manager.exclusively(partition):
        assert reads > 0
        before = reads
        world.topic.append_visible = False
        world.manager.update_remote_log_segment_metadata(update(segment, FINISHED))
        assert at_append == before
        # The next event of the block needs what this one wrote.
        world.topic.append_visible = True
        world.topic.show_all()
        world.move(segment, DELETE_STARTED)
    assert world.states() == {segment.segment_id.id: DELETE_STARTED}


def events_of(segment: RemoteLogSegmentMetadata) -> list[tuple[KeyedEvent, list[object]]]:
    """Each event, with the events before it."""
    partition = segment.topic_id_partition
    return [
        (segment, []),
        (update(segment, FINISHED), [STARTED]),
        (update(segment, DELETE_STARTED), [STARTED, FINISHED]),
        (update(segment, DELETE_FINISHED), [STARTED, FINISHED, DELETE_STARTED]),
        (deletion(partition, MARKED), []),
        (deletion(partition, PARTITION_STARTED), [MARKED]),
        (deletion(partition, PARTITION_FINISHED), [MARKED, PARTITION_STARTED]),
    ]


@pytest.mark.parametrize("index", range(7))
@pytest.mark.parametrize("restarts", [False, True])
def test_event_that_only_the_audit_topic_has_is_applied_once(
    world: World, segment: RemoteLogSegmentMetadata, index: int, restarts: bool
) -> None:
    event, before = events_of(segment)[index]
    for state in before:
        if state is STARTED:
            world.add(segment)
        elif isinstance(state, RemoteLogSegmentState):
            world.move(segment, state)
        elif isinstance(state, RemotePartitionDeleteState):
            world.delete(state)
    world.topic.before_append = refuse
    with pytest.raises(RequestTimedOutError):
        world.publish(event)
    world.topic.before_append = None
    if restarts:
        world.start()
    for _ in range(3):
        world.manager.poll()
    states = [(key, state) for key, state in shown(world.topic) if state is not None]
    assert states == shown(world.audit)
    assert len(states) == len(before) + 1


def test_last_event_that_cannot_be_read_stops_nothing(
    world: World, segment: RemoteLogSegmentMetadata
) -> None:
    world.audit.append(0, None, b"garbage", 0)
    world.start()
    world.add(segment)
    assert world.states() == {segment.segment_id.id: STARTED}


def test_tombstones_that_one_batch_does_not_hold_are_counted_and_left(
    world: World, segment: RemoteLogSegmentMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_writer, "_TOMBSTONES_MAX", 0)
    world.add(segment)
    world.move(segment, FINISHED, DELETE_STARTED, DELETE_FINISHED)
    assert world.states() == {}
    assert world.metrics.value(f"{LOST_TOMBSTONES}_total") == 1
    assert shown(world.topic)[-1] == ("0:9:5", "DELETE_SEGMENT_FINISHED")


def test_copy_of_a_segment_that_is_gone_cannot_be_finished(
    world: World, segment: RemoteLogSegmentMetadata
) -> None:
    """The copier would count on the finished copy, and local retention would delete the only other
    one."""
    with pytest.raises(RemoteResourceNotFoundError):
        world.move(segment, FINISHED)
    world.add(segment)
    world.move(segment, DELETE_STARTED)
    with pytest.raises(RemoteResourceNotFoundError):
        world.move(segment, FINISHED)
    world.move(segment, DELETE_FINISHED)
    count = len(world.topic.records())
    world.move(segment, DELETE_STARTED, DELETE_FINISHED)
    assert len(world.topic.records()) == count


@pytest.mark.parametrize("states", [[FINISHED], [FINISHED, DELETE_STARTED]])
def test_start_under_the_key_of_a_copy_that_is_needed_is_refused(
    world: World, segment: RemoteLogSegmentMetadata, states: list[RemoteLogSegmentState]
) -> None:
    world.add(segment)
    other = replace(segment, segment_id=replace(segment.segment_id, id=uuid.UUID(int=99)))
    assert world.manager.predecessor(other) == segment
    world.move(segment, *states)
    with pytest.raises(SegmentKeyTakenError, match="0:9:5"):
        world.add(other)
    assert list(world.states()) == [segment.segment_id.id]


def test_start_takes_the_key_of_a_failed_attempt(
    world: World, segment: RemoteLogSegmentMetadata
) -> None:
    world.add(segment)
    other = replace(segment, segment_id=replace(segment.segment_id, id=uuid.UUID(int=99)))
    world.add(other)
    world.move(other, FINISHED)
    assert world.states() == {other.segment_id.id: FINISHED}


def test_start_over_a_marker_buries_what_the_marker_speaks_for_first(
    world: World, segment: RemoteLogSegmentMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_writer, "_TOMBSTONES_MAX", 0)
    world.add(segment)
    world.move(segment, FINISHED)
    for state in (DELETE_STARTED, DELETE_FINISHED):
        world.manager.update_remote_log_segment_metadata(update(segment, state, epoch=6)).result(0)
    other = replace(
        segment,
        segment_id=replace(segment.segment_id, id=uuid.UUID(int=99)),
        broker_leader_epoch=6,
    )
    world.add(other)
    assert [state is None for _, state in shown(world.topic)[-2:]] == [True, False]
    world.topic.compact()
    world.start()
    assert world.states() == {other.segment_id.id: STARTED}


def test_start_over_a_failed_attempt_leaves_the_copies_of_other_leaders(
    world: World, segment: RemoteLogSegmentMetadata
) -> None:
    """The other leaders' copies end at the same offset, under keys of their own."""
    ids = [replace(segment.segment_id, id=uuid.UUID(int=number)) for number in (98, 99)]
    earlier = replace(segment, segment_id=ids[0], broker_leader_epoch=4)
    world.add(earlier)
    world.move(earlier, FINISHED)
    world.add(segment)
    other = replace(segment, segment_id=ids[1])
    world.add(other)
    assert all(state is not None for _, state in shown(world.topic))
    world.topic.compact()
    world.start()
    assert world.states() == {earlier.segment_id.id: FINISHED, other.segment_id.id: STARTED}


@pytest.mark.parametrize(("epoch", "key"), [(4, "0:9:5"), (5, "0:9:5"), (6, "0:9:6")])
def test_deletion_is_written_under_a_later_leaders_epoch_and_a_finish_is_not(
    world: World, segment: RemoteLogSegmentMetadata, epoch: int, key: str
) -> None:
    world.add(segment)
    for state in (FINISHED, DELETE_STARTED):
        world.publish(update(segment, state, epoch))
    assert [key for key, _ in shown(world.topic)] == ["0:9:5", "0:9:5", key]


def test_segment_is_found_under_its_latest_key_alone(
    world: World, segment: RemoteLogSegmentMetadata
) -> None:
    world.add(segment)
    other = replace(segment, segment_id=replace(segment.segment_id, id=uuid.UUID(int=99)))
    for state in (FINISHED, DELETE_STARTED):
        world.publish(update(segment, state, epoch=6))
    assert world.manager.predecessor(other) is None
    found = world.manager.predecessor(replace(other, broker_leader_epoch=6))
    assert found is not None
    assert found.segment_id == segment.segment_id


def compacted(segment: RemoteLogSegmentMetadata, **changes: object) -> RemoteLogSegmentMetadata:
    """A finished segment with the same offsets and another id, as compaction makes it."""
    other = replace(segment.segment_id, id=uuid.UUID(int=99))
    return replace(segment, segment_id=other, state=FINISHED, **changes)


def test_compacted_segment_takes_the_place_of_the_finished_one(
    world: World, segment: RemoteLogSegmentMetadata
) -> None:
    world.add(segment)
    world.move(segment, FINISHED)
    for _ in ("at first", "once more"):
        world.replace(compacted(segment))
        assert world.states() == {uuid.UUID(int=99): FINISHED}


@pytest.mark.parametrize(
    "changes",
    [
        {"start_offset": 1, "segment_leader_epochs": {0: 1}},
        {"start_offset": 1},
        {"segment_leader_epochs": {0: 0, 1: 4}},
        {"broker_leader_epoch": 6},
        {"end_offset_inclusive": 8},
    ],
    ids=str,
)
def test_compacted_segment_that_differs_takes_no_place(
    world: World, segment: RemoteLogSegmentMetadata, changes: dict[str, object]
) -> None:
    world.add(segment)
    with pytest.raises(RemoteResourceNotFoundError, match="take the place"):
        world.replace(compacted(segment))
    world.move(segment, FINISHED)
    with pytest.raises(RemoteResourceNotFoundError, match="take the place"):
        world.replace(compacted(segment, **changes))
    world.move(segment, DELETE_STARTED)
    with pytest.raises(RemoteResourceNotFoundError, match="take the place"):
        world.replace(compacted(segment))
    assert world.states() == {segment.segment_id.id: DELETE_STARTED}


def test_deletion_of_a_partition_does_not_go_back(
    world: World, segment: RemoteLogSegmentMetadata
) -> None:
    world.add(segment)
    world.delete(MARKED, PARTITION_STARTED, MARKED)
    assert [state for key, state in shown(world.topic) if key == "0"] == [
        "DELETE_PARTITION_MARKED",
        "DELETE_PARTITION_STARTED",
    ]
    assert world.manager.is_ready(world.partition)
    world.delete(PARTITION_FINISHED)
    assert shown(world.topic)[-1] == ("0:9:5", None)
    world.topic.compact()
    world.start()
    assert world.manager.is_ready(world.partition)
    with pytest.raises(RemoteResourceNotFoundError):
        world.states()


def garbage(segment: RemoteLogSegmentMetadata) -> dict[str, tuple[bytes | None, bytes | None]]:
    """Keys and values of records without a valid meaning."""
    partition = segment.topic_id_partition
    key = segment_key(partition, segment.end_offset_inclusive, 5).encode()
    state = encode_keyed_event(replace(segment, state=DELETE_STARTED))
    return {
        "nothing": (None, None),
        "key": (b"\xff\x00", state),
        "key of a tombstone": (b"not:a:key", None),
        "empty value": (key, b""),
        "frame version": (key, b"\x02" + state[1:]),
        "api key": (key, state[:1] + b"\x09" + state[2:]),
        "version": (key, state[:2] + b"\x07" + state[3:]),
        "cut short": (key, state[:-3]),
        "too long": (key, state + b"\x00"),
        "update": (key, encode_keyed_event(update(segment, DELETE_STARTED))),
        "other end": (segment_key(partition, 10, 5).encode(), state),
        "other epoch": (segment_key(partition, 9, 6).encode(), state),
        "segment under the partition's key": (partition_key(partition).encode(), state),
        "partition under a segment's key": (
            key,
            encode_keyed_event(deletion(partition, PARTITION_FINISHED)),
        ),
    }


KINDS = [
    "nothing",
    "key",
    "key of a tombstone",
    "empty value",
    "frame version",
    "api key",
    "version",
    "cut short",
    "too long",
    "update",
    "other end",
    "other epoch",
    "segment under the partition's key",
    "partition under a segment's key",
]


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_record_is_named_and_refused(
    world: World, segment: RemoteLogSegmentMetadata, kind: str
) -> None:
    world.add(segment)
    world.topic.append(0, *garbage(segment)[kind], 0)
    world.manager.poll()
    with pytest.raises(CorruptMetadataError, match="partition=0 offset=1"):
        world.states()
    with pytest.raises(CorruptMetadataError, match="partition=0 offset=1"):
        world.move(segment, FINISHED)
    assert not world.manager.is_ready(world.partition)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("restarts", [False, True])
def test_damaged_record_is_passed_over_whole_by_the_policy_skip(
    world: World, segment: RemoteLogSegmentMetadata, kind: str, restarts: bool
) -> None:
    world.start(remote_log_metadata_corrupt_record_policy="skip")
    world.add(segment)
    world.topic.append(0, *garbage(segment)[kind], 0)
    if restarts:
        world.start(remote_log_metadata_corrupt_record_policy="skip")
    world.manager.poll()
    assert world.metrics.value(f"{SKIPPED_RECORDS}_total") == 1
    assert world.states() == {segment.segment_id.id: STARTED}
    world.move(segment, FINISHED)
    assert world.states() == {segment.segment_id.id: FINISHED}


def test_writers_in_many_threads_leave_one_record_per_key(
    world: World, make_segment: MakeSegment
) -> None:
    made = [make_segment(10 * number, 10 * number + 9) for number in range(40)]

    def live(segment: RemoteLogSegmentMetadata) -> None:
        world.manager.add_remote_log_segment_metadata(segment).result(300)
        world.manager.update_remote_log_segment_metadata(update(segment, FINISHED)).result(300)

    world.manager.start()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(live, made))
    world.manager.close()
    assert world.states() == {each.segment_id.id: FINISHED for each in made}
    assert len(world.audit.records()) == len(world.topic.records()) == 80
    world.topic.compact()
    assert len(world.topic.records()) == 40
