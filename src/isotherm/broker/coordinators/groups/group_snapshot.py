"""Conversion between a classic group and its record.

The state machine uses monotonic time, records use wall-clock time. The sum of the former and
`wall_offset_ms` is the latter. Source: Kafka GroupCoordinatorRecordHelpers,
GroupMetadataManager.replay.
"""

from __future__ import annotations

from isotherm.broker.coordinators.groups.classic_checks import GroupState
from isotherm.broker.coordinators.groups.classic_group import ClassicGroup, ClassicGroupSettings
from isotherm.broker.coordinators.groups.classic_members import ClassicMember
from isotherm.broker.coordinators.groups.classic_protocol import Protocol
from isotherm.broker.coordinators.groups.group_records import (
    AnyGroupMetadataValue,
    AnyMemberMetadata,
    GroupMetadataValue,
    MemberMetadata,
)
from isotherm.types import TimestampMs


def group_value(group: ClassicGroup, *, wall_offset_ms: int) -> GroupMetadataValue:
    return GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation_id,
        protocol=group.protocol_name,
        leader=group.members.leader_id,
        current_state_timestamp=group.state_timestamp_ms + wall_offset_ms,
        members=tuple(
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata(group.protocol_name),
                assignment=member.assignment,
            )
            for member in group.members.all()
        ),
    )


def restore_group(
    group_id: str,
    value: AnyGroupMetadataValue,
    settings: ClassicGroupSettings,
    *,
    now_ms: TimestampMs,
    wall_offset_ms: int,
) -> ClassicGroup:
    """The group as of the record. Its members get a full session timeout."""
    group = ClassicGroup(group_id, settings, now_ms=now_ms)
    group.generation_id = value.generation
    group.protocol_type = value.protocol_type or None
    group.protocol_name = value.protocol
    for stored in value.members:
        group.members.add(_restore_member(stored, value.protocol or "", now_ms))
    if value.leader in group.members:
        group.members.leader_id = value.leader
    # `StoreGroup` is an effect of stable and of empty groups alone.
    group.state = GroupState.STABLE if value.members else GroupState.EMPTY
    if value.current_state_timestamp != -1:
        group.state_timestamp_ms = value.current_state_timestamp - wall_offset_ms
    group.find_subscribed_topics()
    return group


def _restore_member(stored: AnyMemberMetadata, protocol: str, now_ms: TimestampMs) -> ClassicMember:
    member = ClassicMember(
        stored.member_id,
        stored.group_instance_id,
        stored.client_id,
        stored.client_host,
        stored.session_timeout,
        # Version 0 has no rebalance timeout. Clients of that time used the session timeout for it.
        stored.session_timeout if stored.rebalance_timeout == -1 else stored.rebalance_timeout,
        (Protocol(protocol, stored.subscription),),
        assignment=stored.assignment,
    )
    member.reset_session_timeout(now_ms)
    return member
