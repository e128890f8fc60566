"""The chunk index of a manifest: the stored position of each piece of the original `.log` file.

The original file is cut into chunks of `original_chunk_size` bytes (the last may be shorter), each
is transformed alone, and the results are stored one after the other. Two kinds exist:

- fixed: all stored chunks but the last have one size (plain or encrypted segments);
- variable: each has its own (compressed segments). The sizes travel as base64(zstd(binary)):

    | size        | field                                                       |
    |-------------|-------------------------------------------------------------|
    | 4           | count (i32); nothing follows 0                              |
    | 4           | the only value, when count is 1; else the base              |
    | 1           | width w of a value, 1 to 4 bytes                            |
    | (count-1)*w | value minus base, unsigned, of every chunk but the last     |
    | 4           | the last value in full (i32): it can be far below the base  |

Source: the Aiven plugin's manifest.index package.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import zstandard

from isotherm.errors import CorruptMetadataError
from isotherm.types import Position

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64Array: TypeAlias = npt.NDArray[np.int64]

ENCODED_SIZE_MAX = 10 * 1024 * 1024
"""Chunk sizes that decode to more than this are refused, as the plugin does."""
CHUNK_SIZE_MAX = 2**30 - 1
"""The largest `chunk.size` of the plugin. A read takes memory for whole chunks."""

_INT = struct.Struct(">i")
_INT_MAX = 2**31 - 1
_VARIABLE_HEADER = struct.Struct(">iiB")


@dataclass(frozen=True, slots=True)
class FixedChunkIndex:
    """Its size does not depend on the number of chunks. Raises CorruptMetadataError for an
    impossible size."""

    original_chunk_size: int
    original_file_size: int
    transformed_chunk_size: int
    # A chunk with a fixed overhead is shorter only if its original is, as the last one may be.
    final_transformed_chunk_size: int

    def __post_init__(self) -> None:
        _check_sizes(self.original_chunk_size, self.original_file_size)
        sizes = (self.transformed_chunk_size, self.final_transformed_chunk_size)
        if min(sizes) < 0 or max(sizes) > stored_chunk_size_max(self.original_chunk_size):
            raise CorruptMetadataError(
                "chunk index has an impossible size of stored chunks"
                f" original_chunk_size={self.original_chunk_size}"
                f" transformed_chunk_size={self.transformed_chunk_size}"
                f" final_transformed_chunk_size={self.final_transformed_chunk_size}"
            )

    @property
    def chunk_count(self) -> int:
        return chunk_count(self.original_file_size, self.original_chunk_size)

    def stored_position(self, chunk: int) -> Position:
        """The start of a chunk in the stored object, or the object's end for `chunk_count`."""
        if chunk and chunk == self.chunk_count:
            return (chunk - 1) * self.transformed_chunk_size + self.final_transformed_chunk_size
        return chunk * self.transformed_chunk_size


@dataclass(frozen=True, slots=True)
class VariableChunkIndex:
    """The index of a file whose stored chunks differ in size. Raises CorruptMetadataError if the
    number of sizes contradicts the file's size."""

    original_chunk_size: int
    original_file_size: int
    transformed_sizes: tuple[int, ...]
    _positions: Int64Array = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_sizes(self.original_chunk_size, self.original_file_size)
        if len(self.transformed_sizes) != self.chunk_count:
            raise CorruptMetadataError(
                "chunk index has another number of chunks than the file"
                f" chunks={len(self.transformed_sizes)} expected={self.chunk_count}"
            )
        largest = max(self.transformed_sizes, default=0)
        if largest > stored_chunk_size_max(self.original_chunk_size):
            raise CorruptMetadataError(
                "chunk index has an impossible size of stored chunks"
                f" original_chunk_size={self.original_chunk_size} stored_chunk_size={largest}"
            )
        # Summed up once: the manifest is cached, and each read of a range looks up two positions.
        # Packed: a small manifest may describe millions of chunks.
        positions = np.zeros(len(self.transformed_sizes) + 1, np.int64)
        np.cumsum(self.transformed_sizes, out=positions[1:])
        object.__setattr__(self, "_positions", positions)

    @property
    def chunk_count(self) -> int:
        return chunk_count(self.original_file_size, self.original_chunk_size)

    def stored_position(self, chunk: int) -> Position:
        """The start of a chunk in the stored object, or the object's end for `chunk_count`."""
        return int(self._positions[chunk])


ChunkIndex: TypeAlias = FixedChunkIndex | VariableChunkIndex


class StoredRange(NamedTuple):
    """Chunks [first_chunk, chunk_end), and their bytes [start, end) in the stored object."""

    first_chunk: int
    chunk_end: int
    start: Position
    end: Position


def stored_range(index: ChunkIndex, start: Position, end: Position) -> StoredRange:
    """The chunks with the original bytes [start, end), 0 <= start < end <= size."""
    first = start // index.original_chunk_size
    chunk_end = chunk_count(end, index.original_chunk_size)
    return StoredRange(
        first, chunk_end, index.stored_position(first), index.stored_position(chunk_end)
    )


def stored_file_size(index: ChunkIndex) -> int:
    return index.stored_position(index.chunk_count)


def plain_chunk_index(file_size: int, chunk_size: int) -> FixedChunkIndex:
    """The index of a file that is stored unchanged."""
    whole_chunks = max(chunk_count(file_size, chunk_size) - 1, 0)
    return FixedChunkIndex(chunk_size, file_size, chunk_size, file_size - whole_chunks * chunk_size)


def chunk_count(file_size: int, chunk_size: int) -> int:
    return -(-file_size // chunk_size)


def _check_sizes(original_chunk_size: int, original_file_size: int) -> None:
    if not 0 < original_chunk_size <= CHUNK_SIZE_MAX or original_file_size < 0:
        raise CorruptMetadataError(
            "chunk index has an impossible size"
            f" original_chunk_size={original_chunk_size} original_file_size={original_file_size}"
        )


def stored_chunk_size_max(original_chunk_size: int) -> int:
    """The largest chunk that a transformation makes of one of this size. zstd adds 1/256 of it and
    64 bytes at most (ZSTD_compressBound), encryption 28 bytes."""
    return original_chunk_size + original_chunk_size // 128 + 1024


def encode_chunk_sizes(sizes: Sequence[int]) -> str:
    """Text of the manifest's member `transformedChunks`."""
    return base64.b64encode(zstandard.compress(_encode_binary(sizes))).decode("ascii")


def decode_chunk_sizes(text: str) -> tuple[int, ...]:
    """Inverse of `encode_chunk_sizes`. Raises CorruptMetadataError for any other text."""
    try:
        frame = base64.b64decode(text, validate=True)
        size = zstandard.frame_content_size(frame)
        # A frame without its size (-1) is refused too: nothing would bound its memory.
        if not 0 <= size <= ENCODED_SIZE_MAX:
            raise CorruptMetadataError(f"chunk sizes have an invalid length size={size}")
        data = zstandard.ZstdDecompressor().decompress(frame)
    except (ValueError, zstandard.ZstdError) as error:
        raise CorruptMetadataError("chunk sizes are not base64 of a zstd frame") from error
    try:
        return _decode_binary(data)
    except struct.error as error:
        raise CorruptMetadataError(f"chunk sizes end early size={len(data)}") from error


def _encode_binary(sizes: Sequence[int]) -> bytes:
    if len(sizes) <= 1:
        return b"".join(_INT.pack(value) for value in (len(sizes), *sizes))
    *leading, last = sizes
    base = min(leading)
    width = max(1, ((max(leading) - base).bit_length() + 7) // 8)
    deltas = b"".join((size - base).to_bytes(width, "big") for size in leading)
    return _VARIABLE_HEADER.pack(len(sizes), base, width) + deltas + _INT.pack(last)


def _decode_binary(data: bytes) -> tuple[int, ...]:
    (count,) = _INT.unpack_from(data)
    if count <= 1:
        sizes = np.array([value for (value,) in _INT.iter_unpack(data[_INT.size :])], np.int64)
    else:
        _, base, width = _VARIABLE_HEADER.unpack_from(data)
        leading = _decode_deltas(data[_VARIABLE_HEADER.size : -_INT.size], base, width)
        sizes = np.append(leading, _INT.unpack(data[-_INT.size :]))
    if len(sizes) != count or sizes.min(initial=0) < 0 or sizes.max(initial=0) > _INT_MAX:
        raise CorruptMetadataError(f"chunk sizes are malformed count={count} found={len(sizes)}")
    return tuple(sizes.tolist())


def _decode_deltas(data: bytes, base: int, width: int) -> Int64Array:
    if not 1 <= width <= 4 or len(data) % width:
        raise CorruptMetadataError(f"chunk sizes have an impossible width width={width}")
    digits = np.frombuffer(data, np.uint8).reshape(-1, width)
    sizes: Int64Array = np.full(len(digits), 0, np.int64)
    for column in range(width):
        sizes = sizes * 256 + digits[:, column]
    return sizes + base
