"""The in-sync replicas of a partition that this broker leads, and its high watermark. Pure.

    committed ──► expand(f) pending ──► committed          f counts for the high watermark at once
        │              └──► refused ──► committed as before
        └───────► shrink(f) pending ──► committed          f counts until the controller confirms

Only the controller changes the ISR. The leader proposes (AlterPartition), one change at a time.
Until the answer the leader does not know which set holds, so it uses the larger one, the *maximal*
ISR: every member of it must have the records below the high watermark.

Invariants:
- The high watermark never falls, and is never above the log end of a member of the maximal ISR.
- It does not rise while the committed ISR has fewer members than the effective min.insync.replicas
  (KIP-966). So an election from the eligible leader replicas loses no acknowledged record.
- State with an older partition epoch never replaces newer state. An answer of the controller may
  arrive before the metadata record of the same change.

Source: Kafka Partition, PartitionState; KIP-497, KIP-841, KIP-966.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.image import BrokerImage, PartitionImage
from isotherm.broker.partitions.replication.replica_state import ANY_BROKER_EPOCH, ReplicaState
from isotherm.types import UNKNOWN_OFFSET, BrokerId, LeaderEpoch, Offset, TimestampMs

FindBroker: TypeAlias = Callable[[BrokerId], BrokerImage | None]
"""Returns a broker of the newest metadata image; None if it is not registered."""

# The controller has refused a member or has not examined the change, so the committed ISR holds.
_REFUSED = frozenset({ErrorCode.ineligible_replica, ErrorCode.operation_not_attempted})
# The controller has newer state than this broker. A retry would fail again, so the change waits for
# the metadata log.
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
    """A proposed ISR, based on the state with these epochs.

    `isr` has the members after the change, `broker_epochs` the epochs of their brokers in the same
    order. `joins` is the new member; None if members leave.
    """

    isr: tuple[BrokerId, ...]
    broker_epochs: tuple[int, ...]
    joins: BrokerId | None
    leader_epoch: LeaderEpoch
    partition_epoch: int


class IsrAnswer(NamedTuple):
    """The controller's answer to a change. If `error` is set, the other fields have no meaning."""

    error: ErrorCode
    isr: tuple[BrokerId, ...] = ()
    leader_epoch: LeaderEpoch = -1
    partition_epoch: int = -1


class AnswerEffect(enum.Enum):
    COMMITTED = "the ISR is what the answer says"
    REFUSED = "the ISR is what it was before the change"
    WAITS = "the change stays pending until the metadata log has newer state"
    RETRY = "the change must be asked for again"
    IGNORED = "newer state has replaced the change"


class InSyncReplicas:
    """Not thread-safe; `Partition` calls it under its lock."""

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
        """The state of every assigned replica except this broker's."""
        return self._followers

    @property
    def maximal(self) -> frozenset[BrokerId]:
        if self._pending is None or self._pending.joins is None:
            return frozenset(self._committed)
        return frozenset((*self._committed, self._pending.joins))

    def min_isr(self, min_insync_replicas: int) -> int:
        """The effective min.insync.replicas: at most the number of replicas."""
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
        """Take over the state of the metadata. The caller has checked that it is not older.

        Newer state drops a pending change: the metadata has overtaken it, and the leader proposes
        it again if it is still needed. The state that the change is based on keeps it. That image
        comes late if an answer brought the state here first, and the controller may have committed
        the change by then. As soon as there is a leader, RECOVERING (after an unclean election)
        becomes RECOVERED.
        """
        earlier = self._followers
        self._followers = {
            replica: earlier.get(replica, ReplicaState())
            for replica in image.replicas
            if replica != self._broker_id
        }
        if (image.partition_epoch, image.leader_epoch) != (self.partition_epoch, self.leader_epoch):
            self._pending = None
        self._committed = image.isr
        self.partition_epoch = image.partition_epoch
        # In the same leader epoch the followers' fetch offsets remain valid.
        if image.leader_epoch == self.leader_epoch:
            return
        self.leader_epoch = image.leader_epoch
        # The caller holds the partition's lock, so nothing of this epoch is appended yet.
        self.epoch_start_offset = log_end_offset
        for broker_id, state in self._followers.items():
            self._followers[broker_id] = state.elected(
                leader_end_offset=log_end_offset,
                now_ms=now_ms,
                is_in_sync=broker_id in image.isr,
                is_new_leader=is_new_leader,
            )

    def lower_epoch_start(self, log_end_offset: Offset) -> None:
        """See Partition."""
        self.epoch_start_offset = min(self.epoch_start_offset, log_end_offset)

    def follow(self, image: PartitionImage) -> None:
        """Forget the followers and the ISR: another broker leads the partition, or none does."""
        self._followers = {}
        self._committed, self._pending = (), None
        self.partition_epoch = image.partition_epoch

    # ---- followers' fetches

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

        The caller raises its high watermark to this offset and never lowers it. A follower outside
        the ISR that keeps up counts too; otherwise the high watermark could stay ahead of it and it
        would never join.
        """
        # KIP-966: below min.insync.replicas nothing more is committed, whatever acks a producer
        # uses. So every eligible leader replica has all committed records.
        if len(self._committed) < self.min_isr(min_insync_replicas):
            return None
        maximal = self.maximal
        lowest = log_end_offset
        for follower, state in self._followers.items():
            # Offsets first: every append comes here, and only a follower that lags outside the ISR
            # then costs a look-up of its broker.
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
        """The lowest log start offset of this broker's replica and of the followers on unfenced
        brokers.
        """
        lowest = log_start_offset
        for follower, state in self._followers.items():
            broker = find_broker(follower)
            # A fenced broker would delay DeleteRecords until it is back.
            if broker is not None and not broker.fenced:
                # -1 for a follower that has not fetched yet, as in Kafka: its log start is
                # unknown.
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
        """Begin the change that adds `follower`, and return it; None if the follower may not join
        now.

        A follower needs the records up to the high watermark, and all records from before this
        leader's epoch, because earlier leaders may have committed them. `broker_epoch` is this
        broker's own.
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
        """Begin the change that removes late followers, and return it; None if none is late."""
        if self._pending is not None:
            return None

        def is_late(member: BrokerId) -> bool:
            state = self._followers.get(member)
            return state is None or not state.is_caught_up(log_end_offset, now_ms, lag_time_max_ms)

        late = {
            replica
            for replica in self._committed
            if replica != self._broker_id and is_late(replica)
        }
        if not late:
            return None
        kept = tuple(member for member in self._committed if member not in late)
        return self._propose(kept, None, broker_epoch)

    def _propose(
        self, isr: tuple[BrokerId, ...], joins: BrokerId | None, broker_epoch: int
    ) -> IsrChange:
        # A member that has not fetched from this leader yet has no known epoch. The controller
        # accepts -1 for it (KIP-903).
        epochs = {
            broker_id: ANY_BROKER_EPOCH if state.broker_epoch is None else state.broker_epoch
            for broker_id, state in self._followers.items()
        }
        epochs[self._broker_id] = broker_epoch
        self._pending = IsrChange(
            isr,
            tuple(epochs.get(replica, ANY_BROKER_EPOCH) for replica in isr),
            joins,
            self.leader_epoch,
            self.partition_epoch,
        )
        return self._pending

    def on_answer(self, change: IsrChange, answer: IsrAnswer) -> AnswerEffect:
        """Take over the controller's answer to `change`."""
        # `lead` or `follow` has dropped the change, so the answer is about older state.
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
            # An equal partition epoch is accepted, as in Kafka: the controller had this ISR
            # already, and wrote no record.
            answer.leader_epoch != self.leader_epoch
            or answer.partition_epoch < self.partition_epoch
        ):
            # The change stays pending until the metadata log shows which state is newer.
            return AnswerEffect.IGNORED
        self._committed, self._pending = answer.isr, None
        self.partition_epoch = answer.partition_epoch
        return AnswerEffect.COMMITTED
