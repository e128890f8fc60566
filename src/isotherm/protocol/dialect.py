"""The two dialects of Kafka's encoding, for messages with hand-written codecs.

Versions before a message became flexible (KIP-482) use LEGACY: fixed-width lengths, no tagged
fields. Flexible versions use COMPACT: varint lengths, and tagged fields after every struct.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from isotherm.protocol import primitives
from isotherm.protocol.primitives import Buffer

SMALL_COUNTS: Final = 128

_INT32 = struct.Struct(">i")


class Dialect(NamedTuple):
    flexible: bool
    read_string: Callable[[Buffer, int], tuple[str, int]]
    read_nullable_string: Callable[[Buffer, int], tuple[str | None, int]]
    read_records: Callable[[Buffer, int], tuple[memoryview | None, int]]
    # (buffer, position, smallest size of an item) -> (count, next position). Refuses null.
    read_count: Callable[[Buffer, int, int], tuple[int, int]]
    skip_tags: Callable[[Buffer, int], int]
    write_string: Callable[[str, bytearray], None]
    write_nullable_string: Callable[[str | None, bytearray], None]
    encode_count: Callable[[int], bytes]
    counts: Mapping[int, bytes]
    """The same as a table, without a Python call for small counts."""
    no_tags: bytes
    """An empty section of tagged fields."""
    no_array: bytes
    """An array that is null."""
    no_items: bytes
    """An empty array."""
    no_string: bytes
    """A string that is null."""
    empty_string: bytes


class _Counts(dict[int, bytes]):
    def __init__(self, encode: Callable[[int], bytes]) -> None:
        super().__init__()
        self._encode = encode
        for count in range(SMALL_COUNTS):
            self[count] = encode(count)

    def __missing__(self, count: int) -> bytes:
        return self._encode(count)


def _there_are_no_tags(_buffer: Buffer, position: int) -> int:
    return position


LEGACY = Dialect(
    flexible=False,
    read_string=primitives.read_legacy_string,
    read_nullable_string=primitives.read_legacy_nullable_string,
    read_records=primitives.read_legacy_nullable_slice,
    read_count=primitives.read_legacy_count,
    skip_tags=_there_are_no_tags,
    write_string=primitives.write_legacy_string,
    write_nullable_string=primitives.write_legacy_nullable_string,
    encode_count=_INT32.pack,
    counts=_Counts(_INT32.pack),
    no_tags=b"",
    no_array=b"\xff\xff\xff\xff",
    no_items=b"\0\0\0\0",
    no_string=b"\xff\xff",
    empty_string=b"\0\0",
)

COMPACT = Dialect(
    flexible=True,
    read_string=primitives.read_compact_string,
    read_nullable_string=primitives.read_compact_nullable_string,
    read_records=primitives.read_compact_nullable_slice,
    read_count=primitives.read_compact_count,
    skip_tags=primitives.skip_tagged_fields,
    write_string=primitives.write_compact_string,
    write_nullable_string=primitives.write_compact_nullable_string,
    encode_count=primitives.compact_count,
    counts=_Counts(primitives.compact_count),
    no_tags=b"\0",
    no_array=b"\0",
    no_items=b"\1",
    no_string=b"\0",
    empty_string=b"\1",
)
