"""The records of `__consumer_offsets`: Apache Kafka's own schemas, declared in kio's style.

    key    record type i16 | fields, never flexible
    value  version i16     | fields; a null value is a tombstone

Values are written in the versions of Kafka 4.3: offsets in 4 (1 if an old client sends its own
retention), classic groups in 3, consumer groups in 0. Older versions are only read (`old_records`).

Source: Kafka group-coordinator/src/main/resources/common/message/*.json.
"""

from __future__ import annotations

import struct
import typing
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeAlias

from isotherm.broker.coordinators.groups.old_records import (
    GroupMetadataValueV0,
    GroupMetadataValueV1,
    GroupMetadataValueV2,
    GroupMetadataValueV4,
    MemberMetadataV0,
    MemberMetadataV1,
    MemberMetadataV4,
    OffsetCommitValueV0,
    OffsetCommitValueV2,
    OffsetCommitValueV3,
)
from isotherm.broker.coordinators.record_form import decoded, encoded, version_of
from isotherm.errors import CorruptMetadataError, InvalidRequestError
from isotherm.protocol.primitives import Buffer

_INT8 = {"kafka_type": "int8"}
_INT32 = {"kafka_type": "int32"}
_INT64 = {"kafka_type": "int64"}
_STRING = {"kafka_type": "string"}
_BYTES = {"kafka_type": "bytes"}
_UUID = {"kafka_type": "uuid"}

_RECORD = "a group record"
LEGACY_OFFSET_COMMIT = 0


class GroupKey:
    """The common part of keys. `__api_key__` is the record type."""

    __slots__ = ()
    __api_key__: ClassVar[int]
    __flexible__: ClassVar[bool] = False


class GroupValue:
    __slots__ = ()
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True


# ---- committed offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitKey(GroupKey):
    __api_key__ = 1
    group: str = field(metadata=_STRING)
    topic: str = field(metadata=_STRING)
    partition: int = field(metadata=_INT32)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitValue(GroupValue):
    __version__ = 4
    offset: int = field(metadata=_INT64)
    leader_epoch: int = field(metadata=_INT32, default=-1)
    metadata: str = field(metadata=_STRING)
    commit_timestamp: int = field(metadata=_INT64)
    topic_id: uuid.UUID | None = field(metadata=_UUID | {"tag": 0}, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitValueV1(GroupValue):
    """The only version with its own expiry time."""

    __version__ = 1
    __flexible__ = False
    offset: int = field(metadata=_INT64)
    metadata: str = field(metadata=_STRING)
    commit_timestamp: int = field(metadata=_INT64)
    expire_timestamp: int = field(metadata=_INT64, default=-1)


AnyOffsetCommitValue: TypeAlias = (
    OffsetCommitValue
    | OffsetCommitValueV3
    | OffsetCommitValueV2
    | OffsetCommitValueV1
    | OffsetCommitValueV0
)


# ---- groups of the classic protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataKey(GroupKey):
    __api_key__ = 2
    group: str = field(metadata=_STRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberMetadata(GroupValue):
    __version__ = 3
    __flexible__ = False
    member_id: str = field(metadata=_STRING)
    group_instance_id: str | None = field(metadata=_STRING, default=None)
    client_id: str = field(metadata=_STRING)
    client_host: str = field(metadata=_STRING)
    rebalance_timeout: int = field(metadata=_INT32, default=-1)
    session_timeout: int = field(metadata=_INT32)
    subscription: bytes = field(metadata=_BYTES)
    assignment: bytes = field(metadata=_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataValue(GroupValue):
    __version__ = 3
    __flexible__ = False
    protocol_type: str = field(metadata=_STRING)
    generation: int = field(metadata=_INT32)
    protocol: str | None = field(metadata=_STRING, default=None)
    leader: str | None = field(metadata=_STRING, default=None)
    current_state_timestamp: int = field(metadata=_INT64, default=-1)
    members: tuple[MemberMetadata, ...] = ()


AnyMemberMetadata: TypeAlias = (
    MemberMetadata | MemberMetadataV4 | MemberMetadataV1 | MemberMetadataV0
)
AnyGroupMetadataValue: TypeAlias = (
    GroupMetadataValue
    | GroupMetadataValueV4
    | GroupMetadataValueV2
    | GroupMetadataValueV1
    | GroupMetadataValueV0
)


# ---- groups of the consumer protocol (KIP-848)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMetadataKey(GroupKey):
    __api_key__ = 3
    group_id: str = field(metadata=_STRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMetadataValue(GroupValue):
    epoch: int = field(metadata=_INT32)
    metadata_hash: int = field(metadata=_INT64 | {"tag": 0}, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMemberMetadataKey(GroupKey):
    __api_key__ = 5
    group_id: str = field(metadata=_STRING)
    member_id: str = field(metadata=_STRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicProtocol(GroupValue):
    name: str = field(metadata=_STRING)
    metadata: bytes = field(metadata=_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMemberMetadata(GroupValue):
    session_timeout_ms: int = field(metadata=_INT32, default=0)
    supported_protocols: tuple[ClassicProtocol, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMemberMetadataValue(GroupValue):
    instance_id: str | None = field(metadata=_STRING, default=None)
    rack_id: str | None = field(metadata=_STRING, default=None)
    client_id: str = field(metadata=_STRING)
    client_host: str = field(metadata=_STRING)
    subscribed_topic_names: tuple[str, ...] = field(metadata=_STRING, default=())
    subscribed_topic_regex: str | None = field(metadata=_STRING, default=None)
    rebalance_timeout_ms: int = field(metadata=_INT32, default=-1)
    server_assignor: str | None = field(metadata=_STRING, default=None)
    # Kafka writes null for a member of the consumer protocol, and omits an empty structure.
    classic_member_metadata: ClassicMemberMetadata | None = field(
        metadata={"tag": 0}, default=ClassicMemberMetadata()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMetadataKey(GroupKey):
    __api_key__ = 6
    group_id: str = field(metadata=_STRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMetadataValue(GroupValue):
    assignment_epoch: int = field(metadata=_INT32)
    assignment_timestamp: int = field(metadata=_INT64 | {"tag": 0}, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMemberKey(GroupKey):
    __api_key__ = 7
    group_id: str = field(metadata=_STRING)
    member_id: str = field(metadata=_STRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTopicPartitions(GroupValue):
    topic_id: uuid.UUID | None = field(metadata=_UUID)
    partitions: tuple[int, ...] = field(metadata=_INT32, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupTargetAssignmentMemberValue(GroupValue):
    topic_partitions: tuple[TargetTopicPartitions, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupCurrentMemberAssignmentKey(GroupKey):
    __api_key__ = 8
    group_id: str = field(metadata=_STRING)
    member_id: str = field(metadata=_STRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentTopicPartitions(GroupValue):
    topic_id: uuid.UUID | None = field(metadata=_UUID)
    partitions: tuple[int, ...] = field(metadata=_INT32, default=())
    assignment_epochs: tuple[int, ...] | None = field(metadata=_INT32 | {"tag": 0}, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupCurrentMemberAssignmentValue(GroupValue):
    member_epoch: int = field(metadata=_INT32)
    previous_member_epoch: int = field(metadata=_INT32)
    state: int = field(metadata=_INT8)
    assigned_partitions: tuple[CurrentTopicPartitions, ...] = ()
    partitions_pending_revocation: tuple[CurrentTopicPartitions, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupRegularExpressionKey(GroupKey):
    __api_key__ = 16
    group_id: str = field(metadata=_STRING)
    regular_expression: str = field(metadata=_STRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupRegularExpressionValue(GroupValue):
    topics: tuple[str, ...] = field(metadata=_STRING, default=())
    version: int = field(metadata=_INT64)
    timestamp: int = field(metadata=_INT64)


# The key and the value.
EncodedRecord: TypeAlias = tuple[bytes, bytes | None]


class GroupRecord(NamedTuple):
    """A record. A value of None is a tombstone."""

    key: Any
    value: Any


# Key class and readable value classes, by record type.
Schemas: TypeAlias = dict[int, tuple[type[Any], dict[int, type[Any]]]]

_SCHEMAS: Schemas = {
    key.__api_key__: (key, {value.__version__: value for value in values})
    for key, values in (
        (OffsetCommitKey, typing.get_args(AnyOffsetCommitValue)),
        (GroupMetadataKey, typing.get_args(AnyGroupMetadataValue)),
        (ConsumerGroupMetadataKey, (ConsumerGroupMetadataValue,)),
        (ConsumerGroupMemberMetadataKey, (ConsumerGroupMemberMetadataValue,)),
        (ConsumerGroupTargetAssignmentMetadataKey, (ConsumerGroupTargetAssignmentMetadataValue,)),
        (ConsumerGroupTargetAssignmentMemberKey, (ConsumerGroupTargetAssignmentMemberValue,)),
        (ConsumerGroupCurrentMemberAssignmentKey, (ConsumerGroupCurrentMemberAssignmentValue,)),
        (ConsumerGroupRegularExpressionKey, (ConsumerGroupRegularExpressionValue,)),
    )
}

# Keys of 0.8.2 have the same fields. They are read into the new class and written as the new type.
_SCHEMAS[LEGACY_OFFSET_COMMIT] = _SCHEMAS[OffsetCommitKey.__api_key__]


# Only Apache Kafka's brokers serve groups of this type: KIP-1071.
_STREAMS_GROUP_METADATA = 17


def unserved_group(key: Buffer) -> str | None:
    """The group's id, if the record is the metadata of a streams group; else None.

    Raises CorruptMetadataError.
    """
    if version_of(key, _RECORD) != _STREAMS_GROUP_METADATA:
        return None
    # The key has one field, the group's id.
    return str(decoded(GroupMetadataKey, key, _RECORD).group)


def encode_key(key: Any) -> bytes:
    return _encode(int(key.__api_key__), key)


def encode_value(value: Any) -> bytes | None:
    return None if value is None else _encode(int(value.__version__), value)


def encoded_records(records: Iterable[GroupRecord]) -> list[EncodedRecord]:
    """Any thread. Raises InvalidRequestError like `encode_value`."""
    return [(encode_key(key), encode_value(value)) for key, value in records]


def _encode(version: int, entity: Any) -> bytes:
    """Raises InvalidRequestError if a client's text is too long for the record (32767 bytes)."""
    try:
        return encoded(version, entity)
    except (struct.error, ValueError, OverflowError) as error:
        raise InvalidRequestError(
            f"a group record has no room for this record={type(entity).__name__}"
        ) from error


def decode_record(
    key: Buffer, value: Buffer | None, schemas: Schemas = _SCHEMAS
) -> GroupRecord | None:
    """The record; None for a type that is not in `schemas`. Kafka skips unknown types too.

    Raises CorruptMetadataError for a value of an unknown version, and for malformed bytes.
    """
    record_type = version_of(key, _RECORD)
    schema = schemas.get(record_type)
    if schema is None:
        return None
    decoded_key = decoded(schema[0], key, _RECORD)
    return GroupRecord(decoded_key, None if value is None else _value_of(schema[1], value))


def decode_offset_value(value: Buffer) -> AnyOffsetCommitValue:
    """The value of an offset record. Raises what `decode_record` raises."""
    offset: AnyOffsetCommitValue = _value_of(_SCHEMAS[OffsetCommitKey.__api_key__][1], value)
    return offset


def _value_of(value_classes: dict[int, type[Any]], value: Buffer) -> Any:
    version = version_of(value, _RECORD)
    value_class = value_classes.get(version)
    if value_class is None:
        record_name = next(iter(value_classes.values())).__name__
        raise CorruptMetadataError(
            f"unknown version of a group record record={record_name} version={version}"
        )
    return decoded(value_class, value, _RECORD)
