"""A member of a consumer group, and its reconciliation towards its target assignment. Pure.

        STABLE                at the target epoch, with all of its target
        UNREVOKED_PARTITIONS  must revoke partitions and confirm that before its epoch advances
        UNRELEASED_PARTITIONS at the target epoch; waits for partitions that other members still own
        UNKNOWN               from a newer version's record; must abandon its partitions and rejoin

Source: Kafka CurrentAssignmentBuilder.java, ConsumerGroupMember.java; KIP-848.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from isotherm.broker.coordinators.groups.assignors.assignor import AssignedPartition, Assignment
from isotherm.broker.coordinators.groups.classic_protocol import Protocol

LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2
JOIN_EPOCH = 0
NOTHING: Assignment = frozenset()
_NO_EPOCHS: Mapping[AssignedPartition, int] = MappingProxyType({})


class MemberState(enum.IntEnum):
    """The states of ConsumerGroupCurrentMemberAssignmentValue."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127

    @classmethod
    def _missing_(cls, value: object) -> MemberState:
        return cls.UNKNOWN


class ClassicSupport(NamedTuple):
    """The fields that a member of the classic protocol sent when it joined a consumer group."""

    session_timeout_ms: int
    protocols: tuple[Protocol, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """`assigned`: partitions the member may read. `pending_revocation`: partitions it must revoke.

    `assignment_epochs` has, for each partition of both, the member's epoch when it was assigned
    (KIP-1251). `classic` is None for a member of the consumer protocol.
    """

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    epoch: int = JOIN_EPOCH
    previous_epoch: int = JOIN_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Assignment = NOTHING
    pending_revocation: Assignment = NOTHING
    assignment_epochs: Mapping[AssignedPartition, int] = field(default_factory=lambda: _NO_EPOCHS)
    classic: ClassicSupport | None = None

    @property
    def held(self) -> Assignment:
        """The partitions that the member still owns. No other member may get them."""
        return self.assigned | self.pending_revocation

    def is_reconciled(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch


def reconcile(
    member: ConsumerMember,
    target: Assignment,
    target_epoch: int,
    owned: Assignment | None,
    is_free: Callable[[AssignedPartition], bool],
    subscribed: Collection[uuid.UUID] | None = None,
) -> ConsumerMember:
    """The member after one step towards `target`.

    `owned` are the partitions that the member reports to own; None if it did not report any.
    `is_free` is true for a partition without an owner. `subscribed` are the topics of a
    subscription that has just changed, else None. `target` fits them.
    """
    if member.state is MemberState.STABLE and member.epoch == target_epoch:
        return member
    # A partition moves only after its old owner has confirmed the revocation: two members must
    # never read the same partition.
    if member.state is MemberState.UNREVOKED_PARTITIONS and _owns_any(
        member.pending_revocation, owned
    ):
        return member if subscribed is None else _without_others(member, subscribed)
    kept = member.assigned & target
    revoked = member.assigned - target
    if revoked and _owns_any(revoked, owned):
        return replace(
            member,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=kept,
            pending_revocation=revoked,
            # Of the revoked partitions too: a commit with an earlier epoch is
            # checked against them (KIP-1251).
            assignment_epochs=_only(member.assignment_epochs, member.assigned),
        )
    missing = target - member.assigned
    # The member still owns the partitions that it has just revoked, so it may get them back.
    held = member.held
    got = frozenset(partition for partition in missing if partition in held or is_free(partition))
    is_complete = got == missing
    return replace(
        member,
        state=MemberState.STABLE if is_complete else MemberState.UNRELEASED_PARTITIONS,
        previous_epoch=member.epoch,
        epoch=target_epoch,
        assigned=kept | got,
        pending_revocation=NOTHING,
        assignment_epochs=_only(member.assignment_epochs, kept) | dict.fromkeys(got, target_epoch),
    )


def _without_others(member: ConsumerMember, topic_ids: Collection[uuid.UUID]) -> ConsumerMember:
    """The member that revokes all partitions of other topics, too."""
    dropped = frozenset(partition for partition in member.assigned if partition[0] not in topic_ids)
    return replace(
        member,
        assigned=member.assigned - dropped,
        pending_revocation=member.pending_revocation | dropped,
    )


def _only(
    epochs: Mapping[AssignedPartition, int], partitions: Assignment
) -> dict[AssignedPartition, int]:
    return {partition: epochs[partition] for partition in partitions}


def _owns_any(partitions: Assignment, owned: Assignment | None) -> bool:
    # A member that does not report its partitions may still own all of them.
    return owned is None or not partitions.isdisjoint(owned)
