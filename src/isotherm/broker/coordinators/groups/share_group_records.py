"""The records of share groups in `__consumer_offsets` (KIP-932): Kafka's own schemas, in the form
of `group_records`, and the records of a group's changes. `ShareGroup.apply` reads those back.

    10 member · 11 group · 12 target assignment · 13 a member's target · 14 a member's assignment
    15 the partitions whose state is initialized, or is to be deleted

Source: Kafka GroupCoordinatorRecordHelpers.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from isotherm.broker.coordinators.groups.assignors.assignor import Assignment, by_topic, topic_order
from isotherm.broker.coordinators.groups.group_records import (
    GroupKey,
    GroupRecord,
    GroupValue,
    Schemas,
    decode_record,
)
from isotherm.broker.coordinators.groups.share_member import ShareMember, TopicPartitions
from isotherm.protocol.primitives import Buffer
from isotherm.types import TimestampMs

_INT8 = {"kafka_type": "int8"}
_INT32 = {"kafka_type": "int32"}
_INT64 = {"kafka_type": "int64"}
_STRING = {"kafka_type": "string"}
_UUID = {"kafka_type": "uuid"}

# Kafka's MemberState.STABLE. Members of share groups have no other state.
_STABLE = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupMemberMetadataKey(GroupKey):
    __api_key__ = 10
    group_id: str = field(metadata=_STRING)
    member_id: str = field(metadata=_STRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupMemberMetadataValue(GroupValue):
    rack_id: str | None = field(metadata=_STRING, default=None)
    client_id: str = field(metadata=_STRING)
    client_host: str = field(metadata=_STRING)
    subscribed_topic_names: tuple[str, ...] = field(metadata=_STRING, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupMetadataKey(GroupKey):
    __api_key__ = 11
    group_id: str = field(metadata=_STRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupMetadataValue(GroupValue):
    epoch: int = field(metadata=_INT32)
    metadata_hash: int = field(metadata=_INT64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupTargetAssignmentMetadataKey(GroupKey):
    __api_key__ = 12
    group_id: str = field(metadata=_STRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupTargetAssignmentMetadataValue(GroupValue):
    assignment_epoch: int = field(metadata=_INT32)
    assignment_timestamp: int = field(metadata=_INT64 | {"tag": 0}, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupTargetAssignmentMemberKey(GroupKey):
    __api_key__ = 13
    group_id: str = field(metadata=_STRING)
    member_id: str = field(metadata=_STRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareTopicPartitions(GroupValue):
    topic_id: uuid.UUID | None = field(metadata=_UUID)
    partitions: tuple[int, ...] = field(metadata=_INT32, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupTargetAssignmentMemberValue(GroupValue):
    topic_partitions: tuple[ShareTopicPartitions, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupCurrentMemberAssignmentKey(GroupKey):
    __api_key__ = 14
    group_id: str = field(metadata=_STRING)
    member_id: str = field(metadata=_STRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupCurrentMemberAssignmentValue(GroupValue):
    member_epoch: int = field(metadata=_INT32)
    previous_member_epoch: int = field(metadata=_INT32)
    state: int = field(metadata=_INT8)
    assigned_partitions: tuple[ShareTopicPartitions, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupStatePartitionMetadataKey(GroupKey):
    __api_key__ = 15
    group_id: str = field(metadata=_STRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitionsInfo(GroupValue):
    topic_id: uuid.UUID | None = field(metadata=_UUID)
    topic_name: str = field(metadata=_STRING)
    partitions: tuple[int, ...] = field(metadata=_INT32, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo(GroupValue):
    topic_id: uuid.UUID | None = field(metadata=_UUID)
    topic_name: str = field(metadata=_STRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupStatePartitionMetadataValue(GroupValue):
    initializing_topics: tuple[TopicPartitionsInfo, ...] = ()
    initialized_topics: tuple[TopicPartitionsInfo, ...] = ()
    deleting_topics: tuple[TopicInfo, ...] = ()


_SCHEMAS: Schemas = {
    key.__api_key__: (key, {0: value})
    for key, value in (
        (ShareGroupMemberMetadataKey, ShareGroupMemberMetadataValue),
        (ShareGroupMetadataKey, ShareGroupMetadataValue),
        (ShareGroupTargetAssignmentMetadataKey, ShareGroupTargetAssignmentMetadataValue),
        (ShareGroupTargetAssignmentMemberKey, ShareGroupTargetAssignmentMemberValue),
        (ShareGroupCurrentMemberAssignmentKey, ShareGroupCurrentMemberAssignmentValue),
        (ShareGroupStatePartitionMetadataKey, ShareGroupStatePartitionMetadataValue),
    )
}


SHARE_KEYS = tuple(key for key, _ in _SCHEMAS.values())


def decode_share_record(key: Buffer, value: Buffer | None) -> GroupRecord | None:
    """The record; None if it is not of a share group.

    Raises CorruptMetadataError for a value of an unknown version, and for malformed bytes.
    """
    return decode_record(key, value, _SCHEMAS)


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
    return tuple(
        TopicPartitionsInfo(
            topic_id=topic_id,
            topic_name=topics[topic_id].name,
            partitions=tuple(sorted(topics[topic_id].partitions)),
        )
        for topic_id in sorted(topics, key=topic_order)
    )
