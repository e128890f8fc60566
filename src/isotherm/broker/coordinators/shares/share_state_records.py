"""The records of `__share_group_state`: Apache Kafka's own schemas, declared in kio's style.

    key    type i16: 0 snapshot, 1 update | group id, topic id, partition; never flexible
    value  version i16 (0)                | fields; a null value of a snapshot is a tombstone

A snapshot is the whole state of one share partition, an update what has changed since.

Source: Kafka share-coordinator/src/main/resources/common/message/*.json,
ShareCoordinatorRecordHelpers.
"""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

from isotherm.broker.coordinators.shares.state_batches import StateBatch
from isotherm.errors import CorruptMetadataError, InvalidRequestError
from isotherm.protocol.codec import decoder, encoder
from isotherm.protocol.errors import ProtocolError
from isotherm.protocol.primitives import Buffer
from isotherm.types import Offset, TimestampMs, uuid_from_text, uuid_to_text

_INT8 = {"kafka_type": "int8"}
_INT16 = {"kafka_type": "int16"}
_INT32 = {"kafka_type": "int32"}
_INT64 = {"kafka_type": "int64"}
_STRING = {"kafka_type": "string"}
_UUID = {"kafka_type": "uuid"}

_VERSION = struct.Struct(">h")
# The group id may have colons. Java's split drops empty parts at the end.
_COORDINATOR_KEY = re.compile(
    r"(?P<group_id>.*):(?P<topic_id>[^:]*):(?P<partition>[+-]?0*[0-9]{1,9}):*", re.DOTALL
)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSnapshotKey:
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = False
    group_id: str = field(metadata=_STRING)
    topic_id: uuid.UUID | None = field(metadata=_UUID)
    partition: int = field(metadata=_INT32)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareUpdateKey(ShareSnapshotKey):
    __version__: ClassVar[int] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBatchSchema:
    __flexible__: ClassVar[bool] = True
    first_offset: int = field(metadata=_INT64)
    last_offset: int = field(metadata=_INT64)
    delivery_state: int = field(metadata=_INT8)
    delivery_count: int = field(metadata=_INT16)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSnapshotValue:
    __version__: ClassVar[int] = 0
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
    __version__: ClassVar[int] = 0
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
    """The key and the value as they are in the log."""
    key, value = record
    is_update = isinstance(value, ShareUpdate)
    key_class = ShareUpdateKey if is_update else ShareSnapshotKey
    encoded_key = _encode(key_class(**key._asdict()))
    return encoded_key, None if value is None else _encode(_value_schema(value))


def _value_schema(value: ShareSnapshot | ShareUpdate) -> ShareSnapshotValue | ShareUpdateValue:
    batches = tuple(
        StateBatchSchema(
            first_offset=batch.first_offset,
            last_offset=batch.last_offset_inclusive,
            delivery_state=batch.delivery_state,
            delivery_count=batch.delivery_count,
        )
        for batch in value.batches
    )
    if isinstance(value, ShareUpdate):
        return ShareUpdateValue(
            snapshot_epoch=value.snapshot_epoch,
            leader_epoch=value.leader_epoch,
            start_offset=value.start_offset,
            delivery_complete_count=value.delivery_complete_count,
            state_batches=batches,
        )
    return ShareSnapshotValue(
        snapshot_epoch=value.snapshot_epoch,
        state_epoch=value.state_epoch,
        leader_epoch=value.leader_epoch,
        start_offset=value.start_offset,
        delivery_complete_count=value.delivery_complete_count,
        create_timestamp=value.create_timestamp_ms,
        write_timestamp=value.write_timestamp_ms,
        state_batches=batches,
    )


def decode_record(key: Buffer | None, value: Buffer | None) -> ShareStateRecord | None:
    """The record; None for a key of an unknown type, and for an update without a value, which
    nobody writes.

    Raises CorruptMetadataError for a missing key, an unknown value version, or malformed bytes.
    """
    if key is None:
        raise CorruptMetadataError("a record of a share group's state has no key")
    key_type = _version_of(key)
    if key_type not in (ShareSnapshotKey.__version__, ShareUpdateKey.__version__):
        return None
    is_update = key_type == ShareUpdateKey.__version__
    named = _decode(ShareSnapshotKey, key)
    partition = SharePartitionKey(named.group_id, named.topic_id or NO_TOPIC_ID, named.partition)
    if value is None:
        return None if is_update else ShareStateRecord(partition, None)
    version = _version_of(value)
    if version != ShareSnapshotValue.__version__:
        raise CorruptMetadataError(
            f"unknown version of a share group's state version={version}"
            f" group_id={partition.group_id}"
        )
    return ShareStateRecord(partition, _update(value) if is_update else _snapshot(value))


def _snapshot(value: Buffer) -> ShareSnapshot:
    read = _decode(ShareSnapshotValue, value)
    return ShareSnapshot(
        read.snapshot_epoch,
        read.state_epoch,
        read.leader_epoch,
        read.start_offset,
        read.delivery_complete_count,
        _batches(read.state_batches),
        read.create_timestamp,
        read.write_timestamp,
    )


def _update(value: Buffer) -> ShareUpdate:
    read = _decode(ShareUpdateValue, value)
    return ShareUpdate(
        read.snapshot_epoch,
        read.leader_epoch,
        read.start_offset,
        read.delivery_complete_count,
        _batches(read.state_batches),
    )


def _batches(read: Iterable[StateBatchSchema]) -> tuple[StateBatch, ...]:
    return tuple(
        StateBatch(
            schema.first_offset, schema.last_offset, schema.delivery_count, schema.delivery_state
        )
        for schema in read
    )


def _encode(entity: Any) -> bytes:
    out = bytearray(_VERSION.pack(entity.__version__))
    encoder(type(entity))(entity, out)
    return bytes(out)


def _version_of(buffer: Buffer) -> int:
    if len(buffer) < _VERSION.size:
        raise CorruptMetadataError(
            f"a record of a share group's state has no version size={len(buffer)}"
        )
    version: int = _VERSION.unpack_from(buffer)[0]
    return version


def _decode(entity_class: type[Any], buffer: Buffer) -> Any:
    try:
        entity, _ = decoder(entity_class)(buffer, _VERSION.size)
    except ProtocolError as error:
        raise CorruptMetadataError(
            f"a record of a share group's state is malformed size={len(buffer)}"
        ) from error
    return entity
