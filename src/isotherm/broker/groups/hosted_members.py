"""Members that speak the classic protocol in a group of the consumer protocol (KIP-848's online
migration). Pure: like the group's own methods, these work on a copy of the group.

The member's epoch is its generation. It joins in place of a heartbeat with news, syncs to be told
its assignment, and is told by a classic heartbeat that it has to join again:

    join   taken in, one step nearer to its target; answered at once, nobody waits for the others
    sync   what it has, in the consumer protocol embedded in the classic one
    heartbeat  REBALANCE_IN_PROGRESS when a join would bring it further; it has its rebalance
           timeout to do so, and as long to sync after that

Source: Kafka GroupMetadataManager.classicGroup{Join,Sync,Heartbeat,Leave}ToConsumerGroup.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kio.schema.errors import ErrorCode

from isotherm.broker.groups.classic_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    NO_MEMBER_ID,
    JoinRequest,
    JoinResult,
    SyncRequest,
    SyncResult,
)
from isotherm.broker.groups.consumer_group import ConsumerGroup, MemberRejectedError
from isotherm.broker.groups.consumer_member import (
    NOTHING,
    ClassicSupport,
    ConsumerMember,
    MemberState,
)
from isotherm.broker.groups.embedded_protocol import (
    Subscription,
    read_subscription,
    write_assignment,
)
from isotherm.broker.groups.records import GroupRecord
from isotherm.broker.groups.topic_catalog import TopicCatalog
from isotherm.protocol.errors import ProtocolError
from isotherm.types import TimestampMs


def join(
    group: ConsumerGroup,
    request: JoinRequest,
    catalog: TopicCatalog,
    now_ms: TimestampMs,
    wall_ms: int,
) -> tuple[JoinResult, list[GroupRecord]]:
    """Raises MemberRejectedError, with the group no longer to be used."""
    member_id = request.member_id or request.new_member_id
    if member_id not in group.members:
        group.check_size()
    _check_protocols(group, request)
    is_dynamic = request.group_instance_id is None
    if request.member_id == NO_MEMBER_ID and is_dynamic and request.requires_known_member_id:
        return JoinResult(ErrorCode.member_id_required, member_id), []
    records: list[GroupRecord] = []
    before = _member_of(group, request, member_id, records)
    subscription = _subscription(request)
    member = replace(
        before,
        instance_id=request.group_instance_id or before.instance_id,
        rack_id=subscription.rack_id or before.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        topic_names=subscription.topics,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        classic=ClassicSupport(request.session_timeout_ms, request.protocols),
    )
    owned = catalog.assignment(subscription.owned)
    member = group.advance(before, member, owned, catalog, now_ms, wall_ms, records)
    # It has to sync within that time.
    group.rebalance_deadlines[member.member_id] = now_ms + member.rebalance_timeout_ms
    result = JoinResult(
        ErrorCode.none,
        member.member_id,
        member.epoch,
        CONSUMER_PROTOCOL_TYPE,
        request.protocols[0].name,
    )
    return result, records


def _check_protocols(group: ConsumerGroup, request: JoinRequest) -> None:
    """There has to be a protocol that all classic members know; what they agree on plays no part
    otherwise."""
    known = [
        {protocol.name for protocol in member.classic.protocols}
        for member in group.members.values()
        if member.classic is not None
    ]
    names = {protocol.name for protocol in request.protocols}
    if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not names.intersection(*known):
        raise MemberRejectedError(
            ErrorCode.inconsistent_group_protocol,
            f"the group's members do not know these protocols group_id={group.group_id}",
        )


def _member_of(
    group: ConsumerGroup, request: JoinRequest, member_id: str, records: list[GroupRecord]
) -> ConsumerMember:
    """The member as it was before this join."""
    if request.group_instance_id is None:
        return group.members.get(member_id) or ConsumerMember(member_id=member_id)
    if request.member_id != NO_MEMBER_ID:
        return group.known_member(request.member_id, request.group_instance_id)
    holder = group.static_member(request.group_instance_id)
    if holder is None:
        return ConsumerMember(member_id=member_id)
    return group.take_over(holder, member_id, records)


def _subscription(request: JoinRequest) -> Subscription:
    """That of the protocol it likes best."""
    try:
        return read_subscription(request.protocols[0].metadata)
    except ProtocolError as error:
        raise MemberRejectedError(
            ErrorCode.inconsistent_group_protocol, "the subscription is malformed"
        ) from error


def sync(
    group: ConsumerGroup, request: SyncRequest, catalog: TopicCatalog, now_ms: TimestampMs
) -> SyncResult:
    """Raises MemberRejectedError."""
    member, classic = _classic_member(group, request.member_id, request.group_instance_id)
    _check_generation(member, request.generation_id)
    protocol = classic.protocols[0]
    if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (
        None,
        protocol.name,
    ):
        raise MemberRejectedError(
            ErrorCode.inconsistent_group_protocol,
            f"that is not the protocol of the join member_id={member.member_id}",
        )
    is_revoking = member.state is MemberState.UNREVOKED_PARTITIONS
    if group.group_epoch > member.epoch and not is_revoking:
        _await_join(group, member, now_ms)
        return SyncResult(ErrorCode.rebalance_in_progress)
    group.rebalance_deadlines.pop(member.member_id, None)
    group.heard_of(member, now_ms)
    assignment = write_assignment(catalog.partitions(member.assigned), protocol.metadata)
    return SyncResult(ErrorCode.none, request.protocol_type, request.protocol_name, assignment)


def heartbeat(
    group: ConsumerGroup,
    member_id: str,
    group_instance_id: str | None,
    generation_id: int,
    now_ms: TimestampMs,
) -> ErrorCode:
    """Raises MemberRejectedError."""
    member, _ = _classic_member(group, member_id, group_instance_id)
    _check_generation(member, generation_id)
    group.heard_of(member, now_ms)
    if not _gains_by_joining(group, member):
        return ErrorCode.none
    _await_join(group, member, now_ms)
    return ErrorCode.rebalance_in_progress


def _gains_by_joining(group: ConsumerGroup, member: ConsumerMember) -> bool:
    if member.epoch < group.group_epoch or member.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    if member.state is not MemberState.UNRELEASED_PARTITIONS:
        return False
    awaited = group.target.get(member.member_id, NOTHING) - member.assigned
    return not any(partition in group.owners for partition in awaited)


def _await_join(group: ConsumerGroup, member: ConsumerMember, now_ms: TimestampMs) -> None:
    """It has its rebalance timeout to join again, from when it was first told."""
    group.rebalance_deadlines.setdefault(member.member_id, now_ms + member.rebalance_timeout_ms)


def leave(
    group: ConsumerGroup, members: Iterable[tuple[str, str | None]]
) -> tuple[list[ErrorCode], list[GroupRecord]]:
    """Remove members named by (member id, group instance id); a code for each, in order.

    A static member may be named by its instance id alone, by whoever removes it from outside.
    """
    codes: list[ErrorCode] = []
    gone: list[str] = []
    for member_id, instance_id in members:
        named_id = member_id
        if instance_id is not None and member_id == NO_MEMBER_ID:
            holder = group.static_member(instance_id)
            named_id = NO_MEMBER_ID if holder is None else holder.member_id
        try:
            _classic_member(group, named_id, instance_id)
        except MemberRejectedError as error:
            codes.append(error.code)
            continue
        codes.append(ErrorCode.unknown_member_id if named_id in gone else ErrorCode.none)
        gone.append(named_id)
    return codes, group.remove(dict.fromkeys(gone)) if gone else []


def _classic_member(
    group: ConsumerGroup, member_id: str, group_instance_id: str | None
) -> tuple[ConsumerMember, ClassicSupport]:
    member = group.known_member(member_id, group_instance_id)
    if member.classic is None:
        raise MemberRejectedError(
            ErrorCode.unknown_member_id,
            f"the member does not speak the classic protocol member_id={member_id}",
        )
    return member, member.classic


def _check_generation(member: ConsumerMember, generation_id: int) -> None:
    if generation_id != member.epoch:
        raise MemberRejectedError(
            ErrorCode.illegal_generation,
            f"the generation is not the member's epoch member_id={member.member_id}"
            f" generation={generation_id} epoch={member.epoch}",
        )
