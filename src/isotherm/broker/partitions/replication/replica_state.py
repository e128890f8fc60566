"""The leader's knowledge of a follower, derived only from the follower's fetches. Pure.

    leader:    elected ──► fetch at LEO 3 of 5 ──► fetch at 5 of 9 ──► fetch at 9 of 9
    caught up: (in ISR)     no                     at the time of       now
               now                                 the fetch before

A follower whose fetch offset is the leader's log end of its previous fetch was caught up at that
previous fetch. So a steady flow of appends does not make it late. Source: Kafka Replica,
ReplicaState; KIP-16.
"""

from __future__ import annotations

from typing import NamedTuple

from isotherm.broker.metadata.image import BrokerImage
from isotherm.types import UNKNOWN_OFFSET, Offset, TimestampMs

ANY_BROKER_EPOCH = -1
"""The broker epoch in the fetch of a follower that does not know its own."""


class ReplicaState(NamedTuple):
    """`log_end_offset` is the offset of the follower's last fetch; -1 before its first fetch. Until
    then `broker_epoch` is None."""

    log_end_offset: Offset = UNKNOWN_OFFSET
    log_start_offset: Offset = UNKNOWN_OFFSET
    last_caught_up_ms: TimestampMs = 0
    last_fetch_ms: TimestampMs = 0
    last_leader_end_offset: Offset = UNKNOWN_OFFSET
    broker_epoch: int | None = None

    def fetched(
        self,
        *,
        fetch_offset: Offset,
        log_start_offset: Offset,
        broker_epoch: int,
        leader_end_offset: Offset,
        now_ms: TimestampMs,
    ) -> ReplicaState:
        """The state after a fetch. `leader_end_offset` is the leader's log end before its read."""
        caught_up_ms = self.last_caught_up_ms
        if fetch_offset >= leader_end_offset:
            caught_up_ms = max(caught_up_ms, now_ms)
        elif fetch_offset >= self.last_leader_end_offset:
            caught_up_ms = max(caught_up_ms, self.last_fetch_ms)
        return ReplicaState(
            fetch_offset,
            log_start_offset,
            caught_up_ms,
            now_ms,
            max(leader_end_offset, self.last_leader_end_offset),
            broker_epoch,
        )

    def elected(
        self,
        *,
        leader_end_offset: Offset,
        now_ms: TimestampMs,
        is_in_sync: bool,
        is_new_leader: bool,
    ) -> ReplicaState:
        """The state at the start of a leader epoch.

        A follower outside the ISR must fetch before it counts as caught up. The follower's offsets
        of an earlier epoch remain valid only if this broker has led without interruption.
        """
        caught_up_ms = now_ms if is_in_sync else 0
        if is_new_leader:
            return ReplicaState(last_caught_up_ms=caught_up_ms)
        return self._replace(
            last_caught_up_ms=caught_up_ms,
            last_fetch_ms=caught_up_ms,
            last_leader_end_offset=leader_end_offset,
        )

    def is_caught_up(
        self, leader_end_offset: Offset, now_ms: TimestampMs, lag_time_max_ms: int
    ) -> bool:
        return (
            # A follower with all records is in sync however long ago it fetched, as in Kafka. If
            # its broker is dead, the controller fences it, which removes it from the ISR.
            self.log_end_offset == leader_end_offset
            or now_ms - self.last_caught_up_ms <= lag_time_max_ms
        )

    def may_join_isr(self, broker: BrokerImage | None) -> bool:
        """Whether the controller would admit the follower.

        `broker` is its broker in the metadata image.
        """
        return (
            broker is not None
            and not broker.fenced
            and not broker.in_controlled_shutdown
            and self.broker_epoch is not None
            and self.broker_epoch in (ANY_BROKER_EPOCH, broker.broker_epoch)
        )


def is_stale_fetch(broker_epoch: int, broker: BrokerImage | None) -> bool:
    """Whether a fetch with this broker epoch comes from an earlier registration of its broker.

    An epoch above that of the image is accepted, because the image may lag.
    """
    return (
        broker_epoch != ANY_BROKER_EPOCH
        and broker is not None
        # As in Kafka's getAliveBrokerEpoch, the epoch of a fenced broker is not compared.
        and not broker.fenced
        and broker_epoch < broker.broker_epoch
    )
