"""Makes the records of changes of share groups. `ShareGroup.apply` reads them back.

Source: Kafka GroupCoordinatorRecordHelpers.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

from isotherm.broker.coordinators.groups.assignors.assignor import Assignment, by_topic, topic_order
from isotherm.broker.coordinators.groups.group_records import GroupRecord
from isotherm.broker.coordinators.groups.share_group_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
    ShareTopicPartitions,
    TopicInfo,
    TopicPartitionsInfo,
)
from isotherm.broker.coordinators.groups.share_member import ShareMember, TopicPartitions
from isotherm.types import TimestampMs

# Kafka's MemberState.STABLE. Members of share groups have no other state.
_STABLE = 0


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> GroupRecord:
    return GroupRecord(
        ShareGroupMetadataKey(group_id=group_id),
        ShareGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash),
    )


def target_epoch_record(group_id: str, epoch: int, timestamp_ms: TimestampMs) -> GroupRecord:
    return GroupRecord(
        ShareGroupTargetAssignmentMetadataKey(group_id=group_id),
        ShareGroupTargetAssignmentMetadataValue(
            assignment_epoch=epoch, assignment_timestamp=timestamp_ms
        ),
    )


def member_record(group_id: str, member: ShareMember) -> GroupRecord:
    return GroupRecord(
        ShareGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id),
        ShareGroupMemberMetadataValue(
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=tuple(sorted(member.topic_names)),
        ),
    )


def target_record(group_id: str, member_id: str, assigned: Assignment) -> GroupRecord:
    return GroupRecord(
        ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        ShareGroupTargetAssignmentMemberValue(topic_partitions=_by_topic(assigned)),
    )


def current_record(group_id: str, member: ShareMember) -> GroupRecord:
    return GroupRecord(
        ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id),
        ShareGroupCurrentMemberAssignmentValue(
            member_epoch=member.epoch,
            previous_member_epoch=member.previous_epoch,
            state=_STABLE,
            assigned_partitions=_by_topic(member.assigned),
        ),
    )


def state_record(
    group_id: str,
    initializing: Mapping[uuid.UUID, TopicPartitions],
    initialized: Mapping[uuid.UUID, TopicPartitions],
    deleting: Mapping[uuid.UUID, str],
) -> GroupRecord:
    """`deleting` has the names of topics."""
    return GroupRecord(
        ShareGroupStatePartitionMetadataKey(group_id=group_id),
        ShareGroupStatePartitionMetadataValue(
            initializing_topics=_infos(initializing),
            initialized_topics=_infos(initialized),
            deleting_topics=tuple(
                TopicInfo(topic_id=topic_id, topic_name=deleting[topic_id])
                for topic_id in sorted(deleting, key=topic_order)
            ),
        ),
    )


def member_tombstones(group_id: str, member_id: str) -> list[GroupRecord]:
    """Tombstones of the member's three records, in Kafka's order."""
    return [
        GroupRecord(key_class(group_id=group_id, member_id=member_id), None)
        for key_class in (
            ShareGroupCurrentMemberAssignmentKey,
            ShareGroupTargetAssignmentMemberKey,
            ShareGroupMemberMetadataKey,
        )
    ]


def group_tombstones(group_id: str) -> list[GroupRecord]:
    """Tombstones of a group without members, in Kafka's order."""
    return [
        GroupRecord(key_class(group_id=group_id), None)
        for key_class in (
            ShareGroupTargetAssignmentMetadataKey,
            ShareGroupStatePartitionMetadataKey,
            ShareGroupMetadataKey,
        )
    ]


def _by_topic(assigned: Assignment) -> tuple[ShareTopicPartitions, ...]:
    return tuple(
        ShareTopicPartitions(topic_id=topic_id, partitions=tuple(partitions))
        for topic_id, partitions in by_topic(assigned)
    )


def _infos(topics: Mapping[uuid.UUID, TopicPartitions]) -> tuple[TopicPartitionsInfo, ...]:
    ids: Iterable[uuid.UUID] = sorted(topics, key=topic_order)
    return tuple(
        TopicPartitionsInfo(
            topic_id=topic_id,
            topic_name=topics[topic_id].name,
            partitions=tuple(sorted(topics[topic_id].partitions)),
        )
        for topic_id in ids
    )
