"""Cases of Kafka's PartitionTest and ReplicaTest, on the pure core of the ISR."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.image import BrokerImage, PartitionImage
from isotherm.broker.partitions.replication.in_sync_replicas import (
    AnswerEffect,
    InSyncReplicas,
    IsrAnswer,
    IsrChange,
)
from isotherm.broker.partitions.replication.replica_state import ReplicaState, is_stale_fetch

LEADER, FIRST, SECOND = 1, 2, 3
LAG_MS = 30_000
START_MS = 1_000_000


def image(*isr: int, partition_epoch: int = 7, **more: Any) -> PartitionImage:
    values: dict[str, Any] = {
        "partition": 0,
        "replicas": (LEADER, FIRST, SECOND),
        "isr": isr,
        "leader": LEADER,
        "leader_epoch": 5,
        "partition_epoch": partition_epoch,
    }
    return PartitionImage(**{**values, **more})


class World:
    """A leader whose log ends at `end`. Broker n is registered with broker epoch 100 + n."""

    def __init__(self, *isr: int, end: int = 10, min_isr: int = 1, **more: Any) -> None:
        self.replicas = InSyncReplicas(LEADER)
        self.end = end
        self.min_isr = min_isr
        self.now_ms = START_MS
        self.high_watermark = 0
        self.brokers = {
            each: BrokerImage(each, 100 + each, uuid.UUID(int=each), None, fenced=False)
            for each in (LEADER, FIRST, SECOND)
        }
        self.lead(image(*isr, **more))

    def lead(self, new: PartitionImage, *, is_new_leader: bool = True) -> None:
        self.replicas.lead(
            new, log_end_offset=self.end, now_ms=self.now_ms, is_new_leader=is_new_leader
        )

    def fetch(
        self, follower: int, offset: int, *, epoch: int | None = None, start: int = 0
    ) -> None:
        state = self.replicas.followers[follower].fetched(
            fetch_offset=offset,
            log_start_offset=start,
            broker_epoch=100 + follower if epoch is None else epoch,
            leader_end_offset=self.end,
            now_ms=self.now_ms,
        )
        self.replicas.note_fetch(follower, state)

    def raised(self) -> int | None:
        found = self.replicas.high_watermark(
            log_end_offset=self.end,
            min_insync_replicas=self.min_isr,
            lag_time_max_ms=LAG_MS,
            now_ms=self.now_ms,
            find_broker=self.brokers.get,
        )
        if found is not None:
            self.high_watermark = max(found, self.high_watermark)
        return found

    def expand(self, follower: int) -> IsrChange | None:
        return self.replicas.expand(
            follower,
            high_watermark=self.high_watermark,
            broker_epoch=101,
            find_broker=self.brokers.get,
        )

    def shrink(self) -> IsrChange | None:
        return self.replicas.shrink(
            log_end_offset=self.end, lag_time_max_ms=LAG_MS, now_ms=self.now_ms, broker_epoch=101
        )


# ---- a follower's state


def test_follower_is_caught_up_when_it_fetched_what_was_the_end_before() -> None:
    state = ReplicaState()
    state = state.fetched(
        fetch_offset=3, log_start_offset=0, broker_epoch=9, leader_end_offset=6, now_ms=500
    )
    # The follower fetched below the leader's end, and no earlier fetch proves that it was ever
    # caught up.
    assert (state.log_end_offset, state.last_caught_up_ms) == (3, 0)
    state = state.fetched(
        fetch_offset=6, log_start_offset=0, broker_epoch=9, leader_end_offset=9, now_ms=700
    )
    assert state.last_caught_up_ms == 500
    state = state.fetched(
        fetch_offset=9, log_start_offset=0, broker_epoch=9, leader_end_offset=9, now_ms=900
    )
    assert state.last_caught_up_ms == 900
    assert state.is_caught_up(12, 900 + LAG_MS, LAG_MS)
    assert not state.is_caught_up(12, 901 + LAG_MS, LAG_MS)
    assert state.is_caught_up(9, 901 + LAG_MS, LAG_MS)


def test_election_resets_what_an_earlier_leader_knew() -> None:
    known = ReplicaState(5, 1, 100, 200, 8, 9)
    reset = known.elected(leader_end_offset=10, now_ms=300, is_in_sync=True, is_new_leader=True)
    assert reset == ReplicaState(-1, -1, 300, 0, -1, None)
    kept = known.elected(leader_end_offset=10, now_ms=300, is_in_sync=False, is_new_leader=False)
    assert kept == ReplicaState(5, 1, 0, 0, 10, 9)


@pytest.mark.parametrize(
    ("epoch", "fenced", "expected"),
    [
        (99, False, True),
        (100, False, False),
        (101, False, False),
        (-1, False, False),
        (99, True, False),
    ],
)
def test_fetch_of_an_earlier_registration_is_stale(
    epoch: int, fenced: bool, expected: bool
) -> None:
    broker = BrokerImage(2, 100, None, None, fenced)
    assert is_stale_fetch(epoch, broker) is expected
    assert not is_stale_fetch(epoch, None)


# ---- the high watermark


def test_high_watermark_waits_for_the_first_fetch_of_every_member() -> None:
    world = World(LEADER, FIRST, SECOND)
    assert world.raised() is None
    world.fetch(FIRST, 8)
    assert world.raised() is None
    world.fetch(SECOND, 6)
    assert world.raised() == 6


def test_high_watermark_is_the_log_end_when_the_isr_is_the_leader() -> None:
    world = World(LEADER)
    assert world.raised() == 10


def test_high_watermark_stands_still_below_min_isr() -> None:
    """testHighWatermarkAdvanceShouldNotAdvanceWhenUnderMinISR"""
    world = World(LEADER, FIRST, min_isr=3)
    world.fetch(FIRST, 10)
    assert world.raised() is None
    world.min_isr = 2
    assert world.raised() == 10


def test_min_isr_is_bounded_by_the_number_of_replicas() -> None:
    world = World(LEADER, min_isr=2, replicas=(LEADER,))
    assert world.raised() == 10


def test_pending_member_counts_for_the_high_watermark_but_not_for_min_isr() -> None:
    world = World(LEADER, FIRST, min_isr=2)
    world.end = 12
    world.fetch(FIRST, 12)
    world.fetch(SECOND, 10)
    world.now_ms += LAG_MS + 1
    assert world.expand(SECOND) is not None
    assert world.raised() == 10
    world.min_isr = 3
    assert world.raised() is None


def test_follower_that_keeps_up_holds_the_high_watermark_before_it_is_a_member() -> None:
    world = World(LEADER)
    world.fetch(FIRST, 10)
    world.end = 12
    assert world.raised() == 10
    world.now_ms += LAG_MS + 1
    assert world.raised() == 12


@pytest.mark.parametrize("change", [{"fenced": True}, {"in_controlled_shutdown": True}])
def test_follower_that_may_not_join_does_not_hold_it(change: dict[str, Any]) -> None:
    """testHighWatermarkIncreasesWithFencedOrShutdownFollower"""
    world = World(LEADER)
    world.fetch(FIRST, 10)
    world.end = 12
    world.brokers[FIRST] = world.brokers[FIRST]._replace(**change)
    assert world.raised() == 12


# ---- expansion


def test_follower_joins_when_it_has_what_is_committed() -> None:
    world = World(LEADER)
    world.high_watermark = 10
    world.fetch(FIRST, 9)
    assert world.expand(FIRST) is None
    world.fetch(FIRST, 10)
    assert world.expand(FIRST) == IsrChange((LEADER, FIRST), (101, 102), FIRST, 5, 7)
    assert world.replicas.maximal == {LEADER, FIRST}
    assert world.replicas.committed == (LEADER,)


def test_follower_does_not_join_before_it_is_at_the_start_of_the_epoch() -> None:
    """testFollowerDoesNotJoinISRUntilCaughtUpToOffsetWithinCurrentLeaderEpoch"""
    world = World(LEADER, FIRST)
    world.fetch(FIRST, 2)
    world.high_watermark = 2
    world.end = 15
    world.fetch(SECOND, 9)
    assert world.expand(SECOND) is None
    world.fetch(SECOND, 10)
    assert world.expand(SECOND) is not None


@pytest.mark.parametrize("change", [{"fenced": True}, {"in_controlled_shutdown": True}])
def test_fenced_and_stopping_followers_do_not_join(change: dict[str, Any]) -> None:
    world = World(LEADER)
    world.fetch(FIRST, 10)
    world.brokers[FIRST] = world.brokers[FIRST]._replace(**change)
    assert world.expand(FIRST) is None


@pytest.mark.parametrize(("epoch", "joins"), [(102, True), (-1, True), (101, False), (103, False)])
def test_follower_joins_with_the_epoch_of_the_metadata(epoch: int, joins: bool) -> None:
    """testIsrCanExpandedIfBrokerEpochsMatchWithKraftMetadataCache"""
    world = World(LEADER)
    world.fetch(FIRST, 10, epoch=epoch)
    change = world.expand(FIRST)
    assert (change is not None) is joins
    if change is not None:
        assert change.broker_epochs == (101, epoch)


def test_one_change_at_a_time() -> None:
    world = World(LEADER)
    world.fetch(FIRST, 10)
    world.fetch(SECOND, 10)
    assert world.expand(FIRST) is not None
    assert world.expand(SECOND) is None
    world.now_ms += LAG_MS + 1
    assert world.shrink() is None


def test_unregistered_and_unassigned_brokers_do_not_join() -> None:
    world = World(LEADER)
    world.fetch(FIRST, 10)
    del world.brokers[FIRST]
    assert world.expand(FIRST) is None
    assert world.expand(9) is None


# ---- shrinking


def test_late_followers_leave_and_count_until_the_controller_confirms() -> None:
    """testMaybeShrinkIsr"""
    world = World(LEADER, FIRST, SECOND)
    world.fetch(FIRST, 10)
    world.fetch(SECOND, 4)
    world.now_ms += LAG_MS
    assert world.shrink() is None
    world.now_ms += 1
    # FIRST is at the log end, so no time makes it late.
    assert world.shrink() == IsrChange((LEADER, FIRST), (101, 102), None, 5, 7)
    assert world.replicas.maximal == {LEADER, FIRST, SECOND}
    assert world.raised() == 4


def test_follower_that_fetched_the_former_end_is_not_late() -> None:
    """testShouldNotShrinkIsrIfPreviousFetchIsCaughtUp"""
    world = World(LEADER, FIRST)
    world.now_ms += LAG_MS
    world.fetch(FIRST, 5)
    world.end = 15
    world.now_ms += LAG_MS
    world.fetch(FIRST, 10)
    assert world.shrink() is None


# ---- answers


def pending_expansion() -> tuple[World, IsrChange]:
    world = World(LEADER)
    world.fetch(FIRST, 10)
    change = world.expand(FIRST)
    assert change is not None
    return world, change


@pytest.mark.parametrize(
    ("error", "effect"),
    [
        (ErrorCode.ineligible_replica, AnswerEffect.REFUSED),
        (ErrorCode.operation_not_attempted, AnswerEffect.REFUSED),
        (ErrorCode.unknown_topic_or_partition, AnswerEffect.WAITS),
        (ErrorCode.unknown_topic_id, AnswerEffect.WAITS),
        (ErrorCode.fenced_leader_epoch, AnswerEffect.WAITS),
        (ErrorCode.invalid_update_version, AnswerEffect.WAITS),
        (ErrorCode.invalid_request, AnswerEffect.WAITS),
        (ErrorCode.new_leader_elected, AnswerEffect.WAITS),
        (ErrorCode.unknown_server_error, AnswerEffect.RETRY),
        (ErrorCode.not_controller, AnswerEffect.RETRY),
    ],
)
def test_effect_of_an_error(error: ErrorCode, effect: AnswerEffect) -> None:
    world, change = pending_expansion()
    assert world.replicas.on_answer(change, IsrAnswer(error)) is effect
    is_pending = effect is not AnswerEffect.REFUSED
    assert (world.replicas.pending is change) is is_pending
    assert world.replicas.maximal == ({LEADER, FIRST} if is_pending else {LEADER})
    assert world.replicas.committed == (LEADER,)


@pytest.mark.parametrize("partition_epoch", [7, 8, 12])
def test_confirmed_change_is_committed_before_the_metadata_log_tells(partition_epoch: int) -> None:
    world, change = pending_expansion()
    answer = IsrAnswer(ErrorCode.none, (LEADER, FIRST), 5, partition_epoch)
    assert world.replicas.on_answer(change, answer) is AnswerEffect.COMMITTED
    assert world.replicas.committed == (LEADER, FIRST)
    assert world.replicas.pending is None
    assert world.replicas.partition_epoch == partition_epoch


@pytest.mark.parametrize(("leader_epoch", "partition_epoch"), [(4, 8), (6, 8), (5, 6)])
def test_stale_answer_changes_nothing(leader_epoch: int, partition_epoch: int) -> None:
    world, change = pending_expansion()
    answer = IsrAnswer(ErrorCode.none, (LEADER, FIRST), leader_epoch, partition_epoch)
    assert world.replicas.on_answer(change, answer) is AnswerEffect.IGNORED
    assert (world.replicas.committed, world.replicas.pending) == ((LEADER,), change)


def test_answer_to_a_change_that_the_metadata_has_replaced_is_ignored() -> None:
    """testAlterIsrLeaderAndIsrRace"""
    world, change = pending_expansion()
    world.lead(image(LEADER, SECOND, partition_epoch=9), is_new_leader=False)
    for error in (ErrorCode.none, ErrorCode.ineligible_replica, ErrorCode.unknown_server_error):
        answer = IsrAnswer(error, (LEADER, FIRST), 5, 10)
        assert world.replicas.on_answer(change, answer) is AnswerEffect.IGNORED
    assert world.replicas.committed == (LEADER, SECOND)
    assert world.replicas.partition_epoch == 9


def test_metadata_that_an_answer_has_overtaken_does_not_end_the_next_change() -> None:
    """The controller may have admitted SECOND before the image of the change before comes."""
    world, change = pending_expansion()
    answer = IsrAnswer(ErrorCode.none, (LEADER, FIRST), 5, 8)
    assert world.replicas.on_answer(change, answer) is AnswerEffect.COMMITTED
    world.end = 12
    assert world.raised() == 10
    world.fetch(SECOND, 10)
    pending = world.expand(SECOND)
    assert pending is not None
    world.lead(image(LEADER, FIRST, partition_epoch=8), is_new_leader=False)
    assert world.replicas.pending is pending
    world.fetch(FIRST, 12)
    assert world.raised() == 10
    # The image of the change itself ends it, whether or not its answer comes.
    world.lead(image(LEADER, FIRST, SECOND, partition_epoch=9), is_new_leader=False)
    assert world.replicas.pending is None
    assert world.raised() == 10


# ---- the assignment and the epochs


def test_state_of_followers_is_kept_within_an_epoch() -> None:
    """testDoNotResetReplicaStateIfLeaderEpochIsNotBumped"""
    world = World(LEADER, FIRST)
    world.fetch(FIRST, 8)
    before = world.replicas.followers[FIRST]
    world.end = 20
    world.lead(image(LEADER, partition_epoch=8), is_new_leader=False)
    assert world.replicas.followers[FIRST] == before
    assert world.replicas.epoch_start_offset == 10


def test_leader_that_stays_knows_its_followers_in_the_next_epoch() -> None:
    world = World(LEADER, FIRST)
    world.fetch(FIRST, 8)
    world.end = 20
    world.lead(image(LEADER, partition_epoch=8, leader_epoch=6), is_new_leader=False)
    assert world.replicas.followers[FIRST].log_end_offset == 8
    assert world.replicas.epoch_start_offset == 20


def test_assignment_adds_and_removes_followers() -> None:
    world = World(LEADER, FIRST)
    world.fetch(FIRST, 8)
    world.lead(image(LEADER, FIRST, partition_epoch=8, replicas=(LEADER, FIRST, 4)))
    assert set(world.replicas.followers) == {FIRST, 4}
    assert world.replicas.followers[4].log_end_offset == -1


def test_low_watermark_is_of_the_replicas_that_live() -> None:
    world = World(LEADER, FIRST, SECOND)
    world.fetch(FIRST, 10, start=3)
    world.fetch(SECOND, 10, start=1)
    assert world.replicas.low_watermark(5, world.brokers.get) == 1
    world.brokers[SECOND] = world.brokers[SECOND]._replace(fenced=True)
    assert world.replicas.low_watermark(5, world.brokers.get) == 3
    del world.brokers[FIRST]
    assert world.replicas.low_watermark(5, world.brokers.get) == 5
