"""Each rule of deletion, apart from the act that asks it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import pytest

from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.remote.tasks.deletion_rules import (
    FAILED_COPY_STATES,
    GONE_STATES,
    UNFINISHED_DELETION_STATES,
    is_abandoned,
    is_as_decided,
    is_before_log_start,
    is_below_log_start,
    is_dangling,
    is_deletion_begun,
    is_garbage_of_partition,
    is_given_up,
    is_kept_long_enough,
    is_partition_gone,
    is_replaced,
    is_run_abandoned,
    is_superseded,
    is_unreferenced,
    may_be_replaced,
    may_make_way,
)
from isotherm.segment.leader_epoch_checkpoint import EpochEntry
from isotherm.types import TopicIdPartition

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
PARTITION = TopicIdPartition(uuid.UUID(int=1), "flights", 0)


def segment(
    state: RemoteLogSegmentState = FINISHED,
    *,
    start: int = 10,
    end: int = 19,
    epochs: Mapping[int, int] | None = None,
    broker: int = 1,
    leader_epoch: int = 5,
    at_ms: int = 100,
) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(PARTITION, uuid.UUID(int=2)),
        start_offset=start,
        end_offset_inclusive=end,
        max_timestamp_ms=1,
        broker_id=broker,
        event_timestamp_ms=at_ms,
        segment_size_in_bytes=1,
        segment_leader_epochs=epochs or {2: start},
        state=state,
        broker_leader_epoch=leader_epoch,
    )


def lineage(*epochs: tuple[int, int]) -> list[EpochEntry]:
    return [EpochEntry(epoch, start) for epoch, start in epochs]


def test_a_decision_holds_for_its_state_alone() -> None:
    for decided in RemoteLogSegmentState:
        assert not is_as_decided(None, segment(decided))
        for now in RemoteLogSegmentState:
            assert is_as_decided(segment(now), segment(decided)) is (now is decided)


def test_objects_of_a_copy_go_when_it_cannot_be_finished_any_more() -> None:
    assert is_given_up(None)
    assert is_given_up(segment(DELETE_STARTED))
    # Another broker's reader may rely on the one, and this broker may still finish the other.
    assert not is_given_up(segment(FINISHED))
    assert not is_given_up(segment(STARTED))


def test_a_deletion_that_has_begun_is_resumed() -> None:
    assert [state for state in RemoteLogSegmentState if is_deletion_begun(segment(state))] == [
        DELETE_STARTED
    ]


def test_a_copy_dangles_if_it_is_this_brokers_and_unfinished() -> None:
    assert is_dangling(segment(STARTED, broker=1), 1)
    assert not is_dangling(segment(STARTED, broker=2), 1)
    assert not is_dangling(segment(FINISHED, broker=1), 1)


def test_last_offset_of_a_segment_is_before_the_log_start() -> None:
    assert not is_before_log_start(segment(end=19), 19)
    assert is_before_log_start(segment(end=19), 20)


def test_segment_below_the_log_start_is_of_no_later_epoch_than_the_lineage_begins_with() -> None:
    assert is_below_log_start(segment(), lineage((2, 0)), 20)
    assert not is_below_log_start(segment(), lineage((2, 0)), 19)
    assert not is_below_log_start(segment(), lineage((1, 0)), 20)
    assert not is_below_log_start(segment(), [], 20)


def test_segment_is_unreferenced_if_its_epochs_are_before_a_lineage_that_names_all() -> None:
    assert is_unreferenced(segment(), lineage((3, 15)), 15)
    assert not is_unreferenced(segment(), lineage((2, 15)), 15)
    assert not is_unreferenced(segment(), [], 15)
    # The lineage does not name the epochs of offsets 10 to 24, which the log still has.
    assert not is_unreferenced(segment(), lineage((3, 25)), 10)
    assert is_unreferenced(segment(), lineage((3, 25)), 20)


@pytest.mark.parametrize("state", [STARTED, DELETE_STARTED])
def test_unfinished_copy_makes_way(state: RemoteLogSegmentState) -> None:
    assert may_make_way(segment(state), local_log_start_offset=50, durable_log_start_offset=0)


@pytest.mark.parametrize(
    ("local", "durable", "expected"),
    [(10, 0, True), (11, 0, False), (15, 15, True), (16, 15, False)],
)
def test_finished_copy_makes_way_if_the_local_log_has_what_a_crash_leaves(
    local: int, durable: int, expected: bool
) -> None:
    is_allowed = may_make_way(
        segment(FINISHED), local_log_start_offset=local, durable_log_start_offset=durable
    )
    assert is_allowed is expected


def test_segment_of_a_deleted_partition_is_garbage_until_it_changes_or_is_tiered_again() -> None:
    listed = segment(FINISHED)
    assert is_garbage_of_partition(segment(FINISHED), listed, is_tiered=False)
    assert not is_garbage_of_partition(segment(FINISHED), listed, is_tiered=True)
    assert not is_garbage_of_partition(segment(FINISHED), segment(STARTED), is_tiered=False)
    assert not is_garbage_of_partition(None, listed, is_tiered=False)
    assert is_garbage_of_partition(segment(DELETE_STARTED), listed, is_tiered=True)


def test_what_stands_still_is_abandoned_by_its_age() -> None:
    for state, is_due in ((STARTED, True), (DELETE_STARTED, True), (FINISHED, False)):
        assert is_abandoned(segment(state, at_ms=99), 100) is is_due
        assert not is_abandoned(segment(state, at_ms=100), 100)


def test_copy_is_superseded_by_a_later_leaders_that_holds_its_records() -> None:
    before, after = segment(leader_epoch=5), segment(leader_epoch=6, start=5, epochs={2: 5})
    assert is_superseded(before, after, 101)
    assert not is_superseded(after, before, 101)
    assert not is_superseded(before, segment(leader_epoch=5), 101)


@pytest.mark.parametrize(
    "other",
    [
        segment(STARTED, leader_epoch=6),
        segment(leader_epoch=6, at_ms=101),
        segment(leader_epoch=6, start=11, epochs={2: 11}),
        segment(leader_epoch=6, end=18),
        segment(leader_epoch=6, epochs={3: 10}),
        segment(leader_epoch=6, epochs={2: 10, 3: 15}),
    ],
    ids=[
        "unfinished",
        "young",
        "begins later",
        "ends earlier",
        "of another epoch",
        "parts earlier",
    ],
)
def test_copy_is_not_superseded_by_one_that(other: RemoteLogSegmentMetadata) -> None:
    assert not is_superseded(segment(leader_epoch=5), other, 101)


def test_young_and_unfinished_copies_are_not_superseded() -> None:
    other = segment(leader_epoch=6)
    assert not is_superseded(segment(leader_epoch=5, at_ms=101), other, 101)
    assert not is_superseded(segment(STARTED, leader_epoch=5), other, 101)


def test_compacted_segment_takes_the_place_of_a_finished_one_alone() -> None:
    assert not may_be_replaced(None)
    assert [state for state in RemoteLogSegmentState if may_be_replaced(segment(state))] == [
        FINISHED
    ]


def test_objects_of_a_replaced_segment_go_when_nothing_names_it() -> None:
    assert is_replaced(None)
    assert not any(is_replaced(segment(state)) for state in RemoteLogSegmentState)


def test_replaced_objects_are_kept_for_reads_that_began_before() -> None:
    assert is_kept_long_enough(published_ms=5, keep_old_ms=10, now_ms=15)
    assert not is_kept_long_enough(published_ms=5, keep_old_ms=10, now_ms=14)


def test_partition_is_gone_if_its_deletion_is_recorded_and_the_cluster_lacks_it() -> None:
    assert is_partition_gone(exists=False, is_deletion_recorded=True)
    # Another cluster's, or one whose deletion still runs.
    assert not is_partition_gone(exists=False, is_deletion_recorded=False)
    assert not is_partition_gone(exists=True, is_deletion_recorded=True)


def test_compaction_is_abandoned_when_it_has_stored_nothing_for_long() -> None:
    assert is_run_abandoned(modified_ms=5, abandoned_after_ms=10, now_ms=15)
    assert not is_run_abandoned(modified_ms=5, abandoned_after_ms=10, now_ms=14)


def test_no_sweep_takes_away_a_finished_segment_or_a_deletion_as_a_failed_copy() -> None:
    allowed = (FAILED_COPY_STATES, UNFINISHED_DELETION_STATES, GONE_STATES)
    assert [sorted(each) for each in allowed] == [
        [STARTED],
        [DELETE_STARTED, DELETE_FINISHED],
        [DELETE_FINISHED],
    ]
