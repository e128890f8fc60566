"""The header of a record batch, format version 2 ("magic 2"), and the fields that the leader sets.

    at  size  field                  all integers big-endian
     0     8  base_offset            set by the leader at append
     8     4  length                 bytes after this field: batch size - 12, at least 49
    12     4  partition_leader_epoch set by the leader at append
    16     1  magic                  2
    17     4  crc                    CRC-32C of everything from byte 21 to the end
    21     2  attributes             bits 0-2 codec, 3 timestamp type, 4 transactional, 5 control,
                                     6 delete horizon (KIP-534)
    23     4  last_offset_delta      kept when compaction drops records
    27     8  base_timestamp         of the first record; -1 in an empty batch; the delete horizon
                                     when bit 6 is set
    35     8  max_timestamp          of every record when the type is LogAppendTime
    43     8  producer_id            -1 none
    51     2  producer_epoch         -1 none
    53     4  base_sequence          -1 none
    57     4  records_count
    61        records                one compressed blob when a codec is set

    record:  varint size of what follows · i8 attributes, 0 · varlong timestamp delta · varint
             offset delta · varint key size, -1 null · key · varint value size, -1 null · value ·
             varint header count · headers: varint name size · UTF-8 name · varint value size,
             -1 null · value

Source: Kafka DefaultRecordBatch.java, DefaultRecord.java.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from isotherm.errors import CorruptRecordError
from isotherm.record.compression import COMPRESSION_TYPE_MAX, CompressionType
from isotherm.record.crc32c import crc32c
from isotherm.record.varint import ReadBuffer
from isotherm.types import (
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    LeaderEpoch,
    Offset,
    Position,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    make_tuple,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


MAGIC = 2
LOG_OVERHEAD = 12
HEADER_SIZE = 61

HEADER_LAYOUT = struct.Struct(">qiibIhiqqqhii")
_LENGTH = struct.Struct(">i")
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")
_LENGTH_POSITION = 8
LEADER_EPOCH_POSITION = 12
_MAGIC_POSITION = 16
_CRC_POSITION = 17
# Position of the first byte that the CRC covers.
ATTRIBUTES_POSITION = 21
# The byte of the attributes that has the codec.
LOW_ATTRIBUTES_POSITION = ATTRIBUTES_POSITION + 1
_MAX_TIMESTAMP_POSITION = 35
PRODUCER_EPOCH_POSITION = 51
BASE_SEQUENCE_POSITION = 53
_LENGTH_MIN = HEADER_SIZE - LOG_OVERHEAD

assert HEADER_LAYOUT.size == HEADER_SIZE

CODEC_MASK = 0x07
TIMESTAMP_TYPE_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40
# The bits that a producer may set. The leader sets the others, or they have no meaning yet.
PRODUCER_ATTRIBUTES_MASK = CODEC_MASK | TIMESTAMP_TYPE_FLAG | TRANSACTIONAL_FLAG

# Sequences go on with 0 after 2^31 - 1 (DefaultRecordBatch.incrementSequence).
SEQUENCE_MASK = 0x7FFF_FFFF
OFFSET_MAX = 2**63 - 1


class TimestampType(IntEnum):
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


# Indexed by the bits: five times as fast as calling the class.
CODECS = tuple(CompressionType)
TIMESTAMP_TYPES = tuple(TimestampType)


class BatchHeader(NamedTuple):
    """The 61 bytes before the records, in the order of the format."""

    base_offset: Offset
    length: int
    partition_leader_epoch: LeaderEpoch
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: TimestampMs
    max_timestamp: TimestampMs
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    base_sequence: int
    records_count: int

    @property
    def size_in_bytes(self) -> int:
        return self.length + LOG_OVERHEAD

    @property
    def last_offset(self) -> Offset:
        """Inclusive. Compaction may have removed the record with this offset."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> Offset:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression_type(self) -> CompressionType:
        return CODECS[self.attributes & CODEC_MASK]

    @property
    def timestamp_type(self) -> TimestampType:
        return TIMESTAMP_TYPES[(self.attributes & TIMESTAMP_TYPE_FLAG) >> 3]

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def has_delete_horizon(self) -> bool:
        return bool(self.attributes & DELETE_HORIZON_FLAG)

    @property
    def delete_horizon_ms(self) -> TimestampMs | None:
        """When tombstones and markers of this batch may be removed (KIP-534); None if not set."""
        return self.base_timestamp if self.has_delete_horizon else None

    @property
    def last_sequence(self) -> int:
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MASK


def read_batch_header(buffer: ReadBuffer, position: Position = 0) -> BatchHeader:
    """The header at `position`. The records need not be in the buffer; the CRC is not checked.

    Raises CorruptRecordError if the header is cut off, has another magic, or has a value that no
    writer produces (length below 49, negative count, offset or delta, unknown codec).
    """
    if len(buffer) - position < HEADER_SIZE:
        raise CorruptRecordError(
            f"batch header is cut off position={position} size={len(buffer) - position}"
        )
    header = BatchHeader(*HEADER_LAYOUT.unpack_from(buffer, position))
    check_header(header, position)
    return header


def peek_header(buffer: ReadBuffer) -> BatchHeader | None:
    """The header at the start of the buffer, unchecked; None if the buffer is too short for one."""
    if len(buffer) < HEADER_SIZE:
        return None
    return make_tuple(BatchHeader, HEADER_LAYOUT.unpack_from(buffer))


def check_header(header: BatchHeader, position: Position = 0) -> None:
    """Raise CorruptRecordError for another magic and for a value that no writer produces."""
    if header.magic != MAGIC:
        raise CorruptRecordError(
            f"batch has an unsupported magic position={position} magic={header.magic}"
        )
    if header.length < _LENGTH_MIN:
        reason = f"batch length is too small length={header.length}"
    # `>=`: the offset after the last one has to fit into a signed 64-bit integer too.
    elif header.base_offset < 0 or header.last_offset_delta < 0 or header.last_offset >= OFFSET_MAX:
        reason = f"batch offsets are not legal last_offset_delta={header.last_offset_delta}"
    elif header.records_count < 0:
        reason = f"batch has a negative record count records_count={header.records_count}"
    elif header.attributes & CODEC_MASK > COMPRESSION_TYPE_MAX:
        reason = f"batch names no known codec attributes={header.attributes:#06x}"
    else:
        return
    raise CorruptRecordError(f"{reason} position={position} base_offset={header.base_offset}")


def iterate_batches(
    buffer: ReadBuffer, position: Position = 0
) -> Iterator[tuple[Position, BatchHeader]]:
    """Position and header of each complete batch. A partial batch ends the iteration.

    Raises CorruptRecordError at a header that `read_batch_header` refuses. A length beyond the
    end of the buffer looks like a partial batch: callers that expect none compare the end.
    """
    end = len(buffer)
    while end - position >= LOG_OVERHEAD:
        (length,) = _LENGTH.unpack_from(buffer, position + _LENGTH_POSITION)
        # A negative or small length passes here and is refused below, so `position` always rises.
        if length > end - position - LOG_OVERHEAD:
            return
        header = read_batch_header(buffer, position)
        yield position, header
        position += header.size_in_bytes


def read_magic(batch: ReadBuffer) -> int:
    """The magic byte, at the same place in all formats. Raises CorruptRecordError if cut off."""
    if len(batch) <= _MAGIC_POSITION:
        raise CorruptRecordError(f"batch is cut off before its magic size={len(batch)}")
    return batch[_MAGIC_POSITION]


def read_codec(batch: ReadBuffer) -> int:
    """The codec bits, unchecked: they may name no CompressionType."""
    return batch[LOW_ATTRIBUTES_POSITION] & CODEC_MASK


def verify_batch_crc(buffer: ReadBuffer, position: Position, header: BatchHeader) -> None:
    """Raise CorruptRecordError unless the whole batch is in the buffer and its CRC is right."""
    end = position + header.size_in_bytes
    if end > len(buffer):
        raise CorruptRecordError(
            f"batch is cut off position={position} base_offset={header.base_offset}"
            f" size={header.size_in_bytes} size_left={len(buffer) - position}"
        )
    computed = crc32c(memoryview(buffer)[position + ATTRIBUTES_POSITION : end])
    if computed != header.crc:
        raise CorruptRecordError(
            f"batch fails its crc position={position} base_offset={header.base_offset}"
            f" crc_stored={header.crc:#010x} crc_computed={computed:#010x}"
        )


def assign_offsets(
    buffer: bytearray | memoryview,
    position: Position,
    base_offset: Offset,
    leader_epoch: LeaderEpoch,
    *,
    timestamp_type: TimestampType | None = None,
    max_timestamp: TimestampMs | None = None,
) -> BatchHeader:
    """Set the leader's fields of a batch in place, and return its new header, unchecked.

    Offset and epoch lie outside the CRC. The CRC is computed anew only if `timestamp_type` or
    `max_timestamp` is given and differs from the present one. The whole batch must be in the
    buffer, which must be writable.
    """
    _BASE_OFFSET.pack_into(buffer, position, base_offset)
    _LEADER_EPOCH.pack_into(buffer, position + LEADER_EPOCH_POSITION, leader_epoch)
    header = BatchHeader(*HEADER_LAYOUT.unpack_from(buffer, position))
    attributes = header.attributes
    if timestamp_type is not None:
        attributes = attributes & ~TIMESTAMP_TYPE_FLAG | timestamp_type << 3
    if max_timestamp is None:
        max_timestamp = header.max_timestamp
    # The usual case. A CRC costs time for each byte of the batch.
    if attributes == header.attributes and max_timestamp == header.max_timestamp:
        return header
    _ATTRIBUTES.pack_into(buffer, position + ATTRIBUTES_POSITION, attributes)
    _MAX_TIMESTAMP.pack_into(buffer, position + _MAX_TIMESTAMP_POSITION, max_timestamp)
    crc = _write_crc(buffer, position, header.size_in_bytes)
    return header._replace(attributes=attributes, max_timestamp=max_timestamp, crc=crc)


def _write_crc(buffer: bytearray | memoryview, position: Position, size: int) -> int:
    with memoryview(buffer) as view:
        crc = crc32c(view[position + ATTRIBUTES_POSITION : position + size])
    _CRC.pack_into(buffer, position + _CRC_POSITION, crc)
    return crc


def encode_batch(header: BatchHeader, payload: ReadBuffer) -> bytearray:
    """Header and payload as one batch, with its length and CRC."""
    size = HEADER_SIZE + len(payload)
    base_offset, _, leader_epoch, magic, _, *fields = header
    length = size - LOG_OVERHEAD
    out = bytearray(HEADER_LAYOUT.pack(base_offset, length, leader_epoch, magic, 0, *fields))
    out += payload
    _write_crc(out, 0, size)
    return out
