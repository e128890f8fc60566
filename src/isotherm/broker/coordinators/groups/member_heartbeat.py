"""A heartbeat of a consumer group's member, and its answer (KIP-848).

Source: Kafka ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse.
"""

from __future__ import annotations

from typing import NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups.assignors.assignor import Assignment
from isotherm.broker.coordinators.groups.consumer_member import JOIN_EPOCH
from isotherm.broker.coordinators.groups.topic_selection import NO_SELECTIONS, Selections
from isotherm.errors import RejectedError


class MemberHeartbeat(NamedTuple):
    """A heartbeat. None means unchanged since the last one. `owned` are the partitions that the
    member reports to own. `selections` are those of members' patterns that have changed, by member
    id."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topic_names: frozenset[str] | None = None
    topic_regex: str | None = None
    server_assignor: str | None = None
    owned: Assignment | None = None
    selections: Selections = NO_SELECTIONS

    @property
    def is_full(self) -> bool:
        """Whether all fields are set.

        The response to a full heartbeat always has the assignment.
        """
        has_subscription = self.topic_names is not None or self.topic_regex is not None
        says_all = self.rebalance_timeout_ms != -1 and has_subscription and self.owned is not None
        return self.epoch == JOIN_EPOCH or says_all


class HeartbeatResult(NamedTuple):
    """`assigned` is None if the assignment has not changed since the last response."""

    member_id: str
    epoch: int
    assigned: Assignment | None


class MemberRejectedError(RejectedError):
    """The heartbeat is refused. `code` determines the member's reaction."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def unknown_member(beat: MemberHeartbeat) -> MemberRejectedError:
    return MemberRejectedError(
        ErrorCode.unknown_member_id, f"no such member member_id={beat.member_id}"
    )
