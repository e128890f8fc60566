"""Record batches, format version 2: a writer, and a reader of single records.

`isotherm.record.batch_header` describes the format; its names can be imported from here too.
`read_records` makes Python objects. It serves the CLI, control batches and small topics. Bulk
reading is in `isotherm.record.columns`.
Source: Kafka DefaultRecordBatch.java, DefaultRecord.java, MemoryRecords.java.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from isotherm.errors import CorruptRecordError
from isotherm.record.batch_header import (
    CODEC_MASK,
    CONTROL_FLAG,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    SEQUENCE_MASK,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    TimestampType,
    assign_offsets,
    encode_batch,
    iterate_batches,
    read_batch_header,
    read_magic,
    verify_batch_crc,
)
from isotherm.record.compression import (
    DECOMPRESSED_SIZE_MAX,
    CompressionType,
    compress,
    decompress,
)
from isotherm.record.varint import (
    ReadBuffer,
    read_varint,
    read_varlong,
    write_varint,
    write_varlong,
)
from isotherm.types import (
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    LeaderEpoch,
    Offset,
    Position,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "HEADER_SIZE",
    "LOG_OVERHEAD",
    "MAGIC",
    "RECORD_SIZE_MIN",
    "BatchHeader",
    "CompressionType",
    "Header",
    "NewRecord",
    "Record",
    "TimestampType",
    "assign_offsets",
    "build_batch",
    "iterate_batches",
    "read_batch_header",
    "read_magic",
    "read_payload",
    "read_records",
    "recompress_batch",
    "verify_batch_crc",
]

RECORD_SIZE_MIN = 7  # size, attributes, two deltas, key size, value size, header count

Header: TypeAlias = tuple[str, bytes | None]

# Timestamp delta, offset delta, key, value, headers, and the next record's position.
_Fields: TypeAlias = tuple[int, int, bytes | None, bytes | None, tuple[Header, ...], Position]


class NewRecord(NamedTuple):
    """A record to be written. A bare tuple of the four fields may be used instead."""

    timestamp_ms: TimestampMs
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()


class Record(NamedTuple):
    """A record that was read. `sequence` is -1 unless an idempotent producer wrote it."""

    offset: Offset
    timestamp_ms: TimestampMs
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    sequence: int = NO_SEQUENCE


def build_batch(
    records: Sequence[NewRecord | tuple[TimestampMs, bytes | None, bytes | None, Sequence[Header]]],
    *,
    base_offset: Offset = 0,
    compression: CompressionType = CompressionType.NONE,
    compression_level: int | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    max_timestamp: TimestampMs | None = None,
    partition_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH,
    producer_id: ProducerId = NO_PRODUCER_ID,
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytearray:
    """A batch of at least one record, with consecutive offsets.

    `max_timestamp` defaults to the largest timestamp of the records, but at least NO_TIMESTAMP, as
    in Kafka (MemoryRecordsBuilder, LogValidator). With LogAppendTime, pass the time of the append.
    Keys and values may be any bytes-like objects.
    """
    assert records
    # That of the first record, as in MemoryRecordsBuilder. Later ones may be older.
    base_timestamp = records[0][0]
    payload = bytearray()
    for offset_delta, (timestamp_ms, key, value, headers) in enumerate(records):
        _write_record(payload, timestamp_ms - base_timestamp, offset_delta, key, value, headers)
    return encode_batch(
        BatchHeader(
            base_offset=base_offset,
            length=0,
            partition_leader_epoch=partition_leader_epoch,
            magic=MAGIC,
            crc=0,
            attributes=compression
            | timestamp_type << 3
            | (TRANSACTIONAL_FLAG if is_transactional else 0)
            | (CONTROL_FLAG if is_control else 0),
            last_offset_delta=len(records) - 1,
            base_timestamp=base_timestamp,
            max_timestamp=max(NO_TIMESTAMP, *[record[0] for record in records])
            if max_timestamp is None
            else max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            records_count=len(records),
        ),
        compress(compression, payload, compression_level),
    )


def recompress_batch(
    buffer: ReadBuffer,
    position: Position,
    header: BatchHeader,
    compression: CompressionType,
    *,
    compression_level: int | None = None,
) -> bytearray:
    """The batch with the same records, compressed by another codec."""
    return encode_batch(
        header._replace(attributes=header.attributes & ~CODEC_MASK | compression),
        compress(compression, read_payload(buffer, position, header), compression_level),
    )


def _write_record(
    out: bytearray,
    timestamp_delta: int,
    offset_delta: int,
    key: ReadBuffer | None,
    value: ReadBuffer | None,
    headers: Sequence[Header],
) -> None:
    body = bytearray(1)  # record attributes: none is defined
    write_varlong(body, timestamp_delta)
    write_varint(body, offset_delta)
    _write_nullable_bytes(body, key)
    _write_nullable_bytes(body, value)
    if not headers:
        body.append(0)
    else:
        write_varint(body, len(headers))
    for name, header_value in headers:
        _write_nullable_bytes(body, name.encode())
        _write_nullable_bytes(body, header_value)
    write_varint(out, len(body))
    out += body


def _write_nullable_bytes(out: bytearray, value: ReadBuffer | None) -> None:
    if value is None:
        write_varint(out, -1)
        return
    size = len(value)
    if size < 64:  # one byte, without a call
        out.append(size << 1)
    else:
        write_varint(out, size)
    out += value


def read_payload(
    buffer: ReadBuffer,
    position: Position,
    header: BatchHeader,
    size_max: int = DECOMPRESSED_SIZE_MAX,
) -> memoryview:
    """The records of a batch, decompressed. Not copied if the batch is not compressed.

    Raises CorruptRecordError if the batch is cut off or cannot be decompressed.
    """
    end = position + header.size_in_bytes
    if end > len(buffer):
        raise CorruptRecordError(
            f"batch is cut off position={position} base_offset={header.base_offset}"
        )
    payload = memoryview(buffer)[position + HEADER_SIZE : end]
    # Compaction may keep the codec bits of a batch that it empties: nothing to decompress.
    if header.attributes & CODEC_MASK and header.records_count > 0:
        payload = memoryview(decompress(header.compression_type, payload, size_max))
    return payload


def read_records(
    buffer: ReadBuffer,
    position: Position,
    header: BatchHeader,
    size_max: int = DECOMPRESSED_SIZE_MAX,
) -> list[Record]:
    """All records of one batch, control records included.

    A batch with a record count of 0 is not decompressed, as in Kafka. Header names that are not
    UTF-8 get replacement characters, as Kafka's clients show them.
    Raises CorruptRecordError on any damage. Does not check the CRC; see `verify_batch_crc`.
    """
    payload = _counted_payload(buffer, position, header, size_max)
    # A field is a slice of the bytes. A slice of a view would be a view, to be copied next.
    data = bytes(payload)
    append_time = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_FLAG else None
    records: list[Record] = []
    end = 0
    for _ in range(header.records_count):
        timestamp_delta, offset_delta, key, value, headers, end = _read_plain_fields(
            data, end, header
        ) or _read_fields(payload, end, header)
        timestamp_ms = append_time
        if timestamp_ms is None:
            timestamp_ms = _wrap_int64(header.base_timestamp + timestamp_delta)
        sequence = NO_SEQUENCE
        if header.base_sequence != NO_SEQUENCE:
            sequence = (header.base_sequence + offset_delta) & SEQUENCE_MASK
        offset = header.base_offset + offset_delta
        records.append(Record(offset, timestamp_ms, key, value, headers, sequence))
    _check_end(payload, end, header)
    return records


def read_record_times(
    buffer: ReadBuffer, position: Position, header: BatchHeader
) -> Iterator[tuple[TimestampMs, Offset]]:
    """The timestamp and offset of each record of one batch. Keys, values and headers are checked
    but not copied: a copy of many megabytes holds up all threads. Raises as `read_records`, for
    damage up to the record that the caller takes last.
    """
    payload = _counted_payload(buffer, position, header, DECOMPRESSED_SIZE_MAX)
    end = 0
    for _ in range(header.records_count):
        position = end
        size, start = read_varint(payload, position)
        if size < 0 or size > len(payload) - start:
            raise _damaged_record(header, position)
        end = start + size
        body = payload[:end]
        timestamp_delta, at = read_varlong(body, start + 1)
        offset_delta, at = read_varint(body, at)
        at = _pass_headers(body, _pass_nullable(body, _pass_nullable(body, at)), header)
        if at != end or not 0 <= offset_delta <= header.last_offset_delta:
            raise _damaged_record(header, position)
        timestamp_ms = _wrap_int64(header.base_timestamp + timestamp_delta)
        if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
            timestamp_ms = header.max_timestamp
        yield timestamp_ms, header.base_offset + offset_delta
    _check_end(payload, end, header)


def _counted_payload(
    buffer: ReadBuffer, position: Position, header: BatchHeader, size_max: int
) -> memoryview:
    """As `read_payload`, with room for as many records as the header says."""
    payload = read_payload(buffer, position, header, size_max)
    # Checked first: a damaged count must not make a loop or allocate for millions of records.
    if header.records_count * RECORD_SIZE_MIN > len(payload):
        raise CorruptRecordError(
            f"batch claims more records than it holds position={position}"
            f" base_offset={header.base_offset} records_count={header.records_count}"
            f" payload_size={len(payload)}"
        )
    return payload


def _check_end(payload: memoryview, end: Position, header: BatchHeader) -> None:
    """As in Kafka's DefaultRecordBatch: a count that is too small would hide the records after it.
    A batch without records is not decompressed, so its bytes are not looked at."""
    if header.records_count and end != len(payload):
        raise CorruptRecordError(
            f"batch has bytes after its last record base_offset={header.base_offset}"
            f" size={len(payload) - end}"
        )


def _read_plain_fields(data: bytes, position: Position, header: BatchHeader) -> _Fields | None:
    """`_read_fields` of a plain record: with sizes and an offset delta of up to two bytes. None for
    others, and for damaged ones: `_read_fields` decides about them.
    """
    headers: tuple[Header, ...] | None = ()
    try:
        size, at = _read_short(data, position)
        end = at + (size >> 1)
        timestamp_delta, at = read_varlong(data, at + 1)
        offset, at = _read_short(data, at)
        key_size, key_start = _read_short(data, at)
        at = key_start + (0 if key_size & 1 else key_size >> 1)
        value_size, value_start = _read_short(data, at)
        headers_start = value_start + (0 if value_size & 1 else value_size >> 1)
        headers_end = headers_start + 1
        if data[headers_start]:
            headers, headers_end = _read_plain_headers(data, headers_start)
    except (IndexError, CorruptRecordError):
        return None
    # Two bytes have 14 bits. With the high bit of the second one, there are more bytes.
    is_short = (size | offset | key_size | value_size) <= 0x3FFF
    # The lowest bit is the sign. A negative size or offset delta is damage.
    is_positive = not (size | offset) & 1
    if not (is_short and is_positive and offset >> 1 <= header.last_offset_delta):
        return None
    if headers is None or headers_end != end:
        return None
    key = None if key_size & 1 else data[key_start:at]
    value = None if value_size & 1 else data[value_start:headers_start]
    return timestamp_delta, offset >> 1, key, value, headers, end


def _read_plain_headers(
    data: bytes, position: Position
) -> tuple[tuple[Header, ...] | None, Position]:
    """Up to 63 headers with sizes of up to two bytes, and the next position. None for others, and
    for damaged ones. Raises IndexError if they are cut off."""
    headers: list[Header] = []
    count = data[position]
    position += 1
    bits = count << 7  # more than 14 if the count has a second byte
    for _ in range(count >> 1):
        name_size, name_start = _read_short(data, position)
        name_end = name_start + (name_size >> 1)
        value_size, value_start = _read_short(data, name_end)
        position = value_start + (0 if value_size & 1 else value_size >> 1)
        value = None if value_size & 1 else data[value_start:position]
        headers.append((data[name_start:name_end].decode("utf-8", errors="replace"), value))
        # The lowest bit is the sign, which names do not have.
        bits |= name_size | value_size | (name_size & 1) << 14
    return (None if bits > 0x3FFF or count & 1 else tuple(headers)), position


def _read_short(data: bytes, position: Position) -> tuple[int, Position]:
    """An unsigned varint of one or two bytes, and the next position. More than 14 bits for a longer
    one. Raises IndexError if it is cut off."""
    first = data[position]
    if first < 0x80:
        return first, position + 1
    return first & 0x7F | data[position + 1] << 7, position + 2


def _read_fields(payload: memoryview, position: Position, header: BatchHeader) -> _Fields:
    size, start = read_varint(payload, position)
    if size < 0 or size > len(payload) - start:
        raise _damaged_record(header, position)
    end = start + size
    body = payload[:end]  # so that no field reads into the next record
    timestamp_delta, at = read_varlong(body, start + 1)
    offset_delta, at = read_varint(body, at)
    key, at = _read_nullable_bytes(body, at)
    value, at = _read_nullable_bytes(body, at)
    headers, at = _read_headers(body, at, header)
    # An offset above the header's last one would belong to the next batch.
    if at != end or not 0 <= offset_delta <= header.last_offset_delta:
        raise _damaged_record(header, position)
    return timestamp_delta, offset_delta, key, value, headers, end


def _read_headers(
    body: memoryview, position: Position, header: BatchHeader
) -> tuple[tuple[Header, ...], Position]:
    count, at = read_varint(body, position)
    if not 0 <= count <= len(body) - at:
        raise _damaged_record(header, position)
    headers: list[Header] = []
    for _ in range(count):
        name, at = _read_nullable_bytes(body, at)
        # DefaultRecord.readHeaders refuses a header without a key too.
        if name is None:
            raise _damaged_record(header, position)
        value, at = _read_nullable_bytes(body, at)
        headers.append((name.decode("utf-8", errors="replace"), value))
    return tuple(headers), at


def _pass_headers(body: memoryview, position: Position, header: BatchHeader) -> Position:
    """Checks as `_read_headers`."""
    count, at = read_varint(body, position)
    if not 0 <= count <= len(body) - at:
        raise _damaged_record(header, position)
    for _ in range(count):
        size, _ = read_varint(body, at)
        if size < 0:
            raise _damaged_record(header, position)
        at = _pass_nullable(body, _pass_nullable(body, at))
    return at


def _read_nullable_bytes(body: memoryview, position: Position) -> tuple[bytes | None, Position]:
    size, at = read_varint(body, position)
    if size < 0:
        return None, at
    if size > len(body) - at:
        raise _too_long_field(size, len(body) - at)
    return bytes(body[at : at + size]), at + size


def _pass_nullable(body: memoryview, position: Position) -> Position:
    size, at = read_varint(body, position)
    if size > len(body) - at:
        raise _too_long_field(size, len(body) - at)
    return at + max(0, size)


def _too_long_field(size: int, size_left: int) -> CorruptRecordError:
    return CorruptRecordError(f"field is longer than its record size={size} size_left={size_left}")


def _wrap_int64(value: int) -> int:
    """Overflow like Java's long, so a damaged delta gives the same result as in `columns`."""
    return (value + 2**63) % 2**64 - 2**63


def _damaged_record(header: BatchHeader, position: Position) -> CorruptRecordError:
    return CorruptRecordError(
        f"record is damaged base_offset={header.base_offset} payload_position={position}"
    )
