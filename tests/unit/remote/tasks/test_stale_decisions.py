"""A decision is checked again before anything is deleted, and of two copies one always stays."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from isotherm.errors import (
    EventOvertakenError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RemoteStorageNotReadyError,
    SegmentKeyTakenError,
)
from isotherm.remote.metadata.exclusive import LockedMetadata
from isotherm.remote.metadata.topic.event_writer import LastAudited, MetadataEventWriter
from isotherm.remote.metadata.wire.serde import decode_event
from isotherm.remote.segment_metadata import (
    IndexType,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.remote.tasks import partition_deletion
from isotherm.remote.tasks.partition_deletion import delete_remote_partition
from isotherm.remote.tasks.tier import DECISIONS_MAX
from tests.support.memory_metadata_topic import MemoryMetadataTopic
from tests.support.metadata_scenarios import Leader, Stage
from tests.support.tiered_partition import TieredPartition

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED


@pytest.fixture(params=[0, 1], ids=["level-0", "level-1"])
def tiered(request: pytest.FixtureRequest, tmp_path: Path) -> TieredPartition:
    made = TieredPartition(tmp_path / "broker", metadata_level=request.param)
    for number in range(22):
        made.append(b"record-%02d" % number)
        made.clock.advance(1000)
    return made


@pytest.fixture
def copied(tiered: TieredPartition) -> TieredPartition:
    tiered.copy_task.run()
    assert len(tiered.segments()) >= 4
    return tiered


class PowerOff(BaseException):
    """The process ends here. A BaseException, so that no handler of errors catches it."""


def cut_off(state: RemoteLogSegmentState) -> Callable[[int, bytes | None], None]:
    """A hook that ends the process at the first append of a record with this state."""

    def before_append(_: int, value: bytes | None) -> None:
        event = decode_event(value) if value else None
        if isinstance(event, RemoteLogSegmentMetadata) and event.state is state:
            raise PowerOff

    return before_append


@pytest.fixture
def cut_in_two(tmp_path: Path) -> TieredPartition:
    """A broker whose crash left an interrupted event: the audit topic has the FINISHED of the first
    copy, the metadata topic does not."""
    made = TieredPartition(tmp_path / "broker", metadata_level=1)
    for number in range(22):
        made.append(b"record-%02d" % number)
    made.metadata_topic.before_append = cut_off(FINISHED)
    with pytest.raises(PowerOff):
        made.copy_task.run()
    made.metadata_topic.before_append = None
    return made


def test_metadata_is_not_ready_before_the_event_that_was_cut_in_two_is_applied(
    cut_in_two: TieredPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    last_audited = MetadataEventWriter.last_audited

    def watched(self: MetadataEventWriter, number: int) -> LastAudited:
        seen.append(cut_in_two.metadata.is_ready(cut_in_two.partition))
        assert cut_in_two.expiration_task.run() == []
        return last_audited(self, number)

    monkeypatch.setattr(MetadataEventWriter, "last_audited", watched)
    cut_in_two.restart()
    assert seen == [False, False]  # applied, then read back
    assert cut_in_two.metadata.is_ready(cut_in_two.partition)
    (segment,) = cut_in_two.segments()
    assert segment.state is FINISHED


def test_segment_finished_after_its_deletion_was_planned_stays(
    cut_in_two: TieredPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of events that once lost acknowledged records. The plan took the copy for dangling;
    the event was applied; local retention deleted the local segment; the plan deleted the remote
    one."""
    with cut_in_two.tier.copies.watch() as copying:
        (active,) = copying
    cut_in_two.tier.copies.end(active)
    (stale,) = cut_in_two.metadata._store.get(cut_in_two.partition).segments()
    assert stale.state is STARTED
    cut_in_two.restart()
    tier = cut_in_two.tier
    listed = tier.metadata.list_remote_log_segments

    def plan_then_apply(*_: object) -> list[RemoteLogSegmentMetadata]:
        monkeypatch.setattr(tier.metadata, "list_remote_log_segments", listed)
        cut_in_two.copy_task.run()
        cut_in_two.delete_local_segments()
        return [stale]

    before = cut_in_two.log.local_log_start_offset
    monkeypatch.setattr(tier.metadata, "list_remote_log_segments", plan_then_apply)
    assert cut_in_two.expiration_task.run() == []
    assert cut_in_two.log.local_log_start_offset > before
    assert cut_in_two.read_all() == {n: b"record-%02d" % n for n in range(22)}


def test_event_that_was_cut_in_two_is_applied_before_the_next_one(tmp_path: Path) -> None:
    """The interrupted event is of a partition that is no longer followed. A later event in the
    audit topic would hide it."""
    topic, audit = MemoryMetadataTopic(1), MemoryMetadataTopic(1)
    first = TieredPartition(tmp_path / "first", metadata_level=1)
    first.damage_declared = "two buckets, one metadata topic"
    first.metadata_topic, first.audit_topic = topic, audit
    first._open()
    for number in range(12):
        first.append(b"record-%02d" % number)
    topic.before_append = cut_off(FINISHED)
    with pytest.raises(PowerOff):
        first.copy_task.run()
    topic.before_append = None
    second = TieredPartition(tmp_path / "second", metadata_level=1)
    second.damage_declared = first.damage_declared
    second.partition = second.partition._replace(partition=1)
    second.metadata_topic, second.audit_topic = topic, audit
    second._open()
    second.append(b"of another partition")
    second.log.roll()
    second.copy_task.run()
    first.restart()
    assert first.segments()[0].state is FINISHED


def test_write_that_failed_keeps_the_metadata_from_being_ready(
    tmp_path: Path,
) -> None:
    made = TieredPartition(tmp_path / "broker", metadata_level=1)
    for number in range(12):
        made.append(b"record-%02d" % number)

    def refuse(_: int, value: bytes | None) -> None:
        event = decode_event(value) if value else None
        if isinstance(event, RemoteLogSegmentMetadata) and event.state is FINISHED:
            raise RemoteStorageError("injected")

    made.metadata_topic.before_append = refuse
    with pytest.raises(RemoteStorageError):
        made.copy_task.run()
    made.copy_task.release()
    assert not made.metadata.is_ready(made.partition)
    assert made.expiration_task.run() == []
    with pytest.raises(RemoteStorageError), made.metadata.exclusively(made.partition):
        raise AssertionError("the metadata is not whole")
    made.metadata_topic.before_append = None
    made.metadata.poll()
    assert made.metadata.is_ready(made.partition)
    assert made.segments()[0].state is FINISHED


@pytest.mark.parametrize("decided", [STARTED, DELETE_STARTED])
def test_deletion_decided_on_another_state_is_dropped(
    copied: TieredPartition, decided: RemoteLogSegmentState
) -> None:
    segment, objects = copied.segments()[0], copied.objects()
    assert not copied.tier.delete_segment(replace(segment, state=decided))
    assert copied.objects() == objects
    assert copied.segments()[0] == segment


def test_deletion_that_is_not_due_any_more_is_dropped(copied: TieredPartition) -> None:
    asked: list[RemoteLogSegmentMetadata] = []

    def not_due(current: RemoteLogSegmentMetadata) -> bool:
        asked.append(current)
        return False

    segment = copied.segments()[0]
    assert not copied.tier.delete_segment(segment, not_due)
    assert asked == [segment] == copied.segments()[:1]


def test_deletion_of_a_segment_that_is_gone_is_dropped(copied: TieredPartition) -> None:
    segment = copied.segments()[0]
    assert copied.tier.delete_segment(segment)
    assert not copied.tier.delete_segment(segment)


def test_expiration_deletes_nothing_once_it_is_cancelled(
    copied: TieredPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied.update_config(retention_ms=0)
    copied.clock.advance(1000)
    update_of = type(copied.tier).update_of

    def cancel_first(*arguments: object, **names: object) -> object:
        copied.expiration_task.cancel()
        return update_of(*arguments, **names)

    monkeypatch.setattr(type(copied.tier), "update_of", cancel_first)
    objects = copied.objects()
    assert copied.expiration_task.run() == []
    assert copied.objects() == objects


def test_expiration_by_a_retention_that_has_changed_is_planned_anew(
    copied: TieredPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied.update_config(retention_ms=0)
    copied.clock.advance(1000)
    plan = copied.expiration_task._state

    def change_after() -> object:
        state = plan()
        copied.update_config(retention_ms=-1)
        return state

    monkeypatch.setattr(copied.expiration_task, "_state", change_after)
    assert copied.expiration_task.run() == []
    assert copied.log.log_start_offset == 0


def test_local_segment_stays_while_its_remote_copy_is_being_deleted(
    copied: TieredPartition,
) -> None:
    second = copied.segments()[1]
    started = copied.tier.update_of(second, DELETE_STARTED, None)
    copied.tier.publish(started)
    copied.delete_local_segments()
    assert copied.log.local_log_start_offset == second.start_offset
    assert copied.log.highest_offset_in_remote_storage > second.end_offset_inclusive


def test_local_segments_stay_while_it_is_not_known_what_the_remote_tier_holds(
    copied: TieredPartition, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    copied.metadata.on_stop_partitions([copied.partition])
    copied.delete_local_segments()
    assert copied.log.local_log_start_offset == 0
    assert "local segments are kept" in caplog.text
    copied.metadata.on_partition_leadership_changes([copied.partition], ())
    copied.delete_local_segments()
    assert copied.log.local_log_start_offset > 0


def test_local_segment_stays_when_the_copy_has_other_epochs(tiered: TieredPartition) -> None:
    """A deposed leader's copy of the same offsets has other records."""
    tiered.copy_task.run()
    tiered.log.leader_epochs.truncate_from_start(0)
    first = tiered.segments()[0]
    tiered.leader_epoch = 5
    entries = tiered.log.leader_epochs
    entries.truncate_from_end(first.start_offset + 1)
    entries.assign(5, first.start_offset + 1)
    tiered.delete_local_segments()
    assert tiered.log.local_log_start_offset == 0


def test_local_segment_goes_where_the_copy_of_its_epoch_goes_on_beyond_it(
    tiered: TieredPartition,
) -> None:
    """The new leader's log was truncated within a copied segment. Both have the same records of the
    epoch up to there."""
    tiered.copy_task.run()
    first, second, *_ = tiered.segments()
    cut = second.start_offset + 1
    tiered.log.truncate_to(cut)
    tiered.leader_epoch = 5
    tiered.log.leader_epochs.assign(5, cut)
    tiered.log.roll()
    tiered.append(b"of the new epoch")
    tiered.delete_local_segments()
    assert tiered.log.local_log_start_offset == cut
    assert tiered.read_values(first.start_offset)[0] == b"record-00"


def test_segment_that_two_delete_at_once_is_no_error(
    copied: TieredPartition, caplog: pytest.LogCaptureFixture
) -> None:
    segment = copied.segments()[0]
    copied.tier.delete_segment(segment)
    caplog.clear()
    gone = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
    copied.tier.publish(copied.tier.update_of(segment, gone, None))
    assert [record.levelname for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_finished_copy_makes_way_only_for_one_that_is_still_local(
    copied: TieredPartition,
) -> None:
    if copied.metadata_level == 0:
        pytest.skip("at level 0 every attempt has a place of its own")
    first, second, *_ = copied.segments()
    again = replace(second, segment_id=copied.tier.new_segment_id(copied.partition), state=STARTED)
    copied.delete_local_segments()
    with pytest.raises(RemoteStorageNotReadyError, match="cannot be replaced"):
        copied.tier.make_way_for(again, copied.copy_task._may_make_way)
    assert copied.segments()[:2] == [first, second]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def test_copy_that_another_leader_makes_way_for_is_not_finished(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deposed leader reads the new leader's epoch in the cluster's metadata before it learns that
    it leads no more. So its copy has the key of the new leader's."""
    leader, deposed = Leader(stage, 102, 4), Leader(stage, 101, 4)
    copied = leader.start("UUID-A", 1000)
    delete = stage.storage.delete_log_segment_data

    def finish_first(metadata: RemoteLogSegmentMetadata) -> None:
        with suppress(RemoteResourceNotFoundError):
            leader.finish(copied)
        delete(metadata)

    monkeypatch.setattr(stage.storage, "delete_log_segment_data", finish_first)
    with suppress(SegmentKeyTakenError):
        deposed.finish(deposed.start("UUID-B", 1000))
    stage.check_agreement(leader)
    (segment,) = leader.segments()
    assert (segment.broker_id, segment.state) == (101, FINISHED)


def test_deletion_of_an_unfinished_attempt_goes_on_at_the_next_copy(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = Leader(stage, 101, 4)
    leader.start("UUID-A", 1000)

    def fail(_: RemoteLogSegmentMetadata) -> None:
        raise RemoteStorageError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(stage.storage, "delete_log_segment_data", fail)
        with pytest.raises(RemoteStorageError, match="injected"):
            leader.start("UUID-B", 1000)
    assert [segment.state for segment in leader.segments()] == [DELETE_STARTED]
    leader = Leader(stage, 101, 4)  # after a crash
    # `still_local` is for finished attempts: this one has no readers.
    again = leader.start("UUID-C", 1000, still_local=lambda _: False)
    leader.finish(again)
    assert [segment.segment_id for segment in leader.segments()] == [again.segment_id]
    stage.check_agreement(leader)


def test_copy_of_a_deleted_segment_is_not_finished(copied: TieredPartition) -> None:
    segment = copied.segments()[0]
    copied.tier.delete_segment(segment)
    with pytest.raises(RemoteResourceNotFoundError, match="deleted or being deleted"):
        copied.tier.publish(copied.tier.update_of(segment, FINISHED, None))


def test_partition_with_a_segment_left_is_not_forgotten(
    copied: TieredPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied.topic_exists = False
    monkeypatch.setattr(partition_deletion, "_delete_segments", lambda *_: 0)
    with pytest.raises(RemoteStorageNotReadyError, match="segments were added"):
        delete_remote_partition(copied.tier, copied.partition)
    monkeypatch.undo()
    assert delete_remote_partition(copied.tier, copied.partition) >= 4


def test_segments_of_a_partition_that_is_tiered_again_are_kept(copied: TieredPartition) -> None:
    """Another broker may lead it and have copied them, while this one was down or could not
    delete.
    """
    first, *others = copied.segments()
    copied.tier.publish(copied.tier.update_of(first, DELETE_STARTED, None))
    copied.tiered_again = True
    assert delete_remote_partition(copied.tier, copied.partition) == 1
    assert copied.segments() == others
    assert all(copied.store.fetch_index(other, IndexType.OFFSET) for other in others)


def test_segments_of_a_partition_that_is_tiered_again_amid_its_deletion_are_kept(
    copied: TieredPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the segments was listed before, and its events take long. Meanwhile the leader's
    local retention relies on the copies."""
    _, second, *_ = segments = copied.segments()
    copied.log.maybe_increment_log_start_offset(second.start_offset)
    update = copied.metadata.update_remote_log_segment_metadata

    def tier_again_after(event: RemoteLogSegmentMetadataUpdate) -> Future[None]:
        stored = update(event)
        if not copied.tiered_again:
            copied.tiered_again = True
            copied.delete_local_segments()
        return stored

    monkeypatch.setattr(copied.metadata, "update_remote_log_segment_metadata", tier_again_after)
    count = delete_remote_partition(copied.tier, copied.partition)
    assert copied.log.local_log_start_offset > second.end_offset_inclusive
    expected = range(second.start_offset, copied.log.log_end_offset)
    assert copied.read_all() == {n: b"record-%02d" % n for n in expected}
    assert (count, copied.segments()) == (1, segments[1:])


def test_segment_that_is_finished_after_it_was_listed_stays(
    copied: TieredPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = copied.segments()
    listed = copied.metadata.list_remote_log_segments
    stale = [replace(first, state=STARTED), *others]
    monkeypatch.setattr(copied.metadata, "list_remote_log_segments", lambda *_: stale)
    assert delete_remote_partition(copied.tier, copied.partition) == len(others)
    assert listed(copied.partition) == [first]


def test_log_start_is_not_taken_from_a_segment_that_is_being_deleted(
    copied: TieredPartition,
) -> None:
    """Retention had raised the log start, and a crash reset it."""
    first, second, *_ = copied.segments()
    copied.delete_local_segments()
    copied.tier.publish(copied.tier.update_of(first, DELETE_STARTED, None))
    copied.restart()
    copied.copy_task.run()
    assert copied.log.log_start_offset == second.start_offset


def test_manager_of_ones_own_gets_locks_around_it(copied: TieredPartition) -> None:
    locked = LockedMetadata(copied.metadata)
    tier = replace(copied.tier, exclusive=locked)
    first, second, *_ = copied.segments()
    assert not tier.delete_segment(replace(first, state=STARTED))
    assert tier.delete_segment(first)
    assert copied.segments()[0] == second
    copied.metadata.on_stop_partitions([copied.partition])
    with pytest.raises(RemoteStorageNotReadyError):
        tier.delete_segment(second)


def test_remote_copies_of_a_log_end_where_the_last_copy_ends(tiered: TieredPartition) -> None:
    """If it were one offset higher, retention would delete a record that only this broker has."""
    tiered.copy_task.run()
    copies, end = tiered.log.remote_copies, tiered.log.highest_offset_in_remote_storage + 1
    assert 0 < end < tiered.log.log_end_offset
    with copies.held(0, tiered.log.log_end_offset) as held_to:
        assert held_to == end


@pytest.mark.parametrize("overtaken", [0, 1, DECISIONS_MAX - 1, DECISIONS_MAX])
def test_decision_that_another_broker_overtook_is_made_anew(
    tiered: TieredPartition, overtaken: int
) -> None:
    made = 0

    def decide() -> str:
        nonlocal made
        made += 1
        if made <= overtaken:
            raise EventOvertakenError("injected")
        return "decided"

    if overtaken < DECISIONS_MAX:
        assert tiered.tier.decided(tiered.partition, decide) == "decided"
        assert made == overtaken + 1
        return
    with pytest.raises(EventOvertakenError):
        tiered.tier.decided(tiered.partition, decide)
    assert made == DECISIONS_MAX
