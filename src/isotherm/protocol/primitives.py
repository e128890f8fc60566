"""Kafka's wire types, outside of record batches: strings, bytes, ids, array lengths, varints.

A reader is `(buffer, position) -> (value, next position)`. A writer is `(value, out)` and appends.
"Legacy" forms have fixed-width lengths (-1 for null). "Compact" forms have an unsigned varint of
the length plus one (0 for null). Messages of a flexible version use compact forms only.

Readers never allocate by a length before they have seen that many bytes. They raise ProtocolError
for an impossible length. The end of the buffer raises IndexError or struct.error, and invalid UTF-8
raises UnicodeDecodeError; `isotherm.protocol.codec.guarded` turns these into ProtocolError once per
message.

Source: Kafka protocol guide "Protocol Primitive Types"; KIP-482 (compact forms and tags).
"""

from __future__ import annotations

import datetime
import functools
import math
import struct
import threading
import uuid
from collections.abc import Callable
from typing import Any, TypeAlias

from isotherm.protocol.errors import ProtocolError

Buffer: TypeAlias = bytes | bytearray | memoryview

ZERO_UUID_BYTES = bytes(16)

_MILLISECOND = datetime.timedelta(milliseconds=1)
_UNIX_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_VARINT_BYTES_MAX = 5  # ceil(32 / 7)
_TOPIC_ID_CACHE_SIZE = 4096  # about 300 bytes per id; creating one takes a microsecond


def read_unsigned_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    byte = buffer[position]
    if byte < 0x80:
        return byte, position + 1
    value = byte & 0x7F
    for shift in range(7, 7 * _VARINT_BYTES_MAX, 7):
        position += 1
        byte = buffer[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
    raise ProtocolError(f"a varint is longer than {_VARINT_BYTES_MAX} bytes position={position}")


def write_unsigned_varint(value: int, out: bytearray) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _end_of(buffer: Buffer, position: int, size: int) -> int:
    end = position + size
    if size < 0 or end > len(buffer):
        raise ProtocolError(
            f"a field does not fit its message position={position} size={size} "
            f"left={len(buffer) - position}"
        )
    return end


def _unexpected_null(position: int) -> ProtocolError:
    return ProtocolError(f"null where the message allows none position={position}")


def read_legacy_nullable_string(buffer: Buffer, position: int) -> tuple[str | None, int]:
    (size,) = _INT16.unpack_from(buffer, position)
    position += 2
    if size == -1:
        return None, position
    end = position + size
    if not position <= end <= len(buffer):
        _end_of(buffer, position, size)
    return str(buffer[position:end], "utf-8"), end


def read_legacy_string(buffer: Buffer, position: int) -> tuple[str, int]:
    value, end = read_legacy_nullable_string(buffer, position)
    if value is None:
        raise _unexpected_null(position)
    return value, end


def read_compact_nullable_string(buffer: Buffer, position: int) -> tuple[str | None, int]:
    # A size of one byte, as nearly all are, costs no call (docs/decisions/0136).
    size = buffer[position]
    if size < 0x80:
        position += 1
    else:
        size, position = read_unsigned_varint(buffer, position)
    if size == 0:
        return None, position
    end = position + size - 1
    if end > len(buffer):
        _end_of(buffer, position, size - 1)
    return str(buffer[position:end], "utf-8"), end


def read_compact_string(buffer: Buffer, position: int) -> tuple[str, int]:
    size = buffer[position]
    if size < 0x80:
        position += 1
    else:
        size, position = read_unsigned_varint(buffer, position)
    if size == 0:
        raise _unexpected_null(position)
    end = position + size - 1
    if end > len(buffer):
        _end_of(buffer, position, size - 1)
    return str(buffer[position:end], "utf-8"), end


def write_legacy_nullable_string(value: str | None, out: bytearray) -> None:
    if value is None:
        out += b"\xff\xff"
    else:
        write_legacy_string(value, out)


def write_legacy_string(value: str, out: bytearray) -> None:
    encoded = value.encode()
    out += _INT16.pack(len(encoded))
    out += encoded


def write_compact_nullable_string(value: str | None, out: bytearray) -> None:
    if value is None:
        out.append(0)
    else:
        write_compact_string(value, out)


def write_compact_string(value: str, out: bytearray) -> None:
    encoded = value.encode()
    if len(encoded) < 0x7F:
        out.append(len(encoded) + 1)
    else:
        write_unsigned_varint(len(encoded) + 1, out)
    out += encoded


def read_legacy_nullable_slice(buffer: Buffer, position: int) -> tuple[memoryview | None, int]:
    (size,) = _INT32.unpack_from(buffer, position)
    position += 4
    if size == -1:
        return None, position
    end = position + size
    if not position <= end <= len(buffer):
        _end_of(buffer, position, size)
    return memoryview(buffer)[position:end], end


def read_compact_nullable_slice(buffer: Buffer, position: int) -> tuple[memoryview | None, int]:
    size = buffer[position]
    if size < 0x80:
        position += 1
    elif buffer[position + 1] < 0x80:  # batches below 16 KiB
        size, position = size & 0x7F | buffer[position + 1] << 7, position + 2
    else:
        size, position = read_unsigned_varint(buffer, position)
    if size == 0:
        return None, position
    end = position + size - 1
    if end > len(buffer):
        _end_of(buffer, position, size - 1)
    return memoryview(buffer)[position:end], end


def read_legacy_nullable_bytes(buffer: Buffer, position: int) -> tuple[bytes | None, int]:
    value, end = read_legacy_nullable_slice(buffer, position)
    return None if value is None else bytes(value), end


def read_legacy_bytes(buffer: Buffer, position: int) -> tuple[bytes, int]:
    value, end = read_legacy_nullable_slice(buffer, position)
    if value is None:
        raise _unexpected_null(position)
    return bytes(value), end


def read_compact_nullable_bytes(buffer: Buffer, position: int) -> tuple[bytes | None, int]:
    value, end = read_compact_nullable_slice(buffer, position)
    return None if value is None else bytes(value), end


def read_compact_slice(buffer: Buffer, position: int) -> tuple[memoryview, int]:
    value, end = read_compact_nullable_slice(buffer, position)
    if value is None:
        raise _unexpected_null(position)
    return value, end


def read_compact_bytes(buffer: Buffer, position: int) -> tuple[bytes, int]:
    value, end = read_compact_slice(buffer, position)
    return bytes(value), end


def write_legacy_nullable_bytes(value: Buffer | None, out: bytearray) -> None:
    if value is None:
        out += b"\xff\xff\xff\xff"
    else:
        write_legacy_bytes(value, out)


def write_legacy_bytes(value: Buffer, out: bytearray) -> None:
    out += _INT32.pack(len(value))
    out += value


def write_compact_nullable_bytes(value: Buffer | None, out: bytearray) -> None:
    if value is None:
        out.append(0)
    else:
        write_compact_bytes(value, out)


def write_compact_bytes(value: Buffer, out: bytearray) -> None:
    write_unsigned_varint(len(value) + 1, out)
    out += value


class _ElementBudget(threading.local):
    """The number of array items and tagged fields that this thread may still decode."""

    left: float = math.inf


# Framing sets `left` before it decodes a message, and to no limit after it.
element_budget = _ElementBudget()


def spend_elements(count: int) -> None:
    """Call before `count` items are decoded."""
    if count > element_budget.left:
        raise _too_many_elements(count)
    element_budget.left -= count


def _too_many_elements(count: int) -> ProtocolError:
    left = element_budget.left
    return ProtocolError(f"a message has too many elements count={count} left={left}")


def _oversized_array(
    buffer: Buffer, position: int, count: int, item_size_min: int
) -> ProtocolError:
    if 0 <= count * item_size_min <= len(buffer) - position:
        return _too_many_elements(count)
    return ProtocolError(
        f"an array does not fit its message position={position} count={count} "
        f"left={len(buffer) - position}"
    )


def read_legacy_count(buffer: Buffer, position: int, item_size_min: int) -> tuple[int, int]:
    """Like `read_legacy_array_length`, for an array that may not be null."""
    (count,) = _INT32.unpack_from(buffer, position)
    position += 4
    if count == -1:
        raise _unexpected_null(position)
    # The received bytes bound the loop over the items, and the memory it takes. Every request
    # passes here and in `read_compact_count`, so neither calls `spend_elements`.
    left = element_budget.left
    if not 0 <= count * item_size_min <= len(buffer) - position or count > left:
        raise _oversized_array(buffer, position, count, item_size_min)
    element_budget.left = left - count
    return count, position


def read_compact_count(buffer: Buffer, position: int, item_size_min: int) -> tuple[int, int]:
    """Like `read_legacy_count`, for flexible versions."""
    count = buffer[position]
    if count < 0x80:
        position += 1
    else:
        count, position = read_unsigned_varint(buffer, position)
    if count == 0:
        raise _unexpected_null(position)
    count -= 1
    left = element_budget.left
    if count * item_size_min > len(buffer) - position or count > left:
        raise _oversized_array(buffer, position, count, item_size_min)
    element_budget.left = left - count
    return count, position


def read_legacy_array_length(
    buffer: Buffer, position: int, item_size_min: int
) -> tuple[int | None, int]:
    """Number of items, None for a null array. Each item takes at least `item_size_min` bytes."""
    if _INT32.unpack_from(buffer, position) == (-1,):
        return None, position + 4
    return read_legacy_count(buffer, position, item_size_min)


def read_compact_array_length(
    buffer: Buffer, position: int, item_size_min: int
) -> tuple[int | None, int]:
    """Like `read_legacy_array_length`, for flexible versions."""
    if buffer[position] == 0:
        return None, position + 1
    return read_compact_count(buffer, position, item_size_min)


def write_legacy_array_length(count: int | None, out: bytearray) -> None:
    out += _INT32.pack(-1 if count is None else count)


def compact_count(count: int) -> bytes:
    """The length of an array or of bytes, in flexible versions."""
    value, out = count + 1, bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_compact_array_length(count: int | None, out: bytearray) -> None:
    if count is None:
        out.append(0)
    elif count < 0x7F:
        out.append(count + 1)
    else:
        out += compact_count(count)


def read_uuid(buffer: Buffer, position: int) -> tuple[uuid.UUID | None, int]:
    """An id. The zero id means None."""
    end = _end_of(buffer, position, 16)
    raw = bytes(buffer[position:end])
    return None if raw == ZERO_UUID_BYTES else uuid.UUID(bytes=raw), end


@functools.lru_cache(_TOPIC_ID_CACHE_SIZE)
def topic_id_of(raw: bytes) -> uuid.UUID | None:
    """The id of 16 bytes; None if it is zero. The latest are cached, since ids recur."""
    return None if raw == ZERO_UUID_BYTES else uuid.UUID(bytes=raw)


def read_topic_id(buffer: Buffer, position: int) -> tuple[uuid.UUID | None, int]:
    """Like `read_uuid`, for ids that recur: the latest are cached."""
    raw = bytes(buffer[position : position + 16])
    if len(raw) < 16:
        raise ProtocolError(f"the bytes end within a topic id position={position}")
    return topic_id_of(raw), position + 16


def write_uuid(value: uuid.UUID | None, out: bytearray) -> None:
    out += ZERO_UUID_BYTES if value is None else value.bytes


def skip_tagged_fields(buffer: Buffer, position: int) -> int:
    """The position after a section of tagged fields, all of which are skipped."""
    if buffer[position] == 0:  # by far the most frequent case
        return position + 1
    count, position = read_unsigned_varint(buffer, position)
    spend_elements(count)
    for _ in range(count):
        _, position = read_unsigned_varint(buffer, position)
        size, position = read_unsigned_varint(buffer, position)
        position = _end_of(buffer, position, size)
    return position


def read_tag_header(buffer: Buffer, position: int) -> tuple[int, int, int]:
    """A tagged field's number, and the start and end of its value."""
    tag, position = read_unsigned_varint(buffer, position)
    size, position = read_unsigned_varint(buffer, position)
    return tag, position, _end_of(buffer, position, size)


def write_tagged_field(
    tag: int, write_value: Callable[[Any, bytearray], None], value: object, out: bytearray
) -> None:
    encoded = bytearray()
    write_value(value, encoded)
    write_unsigned_varint(tag, out)
    write_unsigned_varint(len(encoded), out)
    out += encoded


def timedelta_from_ms(value: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=value)


def timedelta_to_ms(value: datetime.timedelta) -> int:
    return value // _MILLISECOND


def read_nullable_datetime(buffer: Buffer, position: int) -> tuple[datetime.datetime | None, int]:
    (value,) = _INT64.unpack_from(buffer, position)
    position += 8
    if value == -1:
        return None, position
    return _UNIX_EPOCH + datetime.timedelta(milliseconds=value), position


def read_datetime(buffer: Buffer, position: int) -> tuple[datetime.datetime, int]:
    value, end = read_nullable_datetime(buffer, position)
    if value is None:
        raise _unexpected_null(position)
    return value, end


def write_nullable_datetime(value: datetime.datetime | None, out: bytearray) -> None:
    out += _INT64.pack(-1 if value is None else (value - _UNIX_EPOCH) // _MILLISECOND)
