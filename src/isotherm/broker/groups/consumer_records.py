"""Records of consumer groups: how changes are written and how a restart reads them back.

A member has three: its subscription (type 5), its target assignment (7), its current assignment
(8). The group has its epoch (3) and the target's epoch (6). Resolved regular expressions are not
written: they are resolved again after a restart. Source: Kafka GroupCoordinatorRecordHelpers.java.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from isotherm.broker.groups.assignors.assignor import AssignedPartition, Assignment
from isotherm.broker.groups.classic_protocol import Protocol
from isotherm.broker.groups.consumer_member import ClassicSupport, ConsumerMember, MemberState
from isotherm.broker.groups.records import (
    ClassicMemberMetadata,
    ClassicProtocol,
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
            classic_member_metadata=_classic_metadata(member.classic),
        ),
    )


def target_record(group_id: str, member_id: str, assigned: Assignment) -> GroupRecord:
    return GroupRecord(
        ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=tuple(
                TargetTopicPartitions(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in _by_topic(assigned)
            )
        ),
    )


def current_record(group_id: str, member: ConsumerMember) -> GroupRecord:
    return GroupRecord(
        ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id),
        ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=member.epoch,
            previous_member_epoch=member.previous_epoch,
            state=int(member.state),
            assigned_partitions=_with_epochs(member.assigned, member),
            partitions_pending_revocation=_with_epochs(member.pending_revocation, member),
        ),
    )


def member_tombstones(group_id: str, member_id: str) -> list[GroupRecord]:
    """Tombstones of the member's three records, in Kafka's order."""
    return [
        GroupRecord(key_class(group_id=group_id, member_id=member_id), None)
        for key_class in (
            ConsumerGroupCurrentMemberAssignmentKey,
            ConsumerGroupTargetAssignmentMemberKey,
            ConsumerGroupMemberMetadataKey,
        )
    ]


def group_records(group: ConsumerGroup, timestamp_ms: int) -> list[GroupRecord]:
    """All records of a group, in Kafka's order. For a group that replaces a classic one."""
    group_id, members = group.group_id, group.members.values()
    return [
        *(member_record(group_id, member) for member in members),
        epoch_record(group_id, group.group_epoch, group.metadata_hash),
        *(target_record(group_id, each, assigned) for each, assigned in group.target.items()),
        target_epoch_record(group_id, group.target_epoch, timestamp_ms),
        *(current_record(group_id, member) for member in members),
    ]


def group_tombstones(group: ConsumerGroup) -> list[GroupRecord]:
    """Tombstones of a group and its members."""
    of_members = [
        record for each in group.members for record in member_tombstones(group.group_id, each)
    ]
    return of_members + [
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
        classic=_classic_support(value.classic_member_metadata),
    )


def _replay_current(
    group: ConsumerGroup, member_id: str, value: ConsumerGroupCurrentMemberAssignmentValue | None
) -> None:
    if value is None:
        # The tombstone of the member's metadata follows.
        return
    # Compaction may leave this record before the member's metadata.
    member = group.members.get(member_id) or ConsumerMember(member_id=member_id)
    group.members[member_id] = replace(
        member,
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=MemberState(value.state),
        assigned=_assignment(value.assigned_partitions),
        pending_revocation=_assignment(value.partitions_pending_revocation),
        assignment_epochs=_assignment_epochs(
            (*value.assigned_partitions, *value.partitions_pending_revocation), value.member_epoch
        ),
    )


def _classic_metadata(classic: ClassicSupport | None) -> ClassicMemberMetadata | None:
    # Kafka writes null for a member of the consumer protocol.
    if classic is None:
        return None
    return ClassicMemberMetadata(
        session_timeout_ms=classic.session_timeout_ms,
        supported_protocols=tuple(
            ClassicProtocol(name=name, metadata=metadata) for name, metadata in classic.protocols
        ),
    )


def _classic_support(stored: ClassicMemberMetadata | None) -> ClassicSupport | None:
    if stored is None or not stored.supported_protocols:
        return None
    return ClassicSupport(
        stored.session_timeout_ms,
        tuple(Protocol(each.name, bytes(each.metadata)) for each in stored.supported_protocols),
    )


def _by_topic(assigned: Assignment) -> Iterator[tuple[uuid.UUID, tuple[int, ...]]]:
    for topic_id, partitions in itertools.groupby(sorted(assigned), key=lambda each: each[0]):
        yield topic_id, tuple(index for _, index in partitions)


def _with_epochs(
    assigned: Assignment, member: ConsumerMember
) -> tuple[CurrentTopicPartitions, ...]:
    return tuple(
        CurrentTopicPartitions(
            topic_id=topic_id,
            partitions=partitions,
            assignment_epochs=tuple(
                member.assignment_epochs[topic_id, index] for index in partitions
            ),
        )
        for topic_id, partitions in _by_topic(assigned)
    )


def _assignment(items: Iterable[Any]) -> Assignment:
    return frozenset((item.topic_id, index) for item in items for index in item.partitions)


def _assignment_epochs(
    items: Iterable[CurrentTopicPartitions], default: int
) -> dict[AssignedPartition, int]:
    """The assignment epochs. Brokers before 4.3 do not write them; `default` stands in."""
    return {
        (item.topic_id, index): epoch  # type: ignore[misc]
        for item in items
        for index, epoch in zip(
            item.partitions,
            item.assignment_epochs or itertools.repeat(default, len(item.partitions)),
            strict=True,
        )
    }
