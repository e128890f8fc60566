"""What the cleanup manager finds in a compacted topic. It deletes objects before keys."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import pytest

from isotherm.errors import RemoteStorageError
from isotherm.metrics.registry import Metrics
from isotherm.remote.metadata.topic.keyed_writes import key_of
from isotherm.remote.metadata.topic_based_settings import TopicBasedSettings
from isotherm.remote.metadata.wire.keys import MetadataKey, partition_key
from isotherm.remote.metadata.wire.serde import KeyedEvent, encode_keyed_event
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from isotherm.remote.tasks.cleanup import (
    CLEANED,
    CLEANUP_ERRORS,
    CleanupPlan,
    LeftOver,
    RemoteMetadataCleanupManager,
    SegmentCheck,
    plan_cleanup,
    read_keyed_contents,
)
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicIdPartition
from tests.support.memory_metadata_topic import MemoryMetadataTopic

PARTITION = TopicIdPartition(uuid.UUID(int=1), "flights", 0)
GONE = TopicIdPartition(uuid.UUID(int=2), "gone", 0)
STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
NOW_MS, GRACE_MS = 1_000_000, 1000
OLD_MS = NOW_MS - GRACE_MS - 1


def segment(
    number: int,
    state: RemoteLogSegmentState,
    *,
    epoch: int = 3,
    start: int = 0,
    end: int = 9,
    at_ms: int = OLD_MS,
    partition: TopicIdPartition = PARTITION,
) -> RemoteLogSegmentMetadata:
    """A segment of ten offsets in a state that is older than the grace period."""
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(partition, uuid.UUID(int=number)),
        start_offset=start,
        end_offset_inclusive=end,
        max_timestamp_ms=0,
        broker_id=0,
        event_timestamp_ms=at_ms,
        segment_size_in_bytes=10,
        segment_leader_epochs={0: start},
        state=state,
        broker_leader_epoch=epoch,
    )


def deletion(
    state: RemotePartitionDeleteState, partition: TopicIdPartition = PARTITION
) -> RemotePartitionDeleteMetadata:
    return RemotePartitionDeleteMetadata(
        topic_id_partition=partition, state=state, event_timestamp_ms=OLD_MS, broker_id=0
    )


def topic_of(
    *states: RemoteLogSegmentMetadata | RemotePartitionDeleteMetadata,
) -> MemoryMetadataTopic:
    topic = MemoryMetadataTopic(1)
    for state in states:
        put(topic, state)
    return topic


def put(topic: MemoryMetadataTopic, state: KeyedEvent) -> None:
    key: MetadataKey
    if isinstance(state, RemoteLogSegmentMetadata):
        key = key_of(state)
    else:
        assert isinstance(state, RemotePartitionDeleteMetadata)
        key = partition_key(state.topic_id_partition)
    topic.append(0, key.encode(), encode_keyed_event(state), OLD_MS)


def plan(
    topic: MemoryMetadataTopic, in_progress: Collection[RemoteLogSegmentId] = ()
) -> CleanupPlan:
    return plan_cleanup(
        read_keyed_contents(topic, 0),
        exists=lambda partition: partition != GONE,
        in_progress=in_progress,
        settled_before_ms=NOW_MS - GRACE_MS,
    )


def test_what_is_in_order_is_let_be() -> None:
    topic = topic_of(
        segment(1, FINISHED), segment(2, FINISHED, start=10, end=19), segment(3, STARTED, end=29)
    )
    in_progress = {segment(3, STARTED).segment_id}
    assert plan(topic, in_progress) == CleanupPlan()


@pytest.mark.parametrize(
    ("state", "reason"),
    [(STARTED, LeftOver.ABANDONED_UPLOAD), (DELETE_STARTED, LeftOver.ABANDONED_DELETION)],
)
def test_what_stands_still_is_deleted_once_it_has_stood_for_the_grace(
    state: RemoteLogSegmentState, reason: LeftOver
) -> None:
    old = segment(1, state)
    assert plan(topic_of(old)).segments == ((old, reason),)
    assert plan(topic_of(old), {old.segment_id}).segments == ()
    assert plan(topic_of(replace(old, event_timestamp_ms=OLD_MS + 1))).segments == ()


def test_upload_that_a_later_leader_repeated_is_deleted() -> None:
    first, second = segment(1, FINISHED, epoch=3), segment(2, FINISHED, epoch=4)
    assert plan(topic_of(second, first)).segments == ((first, LeftOver.SUPERSEDED),)
    part = replace(first, start_offset=5, segment_leader_epochs={0: 5})
    assert plan(topic_of(second, part)).segments == ((part, LeftOver.SUPERSEDED),)


@pytest.mark.parametrize(
    "second",
    [
        segment(2, STARTED, epoch=4, at_ms=NOW_MS),
        segment(2, FINISHED, epoch=4, at_ms=NOW_MS),
        segment(2, FINISHED, epoch=4, end=19),
        segment(2, FINISHED, epoch=4, start=5),
        segment(2, FINISHED, epoch=3, end=8),
    ],
)
def test_upload_that_is_not_covered_for_certain_is_kept(second: RemoteLogSegmentMetadata) -> None:
    assert plan(topic_of(segment(1, FINISHED), second)).segments == ()


@pytest.mark.parametrize(
    ("first", "second", "is_superseded"),
    [
        ({1: 0}, {1: 0}, True),
        ({1: 0, 2: 5}, {1: 0, 2: 5}, True),
        ({1: 0, 2: 5}, {1: 0, 2: 4}, False),
        ({1: 0, 2: 5}, {1: 0, 2: 6}, False),
        ({1: 0, 2: 5}, {1: 0, 3: 5}, False),
        ({1: 0}, {1: 0, 2: 5}, False),
        ({2: 5}, {1: 0, 2: 5}, True),
        ({1: 0}, {1: 5}, False),
    ],
)
def test_upload_is_deleted_only_if_the_later_one_has_its_records_of_each_epoch(
    first: dict[int, int], second: dict[int, int], is_superseded: bool
) -> None:
    """After an unclean election the log may go on with the earlier leader's records again: those of
    the later one, from offset 5 on in {1: 0, 2: 5}, have no place in {1: 0, 3: 10}."""
    earlier = replace(segment(1, FINISHED, epoch=3), segment_leader_epochs=first)
    later = replace(segment(2, FINISHED, epoch=4), segment_leader_epochs=second)
    expected = ((earlier, LeftOver.SUPERSEDED),) if is_superseded else ()
    assert plan(topic_of(earlier, later)).segments == expected


def test_every_key_of_a_deleted_segment_gets_its_tombstone_the_last_one_last() -> None:
    topic = topic_of(
        segment(1, FINISHED, epoch=3),
        segment(1, DELETE_STARTED, epoch=6),
        segment(1, DELETE_FINISHED, epoch=6),
    )
    assert [str(key) for key in plan(topic).tombstones] == [
        "AAAAAAAAAAAAAAAAAAAAAQ:0:9:3",
        "AAAAAAAAAAAAAAAAAAAAAQ:0:9:6",
    ]
    topic.append(0, key_of(segment(1, FINISHED, epoch=3)).encode(), None, 0)
    assert len(plan(topic).tombstones) == 1
    topic.compact()
    assert len(plan(topic).tombstones) == 1


def test_late_record_of_a_deposed_leader_revives_nothing() -> None:
    topic = topic_of(segment(1, DELETE_FINISHED, epoch=6), segment(1, FINISHED, epoch=3))
    assert len(plan(topic).tombstones) == 2
    assert plan(topic).segments == ()


def test_keys_of_a_partition_whose_deletion_is_finished_get_tombstones_but_its_own() -> None:
    finished = deletion(RemotePartitionDeleteState.DELETE_PARTITION_FINISHED, GONE)
    topic = topic_of(segment(1, DELETE_STARTED, partition=GONE), finished)
    made = plan(topic)
    assert [str(key) for key in made.tombstones] == ["AAAAAAAAAAAAAAAAAAAAAg:0:9:3"]
    assert made.partitions == ()


def test_deletion_of_a_partition_that_stands_still_goes_on() -> None:
    begun = deletion(RemotePartitionDeleteState.DELETE_PARTITION_STARTED, GONE)
    made = plan(topic_of(segment(1, FINISHED, partition=GONE, at_ms=NOW_MS), begun))
    assert made.partitions == (GONE,)
    assert (made.segments, made.unknown) == ((), ())


@pytest.mark.parametrize("state", [STARTED, FINISHED, DELETE_STARTED])
def test_segments_of_a_topic_that_is_not_known_are_left_alone(
    state: RemoteLogSegmentState, caplog: pytest.LogCaptureFixture
) -> None:
    """A cluster that lost its own metadata knows none of its topics. Nothing may be deleted
    then."""
    topic = topic_of(segment(1, state, partition=GONE))
    made = plan(topic)
    assert made == CleanupPlan(unknown=(GONE,))
    target = Target(topic)
    manager_of(topic, target).run()
    assert (target.deleted, target.partitions) == ([], [])
    assert f"kept partition={GONE}" in caplog.text


def test_records_that_cannot_be_understood_and_events_without_keys_are_left_out() -> None:
    sound = [segment(number, FINISHED, end=number) for number in (11, 12, 13, 14)]
    topic = topic_of(sound[0])
    topic.append(0, b"garbage", b"\x00", 0)
    put(topic, sound[1])
    topic.append(0, None, encode_keyed_event(segment(2, STARTED)), 0)
    put(topic, sound[2])
    topic.append(0, key_of(segment(3, STARTED)).encode(), b"\x01\x07\x00", 0)
    put(topic, sound[3])
    assert list(read_keyed_contents(topic, 0).newest) == [each.segment_id for each in sound]


class Target:
    """A deletion target that records what is deleted."""

    def __init__(self, topic: MemoryMetadataTopic) -> None:
        self.topic = topic
        self.deleted: list[RemoteLogSegmentMetadata] = []
        self.partitions: list[TopicIdPartition] = []
        self.copying: set[RemoteLogSegmentId] = set()
        self.is_down = False
        self.keeps = True
        self.on_lock = lambda: None
        self.now: Callable[
            [RemoteLogSegmentMetadata],
            tuple[RemoteLogSegmentMetadata, list[RemoteLogSegmentMetadata]],
        ] = self._as_stored

    def _as_stored(
        self, metadata: RemoteLogSegmentMetadata
    ) -> tuple[RemoteLogSegmentMetadata, list[RemoteLogSegmentMetadata]]:
        return metadata, list(read_keyed_contents(self.topic, 0).newest.values())

    def exists(self, partition: TopicIdPartition) -> bool:
        return partition != GONE

    def is_keyed(self, number: int) -> bool:
        return number == 0

    @contextmanager
    def is_only_writer(self) -> bool:
        return True

    @contextmanager
    def settled(self, _: int) -> Iterator[None]:
        self.on_lock()
        yield

    def watch_copies(self) -> AbstractContextManager[Collection[RemoteLogSegmentId]]:
        return nullcontext(self.copying)

    def is_keeper(self, number: int) -> bool:
        return self.keeps

    def can_delete(self, partition: TopicIdPartition) -> bool:
        return partition == PARTITION

    def delete_segment(self, metadata: RemoteLogSegmentMetadata, still_due: SegmentCheck) -> bool:
        if self.is_down:
            raise RemoteStorageError("injected")
        current, live = self.now(metadata)
        if not still_due(current, live):
            return False
        self.deleted.append(metadata)
        return True

    def delete_partition(self, partition: TopicIdPartition) -> None:
        self.partitions.append(partition)


def manager_of(
    topic: MemoryMetadataTopic, target: Target, metrics: Metrics | None = None
) -> RemoteMetadataCleanupManager:
    return RemoteMetadataCleanupManager(
        topic,
        target,
        TopicBasedSettings(remote_log_metadata_cleanup_grace_ms=GRACE_MS),
        clock=SimClock(NOW_MS),
        metrics=metrics or Metrics(),
    )


def cleaned(metrics: Metrics, reason: LeftOver) -> float:
    return metrics.value(f"{CLEANED}_total", reason=reason.value)


def test_run_deletes_segments_and_partitions_and_writes_tombstones() -> None:
    left = segment(1, STARTED)
    topic = topic_of(
        left,
        segment(2, DELETE_FINISHED, end=19),
        deletion(RemotePartitionDeleteState.DELETE_PARTITION_STARTED, GONE),
    )
    target, metrics = Target(topic), Metrics()
    manager_of(topic, target, metrics).run()
    assert target.deleted == [left]
    assert target.partitions == [GONE]
    assert {reason: cleaned(metrics, reason) for reason in LeftOver} == {
        **dict.fromkeys(LeftOver, 0),
        LeftOver.ABANDONED_UPLOAD: 1,
        LeftOver.PARTITION_DELETION: 1,
        LeftOver.LOST_TOMBSTONE: 1,
    }
    last = topic.records()[-1]
    assert (last.key, last.value) == (key_of(segment(2, FINISHED, end=19)).encode(), None)


def test_key_that_is_written_to_meanwhile_keeps_its_record() -> None:
    """A retry may write to the key between the look and the tombstone."""
    topic = topic_of(segment(1, DELETE_FINISHED))
    target = Target(topic)
    target.on_lock = lambda: put(topic, segment(2, STARTED))
    manager_of(topic, target).run()
    assert all(record.value is not None for record in topic.records())


def test_failed_deletion_is_counted_and_the_others_go_on() -> None:
    topic = topic_of(segment(1, STARTED), segment(2, DELETE_FINISHED, end=19))
    target, metrics = Target(topic), Metrics()
    target.is_down = True
    manager_of(topic, target, metrics).run()
    assert metrics.value(f"{CLEANUP_ERRORS}_total") == 1
    assert topic.records()[-1].value is None


def test_cancelled_manager_begins_nothing() -> None:
    topic = topic_of(segment(1, STARTED))
    target = Target(topic)
    manager = manager_of(topic, target)
    manager.cancel()
    assert manager.run() == []
    assert target.deleted == []


@pytest.mark.parametrize(
    ("decided", "now", "live"),
    [
        pytest.param(STARTED, [segment(1, FINISHED)], [], id="an upload that was finished"),
        pytest.param(
            STARTED, [segment(1, STARTED, at_ms=NOW_MS)], [], id="an upload that has begun again"
        ),
        pytest.param(FINISHED, [segment(1, FINISHED)], [], id="the upload that covered it is gone"),
        pytest.param(
            FINISHED,
            [segment(1, FINISHED)],
            [segment(2, DELETE_STARTED, epoch=4)],
            id="the upload that covered it is being deleted",
        ),
    ],
)
def test_left_over_that_has_changed_since_it_was_found_is_let_be(
    decided: RemoteLogSegmentState,
    now: list[RemoteLogSegmentMetadata],
    live: list[RemoteLogSegmentMetadata],
) -> None:
    topic = topic_of(segment(1, decided), segment(2, FINISHED, epoch=4))
    target = Target(topic)
    (plan,) = manager_of(topic, target).run()
    assert [each.metadata for each in plan.segments] == [segment(1, decided)]
    assert target.deleted == [segment(1, decided)]
    target.deleted.clear()
    target.now = lambda _: (now[0], now + live)
    metrics = Metrics()
    manager_of(topic, target, metrics).run()
    assert target.deleted == []
    assert [cleaned(metrics, reason) for reason in LeftOver] == [0] * len(LeftOver)
