"""Custom metadata (KIP-917) of the Aiven layout: the place of a segment's objects, and their size.

One section of tagged fields: their number, then for each, ascending, tag, length and value.
Numbers are unsigned varints.

    | tag | field         | value                                                         |
    |-----|---------------|---------------------------------------------------------------|
    | 0   | REMOTE_SIZE   | varlong: bytes of all objects of the segment                  |
    | 1   | OBJECT_PREFIX | compact string (varint of length + 1, UTF-8): the key prefix  |
    | 2   | OBJECT_KEY    | compact string: the key without prefix and suffix             |

With the prefix kept beside the segment, the `key.prefix` setting can change later. Source: the
Aiven plugin's class SegmentCustomMetadataSerde.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from isotherm.errors import CorruptMetadataError, CorruptRecordError
from isotherm.record.varint import (
    read_unsigned_varint,
    read_varlong,
    write_unsigned_varint,
    write_varlong,
)

T = TypeVar("T")

REMOTE_SIZE = "REMOTE_SIZE"
OBJECT_PREFIX = "OBJECT_PREFIX"
OBJECT_KEY = "OBJECT_KEY"
FIELDS = (REMOTE_SIZE, OBJECT_PREFIX, OBJECT_KEY)
"""Field names; a field's tag is its index."""


@dataclass(frozen=True, slots=True)
class AivenCustomMetadata:
    remote_size: int | None = None
    object_prefix: str | None = None
    object_key: str | None = None

    def encode(self) -> bytes | None:
        """The encoded section; None without a field, because the plugin keeps no empty section."""
        values = [
            None if self.remote_size is None else _varlong(self.remote_size),
            None if self.object_prefix is None else _compact_string(self.object_prefix),
            None if self.object_key is None else _compact_string(self.object_key),
        ]
        present = [(tag, value) for tag, value in enumerate(values) if value is not None]
        if not present:
            return None
        out = bytearray()
        write_unsigned_varint(out, len(present))
        for tag, value in present:
            write_unsigned_varint(out, tag)
            write_unsigned_varint(out, len(value))
            out += value
        return bytes(out)


def read_custom_metadata(data: bytes | None) -> AivenCustomMetadata:
    """Decode custom metadata. Unknown tags are ignored. Raises CorruptMetadataError for other
    bytes."""
    if not data:
        return AivenCustomMetadata()
    fields: dict[int, bytes] = {}
    try:
        count, position = read_unsigned_varint(data, 0)
        for _ in range(count):
            tag, position = read_unsigned_varint(data, position)
            size, position = read_unsigned_varint(data, position)
            if position + size > len(data) or tag in fields:
                raise CorruptMetadataError(f"custom metadata is cut or repeats a field tag={tag}")
            fields[tag] = data[position : position + size]
            position += size
        remote_size = _read_field(fields, 0, _read_varlong)
        object_prefix = _read_field(fields, 1, _read_compact_string)
        object_key = _read_field(fields, 2, _read_compact_string)
    except (CorruptRecordError, UnicodeDecodeError) as error:
        raise CorruptMetadataError(f"custom metadata is malformed data={data.hex()}") from error
    if position != len(data):
        raise CorruptMetadataError(f"custom metadata has bytes after its end data={data.hex()}")
    return AivenCustomMetadata(remote_size, object_prefix, object_key)


def _varlong(value: int) -> bytes:
    out = bytearray()
    write_varlong(out, value)
    return bytes(out)


def _compact_string(value: str) -> bytes:
    encoded = value.encode()
    out = bytearray()
    write_unsigned_varint(out, len(encoded) + 1)
    return bytes(out) + encoded


def _read_field(fields: dict[int, bytes], tag: int, read: Callable[[bytes], T]) -> T | None:
    return read(fields[tag]) if tag in fields else None


def _read_varlong(data: bytes) -> int:
    value, end = read_varlong(data, 0)
    if end != len(data):
        raise CorruptRecordError(f"varlong is followed by more bytes size={len(data)}")
    return value


def _read_compact_string(data: bytes) -> str:
    length, start = read_unsigned_varint(data, 0)
    if start + length - 1 != len(data):
        raise CorruptRecordError(f"compact string has another length length={length - 1}")
    return data[start:].decode()
