"""The fetch state of one followed partition, and the reaction to each answer of its leader. Pure.

    begin_fetch ──► fetch ──► APPEND ─────────────────────────────────► fetch at the new end
                      │  ├──► TRUNCATE (the logs diverge) ────────────► fetch at the new end
                      │  ├──► RESET (out of range) ──► plan_reset ────► fetch
                      │  ├──► BUILD_FROM_TIER (moved to the tier) ────► fetch behind the tier's part
                      │  ├──► BACK_OFF: the same fetch again after replica.fetch.backoff.ms
                      │  └──► FAIL: no fetch before a new leader epoch
                      └──────► IGNORE: the state has changed since the request

A leader with another history answers with the end of the last epoch that both logs may share
(KIP-595). The follower truncates there and fetches again, until the last record of its log is also
in the leader's.
Source: Kafka AbstractFetcherThread.scala, PartitionFetchState.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from isotherm.log.leader_epoch_cache import EpochEndOffset as LocalEpochEnd
from isotherm.protocol.fetch import EpochEndOffset, FetchPartition, FetchPartitionResponse
from isotherm.types import (
    NO_LEADER_EPOCH,
    UNKNOWN_OFFSET,
    LeaderEpoch,
    Offset,
    TimestampMs,
)


class FetchState(NamedTuple):
    """The next fetch of a partition.

    `lag` is None until the leader's high watermark is known; the replica then counts as out of
    sync. `last_fetched_epoch` is -1 for an empty log; the leader then does not check for
    divergence.
    """

    leader_epoch: LeaderEpoch
    fetch_offset: Offset
    last_fetched_epoch: LeaderEpoch
    lag: Offset | None = None
    delayed_until_ms: TimestampMs = 0

    def is_ready(self, now_ms: TimestampMs) -> bool:
        return now_ms >= self.delayed_until_ms

    @property
    def is_in_sync(self) -> bool:
        return self.lag is not None and self.lag <= 0

    def delayed(self, now_ms: TimestampMs, backoff_ms: int) -> FetchState:
        """The state with a back-off. A back-off that runs already is not prolonged."""
        if not self.is_ready(now_ms):
            return self
        return self._replace(delayed_until_ms=now_ms + backoff_ms)

    def appended(
        self, end_offset: Offset, last_epoch: LeaderEpoch, leader_high_watermark: Offset
    ) -> FetchState:
        """The state after an append, also after an empty one."""
        # -1 says that nothing was appended, so the last record of the log is the same as before.
        if last_epoch == NO_LEADER_EPOCH:
            last_epoch = self.last_fetched_epoch
        # Not below 0: the leader's high watermark is behind this end while other in-sync replicas
        # lack these records.
        lag = max(0, leader_high_watermark - end_offset)
        return FetchState(self.leader_epoch, end_offset, last_epoch, lag)

    def moved(
        self, offset: Offset, last_epoch: LeaderEpoch, lag: Offset | None = None
    ) -> FetchState:
        """The state after the log was truncated or restarted at another offset."""
        return FetchState(self.leader_epoch, offset, last_epoch, self.lag if lag is None else lag)

    def request(
        self, partition: int, *, log_start_offset: Offset, max_bytes: int
    ) -> FetchPartition:
        return FetchPartition(
            partition,
            self.fetch_offset,
            max_bytes,
            self.leader_epoch,
            self.last_fetched_epoch,
            log_start_offset,
        )


class FirstFetch(NamedTuple):
    """`truncate_to` is the offset to truncate the log to before the first fetch;

    None to keep all.
    """

    state: FetchState
    truncate_to: Offset | None


def first_fetch(
    leader_epoch: LeaderEpoch,
    *,
    log_end_offset: Offset,
    high_watermark: Offset,
    latest_epoch: LeaderEpoch | None,
) -> FirstFetch:
    """The first fetch in a leader epoch.

    Without leader epochs in the log, only committed records are known to be the leader's too, so
    the log is truncated to the high watermark.
    """
    # The leader compares the last epoch with its own and answers where the logs diverge. Nothing is
    # truncated before that answer.
    if latest_epoch is not None:
        return FirstFetch(FetchState(leader_epoch, log_end_offset, latest_epoch), None)
    truncate_to = high_watermark if high_watermark < log_end_offset else None
    return FirstFetch(FetchState(leader_epoch, high_watermark, NO_LEADER_EPOCH), truncate_to)


class Reaction(enum.Enum):
    IGNORE = enum.auto()
    APPEND = enum.auto()
    TRUNCATE = enum.auto()
    RESET = enum.auto()
    BUILD_FROM_TIER = enum.auto()
    BACK_OFF = enum.auto()
    FAIL = enum.auto()


_REACTIONS: dict[int, Reaction] = {
    ErrorCode.offset_out_of_range: Reaction.RESET,
    ErrorCode.offset_moved_to_tiered_storage: Reaction.BUILD_FROM_TIER,
    # The leader has a later epoch than this state. The next metadata image brings it here.
    ErrorCode.fenced_leader_epoch: Reaction.FAIL,
}


def react(
    state: FetchState | None,
    request: FetchPartition | None,
    answer: FetchPartitionResponse,
    now_ms: TimestampMs,
) -> Reaction:
    """The reaction to an answer.

    `state` is the current state, None if the partition is not fetched any more. `request` is the
    partition's entry in the request, or in an earlier one of its session.
    """
    # The state may have changed since the request, by a new leader epoch, a truncation or a
    # back-off. The answer would then be applied to a log that it does not fit.
    if (
        state is None
        or request is None
        or not state.is_ready(now_ms)
        or (request.fetch_offset, request.current_leader_epoch)
        != (state.fetch_offset, state.leader_epoch)
    ):
        return Reaction.IGNORE
    if answer.error_code:
        return reaction_to_error(answer.error_code)
    diverging = answer.diverging_epoch
    # Kafka sends the field with epoch -1 for none.
    if diverging is not None and diverging.epoch >= 0:
        return Reaction.TRUNCATE
    return Reaction.APPEND


def reaction_to_error(error_code: int) -> Reaction:
    """The reaction to an error of a fetch or of a look-up.

    Errors without an entry are temporary: stale metadata here or on the leader, a failed directory,
    or a moving partition.
    """
    return _REACTIONS.get(error_code, Reaction.BACK_OFF)


EndOffsetFor: TypeAlias = Callable[[LeaderEpoch], LocalEpochEnd]
"""`LeaderEpochCache.end_offset_for` of the follower, at its log end."""


def truncation_offset(
    leader_end: EpochEndOffset,
    end_offset_for: EndOffsetFor,
    *,
    log_end_offset: Offset,
    fetch_offset: Offset,
) -> Offset:
    """The offset to truncate a diverging log to.

    `leader_end` is the leader's last epoch that is not above the follower's, with its end offset.
    If the follower has no records of that epoch, it truncates to the end of its own epoch before
    it, and the next fetch asks about that epoch.
    """
    if leader_end.end_offset == UNKNOWN_OFFSET:
        # As in Kafka's getOffsetTruncationState. The fetch offset is the log end, so nothing is
        # dropped.
        return fetch_offset
    own = end_offset_for(leader_end.epoch)
    if own.end_offset == UNKNOWN_OFFSET:
        # All epochs of this log are above the leader's, so only the leader's end limits what can
        # be common.
        return min(leader_end.end_offset, log_end_offset)
    # The follower has no records of the leader's epoch, so only records of earlier epochs can be
    # common.
    if own.epoch != leader_end.epoch:
        return min(own.end_offset, log_end_offset)
    return min(own.end_offset, leader_end.end_offset, log_end_offset)


class ResetAct(enum.Enum):
    TRUNCATE = "the leader's log ends below this one"
    BEGIN_ANEW = "the leader's log begins above the end of this one"
    GO_ON = "the leader's log was shorter, and has grown since"


class Reset(NamedTuple):
    act: ResetAct
    offset: Offset
    lag: Offset


def plan_reset(
    leader_end_offset: Offset, leader_start_offset: Offset | None, log_end_offset: Offset
) -> Reset | None:
    """The reset of a follower whose offset was out of range. None if it depends on the leader's log
    start and `leader_start_offset` is None.

    After an unclean election GO_ON may keep records that differ from the leader's, as in Kafka, if
    the logs have no leader epochs that show it.
    """
    # After an unclean election this log has records that the leader lacks.
    if leader_end_offset < log_end_offset:
        return Reset(ResetAct.TRUNCATE, leader_end_offset, 0)
    if leader_start_offset is None:
        return None
    # Retention or DeleteRecords on the leader passed this log's end while this broker was away.
    if leader_start_offset > log_end_offset:
        lag = leader_end_offset - leader_start_offset
        return Reset(ResetAct.BEGIN_ANEW, leader_start_offset, lag)
    return Reset(ResetAct.GO_ON, log_end_offset, leader_end_offset - log_end_offset)


def may_restart_inside_batch(
    *,
    first_offset: Offset,
    last_offset: Offset,
    log_start_offset: Offset,
    log_end_offset: Offset,
) -> bool:
    """Whether a log may restart at the base offset of fetched batches, below its own end.

    It may if it is empty and its start lies inside a batch. DeleteRecords can put the start there,
    and the leader sends whole batches.
    """
    return log_start_offset == log_end_offset and first_offset < log_end_offset <= last_offset
