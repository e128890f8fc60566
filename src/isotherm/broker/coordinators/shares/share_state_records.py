"""The records of `__share_group_state`: Apache Kafka's own schemas, declared in kio's style.

    key    type i16: 0 snapshot, 1 update | group id, topic id, partition; never flexible
    value  version i16 (0)                | fields; a null value of a snapshot is a tombstone

A snapshot is the whole state of one share partition, an update what has changed since.

Source: Kafka share-coordinator/src/main/resources/common/message/*.json,
ShareCoordinatorRecordHelpers.
"""

from __future__ import annotations

import functools
import re
import struct
import uuid
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Self, TypeAlias

from isotherm.broker.coordinators.coordinator_partition import coordinator_partition
from isotherm.broker.coordinators.record_form import VERSION, decoded, version_of
from isotherm.broker.coordinators.shares.state_batches import StateBatch
from isotherm.errors import CorruptMetadataError, InvalidRequestError
from isotherm.protocol.dialect import COMPACT
from isotherm.protocol.primitives import Buffer
from isotherm.types import Offset, TimestampMs, uuid_from_text, uuid_to_text

_INT8 = {"kafka_type": "int8"}
_INT16 = {"kafka_type": "int16"}
_INT32 = {"kafka_type": "int32"}
_INT64 = {"kafka_type": "int64"}
_STRING = {"kafka_type": "string"}
_UUID = {"kafka_type": "uuid"}

SHARE_STATE_TOPIC = "__share_group_state"
SNAPSHOT_TYPE, UPDATE_TYPE = 0, 1
TYPE_SIZE = 2
"""The bytes of a record's key before those that name its share partition."""
VALUE_VERSION = 0
UNKNOWN_COUNT = -1

_RECORD = "a record of a share group's state"
_SNAPSHOT, _UPDATE = (VERSION.pack(key_type) for key_type in (SNAPSHOT_TYPE, UPDATE_TYPE))
_GROUP_ID_SIZE = struct.Struct(">h")
_KEY_END = struct.Struct(">i")
_SNAPSHOT_START = struct.Struct(">hiiiqqq")
_UPDATE_START = struct.Struct(">hiiq")
_BATCH = struct.Struct(">qqbhx")  # at the end no tagged field
_COUNT_TAG = struct.Struct(">bbbi")  # one tagged field: its tag, its size, a count
# The group id may have colons. Java's split drops empty parts at the end.
_COORDINATOR_KEY = re.compile(
    r"(?P<group_id>.*):(?P<topic_id>[^:]*):(?P<partition>[+-]?0*[0-9]{1,9}):*", re.DOTALL
)
# Share partitions whose place is remembered, some hundred bytes each.
PLACES_MAX = 10_000
NO_TOPIC_ID = uuid.UUID(int=0)


class SharePartitionKey(NamedTuple):
    """A partition as one share group consumes it."""

    group_id: str
    topic_id: uuid.UUID
    partition: int

    @property
    def coordinator_key(self) -> str:
        """The text that FindCoordinator names it by, and whose hash chooses its coordinator."""
        return f"{self.group_id}:{uuid_to_text(self.topic_id)}:{self.partition}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The inverse of `coordinator_key`. Raises InvalidRequestError."""
        match = _COORDINATOR_KEY.fullmatch(text)
        named = f"a share partition is named group:topic id:partition key={text!r}"
        if match is None or not match["group_id"].strip():
            raise InvalidRequestError(named)
        try:
            topic_id = uuid_from_text(match["topic_id"])
        except ValueError as error:
            raise InvalidRequestError(named) from error
        return cls(match["group_id"], topic_id, int(match["partition"]))


@functools.lru_cache(PLACES_MAX)
def state_partition(key: SharePartitionKey, partition_count: int) -> int:
    """The partition of `__share_group_state` that has a share partition's state. Any thread."""
    return coordinator_partition(key.coordinator_key, partition_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareStateKey:
    __flexible__: ClassVar[bool] = False
    group_id: str = field(metadata=_STRING)
    topic_id: uuid.UUID | None = field(metadata=_UUID)
    partition: int = field(metadata=_INT32)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBatchSchema:
    __flexible__: ClassVar[bool] = True
    first_offset: int = field(metadata=_INT64)
    last_offset: int = field(metadata=_INT64)
    delivery_state: int = field(metadata=_INT8)
    delivery_count: int = field(metadata=_INT16)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSnapshotValue:
    __flexible__: ClassVar[bool] = True
    snapshot_epoch: int = field(metadata=_INT32)
    state_epoch: int = field(metadata=_INT32)
    leader_epoch: int = field(metadata=_INT32)
    start_offset: int = field(metadata=_INT64)
    delivery_complete_count: int = field(metadata=_INT32 | {"tag": 0}, default=-1)
    create_timestamp: int = field(metadata=_INT64)
    write_timestamp: int = field(metadata=_INT64)
    state_batches: tuple[StateBatchSchema, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareUpdateValue:
    __flexible__: ClassVar[bool] = True
    snapshot_epoch: int = field(metadata=_INT32)
    leader_epoch: int = field(metadata=_INT32)
    start_offset: int = field(metadata=_INT64)
    delivery_complete_count: int = field(metadata=_INT32 | {"tag": 0}, default=-1)
    state_batches: tuple[StateBatchSchema, ...]


class ShareSnapshot(NamedTuple):
    """The whole state of a share partition."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: Offset
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]
    create_timestamp_ms: TimestampMs
    write_timestamp_ms: TimestampMs


class ShareUpdate(NamedTuple):
    """What a write has changed. A start offset or leader epoch of -1 leaves the present one."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: Offset
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


class ShareStateRecord(NamedTuple):
    """A record. A value of None is a tombstone."""

    key: SharePartitionKey
    value: ShareSnapshot | ShareUpdate | None


EncodedRecord: TypeAlias = tuple[bytes, bytes | None]


def encode_record(record: ShareStateRecord) -> EncodedRecord:
    """The key and the value as they are in the log. By hand: each acknowledgement writes one."""
    key, value = record
    key_type = _UPDATE if isinstance(value, ShareUpdate) else _SNAPSHOT
    return key_type + key_suffix(key), None if value is None else _encode_value(value)


def key_suffix(key: SharePartitionKey) -> bytes:
    """The bytes of a record's key behind its type."""
    group_id = key.group_id.encode()
    return b"".join(
        (
            _GROUP_ID_SIZE.pack(len(group_id)),
            group_id,
            key.topic_id.bytes,
            _KEY_END.pack(key.partition),
        )
    )


def is_of_snapshot(key: bytes) -> bool:
    """Whether an encoded key is that of a snapshot or a tombstone."""
    return key.startswith(_SNAPSHOT)


def _encode_value(value: ShareSnapshot | ShareUpdate) -> bytes:
    if isinstance(value, ShareUpdate):
        start = _UPDATE_START.pack(
            VALUE_VERSION, value.snapshot_epoch, value.leader_epoch, value.start_offset
        )
    else:
        start = _SNAPSHOT_START.pack(
            VALUE_VERSION,
            value.snapshot_epoch,
            value.state_epoch,
            value.leader_epoch,
            value.start_offset,
            value.create_timestamp_ms,
            value.write_timestamp_ms,
        )
    parts = [start, COMPACT.counts[len(value.batches)]]
    for first_offset, last_offset, delivery_count, delivery_state in value.batches:
        parts.append(_BATCH.pack(first_offset, last_offset, delivery_state, delivery_count))
    count = value.delivery_complete_count
    parts.append(COMPACT.no_tags if count == UNKNOWN_COUNT else _COUNT_TAG.pack(1, 0, 4, count))
    return b"".join(parts)


def decode_record(key: Buffer | None, value: Buffer | None) -> ShareStateRecord | None:
    """The record; None for a key of an unknown type, and for an update without a value, which
    nobody writes.

    Raises CorruptMetadataError for a missing key, an unknown value version, or malformed bytes.
    """
    if key is None:
        raise CorruptMetadataError("a record of a share group's state has no key")
    key_type = version_of(key, _RECORD)
    if key_type not in (SNAPSHOT_TYPE, UPDATE_TYPE):
        return None
    is_update = key_type == UPDATE_TYPE
    named = decoded(ShareStateKey, key, _RECORD)
    partition = SharePartitionKey(named.group_id, named.topic_id or NO_TOPIC_ID, named.partition)
    if value is None:
        return None if is_update else ShareStateRecord(partition, None)
    version = version_of(value, _RECORD)
    if version != VALUE_VERSION:
        raise CorruptMetadataError(
            f"unknown version of a share group's state version={version}"
            f" group_id={partition.group_id}"
        )
    return ShareStateRecord(partition, _update(value) if is_update else _snapshot(value))


def _snapshot(value: Buffer) -> ShareSnapshot:
    read = decoded(ShareSnapshotValue, value, _RECORD)
    return ShareSnapshot(
        read.snapshot_epoch,
        read.state_epoch,
        read.leader_epoch,
        read.start_offset,
        read.delivery_complete_count,
        tuple(map(StateBatch.of, read.state_batches)),
        read.create_timestamp,
        read.write_timestamp,
    )


def _update(value: Buffer) -> ShareUpdate:
    read = decoded(ShareUpdateValue, value, _RECORD)
    return ShareUpdate(
        read.snapshot_epoch,
        read.leader_epoch,
        read.start_offset,
        read.delivery_complete_count,
        tuple(map(StateBatch.of, read.state_batches)),
    )
