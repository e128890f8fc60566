"""Checks of requests to a classic group, by the state of the group. Pure functions.

Each function returns the error code that Kafka returns, and checks in Kafka's order.
Source: Kafka ClassicGroup.validateMember, validateOffsetCommit; GroupMetadataManager.
"""

from __future__ import annotations

import enum
from typing import Protocol

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups.classic_members import ClassicMembers
from isotherm.broker.coordinators.groups.classic_protocol import JoinRequest, SyncRequest


class GroupState(enum.Enum):
    """The values are the names that DescribeGroups and ListGroups return."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class RebalancingGroup(Protocol):
    """A group of the classic protocol, as the checks and the log messages read it."""

    @property
    def group_id(self) -> str: ...
    @property
    def state(self) -> GroupState: ...
    @property
    def generation_id(self) -> int: ...
    @property
    def protocol_type(self) -> str | None: ...
    @property
    def protocol_name(self) -> str | None: ...
    @property
    def members(self) -> ClassicMembers: ...


def accepts_member(group: RebalancingGroup, member_id: str, max_size: int) -> bool:
    if group.state in (GroupState.EMPTY, GroupState.DEAD):
        return True
    is_member = member_id in group.members
    # Only members that have rejoined count. If the limit was lowered, the last members to rejoin
    # exceed it.
    if group.state is GroupState.PREPARING_REBALANCE:
        is_waiting = is_member and group.members[member_id].is_awaiting_join
        return is_waiting or group.members.awaiting_join_count() < max_size
    return is_member or len(group.members) < max_size


def join_error(group: RebalancingGroup, request: JoinRequest) -> ErrorCode:
    """Check the protocols.

    The joining member must support a protocol that every member supports.
    """
    if group.state is GroupState.DEAD:
        return ErrorCode.coordinator_not_available
    names = {protocol.name for protocol in request.protocols}
    if group.members:
        is_shared = not names.isdisjoint(group.members.shared_protocols())
        fits = request.protocol_type == group.protocol_type and is_shared
    else:
        fits = bool(request.protocol_type) and bool(names)
    return ErrorCode.none if fits else ErrorCode.inconsistent_group_protocol


def member_error(
    group: RebalancingGroup, member_id: str, group_instance_id: str | None
) -> ErrorCode:
    if group.state is GroupState.DEAD:
        return ErrorCode.coordinator_not_available
    if group_instance_id is not None:
        owner = group.members.static_member_id(group_instance_id)
        if owner is None:
            return ErrorCode.unknown_member_id
        if owner != member_id:
            return ErrorCode.fenced_instance_id
    if member_id not in group.members:
        return ErrorCode.unknown_member_id
    return ErrorCode.none


def sync_error(group: RebalancingGroup, request: SyncRequest) -> ErrorCode:
    error = member_error(group, request.member_id, request.group_instance_id)
    if error is not ErrorCode.none:
        return error
    if request.generation_id != group.generation_id:
        return ErrorCode.illegal_generation
    if request.protocol_type is not None and request.protocol_type != group.protocol_type:
        return ErrorCode.inconsistent_group_protocol
    if request.protocol_name is not None and request.protocol_name != group.protocol_name:
        return ErrorCode.inconsistent_group_protocol
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.rebalance_in_progress
    return ErrorCode.none


def offset_commit_error(
    group: RebalancingGroup,
    member_id: str,
    group_instance_id: str | None,
    generation_id: int,
    *,
    is_transactional: bool,
) -> ErrorCode:
    """Whether the member may commit offsets in the group's current state."""
    if group.state is GroupState.DEAD:
        return ErrorCode.coordinator_not_available
    if generation_id < 0 and group.state is GroupState.EMPTY:
        # A consumer with a manual assignment uses the group only to store offsets.
        return ErrorCode.none
    if generation_id >= 0 or member_id or group_instance_id is not None:
        error = member_error(group, member_id, group_instance_id)
        if error is not ErrorCode.none:
            return error
        if generation_id != group.generation_id:
            return ErrorCode.illegal_generation
    # Transactional commits of clients before KIP-447 have neither a member id nor a generation.
    elif not is_transactional and group.state is not GroupState.EMPTY:
        return ErrorCode.unknown_member_id
    # The member has joined this generation but has no assignment yet. Kafka answers with a
    # retriable error, so the consumer rejoins and keeps its position.
    if not is_transactional and group.state is GroupState.COMPLETING_REBALANCE:
        return ErrorCode.rebalance_in_progress
    return ErrorCode.none
