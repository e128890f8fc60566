"""Offset records as a load reads them: nearly all that a partition of `__consumer_offsets` has.

    key    type i16 | group string | topic string | partition i32
    value  version i16 = 4 | offset i64 | leader epoch i32 | metadata compact string | timestamp i64 | tags

A key's topic and partition are the same bytes in the records of all groups, so they are decoded once, and
the offsets in memory share one object. Values of the present version are taken apart here. All others,
and malformed ones, are left to `decode_record`, whose schemas are Kafka's.
"""

from __future__ import annotations

import struct
import uuid
from typing import NamedTuple

from isotherm.broker.groups.group_records import (
    LEGACY_OFFSET_COMMIT,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_record,
)
from isotherm.broker.groups.offsets import OffsetAndMetadata, offset_of_value
from isotherm.errors import CorruptMetadataError
from isotherm.types import Offset, TopicPartition

_TYPES = tuple(
    struct.pack(">h", each) for each in (OffsetCommitKey.__api_key__, LEGACY_OFFSET_COMMIT)
)
_VERSION = struct.pack(">h", OffsetCommitValue.__version__)
_HEAD = struct.Struct(">hqiB")  # ends with the size of the metadata plus one, if that has one byte
_ONE_BYTE_MAX = 0x7F
_TAIL = struct.Struct(">qB")
_TOPIC_ID_TAG = b"\x01\x00\x10"  # one tag: number 0, 16 bytes
_NO_ID = bytes(16)


class CommittedOffset(NamedTuple):
    """`committed` is None for a tombstone."""

    group_id: str
    partition: TopicPartition
    committed: OffsetAndMetadata | None


class OffsetReader:
    """For the records of one load. One thread."""

    def __init__(self) -> None:
        self._partitions: dict[bytes, TopicPartition] = {}

    def read(
        self, key: bytes, value: bytes | None, record_offset: Offset
    ) -> CommittedOffset | None:
        """None for a record of another type. Raises CorruptMetadataError."""
        if not key.startswith(_TYPES):
            return None
        group_end = 4 + int.from_bytes(key[2:4])
        place = key[group_end:]
        partition = self._partitions.get(place)
        if partition is None:
            partition = self._partitions[place] = _partition_of(key)
        try:
            group_id = key[4:group_end].decode()
            committed = None if value is None else _committed(value, record_offset)
        except UnicodeDecodeError as error:
            raise CorruptMetadataError(f"a text is not UTF-8 size={len(key)}") from error
        if committed is None and value is not None:
            record = decode_record(key, value)
            assert record is not None, "the type is known"
            committed = offset_of_value(record.value, record_offset)
        return CommittedOffset(group_id, partition, committed)


def _partition_of(key: bytes) -> TopicPartition:
    record = decode_record(key, None)
    assert record is not None, "the type is known"
    return TopicPartition(record.key.topic, record.key.partition)


def _committed(value: bytes, record_offset: Offset) -> OffsetAndMetadata | None:
    """None if it has another form."""
    if len(value) < _HEAD.size + _TAIL.size or not value.startswith(_VERSION):
        return None
    _, offset, leader_epoch, size = _HEAD.unpack_from(value)
    metadata_end = _HEAD.size + size - 1
    end = metadata_end + _TAIL.size
    if not 0 < size <= _ONE_BYTE_MAX or len(value) < end:
        return None
    timestamp_ms, tags = _TAIL.unpack_from(value, metadata_end)
    topic_id = None
    if tags:
        id_bytes = value[end + len(_TOPIC_ID_TAG) - 1 :]
        if value[end - 1 : -16] != _TOPIC_ID_TAG or id_bytes == _NO_ID:
            return None
        topic_id = uuid.UUID(bytes=id_bytes)
    elif len(value) != end:
        return None
    metadata = value[_HEAD.size : metadata_end].decode()
    return OffsetAndMetadata(
        offset, leader_epoch, metadata, timestamp_ms, topic_id, None, record_offset
    )
