"""Variable-length integers of the record format.

7 bits per byte, least significant group first, the high bit set on all but the last byte. `varint`
(32 bits) and `varlong` (64 bits) are zigzag-coded first: 0, -1, 1, -2 become 0, 1, 2, 3. The
unsigned form, used by the flexible wire messages, is not.

Readers take at most 5 (10) bytes and drop the bits that do not fit, like Java's arithmetic.
Source: Kafka ByteUtils.java.
"""

from __future__ import annotations

from typing import TypeAlias

from isotherm.errors import CorruptRecordError
from isotherm.types import Position

ReadBuffer: TypeAlias = bytes | bytearray | memoryview

_VARINT_SIZE_MAX = 5
_VARLONG_SIZE_MAX = 10
_UINT32_MASK = 0xFFFF_FFFF
_UINT64_MASK = 0xFFFF_FFFF_FFFF_FFFF


def read_varint(buffer: ReadBuffer, position: Position = 0) -> tuple[int, Position]:
    """Zigzag integer of 32 bits, next position. Raises CorruptRecordError if cut off or too
    long."""
    # Most varints of records have a single byte.
    if position < len(buffer) and (raw := buffer[position]) < 0x80:
        return (raw >> 1) ^ -(raw & 1), position + 1
    raw, position = read_unsigned_varint(buffer, position)
    return (raw >> 1) ^ -(raw & 1), position


def read_varlong(buffer: ReadBuffer, position: Position = 0) -> tuple[int, Position]:
    """Zigzag integer of 64 bits, next position. Raises CorruptRecordError if cut off or too
    long."""
    raw, position = _read_groups(buffer, position, _VARLONG_SIZE_MAX)
    raw &= _UINT64_MASK
    return (raw >> 1) ^ -(raw & 1), position


def read_unsigned_varint(buffer: ReadBuffer, position: Position = 0) -> tuple[int, Position]:
    """Unsigned integer of 32 bits, next position. Raises CorruptRecordError like `read_varint`."""
    raw, position = _read_groups(buffer, position, _VARINT_SIZE_MAX)
    return raw & _UINT32_MASK, position


def _read_groups(buffer: ReadBuffer, start: Position, size_max: int) -> tuple[int, Position]:
    value = 0
    try:
        for index in range(size_max):
            byte = buffer[start + index]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return value, start + index + 1
    except IndexError:
        raise CorruptRecordError(
            f"varint is cut off position={start} size={len(buffer) - start}"
        ) from None
    raise CorruptRecordError(f"varint is too long position={start} size_max={size_max}")


def write_varint(out: bytearray, value: int) -> None:
    """Append a zigzag integer; `value` must fit 32 bits, signed."""
    if -64 <= value < 64:  # most lengths and deltas: one byte
        out.append((value << 1) ^ (value >> 31))
        return
    write_unsigned_varint(out, ((value << 1) ^ (value >> 31)) & _UINT32_MASK)


def write_varlong(out: bytearray, value: int) -> None:
    """Append a zigzag integer; `value` must fit 64 bits, signed."""
    if -64 <= value < 64:
        out.append((value << 1) ^ (value >> 63))
        return
    write_unsigned_varint(out, ((value << 1) ^ (value >> 63)) & _UINT64_MASK)


def write_unsigned_varint(out: bytearray, value: int) -> None:
    """Append an unsigned integer."""
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
