"""The records of share groups in `__consumer_offsets` (KIP-932): Kafka's own schemas, in the form
of `group_records`.

    10 member · 11 group · 12 target assignment · 13 a member's target · 14 a member's assignment
    15 the partitions whose state is initialized, or is to be deleted
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from isotherm.broker.coordinators.groups.group_records import (
    GroupKey,
    GroupRecord,
    GroupValue,
    Schemas,
    decode_record,
)
from isotherm.protocol.primitives import Buffer

_INT8 = {"kafka_type": "int8"}
_INT32 = {"kafka_type": "int32"}
_INT64 = {"kafka_type": "int64"}
_STRING = {"kafka_type": "string"}
_UUID = {"kafka_type": "uuid"}


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
