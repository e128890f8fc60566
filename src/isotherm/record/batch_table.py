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
from isotherm.record.compression import DECOMPRESSED_SIZE_MAX, decompress

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
    value = google_crc32c.value
    data = byte_array(buffer)
    positions = batches["position"]
    starts = (positions + _CRC_START).tolist()
    ends = (positions + batches["size"]).tolist()
    for start, end, crc in zip(starts, ends, batches["crc"].tolist(), strict=True):
        if value(data[start:end]) != crc:
            position = start - _CRC_START
            verify_batch_crc(buffer, position, read_batch_header(buffer, position))


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
    unpacked_size = 0
    decoded_size = 0
    taken = 0
    for row, codec in zip(batches, codecs.tolist(), strict=True):
        size = int(row["payload_end"] - row["payload_start"])
        part = None
        if codec and size:
            part = decompress(
                CompressionType(codec),
                view[row["payload_start"] : row["payload_end"]],
                decompressed_size_max,
            )
            size = len(part)
        decoded_size += size
        if decoded_size > decoded_size_max and taken > 0:
            break
        if part is not None:
            row["payload_start"] = unpacked_size
            unpacked_size += size
            row["payload_end"] = unpacked_size
            row["is_unpacked"] = 1
            parts.append(part)
        taken += 1
    return byte_array(parts[0] if len(parts) == 1 else b"".join(parts)), taken


def damaged(batches: BatchTable, row: int, what: str) -> CorruptRecordError:
    """The error for a row, `what` being the fact."""
    return CorruptRecordError(
        f"{what} position={batches['position'][row]} base_offset={batches['base_offset'][row]}"
        f" records_count={batches['records_count'][row]}"
    )
