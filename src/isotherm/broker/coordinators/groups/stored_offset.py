"""A committed offset in memory: the offset of its record in `__consumer_offsets`, then the record's
value.

    record offset i64 | the record's value

Nearly all values have the current version:

    version i16 = 4 | offset i64 | leader epoch i32 | metadata compact string | timestamp i64 | tags

A coordinator keeps many offsets, of which few are ever fetched. So a load only checks that a value
can be decoded, and a fetch decodes it. The bytes also take less than half of the memory of an
object. Values in other forms are decoded by Kafka's schemas, which also reject malformed ones.
Reasons: docs/decisions/0127.
"""

from __future__ import annotations

import struct
import uuid
from typing import TypeAlias

from isotherm.broker.coordinators.groups.group_records import OffsetCommitValue, decode_offset_value
from isotherm.broker.coordinators.groups.offsets import OffsetAndMetadata, offset_of_value
from isotherm.types import Offset, TimestampMs

StoredOffset: TypeAlias = bytes

_RECORD_OFFSET = struct.Struct(">q")
_VERSION = struct.pack(">h", OffsetCommitValue.__version__)
# Positions in a value of the current version.
_METADATA_SIZE = 14
_METADATA = 15
_STORED_METADATA_SIZE = _RECORD_OFFSET.size + _METADATA_SIZE
_ONE_BYTE_MAX = 0x7F
_TIMESTAMP_SIZE = 8
_NO_TAGS = b"\0"
_TOPIC_ID_TAG = b"\x01\x00\x10"  # one tag: number 0, 16 bytes
_TAGS_SIZE_MAX = len(_TOPIC_ID_TAG) + 16
_NO_ID = bytes(16)
_HEAD = struct.Struct(">2xqiB")
_TIMESTAMP = struct.Struct(">q")


def stored_offset(value: bytes, record_offset: Offset) -> StoredOffset:
    """The stored form of a record's value.

    Raises CorruptMetadataError for a value that cannot be decoded.
    """
    if not _is_plain(value):
        decode_offset_value(value)
    return _RECORD_OFFSET.pack(record_offset) + value


def is_older(stored: StoredOffset, other: StoredOffset) -> bool:
    """Whether the record of `stored` lies before that of `other` in the log.

    Big-endian offsets sort as bytes.
    """
    return stored[: _RECORD_OFFSET.size] < other[: _RECORD_OFFSET.size]


def read_stored_offset(stored: StoredOffset) -> OffsetAndMetadata:
    value = stored[_RECORD_OFFSET.size :]
    if not _is_plain(value):
        return offset_of_value(decode_offset_value(value))
    offset, leader_epoch, size = _HEAD.unpack_from(value)
    metadata_end = _METADATA + size - 1
    (timestamp_ms,) = _TIMESTAMP.unpack_from(value, metadata_end)
    tags = value[metadata_end + _TIMESTAMP_SIZE :]
    return OffsetAndMetadata(
        offset,
        leader_epoch,
        value[_METADATA:metadata_end].decode("ascii"),
        timestamp_ms,
        None if tags == _NO_TAGS else uuid.UUID(bytes=tags[len(_TOPIC_ID_TAG) :]),
    )


def times_of(stored: StoredOffset) -> tuple[TimestampMs, TimestampMs | None]:
    """The commit time, and the expiry time if the offset has its own.

    The expiry task reads every offset, on the event loop, so this decodes as little as possible.
    """
    size = stored[_STORED_METADATA_SIZE]
    if stored.startswith(_VERSION, _RECORD_OFFSET.size) and size <= _ONE_BYTE_MAX:
        return _TIMESTAMP.unpack_from(stored, _STORED_METADATA_SIZE + size)[0], None
    offset = read_stored_offset(stored)
    return offset.commit_timestamp_ms, offset.expire_timestamp_ms


def _is_plain(value: bytes) -> bool:
    """Whether the value has the current version, short ASCII metadata, and no tag other than the
    topic id.
    """
    if not value.startswith(_VERSION) or len(value) <= _METADATA:
        return False
    size = value[_METADATA_SIZE]
    if not 0 < size <= _ONE_BYTE_MAX:
        return False
    metadata_end = _METADATA + size - 1
    if size > 1 and not value[_METADATA:metadata_end].isascii():
        return False
    tags = value[metadata_end + _TIMESTAMP_SIZE :]
    return tags == _NO_TAGS or (
        len(tags) == _TAGS_SIZE_MAX and tags.startswith(_TOPIC_ID_TAG) and not tags.endswith(_NO_ID)
    )
