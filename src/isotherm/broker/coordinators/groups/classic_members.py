"""The members of a classic group: member ids, the leader, and the shared protocols. Pure.

Invariants
- The leader is a member, or there are no members.
- A group instance id belongs to one member.
"""

from __future__ import annotations

from dataclasses import dataclass

from isotherm.broker.coordinators.groups.classic_protocol import (
    JoinRequest,
    Protocol,
    Reply,
    subscribed_topics,
)
from isotherm.types import TimestampMs


@dataclass(slots=True)
class ClassicMember:
    """One member.

    `deadline_ms` is the time at which it is removed; None while it waits for the broker's answer.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    deadline_ms: TimestampMs | None = None
    join_reply: Reply | None = None
    sync_reply: Reply | None = None

    @classmethod
    def of_request(cls, request: JoinRequest, member_id: str) -> ClassicMember:
        return cls(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
        )

    def update(self, request: JoinRequest) -> None:
        """Apply the fields that a member may change when it joins again."""
        self.client_id = request.client_id
        self.client_host = request.client_host
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.protocols = request.protocols

    @property
    def is_awaiting_join(self) -> bool:
        return self.join_reply is not None

    @property
    def is_awaiting_sync(self) -> bool:
        return self.sync_reply is not None

    @property
    def protocol_names(self) -> list[str]:
        """The protocols that the member supports, preferred first."""
        return [protocol.name for protocol in self.protocols]

    def metadata(self, protocol_name: str | None) -> bytes:
        """The member's metadata for this protocol; empty if it does not support it."""
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        return b""

    def reset_session_timeout(self, now_ms: TimestampMs) -> None:
        """Restart the session timeout, unless the member waits for the broker's answer."""
        if not self.is_awaiting_join and not self.is_awaiting_sync:
            self.deadline_ms = now_ms + self.session_timeout_ms


class ClassicMembers:
    def __init__(self) -> None:
        self.by_id: dict[str, ClassicMember] = {}
        self.leader_id: str | None = None
        self._ids_by_instance: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    def __contains__(self, member_id: object) -> bool:
        return member_id in self.by_id

    def __getitem__(self, member_id: str) -> ClassicMember:
        return self.by_id[member_id]

    def all(self) -> list[ClassicMember]:
        """The members in the order in which they joined. A copy, because members may be removed
        during iteration."""
        return list(self.by_id.values())

    def static_member_id(self, group_instance_id: str | None) -> str | None:
        if group_instance_id is None:
            return None
        return self._ids_by_instance.get(group_instance_id)

    def is_leader(self, member: ClassicMember) -> bool:
        return member.member_id == self.leader_id

    def add(self, member: ClassicMember) -> None:
        self.by_id[member.member_id] = member
        if member.group_instance_id is not None:
            self._ids_by_instance[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member_id: str) -> ClassicMember:
        """Remove a member. If it was the leader, the earliest remaining member becomes leader."""
        member = self.by_id.pop(member_id)
        if member.group_instance_id is not None:
            del self._ids_by_instance[member.group_instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.by_id), None)
        return member

    def rename(self, member: ClassicMember, member_id: str) -> None:
        """Give a static member a new member id. A leader stays leader."""
        was_leader = self.is_leader(member)
        self.remove(member.member_id)
        member.member_id = member_id
        self.add(member)
        if was_leader:
            self.leader_id = member_id

    def awaiting_join_count(self) -> int:
        return sum(member.is_awaiting_join for member in self.by_id.values())

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader has rejoined; False if no member has rejoined."""
        joined = [member.member_id for member in self.by_id.values() if member.is_awaiting_join]
        if joined and self.leader_id not in joined:
            self.leader_id = joined[0]
        return bool(joined)

    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members."""
        return max((member.rebalance_timeout_ms for member in self.by_id.values()), default=0)

    def shared_protocols(self) -> set[str]:
        """Names of the protocols that every member supports."""
        names = [set(member.protocol_names) for member in self.by_id.values()]
        return set.intersection(*names) if names else set()

    def select_protocol(self) -> str:
        """The shared protocol that most members prefer.

        Each member votes for its first shared protocol.
        """
        candidates = self.shared_protocols()
        votes: dict[str, int] = {}
        for member in self.by_id.values():
            preferred = next(name for name in member.protocol_names if name in candidates)
            votes[preferred] = votes.get(preferred, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def subscribed_topics(self, protocol_name: str) -> frozenset[str] | None:
        """The topics of all members' subscriptions; None if a member's metadata is not a consumer's
        subscription."""
        topics: frozenset[str] = frozenset()
        for member in self.by_id.values():
            subscribed = subscribed_topics(member.metadata(protocol_name))
            if subscribed is None:
                return None
            topics |= subscribed
        return topics
