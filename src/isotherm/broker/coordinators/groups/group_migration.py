"""Migration of a group with members between the two protocols (KIP-848's online migration). Pure.

    upgrade    when a member of the consumer protocol joins, a classic group becomes a consumer
               group; its members keep the classic protocol and must join again
    downgrade  when the last member of the consumer protocol leaves and classic members remain,
               the group becomes a classic group and rebalances

An empty group may change its protocol under any policy. Source: Kafka
GroupMetadataManager.convertToConsumerGroup, convertToClassicGroup, ConsumerGroup.fromClassicGroup,
ClassicGroup.fromConsumerGroup.
"""

from __future__ import annotations

import enum
from dataclasses import replace
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups.classic_checks import GroupState
from isotherm.broker.coordinators.groups.classic_group import ClassicGroup, ClassicGroupSettings
from isotherm.broker.coordinators.groups.classic_members import ClassicMember
from isotherm.broker.coordinators.groups.classic_protocol import CONSUMER_PROTOCOL_TYPE
from isotherm.broker.coordinators.groups.consumer_group import ConsumerGroup, ConsumerGroupSettings
from isotherm.broker.coordinators.groups.consumer_member import (
    NOTHING,
    ClassicSupport,
    ConsumerMember,
)
from isotherm.broker.coordinators.groups.embedded_protocol import (
    read_assignment,
    read_subscription,
    write_assignment,
)
from isotherm.broker.coordinators.groups.member_heartbeat import MemberRejectedError
from isotherm.broker.coordinators.groups.topic_catalog import TopicCatalog
from isotherm.protocol.errors import ProtocolError
from isotherm.types import TimestampMs


class MigrationPolicy(enum.Enum):
    """The values of `group.consumer.migration.policy`."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def upgrades(self) -> bool:
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def downgrades(self) -> bool:
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


class ClassicState(NamedTuple):
    """What an upgrade reads of a classic group, which changes in place. Groups with equal states
    become equal consumer groups. Immutable, so any thread may read it."""

    group_id: str
    generation_id: int
    protocol_name: str | None
    members: tuple[ClassicMember, ...]

    @classmethod
    def of(cls, classic: ClassicGroup) -> ClassicState:
        # Without deadlines and waiting requests, which the consumer group does not take over.
        members = (
            replace(member, deadline_ms=None, join_reply=None, sync_reply=None)
            for member in classic.members.all()
        )
        return cls(classic.group_id, classic.generation_id, classic.protocol_name, tuple(members))

    @property
    def size_in_bytes(self) -> int:
        """The bytes that an upgrade decodes, at most."""
        metadata = (protocol.metadata for member in self.members for protocol in member.protocols)
        return sum(map(len, metadata)) + sum(len(member.assignment) for member in self.members)


def can_upgrade(
    classic: ClassicGroup, policy: MigrationPolicy, settings: ConsumerGroupSettings
) -> bool:
    return (
        policy.upgrades
        and classic.protocol_type == CONSUMER_PROTOCOL_TYPE
        and len(classic.members) <= settings.max_size
    )


def upgraded(
    classic: ClassicState,
    settings: ConsumerGroupSettings,
    catalog: TopicCatalog,
    now_ms: TimestampMs,
) -> ConsumerGroup:
    """The consumer group that replaces a classic group, with the same state.

    Its target assignment is the current assignment, and its epochs are the generation. Raises
    MemberRejectedError (GROUP_ID_NOT_FOUND) if a member's metadata is not a consumer's.
    """
    group = ConsumerGroup(classic.group_id, settings)
    group.group_epoch = group.target_epoch = classic.generation_id
    try:
        for member in classic.members:
            hosted = _hosted(classic, member, catalog)
            group.members[hosted.member_id] = hosted
            group.target[hosted.member_id] = hosted.assigned
    except ProtocolError as error:
        raise MemberRejectedError(
            ErrorCode.group_id_not_found,
            f"the embedded consumer protocol is malformed group_id={classic.group_id}",
        ) from error
    group.resume(now_ms)
    return group


def _hosted(classic: ClassicState, member: ClassicMember, catalog: TopicCatalog) -> ConsumerMember:
    # No protocol is selected while a group forms.
    protocol_name = classic.protocol_name or member.protocols[0].name
    subscription = read_subscription(member.metadata(protocol_name))
    assigned = catalog.assignment(read_assignment(member.assignment))
    return ConsumerMember(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topic_names=subscription.topics,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        epoch=classic.generation_id,
        previous_epoch=classic.generation_id,
        assigned=assigned,
        assignment_epochs=dict.fromkeys(assigned, classic.generation_id),
        classic=ClassicSupport(member.session_timeout_ms, member.protocols),
    )


def can_downgrade(
    group: ConsumerGroup, policy: MigrationPolicy, settings: ClassicGroupSettings
) -> bool:
    """Whether the group becomes a classic group.

    Checked when a member of the consumer protocol has left.
    """
    return policy.downgrades and group.is_classic and 0 < len(group.members) <= settings.max_size


def downgraded(
    group: ConsumerGroup,
    settings: ClassicGroupSettings,
    catalog: TopicCatalog,
    now_ms: TimestampMs,
) -> ClassicGroup:
    """The stable classic group that replaces a consumer group with only classic members.

    The assignment of each member is its target assignment.
    """
    classic = ClassicGroup(group.group_id, settings, now_ms=now_ms)
    classic.state = GroupState.STABLE
    classic.generation_id = group.group_epoch
    classic.protocol_type = CONSUMER_PROTOCOL_TYPE
    for member in group.members.values():
        assert member.classic is not None
        classic.members.add(
            ClassicMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.classic.session_timeout_ms,
                member.rebalance_timeout_ms,
                member.classic.protocols,
            )
        )
    classic.protocol_name = classic.members.select_protocol()
    classic.find_subscribed_topics()
    for of_classic in classic.members.all():
        target = catalog.partitions(group.target.get(of_classic.member_id, NOTHING))
        of_classic.assignment = write_assignment(target, of_classic.metadata(classic.protocol_name))
        of_classic.reset_session_timeout(now_ms)
    return classic
