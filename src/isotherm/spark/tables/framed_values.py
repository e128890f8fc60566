"""Splits values as Confluent's serializers write them: the name of a schema, then the bytes.

0x00 · schema id, int32 · value
0x01 · schema GUID, 16 bytes · value
0x00 · schema id, int32 · count · indexes · value    Protobuf, all numbers as zigzag varints; also
                                                     after a GUID

The indexes lead to a message of the schema: the first one to a message of the file, the next one to
a message inside that, and so on. A count of 0 is short for the first message of the file.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from isotherm.spark.tables.binary_buffers import binary_buffers
from isotherm.spark.tables.json_values import DeadValue, Places, Values

# The stubs lack types that these take.
_buffer_of: Any = pa.py_buffer
_from_buffers: Any = pa.Array.from_buffers

ID_FRAME_SIZE, GUID_FRAME_SIZE = 5, 17
PATH_SIZE_MAX = 64
"""The most bytes of the indexes. No real schema has messages that need more."""
NO_VALUE, NO_FRAME = -1, -2
_ID_MAGIC, _GUID_MAGIC = 0, 1
# The sizes of frames by their first byte, and one that no value has for all other bytes.
_FRAME_SIZES = np.array([ID_FRAME_SIZE, GUID_FRAME_SIZE, 2**31])
_MORE = 0x80


SchemaId: TypeAlias = int | uuid.UUID
"""The registry's number of a schema, or its GUID, which is the same in all registries."""


class SchemaName(NamedTuple):
    """The name of a schema before a value. `path` has the indexes, if there are any."""

    id: SchemaId
    path: tuple[int, ...] = ()


class Framing(NamedTuple):
    """The form of frames: with Protobuf's indexes or without."""

    has_path: bool = False


class Framed(NamedTuple):
    """The names of schemas, in the order of values. For each value the index of its name, or
    NO_VALUE for null, or NO_FRAME for a value without a name. And the bytes of the values after
    their frames."""

    names: Sequence[SchemaName]
    schemas: npt.NDArray[np.int64]
    payloads: Values


def framed(values: Values, *, has_path: bool = False) -> Framed:
    """Split the values of a binary array."""
    offsets, data = binary_buffers(values)
    starts, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    places = np.flatnonzero(ends > starts)
    heads = _FRAME_SIZES[np.minimum(data[starts[places]], _GUID_MAGIC + 1)]
    is_framed = heads <= (ends - starts)[places]
    places, heads = places[is_framed], heads[is_framed]
    if has_path:
        paths = _path_sizes(data, starts[places] + heads, ends[places])
        places, heads = places[paths > 0], (heads + paths)[paths > 0]
    is_valid = np.asarray(values.is_valid())
    schemas = np.full(len(values), NO_FRAME, np.int64)
    schemas[~is_valid] = NO_VALUE
    names, schemas[places] = _names(data, starts[places], heads)
    # Arrow's binary_slice fails for values that are shorter than a frame, so NumPy copies the
    # bytes.
    is_kept = np.ones(len(data), np.bool_)
    is_kept[: offsets[0]] = False
    # One step for each byte of the longest head, for all values at once.
    for index in range(heads.max(initial=0)):
        is_kept[starts[places[heads > index]] + index] = False
    sizes = ends - starts
    sizes[places] -= heads
    payloads = _from_buffers(
        pa.binary(),
        len(values),
        [
            _buffer_of(np.packbits(is_valid, bitorder="little")),
            _buffer_of(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)),
            _buffer_of(data[is_kept]),
        ],
    )
    return Framed(names, schemas, payloads)


def frame_of(value: bytes, *, has_path: bool = False) -> tuple[SchemaName, bytes] | None:
    """The name before one value, and the bytes after it. None if there is no name."""
    names, _, payloads = framed(pa.array([value], pa.binary()), has_path=has_path)
    return (names[0], payloads[0].as_py()) if names else None


def frame_size(value: bytes, *, has_path: bool = False) -> int:
    """The bytes of the frame at the beginning of a value. 0 if there is none."""
    frame = frame_of(value, has_path=has_path)
    return 0 if frame is None else len(value) - len(frame[1])


def not_framed(schemas: npt.NDArray[np.int64]) -> list[DeadValue]:
    return [
        DeadValue(int(place), "it does not begin with a schema id")
        for place in np.flatnonzero(schemas == NO_FRAME)
    ]


def _path_sizes(data: npt.NDArray[np.uint8], starts: Places, ends: Places) -> Places:
    """The bytes of count and indexes of each value. 0 if they are invalid."""
    position = starts.copy()
    left = np.zeros(len(starts), np.int64)
    begun = starts < ends
    count = data[starts[begun]].astype(np.int64)
    # A count of more than one byte, or below zero, is invalid. It never gets to 0.
    left[begun] = np.where((count < _MORE) & (count % 2 == 0), count // 2, -1)
    position[begun] += 1
    for _ in range(PATH_SIZE_MAX):
        reading = np.flatnonzero((left > 0) & (position < ends))
        left[reading] -= data[position[reading]] < _MORE
        position[reading] += 1
    return np.where(begun & (left == 0), position - starts, 0)


def _names(
    data: npt.NDArray[np.uint8], starts: Places, heads: Places
) -> tuple[list[SchemaName], npt.NDArray[np.int64]]:
    """The distinct names before values, and the index of each value's name."""
    names: list[SchemaName] = []
    firsts: list[int] = []
    ends = np.empty(len(starts), np.int64)
    for size in np.unique(heads).tolist():
        where = np.flatnonzero(heads == size)
        bytes_of = data[starts[where][:, None] + np.arange(size)].view(f"S{size}")[:, 0]
        if (bytes_of == bytes_of[0]).all():  # nearly always true, and much cheaper than np.unique
            texts, first, inverse = bytes_of[:1], np.zeros(1, np.int64), np.zeros(1, np.int64)
        else:
            texts, first, inverse = np.unique(bytes_of, return_index=True, return_inverse=True)
        ends[where] = inverse + len(names)
        names += [_name(text.ljust(size, b"\0")) for text in texts.tolist()]
        firsts += where[first].tolist()
    order = np.argsort(firsts)
    ranks = np.empty(len(names), np.int64)
    ranks[order] = np.arange(len(names))
    return [names[rank] for rank in order], ranks[ends]


def _name(head: bytes) -> SchemaName:
    numbers: list[int] = []
    number = shift = 0
    size = int(_FRAME_SIZES[head[0]])
    for byte in head[size:]:
        number |= (byte & ~_MORE) << shift
        shift += 7
        if byte < _MORE:
            numbers.append(number >> 1 ^ -(number & 1))
            number = shift = 0
    text = head[1:size]
    schema_id = int.from_bytes(text, "big") if head[0] == _ID_MAGIC else uuid.UUID(bytes=text)
    # The first number is the count. A count of 0 stands for the path (0,). Without numbers there is
    # no path.
    return SchemaName(schema_id, tuple(numbers[1:] or numbers))
