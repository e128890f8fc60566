"""Values of `__remote_log_metadata` records: at level 0 byte for byte as Kafka writes them.

    value   = frame_version (1) ++ api_key ++ api_version (0 or 1) ++ body      unsigned varints
    api key   body                        fields
    0         segment                     segment id, start offset i64, end offset (inclusive) i64,
                                          broker i32, max timestamp i64, event timestamp i64,
                                          epochs [epoch i32, offset i64], size i32,
                                          custom metadata (nullable), state i8;
                                          tag 0: transaction index is empty (bool, when true)
    1         segment update              segment id, broker i32, event timestamp i64,
                                          custom metadata (nullable), state i8
    2         partition deletion          topic-id partition, broker i32, event timestamp i64,
                                          state i8
    3         segment snapshot            as 0 with the bare segment uuid for the segment id

    segment id         = topic-id partition ++ uuid ++ tags
    topic-id partition = name ++ topic uuid ++ partition i32 ++ tags

Version 1 (feature level 1, KIP-1266) is version 0 with tagged fields at the end of the body, the
broker leader epoch always among them:

    api key   tag: field
    0         0: transaction index is empty (bool, when true) · 1: broker leader epoch i32
    1         0: broker leader epoch i32 · 1: end offset i64
    2         0: broker leader epoch i32 · 1: end offset i64 (when known)

The proposal gives the epoch tag 0 in api key 0 too, where Kafka has another field since 3.9.

Every structure ends in a tag buffer; unknown tags are skipped. The whole value must be consumed.
docs/formats/remote-log-metadata.md says more. Source: Kafka RemoteLogMetadataSerde, KIP-1266.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias, TypeVar

from isotherm.errors import CorruptMetadataError
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from isotherm.types import (
    NO_LEADER_EPOCH,
    UNKNOWN_OFFSET,
    BrokerId,
    LeaderEpoch,
    Offset,
    TimestampMs,
    TopicIdPartition,
)

FRAME_VERSION = 1
API_VERSION = 0
KEYED_API_VERSION = 1

_SEGMENT = 0
_SEGMENT_UPDATE = 1
_PARTITION_DELETE = 2
_SEGMENT_SNAPSHOT = 3

_NO_TAGS = b"\x00"
_TXN_INDEX_EMPTY_TAG = 0
_SEGMENT_EPOCH_TAG = 1
_EPOCH_TAG = 0
_END_OFFSET_TAG = 1
_VARINT_BYTES_MAX = 5
_VARINT_MAX = 0xFFFFFFFF
_FRAME_VARINT_MAX = 32767

_PARTITION = struct.Struct(">16si")
_SPAN = struct.Struct(">qqiqq")
_EPOCH = struct.Struct(">iq")
_EVENT = struct.Struct(">iq")
_INT8 = struct.Struct(">b")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_UUID = struct.Struct(">16s")

_State = TypeVar("_State")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentMetadataSnapshot:
    """A segment without its partition (api key 3). Kafka defines it and no longer writes it."""

    id: uuid.UUID
    start_offset: Offset
    end_offset_inclusive: Offset
    max_timestamp_ms: TimestampMs
    broker_id: BrokerId
    event_timestamp_ms: TimestampMs
    segment_size_in_bytes: int
    segment_leader_epochs: Mapping[LeaderEpoch, Offset]
    state: RemoteLogSegmentState
    custom_metadata: bytes | None = None
    txn_index_empty: bool = False


RemoteLogMetadataEvent: TypeAlias = (
    RemoteLogSegmentMetadata
    | RemoteLogSegmentMetadataUpdate
    | RemotePartitionDeleteMetadata
    | RemoteLogSegmentMetadataSnapshot
)
KeyedEvent: TypeAlias = (
    RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate | RemotePartitionDeleteMetadata
)


def encode_event(event: RemoteLogMetadataEvent) -> bytes:
    """The record value of `event` at feature level 0, without a broker leader epoch."""
    api_key, body, tags = _parts(event)
    return _join(api_key, API_VERSION, body, tags)


def encode_keyed_event(event: KeyedEvent) -> bytes:
    """The record value of `event` at feature level 1. The compacted topic has whole segments and
    deletions of partitions, the audit topic has every event."""
    api_key, body, tags = _parts(event)
    epoch = _INT32.pack(event.broker_leader_epoch)
    if isinstance(event, RemoteLogSegmentMetadata):
        tags[_SEGMENT_EPOCH_TAG] = epoch
    else:
        tags[_EPOCH_TAG] = epoch
        if event.end_offset_inclusive != UNKNOWN_OFFSET:
            tags[_END_OFFSET_TAG] = _INT64.pack(event.end_offset_inclusive)
    return _join(api_key, KEYED_API_VERSION, body, tags)


def encode_event_without_key(event: RemoteLogMetadataEvent) -> bytes:
    """The value of a record without a key, in the form of level 1 if it has a broker leader
    epoch."""
    if getattr(event, "broker_leader_epoch", NO_LEADER_EPOCH) == NO_LEADER_EPOCH:
        return encode_event(event)
    return encode_keyed_event(event)  # type: ignore[arg-type]


def decode_event(value: bytes | memoryview) -> RemoteLogMetadataEvent:
    """Decode the event in a record's value.

    Raises CorruptMetadataError, which names the field and its position.
    """
    reader = _Reader(value)
    frame_version = reader.frame_varint("frame_version")
    if frame_version != FRAME_VERSION:
        raise CorruptMetadataError(
            f"unknown frame version of a metadata record version={frame_version}"
            f" expected={FRAME_VERSION}"
        )
    api_key = reader.frame_varint("api_key")
    api_version = reader.frame_varint("api_version")
    decode_body = _DECODERS.get(api_key)
    if decode_body is None:
        raise CorruptMetadataError(f"unknown kind of metadata record api_key={api_key}")
    if api_version > (API_VERSION if api_key == _SEGMENT_SNAPSHOT else KEYED_API_VERSION):
        raise CorruptMetadataError(
            f"unknown version of a metadata record api_key={api_key} version={api_version}"
        )
    try:
        event = decode_body(reader)
    except ValueError as error:
        raise CorruptMetadataError(
            f"metadata record contradicts itself api_key={api_key} reason={str(error)!r}"
        ) from error
    reader.expect_end()
    return event


def decode_partition(value: bytes) -> TopicIdPartition:
    """The partition of a value that `decode_event` accepts and that is no segment snapshot."""
    reader = _Reader(value)
    for field in ("frame_version", "api_key", "api_version"):
        reader.frame_varint(field)
    return _decode_partition(reader)


def _parts(event: RemoteLogMetadataEvent) -> tuple[int, tuple[bytes, ...], dict[int, bytes]]:
    """Api key, body up to its tags, and the tags of version 0."""
    match event:
        case RemoteLogSegmentMetadata():
            body = (_encode_segment_id(event.segment_id), *_encode_span(event))
            return _SEGMENT, body, _span_tags(event)
        case RemoteLogSegmentMetadataUpdate():
            return _SEGMENT_UPDATE, _encode_update(event), {}
        case RemotePartitionDeleteMetadata():
            return _PARTITION_DELETE, _encode_delete(event), {}
        case RemoteLogSegmentMetadataSnapshot():
            return _SEGMENT_SNAPSHOT, (event.id.bytes, *_encode_span(event)), _span_tags(event)


def _join(
    api_key: int, api_version: int, body: tuple[bytes, ...], tags: Mapping[int, bytes]
) -> bytes:
    frame = bytes((FRAME_VERSION, api_key, api_version))
    return b"".join((frame, *body, _encode_tags(tags)))


def _encode_unsigned_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _encode_nullable_bytes(value: bytes | None) -> bytes:
    return b"\x00" if value is None else _encode_unsigned_varint(len(value) + 1) + value


def _encode_partition(partition: TopicIdPartition) -> bytes:
    fixed = _PARTITION.pack(partition.topic_id.bytes, partition.partition)
    return _encode_nullable_bytes(partition.topic.encode()) + fixed + _NO_TAGS


def _encode_segment_id(segment_id: RemoteLogSegmentId) -> bytes:
    return _encode_partition(segment_id.topic_id_partition) + segment_id.id.bytes + _NO_TAGS


def _encode_span(
    segment: RemoteLogSegmentMetadata | RemoteLogSegmentMetadataSnapshot,
) -> tuple[bytes, ...]:
    """The fields after the id of a segment in api keys 0 and 3, without the tags."""
    epochs = sorted(segment.segment_leader_epochs.items())
    return (
        _SPAN.pack(
            segment.start_offset,
            segment.end_offset_inclusive,
            segment.broker_id,
            segment.max_timestamp_ms,
            segment.event_timestamp_ms,
        ),
        _encode_unsigned_varint(len(epochs) + 1),
        *(_EPOCH.pack(epoch, offset) + _NO_TAGS for epoch, offset in epochs),
        _INT32.pack(segment.segment_size_in_bytes),
        _encode_nullable_bytes(segment.custom_metadata),
        _INT8.pack(segment.state),
    )


def _span_tags(
    segment: RemoteLogSegmentMetadata | RemoteLogSegmentMetadataSnapshot,
) -> dict[int, bytes]:
    return {_TXN_INDEX_EMPTY_TAG: b"\x01"} if segment.txn_index_empty else {}


def _encode_tags(tags: Mapping[int, bytes]) -> bytes:
    encoded = bytearray(_encode_unsigned_varint(len(tags)))
    for tag, payload in sorted(tags.items()):
        encoded += _encode_unsigned_varint(tag) + _encode_unsigned_varint(len(payload)) + payload
    return bytes(encoded)


def _encode_update(update: RemoteLogSegmentMetadataUpdate) -> tuple[bytes, ...]:
    return (
        _encode_segment_id(update.segment_id),
        _EVENT.pack(update.broker_id, update.event_timestamp_ms),
        _encode_nullable_bytes(update.custom_metadata),
        _INT8.pack(update.state),
    )


def _encode_delete(delete: RemotePartitionDeleteMetadata) -> tuple[bytes, ...]:
    return (
        _encode_partition(delete.topic_id_partition),
        _EVENT.pack(delete.broker_id, delete.event_timestamp_ms),
        _INT8.pack(delete.state),
    )


def _decode_segment(reader: _Reader) -> RemoteLogSegmentMetadata:
    segment_id = _decode_segment_id(reader)
    span, tags = _decode_span(reader)
    epoch = reader.tagged_number(tags, _SEGMENT_EPOCH_TAG, _INT32, NO_LEADER_EPOCH)
    return RemoteLogSegmentMetadata(segment_id=segment_id, **span, broker_leader_epoch=epoch)


def _decode_segment_snapshot(reader: _Reader) -> RemoteLogSegmentMetadataSnapshot:
    snapshot_id = reader.uuid("segment_id")
    span, _ = _decode_span(reader)
    return RemoteLogSegmentMetadataSnapshot(id=snapshot_id, **span)


def _decode_span(reader: _Reader) -> tuple[dict[str, Any], dict[int, bytes]]:
    """The fields of `_encode_span`, with that of the transaction index's tag, and all tags."""
    start_offset, end_offset, broker_id, max_timestamp, event_timestamp = reader.unpack(
        _SPAN, "offsets"
    )
    epochs = {}
    for _ in range(reader.array_count("segment_leader_epochs", _EPOCH.size + 1)):
        epoch, offset = reader.unpack(_EPOCH, "segment_leader_epochs")
        reader.skip_tags("segment_leader_epochs")
        epochs[epoch] = offset
    (size,) = reader.unpack(_INT32, "segment_size_in_bytes")
    custom_metadata = reader.nullable_bytes("custom_metadata")
    state = reader.enumerated(RemoteLogSegmentState, "remote_log_segment_state")
    tags = reader.tags("segment")
    span = {
        "start_offset": start_offset,
        "end_offset_inclusive": end_offset,
        "broker_id": broker_id,
        "max_timestamp_ms": max_timestamp,
        "event_timestamp_ms": event_timestamp,
        "segment_leader_epochs": epochs,
        "segment_size_in_bytes": size,
        "custom_metadata": custom_metadata,
        "state": state,
        "txn_index_empty": tags.get(_TXN_INDEX_EMPTY_TAG, b"\x00") != b"\x00",
    }
    return span, tags


def _decode_segment_update(reader: _Reader) -> RemoteLogSegmentMetadataUpdate:
    segment_id = _decode_segment_id(reader)
    broker_id, event_timestamp = reader.unpack(_EVENT, "event_timestamp_ms")
    custom_metadata = reader.nullable_bytes("custom_metadata")
    state = reader.enumerated(RemoteLogSegmentState, "remote_log_segment_state")
    tags = reader.tags("segment update")
    return RemoteLogSegmentMetadataUpdate(
        segment_id=segment_id,
        event_timestamp_ms=event_timestamp,
        state=state,
        broker_id=broker_id,
        custom_metadata=custom_metadata,
        broker_leader_epoch=reader.tagged_number(tags, _EPOCH_TAG, _INT32, NO_LEADER_EPOCH),
        end_offset_inclusive=reader.tagged_number(tags, _END_OFFSET_TAG, _INT64, UNKNOWN_OFFSET),
    )


def _decode_partition_delete(reader: _Reader) -> RemotePartitionDeleteMetadata:
    partition = _decode_partition(reader)
    broker_id, event_timestamp = reader.unpack(_EVENT, "event_timestamp_ms")
    state = reader.enumerated(RemotePartitionDeleteState, "remote_partition_delete_state")
    tags = reader.tags("partition delete")
    return RemotePartitionDeleteMetadata(
        topic_id_partition=partition,
        state=state,
        event_timestamp_ms=event_timestamp,
        broker_id=broker_id,
        broker_leader_epoch=reader.tagged_number(tags, _EPOCH_TAG, _INT32, NO_LEADER_EPOCH),
        end_offset_inclusive=reader.tagged_number(tags, _END_OFFSET_TAG, _INT64, UNKNOWN_OFFSET),
    )


def _decode_partition(reader: _Reader) -> TopicIdPartition:
    topic = reader.string("topic")
    topic_id, partition = reader.unpack(_PARTITION, "topic_id")
    reader.skip_tags("topic_id_partition")
    return TopicIdPartition(uuid.UUID(bytes=topic_id), topic, partition)


def _decode_segment_id(reader: _Reader) -> RemoteLogSegmentId:
    partition = _decode_partition(reader)
    segment_id = reader.uuid("segment_id")
    reader.skip_tags("remote_log_segment_id")
    return RemoteLogSegmentId(partition, segment_id)


class _Reader:
    """A cursor over one value. Every length is checked against the bytes that are left."""

    __slots__ = ("_position", "_value")

    def __init__(self, value: bytes | memoryview) -> None:
        self._value = bytes(value)
        self._position = 0

    def unpack(self, layout: struct.Struct, field: str) -> tuple[Any, ...]:
        try:
            fields = layout.unpack_from(self._value, self._position)
        except struct.error:
            self._fail("metadata record is cut short", field)
        self._position += layout.size
        return fields

    def unsigned_varint(self, field: str) -> int:
        value = 0
        for index in range(_VARINT_BYTES_MAX):
            byte = self.take(1, field)[0]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                break
        else:
            self._fail("varint of a metadata record is too long", field)
        if value > _VARINT_MAX:
            self._fail("varint of a metadata record is over 32 bits", field)
        return value

    def frame_varint(self, field: str) -> int:
        value = self.unsigned_varint(field)
        if value > _FRAME_VARINT_MAX:
            self._fail("frame of a metadata record is out of bounds", field)
        return value

    def take(self, size: int, field: str) -> bytes:
        end = self._position + size
        if end > len(self._value):
            self._fail("metadata record is cut short", field)
        taken = self._value[self._position : end]
        self._position = end
        return taken

    def nullable_bytes(self, field: str) -> bytes | None:
        length_plus_one = self.unsigned_varint(field)
        return None if length_plus_one == 0 else self.take(length_plus_one - 1, field)

    def string(self, field: str) -> str:
        encoded = self.nullable_bytes(field)
        if encoded is None:
            self._fail("null in a metadata record where a value is needed", field)
        try:
            return encoded.decode()
        except UnicodeDecodeError:
            self._fail("text of a metadata record is not UTF-8", field)

    def uuid(self, field: str) -> uuid.UUID:
        return uuid.UUID(bytes=self.unpack(_UUID, field)[0])

    def array_count(self, field: str, element_size_min: int) -> int:
        count_plus_one = self.unsigned_varint(field)
        if count_plus_one == 0:
            self._fail("null in a metadata record where a value is needed", field)
        if (count_plus_one - 1) * element_size_min > len(self._value) - self._position:
            self._fail("array of a metadata record is longer than the record", field)
        return count_plus_one - 1

    def enumerated(self, kind: Callable[[int], _State], field: str) -> _State:
        (number,) = self.unpack(_INT8, field)
        try:
            return kind(number)
        except ValueError:
            self._fail(f"unknown state in a metadata record state={number}", field)

    def tags(self, structure: str) -> dict[int, bytes]:
        """Tagged fields by number; each takes two bytes at least, which bounds their count."""
        tagged: dict[int, bytes] = {}
        for _ in range(self.unsigned_varint(structure)):
            tag = self.unsigned_varint(structure)
            tagged[tag] = self.take(self.unsigned_varint(structure), structure)
        return tagged

    def tagged_number(
        self, tags: Mapping[int, bytes], tag: int, layout: struct.Struct, default: int
    ) -> int:
        payload = tags.get(tag)
        if payload is None:
            return default
        if len(payload) != layout.size:
            self._fail("tagged field of a metadata record has the wrong size", f"tag {tag}")
        (number,) = layout.unpack(payload)
        return int(number)

    def skip_tags(self, structure: str) -> None:
        if self._value[self._position : self._position + 1] == _NO_TAGS:
            self._position += 1
        else:
            self.tags(structure)

    def expect_end(self) -> None:
        if self._position != len(self._value):
            self._fail("metadata record has bytes after its end", "end")

    def _fail(self, fact: str, field: str) -> NoReturn:
        raise CorruptMetadataError(
            f"{fact} field={field} position={self._position} size={len(self._value)}"
        )


_DECODERS: dict[int, Callable[[_Reader], RemoteLogMetadataEvent]] = {
    _SEGMENT: _decode_segment,
    _SEGMENT_UPDATE: _decode_segment_update,
    _PARTITION_DELETE: _decode_partition_delete,
    _SEGMENT_SNAPSHOT: _decode_segment_snapshot,
}
