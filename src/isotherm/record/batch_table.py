"""The batches of a buffer as a table with one row per batch, and their records decompressed.

The columns reader and the cleaner share it. Python runs at most once per batch, and only for
codecs, and for CRCs on processors without a kernel. All functions are thread-safe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from isotherm.errors import CorruptRecordError
from isotherm.record.batch import (
    RECORD_SIZE_MIN,
    CompressionType,
    read_batch_header,
    verify_batch_crc,
)
from isotherm.record.batch_header import (
    CODEC_MASK,
    CODECS,
    HEADER_SIZE,
    LEADER_EPOCH_POSITION,
)
from isotherm.record.compression import (
    DECOMPRESSED_SIZE_MAX,
    LZ4_BLOCK_SIZE_MAX,
    LZ4_PLAIN_HEADER,
    ZSTD_BLOCK_HEAD_SIZE,
    ZSTD_BLOCK_SIZE_MAX,
    ZSTD_HEADER_SIZE_MAX,
    ZSTD_MAGIC,
    ZSTD_RUN,
    decompress,
    unpack_lz4_block_into,
    unpack_zstd_frame_into,
    zstd_checksum_size,
    zstd_frame_bound,
    zstd_header_size,
)
from isotherm.record.crc32c import crc32c_of_array

if TYPE_CHECKING:
    import numpy.typing as npt

    from isotherm.record.varint import ReadBuffer
    from isotherm.types import Position

    Int64Array: TypeAlias = npt.NDArray[np.int64]
    Int32Array: TypeAlias = npt.NDArray[np.int32]
    Int8Array: TypeAlias = npt.NDArray[np.int8]
    BoolArray: TypeAlias = npt.NDArray[np.bool_]
    ByteArray: TypeAlias = npt.NDArray[np.uint8]
    # Rows of isotherm.kernels.tables.BATCH.
    BatchTable: TypeAlias = npt.NDArray[np.void]

# Decompressed record bytes per call. Arrow's 32-bit offsets allow 2 GiB - 1.
DECODED_SIZE_MAX = 1024 * 1024 * 1024

# Position within a batch from which the CRC covers it.
CRC_START = 21

# A plain LZ4 frame of one block: header, block size, block, and four zeros that end the frame.
_LZ4_BLOCK_START = len(LZ4_PLAIN_HEADER) + 4
_LZ4_TRAILER_SIZE = 4


def byte_array(buffer: ReadBuffer) -> ByteArray:
    """The same memory as a read-only array: the one type that the kernels are compiled for."""
    return np.frombuffer(memoryview(buffer).toreadonly(), dtype=np.uint8)


def read_batch_table(buffer: ReadBuffer) -> tuple[BatchTable, Position]:
    """The complete batches from the start of a buffer, and the position after the last one.

    Raises CorruptRecordError at a header that `read_batch_header` refuses.
    """
    batches, position_end, is_damaged = _scan(buffer)
    if is_damaged:
        raise _header_error(buffer, position_end)
    return batches, position_end


def read_sound_batches(
    buffer: ReadBuffer, *, verify_crc: bool = True
) -> tuple[BatchTable, Position, CorruptRecordError | None]:
    """The complete batches from the start of a buffer up to the first one with a damaged header or
    a wrong CRC, the position after them, and the error of the damaged one. The error is None if the
    buffer ends at that position, or within the next batch.
    """
    batches, position_end, is_damaged = _scan(buffer)
    wrong = first_wrong_batch(buffer, batches) if verify_crc else -1
    # A wrong CRC lies before a damaged header, where the scan has ended.
    if wrong >= 0:
        position_end = int(batches["position"][wrong])
        return batches[:wrong], position_end, _crc_error(buffer, position_end)
    return batches, position_end, _header_error(buffer, position_end) if is_damaged else None


def _scan(buffer: ReadBuffer) -> tuple[BatchTable, Position, bool]:
    from isotherm.kernels.batches import scan_headers
    from isotherm.kernels.tables import BATCH

    data = byte_array(buffer)
    # Room for all batches that the buffer can hold. Pages that are not written use no memory.
    table = np.empty(len(data) // HEADER_SIZE + 1, dtype=BATCH)
    count, position_end, is_damaged = scan_headers(data, table)
    return table[:count], position_end, bool(is_damaged)


def _header_error(buffer: ReadBuffer, position: Position) -> CorruptRecordError:
    """The error of a header that the scan has refused. The reader refuses the same headers, with a
    message."""
    try:
        read_batch_header(buffer, position)
    except CorruptRecordError as error:
        return error
    raise AssertionError(f"scan and reader disagree about a header position={position}")


def _crc_error(buffer: ReadBuffer, position: Position) -> CorruptRecordError:
    try:
        verify_batch_crc(buffer, position, read_batch_header(buffer, position))
    except CorruptRecordError as error:
        return error
    raise AssertionError(f"kernel and library disagree about a CRC position={position}")


def leader_epochs(buffer: ReadBuffer, batches: BatchTable) -> Int64Array:
    """The leader epoch of each batch; -1 for none."""
    return gather_integers(buffer, batches["position"] + LEADER_EPOCH_POSITION, ">i4")


def gather_integers(buffer: ReadBuffer, positions: Int64Array, kind: str) -> Int64Array:
    """The integers of `kind` (big-endian) at these positions."""
    data = byte_array(buffer)
    # A view with an integer at every byte. Only the wanted ones are read: no copy, no loop.
    count = max(len(data) - np.dtype(kind).itemsize + 1, 0)
    everywhere: npt.NDArray[np.int64] = np.ndarray((count,), kind, data, strides=(1,))
    values: Int64Array = everywhere[positions].astype(np.int64)
    return values


def verify_crcs(buffer: ReadBuffer, batches: BatchTable) -> None:
    """Raise CorruptRecordError at the first batch with a wrong CRC."""
    wrong = first_wrong_batch(buffer, batches)
    if wrong >= 0:
        raise _crc_error(buffer, int(batches["position"][wrong]))


def first_wrong_batch(buffer: ReadBuffer, batches: BatchTable) -> int:
    """The index of the first batch whose CRC is wrong; -1 if all are right."""
    from isotherm.kernels.crc import first_wrong_crc

    find = first_wrong_crc or first_wrong_crc_by_library
    return int(find(byte_array(buffer), batches))


def first_wrong_crc_by_library(data: ByteArray, batches: BatchTable) -> int:
    """The same as the kernel `first_wrong_crc`, for processors that it does not support."""
    starts = (batches["position"] + CRC_START).tolist()
    ends = (batches["position"] + batches["size"]).tolist()
    value = crc32c_of_array
    for index, crc in enumerate(batches["crc"].tolist()):
        if value(data[starts[index] : ends[index]]) != crc:
            return index
    return -1


def rows_of(batches: BatchTable, is_chosen: BoolArray) -> BatchTable:
    """The chosen rows. Not copied if all are chosen: there may be a row for each record."""
    if is_chosen.all():
        return batches
    # As pieces of bytes: Numpy copies rows of fields field by field.
    return batches.view(f"V{batches.itemsize}")[is_chosen].view(batches.dtype)


def unpack_records(
    buffer: ReadBuffer,
    batches: BatchTable,
    *,
    decompressed_size_max: int = DECOMPRESSED_SIZE_MAX,
    decoded_size_max: int = DECODED_SIZE_MAX,
) -> tuple[ByteArray, int]:
    """Decompress the batches in place of their rows, and return how many rows fit the limit.

    Rows then point into the returned array where they were compressed. Raises CorruptRecordError
    for a batch that cannot be decompressed, exceeds `decompressed_size_max`, or has a record count
    that its size cannot hold.
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
        # At least one row even if it exceeds the limit: otherwise the caller would never advance.
        fitting = int(np.searchsorted(sizes, decoded_size_max, side="right"))
        return byte_array(b""), max(fitting, min(1, len(batches)))
    view = memoryview(buffer)
    # A block never exceeds LZ4_BLOCK_SIZE_MAX, so the limit need not be checked for each row.
    if decompressed_size_max >= LZ4_BLOCK_SIZE_MAX and _are_lz4_blocks(byte_array(buffer), batches):
        return _unpack_lz4_blocks(view, batches, decoded_size_max)
    if len(batches) and (codecs == CompressionType.ZSTD).all():
        unpacked = _unpack_zstd_frames(view, batches, decompressed_size_max, decoded_size_max)
        if unpacked is not None:
            return unpacked
    parts: list[bytes] = []
    starts, ends = batches["payload_start"].tolist(), batches["payload_end"].tolist()
    is_unpacked = batches["is_unpacked"].tolist()
    unpacked_size = 0
    decoded_size = 0
    taken = 0
    for codec, start, end in zip(codecs.tolist(), starts[:], ends[:], strict=True):
        size = end - start
        part = None
        if codec and size:
            part = decompress(CODECS[codec], view[start:end], decompressed_size_max)
            size = len(part)
        decoded_size += size
        # The size is known only now. The next call decompresses this batch again.
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


def _unpack_lz4_blocks(
    view: memoryview, batches: BatchTable, decoded_size_max: int
) -> tuple[ByteArray, int]:
    """`_unpack` if every row is one LZ4 block: one call into the codec per row, and no copy."""
    size_max = min(len(batches) * LZ4_BLOCK_SIZE_MAX, decoded_size_max + LZ4_BLOCK_SIZE_MAX)
    # Room for the largest possible result. Pages that are not written use no memory.
    out = np.empty(size_max, dtype=np.uint8)
    room = out.data
    ends: list[int] = []
    size = 0
    starts = (batches["payload_start"] + _LZ4_BLOCK_START).tolist()
    for start, end in zip(
        starts, (batches["payload_end"] - _LZ4_TRAILER_SIZE).tolist(), strict=True
    ):
        end_of_room = size + LZ4_BLOCK_SIZE_MAX
        size += unpack_lz4_block_into(view[start:end], room[size:end_of_room])
        if size <= decoded_size_max or not ends:
            ends.append(size)
        # The last block may have crossed the limit. Its output is discarded.
        if size >= decoded_size_max:
            break
    return _unpacked_to(ends, room, batches)


def _unpack_zstd_frames(
    view: memoryview, batches: BatchTable, decompressed_size_max: int, decoded_size_max: int
) -> tuple[ByteArray, int] | None:
    """`_unpack` if every row is one zstd frame, into memory for all of them; else None.

    With memory for each frame, and a copy from there, decompression took a fifth more.
    """
    size_max = min(len(batches) * ZSTD_BLOCK_SIZE_MAX, decoded_size_max + ZSTD_BLOCK_SIZE_MAX)
    room = np.empty(size_max + 1, dtype=np.uint8).data
    # `zstd_frame_bound` reads block heads in Python, frame by frame: this check spares them.
    are_blocks = _are_zstd_blocks(byte_array(view), batches)
    ends: list[int] = []
    size = 0
    for start, end in zip(
        batches["payload_start"].tolist(), batches["payload_end"].tolist(), strict=True
    ):
        frame = view[start:end]
        bound = ZSTD_BLOCK_SIZE_MAX if are_blocks else zstd_frame_bound(frame)
        # A bound above the limit does not prove that the content is: `decompress` finds that out.
        if bound is None or bound > decompressed_size_max:
            return None
        # `>=`: `unpack_zstd_frame_into` needs room for one byte beyond the bound.
        if size + bound >= len(room):
            # Frames of several blocks may need more room.
            larger = np.empty(2 * len(room) + bound, dtype=np.uint8).data
            larger[:size] = room[:size]
            room = larger
        size += unpack_zstd_frame_into(frame, room[size : size + bound + 1])
        if size <= decoded_size_max or not ends:
            ends.append(size)
        # The last frame may have crossed the limit. Its output is discarded.
        if size >= decoded_size_max:
            break
    return _unpacked_to(ends, room, batches)


def _are_zstd_blocks(data: ByteArray, batches: BatchTable) -> bool:
    """Whether every row is a zstd frame of a single block, as most clients write it, and all have
    headers of the same kind. Checked for all rows at once."""
    starts, ends = batches["payload_start"], batches["payload_end"]
    # "clip", because a short payload may end the buffer. Its size then differs from a block's.
    heads = data.take(
        starts[:, np.newaxis] + np.arange(ZSTD_HEADER_SIZE_MAX + ZSTD_BLOCK_HEAD_SIZE), mode="clip"
    )
    magic_size = len(ZSTD_MAGIC)
    flags = int(heads[0, magic_size])
    header_size = zstd_header_size(flags)
    # A block head (RFC 8878, 3.1.1.2): bit 0 marks the last block, bits 1 and 2 are the type, the
    # rest is the size. A block of the type "run" stores one byte, whatever its size.
    block_heads = heads[:, header_size : header_size + ZSTD_BLOCK_HEAD_SIZE].astype(np.int64)
    block_head = block_heads @ np.array([1, 1 << 8, 1 << 16])
    stored = np.where(block_head >> 1 & 3 == ZSTD_RUN, 1, block_head >> 3)
    sizes = header_size + ZSTD_BLOCK_HEAD_SIZE + stored + zstd_checksum_size(flags)
    is_block = (heads[:, :magic_size] == byte_array(ZSTD_MAGIC)).all(axis=1)
    is_block &= (heads[:, magic_size] == flags) & (block_head & 1 == 1) & (sizes == ends - starts)
    return bool(is_block.all())


def _unpacked_to(ends: list[int], room: memoryview, batches: BatchTable) -> tuple[ByteArray, int]:
    """Point the first rows to the memory into which they were decompressed, back to back."""
    taken = len(ends)
    batches["payload_start"][:taken] = [0, *ends[:-1]]
    batches["payload_end"][:taken] = ends
    batches["is_unpacked"][:taken] = 1
    return byte_array(room[: ends[-1]]), taken


def _are_lz4_blocks(data: ByteArray, batches: BatchTable) -> bool:
    """Whether every row is a plain LZ4 frame of a single block, as most clients write it.

    Checked for all rows at once.
    """
    if (batches["attributes"] & CODEC_MASK != CompressionType.LZ4).any():
        return False
    starts, ends = batches["payload_start"], batches["payload_end"]
    heads = data.take(starts[:, np.newaxis] + np.arange(_LZ4_BLOCK_START), mode="clip")
    tails = data.take(ends[:, np.newaxis] - 1 - np.arange(_LZ4_TRAILER_SIZE), mode="clip")
    header_size = len(LZ4_PLAIN_HEADER)
    has_header = (heads[:, :header_size] == byte_array(LZ4_PLAIN_HEADER)).all(axis=1)
    block_sizes = np.ascontiguousarray(heads[:, header_size:]).view("<u4")[:, 0].astype(np.int64)
    is_block = (block_sizes > 0) & (block_sizes <= LZ4_BLOCK_SIZE_MAX) & ~tails.any(axis=1)
    sizes = _LZ4_BLOCK_START + block_sizes + _LZ4_TRAILER_SIZE
    return bool((has_header & is_block & (sizes == ends - starts)).all())


def damaged(batches: BatchTable, row: int, what: str) -> CorruptRecordError:
    """The error for a row. `what` is the fact that the message starts with."""
    return CorruptRecordError(
        f"{what} position={batches['position'][row]} base_offset={batches['base_offset'][row]}"
        f" records_count={batches['records_count'][row]}"
    )
