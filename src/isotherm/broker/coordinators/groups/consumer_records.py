"""Makes the records of changes of consumer groups. `consumer_replay` reads them back.

A member has three records: its subscription (type 5), its target assignment (7) and its current
assignment (8). The group has records of its epoch (3) and of the target's epoch (6). Resolved
regular expressions are not written, because they are resolved again after a restart. Source: Kafka
GroupCoordinatorRecordHelpers.java.
"""

from __future__ import annotations

from collections.abc import Iterable

from isotherm.broker.coordinators.groups.assignors.assignor import Assignment, by_topic
from isotherm.broker.coordinators.groups.consumer_member import ClassicSupport, ConsumerMember
from isotherm.broker.coordinators.groups.group_records import (
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
                TargetTopicPartitions(topic_id=topic_id, partitions=tuple(partitions))
                for topic_id, partitions in by_topic(assigned)
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


def group_tombstones(group_id: str, member_ids: Iterable[str]) -> list[GroupRecord]:
    """Tombstones of a group and its members."""
    of_members = [
        record for member_id in member_ids for record in member_tombstones(group_id, member_id)
    ]
    return of_members + [
        GroupRecord(key_class(group_id=group_id), None)
        for key_class in (ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupMetadataKey)
    ]


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


def _with_epochs(
    assigned: Assignment, member: ConsumerMember
) -> tuple[CurrentTopicPartitions, ...]:
    return tuple(
        CurrentTopicPartitions(
            topic_id=topic_id,
            partitions=tuple(partitions),
            assignment_epochs=tuple(
                member.assignment_epochs[topic_id, index] for index in partitions
            ),
        )
        for topic_id, partitions in by_topic(assigned)
    )
