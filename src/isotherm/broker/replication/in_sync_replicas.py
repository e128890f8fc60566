"""The in-sync replicas of a partition that this broker leads, and what follows from them. Pure.

    committed ──► expand(f) pending ──► committed          f counts for the high watermark at once
        │              └──► refused ──► committed as before
        └───────► shrink(f) pending ──► committed          f counts until the controller confirms

The controller alone changes the ISR: the leader proposes (AlterPartition), one change at a time. Until
the answer, what may be in the ISR is the larger of both sets, the *maximal* ISR: no member of it may
lack a record below the high watermark, whichever set the controller has chosen.

Invariants:
- The high watermark never falls, and is never above the log end of a member of the maximal ISR.
- It does not rise while the committed ISR has fewer members than the effective min.insync.replicas
  (KIP-966): an election from the eligible leader replicas then loses no acknowledged record.
- State with an older partition epoch never replaces newer state. An answer of the controller may be
  here before the metadata log tells of it.

Source: Kafka Partition, PartitionState; KIP-497, KIP-841, KIP-966.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.image import BrokerImage, PartitionImage
from isotherm.broker.replication.replica_state import ANY_BROKER_EPOCH, ReplicaState
from isotherm.types import UNKNOWN_OFFSET, BrokerId, LeaderEpoch, Offset, TimestampMs

FindBroker: TypeAlias = Callable[[BrokerId], BrokerImage | None]
"""What the metadata has of a broker now; None if it is not registered."""

# The controller has refused a member, or has not looked at the change: what was committed holds.
_REFUSED = frozenset({ErrorCode.ineligible_replica, ErrorCode.operation_not_attempted})
# The controller knows more than this broker: asking again would loop. The metadata log will tell.
_OVERTAKEN = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.invalid_update_version,
        ErrorCode.invalid_request,
        ErrorCode.new_leader_elected,
    }
)


class IsrChange(NamedTuple):
    """A change that the controller is asked for, on top of the state with these epochs.

    `isr` are the members after it, `broker_epochs` the epochs of their brokers in the same order.
    `joins` is the member that is new; None if members leave.
    """

    isr: tuple[BrokerId, ...]
    broker_epochs: tuple[int, ...]
    joins: BrokerId | None
    leader_epoch: LeaderEpoch
    partition_epoch: int


class IsrAnswer(NamedTuple):
    """What the controller made of a change. Of an error, only the code is meant."""

    error: ErrorCode
    isr: tuple[BrokerId, ...] = ()
    leader_epoch: LeaderEpoch = -1
    partition_epoch: int = -1


class AnswerEffect(enum.Enum):
    COMMITTED = "the ISR is what the answer says"
    REFUSED = "the ISR is what it was before the change"
    WAITS = "the change stays pending until the metadata log tells more"
    RETRY = "the change must be asked for again"
    IGNORED = "newer state has replaced the change"


class InSyncReplicas:
    """Not thread-safe: `Partition` calls it under its lock."""

    def __init__(self, broker_id: BrokerId) -> None:
        self._broker_id = broker_id
        self._committed: tuple[BrokerId, ...] = ()
        self._pending: IsrChange | None = None
        self._followers: dict[BrokerId, ReplicaState] = {}
        self.leader_epoch: LeaderEpoch = -1
        self.epoch_start_offset: Offset = UNKNOWN_OFFSET
        self.partition_epoch = -1

    @property
    def committed(self) -> tuple[BrokerId, ...]:
        return self._committed

    @property
    def pending(self) -> IsrChange | None:
        return self._pending

    @property
    def followers(self) -> Mapping[BrokerId, ReplicaState]:
        """Every assigned replica but this broker's."""
        return self._followers

    @property
    def maximal(self) -> frozenset[BrokerId]:
        if self._pending is None or self._pending.joins is None:
            return frozenset(self._committed)
        return frozenset((*self._committed, self._pending.joins))

    def min_isr(self, min_insync_replicas: int) -> int:
        """min.insync.replicas, as far as there are replicas."""
        return min(min_insync_replicas, len(self._followers) + 1)

    # ---- elections and changes of the assignment

    def lead(
        self,
        image: PartitionImage,
        *,
        log_end_offset: Offset,
        now_ms: TimestampMs,
        is_new_leader: bool,
    ) -> None:
        """Take over the metadata's state. The caller has checked that it is not older.

        Drops a pending change: the metadata has overtaken it, and it is proposed again if it still
        holds. RECOVERING (after an unclean election) is RECOVERED as soon as there is a leader.
        """
        known = self._followers
        self._followers = {
            each: known.get(each, ReplicaState())
            for each in image.replicas
            if each != self._broker_id
        }
        self._committed, self._pending = image.isr, None
        self.partition_epoch = image.partition_epoch
        # The same term: what the followers have fetched in it still holds.
        if image.leader_epoch == self.leader_epoch:
            return
        self.leader_epoch = image.leader_epoch
        self.epoch_start_offset = log_end_offset
        for each, state in self._followers.items():
            self._followers[each] = state.elected(
                leader_end_offset=log_end_offset,
                now_ms=now_ms,
                is_in_sync=each in image.isr,
                is_new_leader=is_new_leader,
            )

    def follow(self, image: PartitionImage) -> None:
        """Another broker leads, or none does: what this one knew of followers is worth nothing."""
        self._followers = {}
        self._committed, self._pending = (), None
        self.partition_epoch = image.partition_epoch

    # ---- what followers tell

    def note_fetch(self, follower: BrokerId, state: ReplicaState) -> None:
        if follower in self._followers:
            self._followers[follower] = state

    def high_watermark(
        self,
        *,
        log_end_offset: Offset,
        min_insync_replicas: int,
        lag_time_max_ms: int,
        now_ms: TimestampMs,
        find_broker: FindBroker,
    ) -> Offset | None:
        """The high watermark that the followers' offsets allow; None if it must not rise.

        The caller raises it to that, and never lowers it. A follower outside the ISR that keeps up
        counts too: it could never join if the high watermark ran away from it.
        """
        # KIP-966: below min.insync.replicas nothing more is committed, with any acks. So every
        # eligible leader replica has all committed records.
        if len(self._committed) < self.min_isr(min_insync_replicas):
            return None
        maximal = self.maximal
        lowest = log_end_offset
        for follower, state in self._followers.items():
            if state.log_end_offset < lowest and (
                follower in maximal
                or (
                    state.is_caught_up(log_end_offset, now_ms, lag_time_max_ms)
                    and state.may_join_isr(find_broker(follower))
                )
            ):
                lowest = state.log_end_offset
        # -1: a member of the ISR has not fetched from this leader yet.
        return lowest if lowest >= 0 else None

    def low_watermark(self, log_start_offset: Offset, find_broker: FindBroker) -> Offset:
        """The lowest log start of this broker's replica and of those on brokers that are alive."""
        lowest = log_start_offset
        for follower, state in self._followers.items():
            broker = find_broker(follower)
            # A broker that is away would hold DeleteRecords up for as long as it is away.
            if broker is not None and not broker.fenced:
                lowest = min(lowest, state.log_start_offset)
        return lowest

    # ---- changes of the ISR

    def expand(
        self,
        follower: BrokerId,
        *,
        high_watermark: Offset,
        broker_epoch: int,
        find_broker: FindBroker,
    ) -> IsrChange | None:
        """The change, now pending, that lets `follower` join; None if it may not join now.

        It needs the records up to the high watermark, and all that came before this leader's epoch:
        earlier leaders may have committed those. `broker_epoch` is this broker's own.
        """
        state = self._followers.get(follower)
        if (
            self._pending is not None
            or state is None
            or follower in self._committed
            or state.log_end_offset < high_watermark
            or state.log_end_offset < self.epoch_start_offset
            or not state.may_join_isr(find_broker(follower))
        ):
            return None
        return self._propose((*self._committed, follower), follower, broker_epoch)

    def shrink(
        self,
        *,
        log_end_offset: Offset,
        lag_time_max_ms: int,
        now_ms: TimestampMs,
        broker_epoch: int,
    ) -> IsrChange | None:
        """The change, now pending, that removes late followers; None if there are none."""
        if self._pending is not None:
            return None

        def is_late(member: BrokerId) -> bool:
            state = self._followers.get(member)
            return state is None or not state.is_caught_up(log_end_offset, now_ms, lag_time_max_ms)

        late = {each for each in self._committed if each != self._broker_id and is_late(each)}
        if not late:
            return None
        kept = tuple(member for member in self._committed if member not in late)
        return self._propose(kept, None, broker_epoch)

    def _propose(
        self, isr: tuple[BrokerId, ...], joins: BrokerId | None, broker_epoch: int
    ) -> IsrChange:
        epochs = {
            each: ANY_BROKER_EPOCH if state.broker_epoch is None else state.broker_epoch
            for each, state in self._followers.items()
        }
        epochs[self._broker_id] = broker_epoch
        self._pending = IsrChange(
            isr,
            tuple(epochs.get(each, ANY_BROKER_EPOCH) for each in isr),
            joins,
            self.leader_epoch,
            self.partition_epoch,
        )
        return self._pending

    def on_answer(self, change: IsrChange, answer: IsrAnswer) -> AnswerEffect:
        """Take over the controller's answer to `change`."""
        # `lead` or `follow` has dropped the change: the answer is about an older state.
        if self._pending is not change:
            return AnswerEffect.IGNORED
        if answer.error in _REFUSED:
            self._pending = None
            return AnswerEffect.REFUSED
        if answer.error in _OVERTAKEN:
            return AnswerEffect.WAITS
        if answer.error:
            return AnswerEffect.RETRY
        if (
            answer.leader_epoch != self.leader_epoch
            or answer.partition_epoch < self.partition_epoch
        ):
            # The change stays pending: the metadata log tells which of the two is newer.
            return AnswerEffect.IGNORED
        self._committed, self._pending = answer.isr, None
        self.partition_epoch = answer.partition_epoch
        return AnswerEffect.COMMITTED
