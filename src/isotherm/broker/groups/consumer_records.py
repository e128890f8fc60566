"""Records of consumer-protocol groups: what a change writes, and what a start reads back.

A member has three: what it said (type 5), what it should have (7), what it has (8); the group has
its epoch (3) and that of its target (6). Resolved patterns are worked out anew after a start and
are not written. Source: Kafka GroupCoordinatorRecordHelpers.java.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from isotherm.broker.groups.assignors.assignor import Assignment
from isotherm.broker.groups.consumer_member import ConsumerMember, MemberState
from isotherm.broker.groups.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    CurrentTopicPartitions,
    GroupRecord,
    TargetTopicPartitions,
)

if TYPE_CHECKING:
    from isotherm.broker.groups.consumer_group import ConsumerGroup


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> GroupRecord:
    return GroupRecord(
        ConsumerGroupMetadataKey(group_id=group_id),
        ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash),
    )


def target_epoch_record(group_id: str, epoch: int, timestamp_ms: int) -> GroupRecord:
    return GroupRecord(
        ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id),
        ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=epoch, assignment_timestamp=timestamp_ms
        ),
    )


def member_record(group_id: str, member: ConsumerMember) -> GroupRecord:
    return GroupRecord(
        ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id),
        ConsumerGroupMemberMetadataValue(
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=tuple(sorted(member.topic_names)),
            subscribed_topic_regex=member.topic_regex,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            server_assignor=member.server_assignor,
            classic_member_metadata=None,
        ),
    )


def target_record(group_id: str, member_id: str, assigned: Assignment) -> GroupRecord:
    return GroupRecord(
        ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=_by_topic(assigned, TargetTopicPartitions)
        ),
    )


def current_record(group_id: str, member: ConsumerMember) -> GroupRecord:
    return GroupRecord(
        ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id),
        ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=member.epoch,
            previous_member_epoch=member.previous_epoch,
            state=int(member.state),
            assigned_partitions=_by_topic(member.assigned, CurrentTopicPartitions),
            partitions_pending_revocation=_by_topic(
                member.pending_revocation, CurrentTopicPartitions
            ),
        ),
    )


def member_tombstones(group_id: str, member_id: str) -> list[GroupRecord]:
    """The member's three records, in the order that Kafka takes them away."""
    return [
        GroupRecord(key_class(group_id=group_id, member_id=member_id), None)
        for key_class in (
            ConsumerGroupCurrentMemberAssignmentKey,
            ConsumerGroupTargetAssignmentMemberKey,
            ConsumerGroupMemberMetadataKey,
        )
    ]


def group_tombstones(group: ConsumerGroup) -> list[GroupRecord]:
    """Of a group without members."""
    return [
        GroupRecord(key_class(group_id=group.group_id), None)
        for key_class in (ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupMetadataKey)
    ]


def replay(group: ConsumerGroup, record: GroupRecord) -> None:
    """Apply one record, in the order of the log."""
    key, value = record
    if isinstance(key, ConsumerGroupMetadataKey):
        group.group_epoch = value.epoch if value is not None else 0
        group.metadata_hash = value.metadata_hash if value is not None else 0
    elif isinstance(key, ConsumerGroupTargetAssignmentMetadataKey):
        group.target_epoch = value.assignment_epoch if value is not None else 0
    elif isinstance(key, ConsumerGroupTargetAssignmentMemberKey):
        if value is None:
            group.target.pop(key.member_id, None)
        else:
            group.target[key.member_id] = _assignment(value.topic_partitions)
    elif isinstance(key, ConsumerGroupMemberMetadataKey):
        _replay_member(group, key.member_id, value)
    elif isinstance(key, ConsumerGroupCurrentMemberAssignmentKey):
        _replay_current(group, key.member_id, value)


def _replay_member(
    group: ConsumerGroup, member_id: str, value: ConsumerGroupMemberMetadataValue | None
) -> None:
    if value is None:
        group.members.pop(member_id, None)
        return
    member = group.members.get(member_id) or ConsumerMember(member_id=member_id)
    group.members[member_id] = replace(
        member,
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topic_names=frozenset(value.subscribed_topic_names),
        topic_regex=value.subscribed_topic_regex,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        server_assignor=value.server_assignor,
    )


def _replay_current(
    group: ConsumerGroup, member_id: str, value: ConsumerGroupCurrentMemberAssignmentValue | None
) -> None:
    if value is None:
        # The tombstone of the member itself follows.
        return
    # Once the log is compacted this may come before what the member said.
    member = group.members.get(member_id) or ConsumerMember(member_id=member_id)
    group.members[member_id] = replace(
        member,
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=MemberState(value.state),
        assigned=_assignment(value.assigned_partitions),
        pending_revocation=_assignment(value.partitions_pending_revocation),
    )


def _by_topic(assigned: Assignment, item_class: Any) -> tuple[Any, ...]:
    groups = itertools.groupby(sorted(assigned), key=lambda each: each[0])
    return tuple(
        item_class(topic_id=topic_id, partitions=tuple(index for _, index in partitions))
        for topic_id, partitions in groups
    )


def _assignment(items: Iterable[Any]) -> Assignment:
    return frozenset((item.topic_id, index) for item in items for index in item.partitions)
