"""Readers and writers of single fields by kafka_type, from which the codec builds messages."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import isotherm.protocol.kio_alone  # noqa: F401

# isort: split
from kio.schema.errors import ErrorCode

from isotherm.protocol import primitives
from isotherm.protocol.errors import ProtocolError
from isotherm.protocol.primitives import Buffer

Reader: TypeAlias = Callable[[Buffer, int], tuple[Any, int]]
Writer: TypeAlias = Callable[[Any, bytearray], None]


class WireType(NamedTuple):
    read: Reader
    write: Writer
    size_min: int  # smallest size of a value in bytes; bounds the length of an array


class FixedType(NamedTuple):
    """A number that `struct` reads, so that adjacent numbers are read in one call."""

    code: str
    from_number: Callable[[int], Any] | None = None
    to_number: Callable[[Any], int] | None = None


FIXED_TYPES = {
    "bool": FixedType("?"),
    "int8": FixedType("b"),
    "int16": FixedType("h"),
    "int32": FixedType("i"),
    "int64": FixedType("q"),
    "uint16": FixedType("H"),
    "uint32": FixedType("I"),
    "float64": FixedType("d"),
    "error_code": FixedType("h", ErrorCode),
    "timedelta_i32": FixedType("i", primitives.timedelta_from_ms, primitives.timedelta_to_ms),
    "timedelta_i64": FixedType("q", primitives.timedelta_from_ms, primitives.timedelta_to_ms),
}

_ANY_NULLABILITY = {
    "uuid": WireType(primitives.read_uuid, primitives.write_uuid, 16),
}

# The types of variable size, by (kafka_type, flexible, nullable).
_VARIABLE_TYPES = {
    ("string", False, False): WireType(
        primitives.read_legacy_string, primitives.write_legacy_string, 2
    ),
    ("string", False, True): WireType(
        primitives.read_legacy_nullable_string, primitives.write_legacy_nullable_string, 2
    ),
    ("string", True, False): WireType(
        primitives.read_compact_string, primitives.write_compact_string, 1
    ),
    ("string", True, True): WireType(
        primitives.read_compact_nullable_string, primitives.write_compact_nullable_string, 1
    ),
    ("bytes", False, False): WireType(
        primitives.read_legacy_bytes, primitives.write_legacy_bytes, 4
    ),
    ("bytes", False, True): WireType(
        primitives.read_legacy_nullable_bytes, primitives.write_legacy_nullable_bytes, 4
    ),
    ("bytes", True, False): WireType(
        primitives.read_compact_bytes, primitives.write_compact_bytes, 1
    ),
    ("bytes", True, True): WireType(
        primitives.read_compact_nullable_bytes, primitives.write_compact_nullable_bytes, 1
    ),
    # Records are not copied: a slice of the request's buffer.
    ("records", False, True): WireType(
        primitives.read_legacy_nullable_slice, primitives.write_legacy_nullable_bytes, 4
    ),
    ("records", True, True): WireType(
        primitives.read_compact_nullable_slice, primitives.write_compact_nullable_bytes, 1
    ),
    ("records", True, False): WireType(
        primitives.read_compact_slice, primitives.write_compact_bytes, 1
    ),
    ("datetime_i64", False, False): WireType(
        primitives.read_datetime, primitives.write_nullable_datetime, 8
    ),
    ("datetime_i64", False, True): WireType(
        primitives.read_nullable_datetime, primitives.write_nullable_datetime, 8
    ),
    ("datetime_i64", True, False): WireType(
        primitives.read_datetime, primitives.write_nullable_datetime, 8
    ),
    ("datetime_i64", True, True): WireType(
        primitives.read_nullable_datetime, primitives.write_nullable_datetime, 8
    ),
}


def _fixed_wire_type(fixed: FixedType) -> WireType:
    layout = struct.Struct(">" + fixed.code)

    def read(buffer: Buffer, position: int) -> tuple[Any, int]:
        (value,) = layout.unpack_from(buffer, position)
        if fixed.from_number is not None:
            value = fixed.from_number(value)
        return value, position + layout.size

    def write(value: Any, out: bytearray) -> None:
        out += layout.pack(value if fixed.to_number is None else fixed.to_number(value))

    return WireType(read, write, layout.size)


def leaf_wire_type(kafka_type: str, *, flexible: bool, nullable: bool) -> WireType:
    """The codec of a single value, neither an array nor a nested message."""
    if kafka_type in FIXED_TYPES:
        return _fixed_wire_type(FIXED_TYPES[kafka_type])
    if kafka_type in _ANY_NULLABILITY:
        return _ANY_NULLABILITY[kafka_type]
    return _VARIABLE_TYPES[kafka_type, flexible, nullable]


class SharedItems(tuple[Any, ...]):  # noqa: SLOT001 - a tuple cannot have slots
    """An array that many parts of a response share. The first one that is written encodes it for
    all.

    Use an instance for one version of one message only: it is not encoded again for another.
    """

    encoded: bytes | None = None


def _array_writer(
    write_length: Callable[[int | None, bytearray], None],
    write_item: Callable[[Any, bytearray], None],
    *,
    nullable: bool,
) -> Callable[[tuple[Any, ...] | None, bytearray], None]:
    def write(items: tuple[Any, ...] | None, out: bytearray) -> None:
        if items is None and nullable:
            write_length(None, out)
            return
        assert items is not None
        if not isinstance(items, SharedItems):
            write_all(items, out)
            return
        if items.encoded is None:
            own = bytearray()
            write_all(items, own)
            items.encoded = bytes(own)
        out += items.encoded

    def write_all(items: tuple[Any, ...], out: bytearray) -> None:
        write_length(len(items), out)
        for value in items:
            write_item(value, out)

    return write


def array_wire_type(item: WireType, *, flexible: bool, nullable: bool) -> WireType:
    if flexible:
        read_length = primitives.read_compact_array_length
        write_length = primitives.write_compact_array_length
    else:
        read_length = primitives.read_legacy_array_length
        write_length = primitives.write_legacy_array_length
    read_item, write_item, item_size_min = item

    def read(buffer: Buffer, position: int) -> tuple[tuple[Any, ...] | None, int]:
        count, position = read_length(buffer, position, item_size_min)
        if count is None:
            if nullable:
                return None, position
            raise ProtocolError(f"null where the message allows no null array position={position}")
        items = []
        for _ in range(count):
            value, position = read_item(buffer, position)
            items.append(value)
        return tuple(items), position

    write = _array_writer(write_length, write_item, nullable=nullable)
    return WireType(read, write, 1 if flexible else 4)


_NULL_STRUCT = -1
_PRESENT_STRUCT = 1


def nullable_struct_wire_type(struct_type: WireType) -> WireType:
    """A nullable nested message: a first byte says whether the message follows (KIP-893)."""
    read_struct, write_struct, _ = struct_type

    def read(buffer: Buffer, position: int) -> tuple[Any, int]:
        # The byte is an int8, and negative for null.
        is_null = buffer[position] >= 0x80
        return (None, position + 1) if is_null else read_struct(buffer, position + 1)

    def write(value: Any, out: bytearray) -> None:
        if value is None:
            out.append(_NULL_STRUCT & 0xFF)
        else:
            out.append(_PRESENT_STRUCT)
            write_struct(value, out)

    return WireType(read, write, 1)


_NULL_TAGGED_STRUCT = 0


def nullable_tagged_struct_wire_type(struct_type: WireType) -> WireType:
    """Like `nullable_struct_wire_type`, for a tagged field: its first byte is an unsigned varint, 0
    for null and 1 otherwise. Source: the output of Kafka's message generator."""
    read_struct, write_struct, _ = struct_type

    def read(buffer: Buffer, position: int) -> tuple[Any, int]:
        marker, position = primitives.read_unsigned_varint(buffer, position)
        return (None, position) if marker == _NULL_TAGGED_STRUCT else read_struct(buffer, position)

    def write(value: Any, out: bytearray) -> None:
        if value is None:
            out.append(_NULL_TAGGED_STRUCT)
        else:
            out.append(_PRESENT_STRUCT)
            write_struct(value, out)

    return WireType(read, write, 1)
