"""The batches of a buffer as a table, and their records decompressed: one row per batch.

What the columns and the cleaner have in common. Python works per batch at most, and only where a
batch needs it: for its CRC and its codec. All functions are thread-safe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import google_crc32c
import numpy as np

from isotherm.errors import CorruptRecordError
from isotherm.record.batch import (
    RECORD_SIZE_MIN,
    CompressionType,
    read_batch_header,
    verify_batch_crc,
)
from isotherm.record.batch_header import CODEC_MASK, HEADER_SIZE
from isotherm.record.compression import (
    DECOMPRESSED_SIZE_MAX,
    LZ4_BLOCK_SIZE_MAX,
    LZ4_PLAIN_HEADER,
    decompress,
    decompress_lz4_block,
)

if TYPE_CHECKING:
    from types import ModuleType

    import numpy.typing as npt

    from isotherm.record.varint import ReadBuffer
    from isotherm.types import Position

    Int64Array: TypeAlias = npt.NDArray[np.int64]
    Int32Array: TypeAlias = npt.NDArray[np.int32]
    Int8Array: TypeAlias = npt.NDArray[np.int8]
    BoolArray: TypeAlias = npt.NDArray[np.bool_]
    ByteArray: TypeAlias = npt.NDArray[np.uint8]
    # Rows of column_kernels.BATCH.
    BatchTable: TypeAlias = npt.NDArray[np.void]

# Decoded record bytes per call. Arrow's 32-bit offsets allow 2 GiB - 1.
DECODED_SIZE_MAX = 1024 * 1024 * 1024

_CRC_START = 21
# Batches up to this size are checked by a kernel: google-crc32c is faster per byte, but a call for
# each batch takes as long as 1000 bytes do in the kernel.
_SMALL_SIZE_MAX = 1024
_CODECS = tuple(CompressionType)
# A plain LZ4 frame of one block: header, size of the block, the block, four zeros.
_LZ4_BLOCK_START = len(LZ4_PLAIN_HEADER) + 4
_LZ4_TRAILER_SIZE = 4


def load_kernels() -> ModuleType:
    """Load the compiled kernels: 0.3 s with Numba's import, seconds if the cache is cold."""
    from isotherm.record import column_kernels

    return column_kernels


def byte_array(buffer: ReadBuffer) -> ByteArray:
    """The same memory as the kernels' one signature takes it: read-only."""
    return np.frombuffer(memoryview(buffer).toreadonly(), dtype=np.uint8)


def read_batch_table(buffer: ReadBuffer) -> tuple[BatchTable, Position]:
    """The complete batches from the start of a buffer, and where the last one ends.

    Raises CorruptRecordError at a header that `read_batch_header` refuses.
    """
    kernels = load_kernels()
    data = byte_array(buffer)
    # The table is as long as the buffer could make it; memory that is not written is not used.
    table = np.empty(len(data) // HEADER_SIZE + 1, dtype=kernels.BATCH)
    count, position_end, is_damaged = kernels.scan_headers(data, table)
    if is_damaged:
        read_batch_header(buffer, position_end)
        raise AssertionError(f"scan and reader disagree about a header position={position_end}")
    return table[:count], position_end


def verify_crcs(buffer: ReadBuffer, batches: BatchTable) -> None:
    """CorruptRecordError at the first of these batches whose CRC is wrong."""
    data = byte_array(buffer)
    is_small = batches["size"] <= _SMALL_SIZE_MAX
    wrong = [
        *_first_wrong_of_small(data, batches[is_small]),
        *_first_wrong_of_large(data, batches[~is_small]),
    ]
    if wrong:
        verify_batch_crc(buffer, min(wrong), read_batch_header(buffer, min(wrong)))


def _first_wrong_of_small(data: ByteArray, batches: BatchTable) -> list[Position]:
    """Where the first wrong one begins; nothing when all are right."""
    if len(batches) == 0:
        return []
    from isotherm.record.crc_kernels import first_wrong_crc

    starts = batches["position"] + _CRC_START
    ends = batches["position"] + batches["size"]
    crcs = np.ascontiguousarray(batches["crc"])
    for each in (starts, ends, crcs):
        each.flags.writeable = False
    wrong = int(first_wrong_crc(data, starts, ends, crcs))
    return [] if wrong < 0 else [int(batches["position"][wrong])]


def _first_wrong_of_large(data: ByteArray, batches: BatchTable) -> list[Position]:
    value = google_crc32c.value
    positions = batches["position"]
    starts = (positions + _CRC_START).tolist()
    ends = (positions + batches["size"]).tolist()
    for start, end, crc in zip(starts, ends, batches["crc"].tolist(), strict=True):
        if value(data[start:end]) != crc:
            return [start - _CRC_START]
    return []


def unpack_records(
    buffer: ReadBuffer,
    batches: BatchTable,
    *,
    decompressed_size_max: int = DECOMPRESSED_SIZE_MAX,
    decoded_size_max: int = DECODED_SIZE_MAX,
) -> tuple[ByteArray, int]:
    """Decompress what is compressed, and point the rows there; how many rows fit the bound.

    Raises CorruptRecordError for what cannot be decompressed, unfolds to more than
    `decompressed_size_max` per batch, or claims more records than there is room for.
    """
    unpacked, taken = _unpack(buffer, batches, decompressed_size_max, decoded_size_max)
    fitting = batches[:taken]
    payload_sizes = fitting["payload_end"] - fitting["payload_start"]
    claimed = np.flatnonzero(fitting["records_count"] * RECORD_SIZE_MIN > payload_sizes)
    if len(claimed):
        raise damaged(fitting, int(claimed[0]), "batch claims more records than it holds")
    return unpacked, taken


def _unpack(
    buffer: ReadBuffer, batches: BatchTable, decompressed_size_max: int, decoded_size_max: int
) -> tuple[ByteArray, int]:
    codecs = batches["attributes"] & CODEC_MASK
    if not codecs.any():
        sizes = np.cumsum(batches["payload_end"] - batches["payload_start"])
        fitting = int(np.searchsorted(sizes, decoded_size_max, side="right"))
        return byte_array(b""), max(fitting, min(1, len(batches)))
    view = memoryview(buffer)
    parts: list[bytes] = []
    is_block = [False] * len(batches)
    if decompressed_size_max >= LZ4_BLOCK_SIZE_MAX:
        is_block = _is_lz4_block(byte_array(buffer), batches).tolist()
    starts, ends = batches["payload_start"].tolist(), batches["payload_end"].tolist()
    is_unpacked = batches["is_unpacked"].tolist()
    unpacked_size = 0
    decoded_size = 0
    taken = 0
    for codec, is_lz4_block, start, end in zip(
        codecs.tolist(), is_block, starts[:], ends[:], strict=True
    ):
        size = end - start
        part = None
        if is_lz4_block:
            part = decompress_lz4_block(view[start + _LZ4_BLOCK_START : end - _LZ4_TRAILER_SIZE])
        elif codec and size:
            part = decompress(_CODECS[codec], view[start:end], decompressed_size_max)
        if part is not None:
            size = len(part)
        decoded_size += size
        if decoded_size > decoded_size_max and taken > 0:
            break
        if part is not None:
            starts[taken] = unpacked_size
            unpacked_size += size
            ends[taken] = unpacked_size
            is_unpacked[taken] = 1
            parts.append(part)
        taken += 1
    batches["payload_start"], batches["payload_end"] = starts, ends
    batches["is_unpacked"] = is_unpacked
    return byte_array(parts[0] if len(parts) == 1 else b"".join(parts)), taken


def _is_lz4_block(data: ByteArray, batches: BatchTable) -> BoolArray:
    """Which rows hold a plain LZ4 frame of a single block: what most batches of most clients are.

    Looked up for all rows at once, so that these cost one call each, into the codec.
    """
    is_lz4: BoolArray = batches["attributes"] & CODEC_MASK == CompressionType.LZ4
    if not is_lz4.any():
        return is_lz4
    starts, ends = batches["payload_start"], batches["payload_end"]
    heads = data.take(starts[:, np.newaxis] + np.arange(_LZ4_BLOCK_START), mode="clip")
    tails = data.take(ends[:, np.newaxis] - 1 - np.arange(_LZ4_TRAILER_SIZE), mode="clip")
    header_size = len(LZ4_PLAIN_HEADER)
    has_header = (heads[:, :header_size] == byte_array(LZ4_PLAIN_HEADER)).all(axis=1)
    block_sizes = np.ascontiguousarray(heads[:, header_size:]).view("<u4")[:, 0].astype(np.int64)
    sizes = _LZ4_BLOCK_START + block_sizes + _LZ4_TRAILER_SIZE
    is_block: BoolArray = is_lz4 & has_header & (sizes == ends - starts) & ~tails.any(axis=1)
    return is_block & (block_sizes > 0) & (block_sizes <= LZ4_BLOCK_SIZE_MAX)


def damaged(batches: BatchTable, row: int, what: str) -> CorruptRecordError:
    """The error for a row, `what` being the fact."""
    return CorruptRecordError(
        f"{what} position={batches['position'][row]} base_offset={batches['base_offset'][row]}"
        f" records_count={batches['records_count'][row]}"
    )
