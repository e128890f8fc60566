"""Members of the classic protocol in a consumer group (KIP-848's online migration).

Pure: like the group's own methods, these functions change a copy of the group. The member's epoch
is its generation. Classic requests replace the consumer protocol's heartbeat:

    join       applies the subscription and reconciles one step; it is answered at once, without
               waiting for the other members
    sync       returns the assignment, in the embedded consumer protocol
    heartbeat  returns REBALANCE_IN_PROGRESS if a join would reconcile further; the member then has
               its rebalance timeout to join, and again to sync

Source: Kafka GroupMetadataManager.classicGroup{Join,Sync,Heartbeat,Leave}ToConsumerGroup.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups.classic_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    NO_MEMBER_ID,
    JoinRequest,
    JoinResult,
    SyncRequest,
    SyncResult,
)
from isotherm.broker.coordinators.groups.consumer_group import LOOP_STEP_THINGS_MAX, ConsumerGroup
from isotherm.broker.coordinators.groups.consumer_member import (
    JOIN_EPOCH,
    NOTHING,
    ClassicSupport,
    ConsumerMember,
    MemberState,
)
from isotherm.broker.coordinators.groups.embedded_protocol import (
    Subscription,
    read_subscription,
    write_assignment,
)
from isotherm.broker.coordinators.groups.group_records import GroupRecord
from isotherm.broker.coordinators.groups.member_heartbeat import (
    MemberHeartbeat,
    MemberRejectedError,
)
from isotherm.broker.coordinators.groups.topic_catalog import TopicCatalog
from isotherm.protocol.errors import ProtocolError
from isotherm.types import TimestampMs


def join(
    group: ConsumerGroup,
    request: JoinRequest,
    catalog: TopicCatalog,
    now_ms: TimestampMs,
    wall_ms: int,
) -> tuple[JoinResult, list[GroupRecord]]:
    """Join a classic member. Raises MemberRejectedError; the caller then discards the group."""
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
    # The member must sync within its rebalance timeout.
    group.rebalance_deadlines[member.member_id] = now_ms + member.rebalance_timeout_ms
    result = JoinResult(
        ErrorCode.none,
        member.member_id,
        member.epoch,
        CONSUMER_PROTOCOL_TYPE,
        request.protocols[0].name,
    )
    return result, records


def things_of_join(group: ConsumerGroup, request: JoinRequest, catalog: TopicCatalog) -> int:
    """How many things a join goes through, as `ConsumerGroup.things_of` counts them. Metadata of
    more bytes than a step on the loop may have things is not read for that."""
    size = sum(len(protocol.metadata) for protocol in request.protocols)
    if size > LOOP_STEP_THINGS_MAX or not request.protocols:
        return size
    try:
        names = _subscription(request).topics
    except MemberRejectedError:  # `join` says so
        return 0
    return group.things_of(MemberHeartbeat("", JOIN_EPOCH, topic_names=names), catalog)


def _check_protocols(group: ConsumerGroup, request: JoinRequest) -> None:
    """Check that all classic members support a common protocol, which a downgrade must be able
    to select.
    """
    protocol_names = [
        {protocol.name for protocol in member.classic.protocols}
        for member in group.members.values()
        if member.classic is not None
    ]
    names = {protocol.name for protocol in request.protocols}
    if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not names.intersection(*protocol_names):
        raise MemberRejectedError(
            ErrorCode.inconsistent_group_protocol,
            f"the group's members do not support these protocols group_id={group.group_id}",
        )


def _member_of(
    group: ConsumerGroup, request: JoinRequest, member_id: str, records: list[GroupRecord]
) -> ConsumerMember:
    """The member before this join; a new member if it is unknown."""
    if request.group_instance_id is None:
        return group.members.get(member_id) or ConsumerMember(member_id=member_id)
    if request.member_id != NO_MEMBER_ID:
        return group.known_member(request.member_id, request.group_instance_id)
    holder = group.static_member(request.group_instance_id)
    if holder is None:
        return ConsumerMember(member_id=member_id)
    return group.take_over(holder, member_id, records)


def _subscription(request: JoinRequest) -> Subscription:
    """The subscription under the member's preferred protocol."""
    try:
        return read_subscription(request.protocols[0].metadata)
    except ProtocolError as error:
        raise MemberRejectedError(
            ErrorCode.inconsistent_group_protocol, "the subscription is malformed"
        ) from error


def sync(
    group: ConsumerGroup, request: SyncRequest, catalog: TopicCatalog, now_ms: TimestampMs
) -> SyncResult:
    """Return a classic member's assignment. Raises MemberRejectedError."""
    member, classic = _classic_member(group, request.member_id, request.group_instance_id)
    _check_generation(member, request.generation_id)
    protocol = classic.protocols[0]
    if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (
        None,
        protocol.name,
    ):
        raise MemberRejectedError(
            ErrorCode.inconsistent_group_protocol,
            f"the protocol is not that of the join member_id={member.member_id}",
        )
    is_revoking = member.state is MemberState.UNREVOKED_PARTITIONS
    # A member that must revoke partitions gets its smaller assignment now, although its epoch is
    # behind, because this sync shows it the partitions to revoke.
    if group.group_epoch > member.epoch and not is_revoking:
        _await_join(group, member, now_ms)
        return SyncResult(ErrorCode.rebalance_in_progress)
    group.rebalance_deadlines.pop(member.member_id, None)
    group.reset_session_timeout(member, now_ms)
    assignment = write_assignment(catalog.partitions(member.assigned), protocol.metadata)
    return SyncResult(ErrorCode.none, request.protocol_type, request.protocol_name, assignment)


def heartbeat(
    group: ConsumerGroup,
    member_id: str,
    group_instance_id: str | None,
    generation_id: int,
    now_ms: TimestampMs,
) -> ErrorCode:
    """Process a classic member's heartbeat. Raises MemberRejectedError."""
    member, _ = _classic_member(group, member_id, group_instance_id)
    _check_generation(member, generation_id)
    group.reset_session_timeout(member, now_ms)
    if not _gains_by_joining(group, member):
        return ErrorCode.none
    _await_join(group, member, now_ms)
    return ErrorCode.rebalance_in_progress


def _gains_by_joining(group: ConsumerGroup, member: ConsumerMember) -> bool:
    # A join interrupts the application, so it is requested only if it would change something.
    if member.epoch < group.group_epoch or member.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    if member.state is not MemberState.UNRELEASED_PARTITIONS:
        return False
    awaited = group.target.get(member.member_id, NOTHING) - member.assigned
    return not any(partition in group.owners for partition in awaited)


def _await_join(group: ConsumerGroup, member: ConsumerMember, now_ms: TimestampMs) -> None:
    """Start the rebalance timeout for the member to join again, unless it is running."""
    group.rebalance_deadlines.setdefault(member.member_id, now_ms + member.rebalance_timeout_ms)


def leave(
    group: ConsumerGroup, members: Iterable[tuple[str, str | None]]
) -> tuple[list[ErrorCode], list[GroupRecord]]:
    """Remove members named by (member id, group instance id); a code for each, in order.

    An admin client may name a static member by its instance id alone, and members of either
    protocol: this is how both are removed by an operator. A member that is named twice gets the
    same code twice, as in Kafka: the group changes after the last name.
    """
    codes: list[ErrorCode] = []
    gone: list[str] = []
    for member_id, instance_id in members:
        named_id = member_id
        if instance_id is not None and member_id == NO_MEMBER_ID:
            holder = group.static_member(instance_id)
            named_id = NO_MEMBER_ID if holder is None else holder.member_id
        try:
            group.known_member(named_id, instance_id)
        except MemberRejectedError as error:
            codes.append(error.code)
            continue
        codes.append(ErrorCode.none)
        gone.append(named_id)
    return codes, group.remove(dict.fromkeys(gone)) if gone else []


def _classic_member(
    group: ConsumerGroup, member_id: str, group_instance_id: str | None
) -> tuple[ConsumerMember, ClassicSupport]:
    member = group.known_member(member_id, group_instance_id)
    if member.classic is None:
        raise MemberRejectedError(
            ErrorCode.unknown_member_id,
            f"the member does not use the classic protocol member_id={member_id}",
        )
    return member, member.classic


def _check_generation(member: ConsumerMember, generation_id: int) -> None:
    if generation_id != member.epoch:
        raise MemberRejectedError(
            ErrorCode.illegal_generation,
            f"the generation is not the member's epoch member_id={member.member_id}"
            f" generation={generation_id} epoch={member.epoch}",
        )
