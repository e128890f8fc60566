"""Which remote segments expire. Cases of Kafka's RemoteLogManagerTest around retention, and those
in which Isotherm deletes more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.remote.tasks.expiration_plan import (
    ExpirationPlan,
    ExpirationState,
    RemoteDeletionReason,
    plan_expiration,
    size_over_retention,
)
from isotherm.segment.leader_epoch_checkpoint import EpochEntry

MakeSegment = Callable[..., RemoteLogSegmentMetadata]

NOW_MS = 1_000_000
STATE = ExpirationState(
    lineage=[EpochEntry(0, 0)],
    log_start_offset=0,
    log_end_offset=1000,
    local_segments=[],
    copied_offset=-1,
    retention_ms=-1,
    retention_bytes=-1,
    now_ms=NOW_MS,
    broker_id=0,
)


def deleted(plan: ExpirationPlan) -> list[tuple[int, RemoteDeletionReason]]:
    return [(each.metadata.start_offset, each.reason) for each in plan.deletions]


def test_nothing_expires_without_limits(remote_segment: MakeSegment) -> None:
    plan = plan_expiration([remote_segment({0: 0}, 99)], STATE, ())
    assert plan == ExpirationPlan((), None)
    assert plan_expiration([], STATE, ()) == ExpirationPlan((), None)


def test_segment_older_than_retention_ms_expires_and_moves_the_log_start(
    remote_segment: MakeSegment,
) -> None:
    state = replace(STATE, retention_ms=1000)
    segments = [
        remote_segment({0: 0}, 99, max_timestamp_ms=NOW_MS - 1001),
        remote_segment({0: 100}, 199, max_timestamp_ms=NOW_MS - 1000),
        remote_segment({0: 200}, 299, max_timestamp_ms=NOW_MS - 9999),
    ]
    plan = plan_expiration(segments, state, ())
    assert deleted(plan) == [(0, RemoteDeletionReason.TIME)]
    assert plan.log_start_offset == 100


def test_retention_ms_larger_than_now_expires_nothing(remote_segment: MakeSegment) -> None:
    state = replace(STATE, retention_ms=NOW_MS + 1)
    segment = remote_segment({0: 0}, 99, max_timestamp_ms=-5)
    assert deleted(plan_expiration([segment], state, ())) == []


def test_oldest_segments_expire_while_the_log_is_a_whole_segment_too_large(
    remote_segment: MakeSegment,
) -> None:
    segments = [remote_segment({0: start}, start + 99) for start in range(0, 400, 100)]
    state = replace(STATE, retention_bytes=2500, local_segments=[(900, 500)])
    plan = plan_expiration(segments, state, ())
    assert deleted(plan) == [(0, RemoteDeletionReason.SIZE), (100, RemoteDeletionReason.SIZE)]
    assert plan.log_start_offset == 200


def test_size_over_retention_counts_finished_segments_of_the_lineage(
    remote_segment: MakeSegment,
) -> None:
    """Kafka's testBuildRetentionSizeData: limit 1000, 500 bytes only local."""
    state = replace(STATE, retention_bytes=1000, local_segments=[(900, 500)])
    valid = remote_segment({0: 0}, 99, size=1000)
    invalid = remote_segment({5: 0}, 99, size=600)
    started = replace(valid, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED)
    assert size_over_retention([valid, invalid], state) == 500
    assert size_over_retention([invalid, invalid], state) == 0
    assert size_over_retention([started], state) == 0
    assert size_over_retention([valid], replace(state, retention_bytes=-1)) == 0
    assert size_over_retention([valid], replace(state, retention_bytes=1500)) == 0
    raised = replace(state, log_start_offset=100, lineage=[EpochEntry(0, 100)])
    assert size_over_retention([valid], raised) == 0, "its deletion failed, and is tried again"


@pytest.mark.parametrize("copied_offset", [-1, 99, 199])
def test_segment_in_both_tiers_counts_once_before_the_log_knows_of_its_copy(
    remote_segment: MakeSegment, copied_offset: int
) -> None:
    segments = [remote_segment({0: 0}, 99, size=1000), remote_segment({0: 100}, 199, size=1000)]
    state = replace(
        STATE,
        retention_bytes=2400,
        local_segments=[(100, 1000), (200, 400)],
        copied_offset=copied_offset,
    )
    assert size_over_retention(segments, state) == 0
    assert size_over_retention(segments, replace(state, retention_bytes=2399)) == 1


def test_segment_of_one_record_in_both_tiers_counts_once(remote_segment: MakeSegment) -> None:
    state = replace(STATE, retention_bytes=1000, local_segments=[(0, 1000)], copied_offset=0)
    assert size_over_retention([remote_segment({0: 0}, 0, size=1000)], state) == 0


def test_overlapping_segments_of_one_start_both_expire(remote_segment: MakeSegment) -> None:
    state = replace(STATE, retention_ms=0)
    segments = [remote_segment({0: 0}, 99), remote_segment({0: 0}, 104)]
    plan = plan_expiration(segments, state, ())
    assert len(plan.deletions) == 2
    assert plan.log_start_offset == 105


def test_segment_being_copied_stops_the_walk(remote_segment: MakeSegment) -> None:
    state = replace(STATE, retention_ms=0)
    first = remote_segment({0: 0}, 99)
    copying = remote_segment({0: 100}, 199, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED)
    after = remote_segment({0: 200}, 299)
    plan = plan_expiration([first, copying, after], state, {copying.segment_id})
    assert deleted(plan) == [(0, RemoteDeletionReason.TIME)]
    assert plan.log_start_offset == 100


def test_segment_whose_deletion_began_is_deleted_again_and_moves_nothing(
    remote_segment: MakeSegment,
) -> None:
    begun = remote_segment({0: 500}, 599, state=RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
    plan = plan_expiration([remote_segment({0: 0}, 99), begun], STATE, ())
    assert deleted(plan) == [(500, RemoteDeletionReason.RETRY)]
    assert plan.log_start_offset is None


def test_segment_below_the_log_start_is_deleted(remote_segment: MakeSegment) -> None:
    state = replace(STATE, log_start_offset=150, lineage=[EpochEntry(1, 150)])
    segments = [
        remote_segment({0: 0, 1: 50}, 99),
        remote_segment({1: 100}, 149),
        remote_segment({1: 150}, 199),
    ]
    plan = plan_expiration(segments, state, ())
    assert deleted(plan) == [
        (0, RemoteDeletionReason.LOG_START),
        (100, RemoteDeletionReason.LOG_START),
    ]
    assert plan.log_start_offset is None


def test_segment_that_holds_the_log_start_stays(remote_segment: MakeSegment) -> None:
    state = replace(STATE, log_start_offset=50)
    assert deleted(plan_expiration([remote_segment({0: 0}, 99)], state, ())) == []


def test_segment_of_epochs_before_the_lineage_is_unreferenced(remote_segment: MakeSegment) -> None:
    state = replace(STATE, lineage=[EpochEntry(3, 100)], log_start_offset=100)
    segments = [remote_segment({0: 0, 2: 50}, 99), remote_segment({2: 90, 3: 100}, 150)]
    plan = plan_expiration(segments, state, ())
    assert deleted(plan) == [(0, RemoteDeletionReason.UNREFERENCED)]


def test_segment_of_a_deposed_leader_is_unreferenced_wherever_its_offsets_lie(
    remote_segment: MakeSegment,
) -> None:
    state = replace(STATE, lineage=[EpochEntry(3, 100), EpochEntry(4, 300)], log_start_offset=100)
    plan = plan_expiration([remote_segment({2: 90}, 150)], state, ())
    assert deleted(plan) == [(90, RemoteDeletionReason.UNREFERENCED)]
    below = replace(state, lineage=[EpochEntry(3, 200)])
    plan = plan_expiration([remote_segment({2: 50}, 99), remote_segment({2: 90}, 100)], below, ())
    assert deleted(plan) == [(50, RemoteDeletionReason.UNREFERENCED)]


def test_lineage_that_begins_above_the_log_start_condemns_no_segment(
    remote_segment: MakeSegment,
) -> None:
    """Such a lineage was rebuilt from the local log, for example. It does not know the epochs of
    the segments below."""
    state = replace(STATE, lineage=[EpochEntry(3, 100)], log_start_offset=0)
    segments = [remote_segment({0: 0, 2: 50}, 99), remote_segment({3: 100}, 150)]
    assert deleted(plan_expiration(segments, state, ())) == []


def test_segment_outside_the_lineage_neither_stops_the_walk_nor_goes(
    remote_segment: MakeSegment,
) -> None:
    lineage = [EpochEntry(0, 0), EpochEntry(2, 100)]
    state = replace(STATE, retention_ms=0, lineage=lineage)
    segments = [
        remote_segment({0: 0, 1: 90}, 120),
        remote_segment({0: 0}, 99),
        remote_segment({2: 100}, 199),
    ]
    plan = plan_expiration(segments, state, ())
    assert deleted(plan) == [(0, RemoteDeletionReason.TIME), (100, RemoteDeletionReason.TIME)]
    assert plan.deletions[0].metadata is segments[1]


def test_inactive_copy_of_this_broker_is_dangling(remote_segment: MakeSegment) -> None:
    started = RemoteLogSegmentState.COPY_SEGMENT_STARTED
    dangling = remote_segment({0: 0}, 99, state=started)
    foreign = remote_segment({0: 100}, 199, state=started, broker_id=9)
    active = remote_segment({0: 200}, 299, state=started)
    plan = plan_expiration([dangling, foreign, active], STATE, {active.segment_id})
    assert deleted(plan) == [(0, RemoteDeletionReason.DANGLING)]
