"""The four codecs of record batches, in the framings that Kafka's clients exchange.

    gzip     RFC 1952, one or more members
    snappy   xerial blocks: magic 82 53 4e 41 50 50 59 00, version i32, lowest compatible version
             i32, then (size i32, raw snappy block) until the end. A reader also takes one raw
             snappy block without framing, which some clients send.
    lz4      LZ4 frame, blocks independent of each other, 64 KiB each, no content size
    zstd     one or more zstd frames, with or without content size

Decompression never produces more than the caller's limit, whatever the data claims. All
functions are thread-safe.
"""

from __future__ import annotations

import struct
import threading
import traceback
from enum import IntEnum
from typing import TYPE_CHECKING

import cramjam
import lz4.block
import lz4.frame
import zstandard
from isal import isal_zlib

from isotherm.errors import CorruptRecordError, DecompressedSizeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from isotherm.record.varint import ReadBuffer


class CompressionType(IntEnum):
    """Codec bits of a batch's attributes. The lower-case names are values of `compression.type`."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


COMPRESSION_TYPE_MAX = max(CompressionType)

# Default limit of one batch. Kafka streams through a batch and has no such limit; 256 MiB is 256
# times the default max.message.bytes.
DECOMPRESSED_SIZE_MAX = 256 * 1024 * 1024

# A byte of input gives at most so many of output, by the formats.
_GZIP_RATIO_MAX = 1032
_LZ4_RATIO_MAX = 255
_GZIP_WBITS = 31  # 15 bits of window, plus 16 for the gzip container
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_SIZE = 32 * 1024  # snappy-java's default
_XERIAL_BLOCK_PREFIX = struct.Struct(">i")
# First bytes of the frames of Kafka's clients: independent blocks of at most 64 KiB, no checksums.
LZ4_PLAIN_HEADER = bytes.fromhex("04224d18604082")
LZ4_BLOCK_SIZE_MAX = 64 * 1024
# Other frames may announce their size: magic, flags, a byte of the block size, and 8 bytes.
_LZ4_MAGIC = LZ4_PLAIN_HEADER[:4]
_LZ4_CONTENT_SIZE_FLAG = 8
_LZ4_CONTENT_SIZE_END = 14
_LZ4_BLOCK_PREFIX = struct.Struct("<I")
_LZ4_STORED_FLAG = 1 << 31
# Output buffer of one step of the lz4 decoder: most batches need a single step.
_LZ4_OUTPUT_SIZE_MIN = 64 * 1024
_LZ4_OUTPUT_RATIO_GUESS = 8
# zstd decompresses all of its input at once, so input that may exceed the limit is passed in small
# pieces: 1 KiB holds at most 256 run blocks (4 bytes each) of 128 KiB, so at most 32 MiB beyond the
# limit are allocated for a moment.
_ZSTD_INPUT_SIZE = 1024
ZSTD_MAGIC = bytes.fromhex("28b52ffd")
ZSTD_HEADER_SIZE_MAX = 18
_ZSTD_DICTIONARY_ID_SIZES = (0, 1, 2, 4)
_ZSTD_CONTENT_SIZE_SIZES = (0, 2, 4, 8)
ZSTD_BLOCK_HEAD_SIZE = 3
ZSTD_RUN, _ZSTD_COMPRESSED = 1, 2
ZSTD_BLOCK_SIZE_MAX = 128 * 1024
_ZSTD_LEVEL_DEFAULT = 3


class _ZstdContexts(threading.local):
    """zstd contexts, per thread: creating one costs more than decompressing a small batch."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor()
        self._compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL_DEFAULT)
        self._level = _ZSTD_LEVEL_DEFAULT

    def compressor(self, level: int) -> zstandard.ZstdCompressor:
        if level != self._level:
            self._compressor = zstandard.ZstdCompressor(level=level)
            self._level = level
        return self._compressor


_zstd_contexts = _ZstdContexts()


def compress(
    compression_type: CompressionType, data: ReadBuffer, level: int | None = None
) -> bytes:
    """Compress the records of a batch.

    `level` is on the codec's own scale, as in Kafka's configuration (`compression.<codec>.level`);
    None is its default. The gzip library has three levels, to which 1-3, 4-6 and 7-9 map.
    """
    if compression_type is CompressionType.NONE:
        return bytes(data)
    return _COMPRESSORS[compression_type](data, level)


def decompress(
    compression_type: CompressionType, data: ReadBuffer, size_max: int = DECOMPRESSED_SIZE_MAX
) -> bytes:
    """Inverse of `compress`.

    Raises CorruptRecordError if the data is damaged, cut off, followed by other bytes, or larger
    than `size_max` bytes when decompressed. Uses at most `size_max` bytes, plus 32 MiB (zstd). A
    frame that announces more (zstd, lz4, a block of snappy) is refused before it is decompressed.
    """
    if compression_type is CompressionType.NONE:
        raw = bytes(data)
    else:
        try:
            raw = _DECOMPRESSORS[compression_type](memoryview(data), size_max)
        except CorruptRecordError as error:
            # The frames of its traceback have the output so far, and an error may be kept.
            traceback.clear_frames(error.__traceback__)
            raise
    if len(raw) > size_max:
        raise _too_large(compression_type, size_max)
    return raw


def decompressed_size_bound(
    compression_type: CompressionType, data: memoryview, enough: int
) -> int:
    """An upper bound of the decompressed size, without decompressing.

    A result above `enough` says only that the size may be larger. Damaged data has any bound:
    `decompress` refuses it before it has produced more.
    """
    if compression_type is CompressionType.NONE:
        return len(data)
    return _BOUNDS[compression_type](data, enough)


def _gzip_bound(data: memoryview, _enough: int) -> int:
    return len(data) * _GZIP_RATIO_MAX


def _snappy_bound(data: memoryview, enough: int) -> int:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _snappy_block_size(data)
    size, position = 0, len(_XERIAL_HEADER)
    while position < len(data) and size <= enough:
        if data[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)
            continue
        start = position + _XERIAL_BLOCK_PREFIX.size
        if start >= len(data):
            return size  # cut off
        (block_size,) = _XERIAL_BLOCK_PREFIX.unpack_from(data, position)
        if block_size <= 0:
            return size  # damaged
        # A block of nothing counts too, so that the loop is bounded as the size is.
        size += max(_snappy_block_size(data[start : start + block_size]), 1024)
        position = start + block_size
    return size


def _snappy_block_size(block: memoryview) -> int:
    try:
        return int(cramjam.snappy.decompress_raw_len(block))
    except cramjam.DecompressionError:
        return 0  # its head is damaged


def _lz4_bound(data: memoryview, enough: int) -> int:
    if data[: len(LZ4_PLAIN_HEADER)] != LZ4_PLAIN_HEADER:
        return len(data) * _LZ4_RATIO_MAX
    size, position = 0, len(LZ4_PLAIN_HEADER)
    while size <= enough and position + _LZ4_BLOCK_PREFIX.size < len(data):
        (block_size,) = _LZ4_BLOCK_PREFIX.unpack_from(data, position)
        packed_size = block_size & ~_LZ4_STORED_FLAG
        size += min(LZ4_BLOCK_SIZE_MAX, packed_size * _LZ4_RATIO_MAX)
        position += _LZ4_BLOCK_PREFIX.size + packed_size
        if block_size == 0:
            break
    return size


def _zstd_bound(data: memoryview, enough: int) -> int:
    bound = zstd_frame_bound(data)
    return enough + 1 if bound is None else bound


_BOUNDS: dict[CompressionType, Callable[[memoryview, int], int]] = {
    CompressionType.GZIP: _gzip_bound,
    CompressionType.SNAPPY: _snappy_bound,
    CompressionType.LZ4: _lz4_bound,
    CompressionType.ZSTD: _zstd_bound,
}


def _compress_gzip(data: ReadBuffer, level: int | None) -> bytes:
    isal_level = isal_zlib.ISAL_DEFAULT_COMPRESSION
    if level is not None and level > 0:
        isal_level = 1 + (level - 1) // 3
    return bytes(isal_zlib.compress(data, isal_level, _GZIP_WBITS))


def _compress_snappy(data: ReadBuffer, _level: int | None) -> bytes:
    out = bytearray(_XERIAL_HEADER)
    view = memoryview(data)
    for start in range(0, len(view), _XERIAL_BLOCK_SIZE):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_SIZE]))
        out += _XERIAL_BLOCK_PREFIX.pack(len(block))
        out += block
    return bytes(out)


def _compress_lz4(data: ReadBuffer, level: int | None) -> bytes:
    return bytes(
        lz4.frame.compress(
            data,
            compression_level=0 if level is None else level,
            block_size=lz4.frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
            store_size=False,
        )
    )


def _compress_zstd(data: ReadBuffer, level: int | None) -> bytes:
    chosen = _ZSTD_LEVEL_DEFAULT if level is None else level
    return _zstd_contexts.compressor(chosen).compress(data)


_COMPRESSORS: dict[CompressionType, Callable[[ReadBuffer, int | None], bytes]] = {
    CompressionType.GZIP: _compress_gzip,
    CompressionType.SNAPPY: _compress_snappy,
    CompressionType.LZ4: _compress_lz4,
    CompressionType.ZSTD: _compress_zstd,
}


def _decompress_gzip(data: memoryview, size_max: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    rest: memoryview | bytes = data
    while True:
        member = isal_zlib.decompressobj(wbits=_GZIP_WBITS)
        try:
            # Zero would mean "no limit"; the one byte above the bound shows that it is exceeded.
            part = member.decompress(rest, size_max - size + 1)
        except isal_zlib.IsalError as error:  # type: ignore[misc]
            raise _damaged(CompressionType.GZIP) from error
        size += len(part)
        if size > size_max:
            raise _too_large(CompressionType.GZIP, size_max)
        if not member.eof:
            raise _cut_off(CompressionType.GZIP)
        parts.append(part)
        rest = member.unused_data
        if not rest:
            return b"".join(parts)


def _decompress_snappy(data: memoryview, size_max: int) -> bytes:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _decompress_snappy_block(data, size_max)
    position = len(_XERIAL_HEADER)
    # A stream that is cut off inside its header would pass for an empty one.
    if len(data) < position:
        raise _cut_off(CompressionType.SNAPPY)
    parts: list[bytes] = []
    size = 0
    while position < len(data):
        if data[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            # Clients may concatenate streams. The magic is not a valid block size.
            position += len(_XERIAL_HEADER)
            continue
        start = position + _XERIAL_BLOCK_PREFIX.size
        if start > len(data):
            raise _cut_off(CompressionType.SNAPPY)
        (block_size,) = _XERIAL_BLOCK_PREFIX.unpack_from(data, position)
        position = start + block_size
        if block_size <= 0 or position > len(data):
            raise _cut_off(CompressionType.SNAPPY)
        part = _decompress_snappy_block(data[start:position], size_max - size)
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _decompress_snappy_block(block: memoryview, size_max: int) -> bytes:
    try:
        # The block's head announces its size. Compared before any memory is allocated for it.
        size = cramjam.snappy.decompress_raw_len(block)
        if size > size_max:
            raise _too_large(CompressionType.SNAPPY, size_max)
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise _damaged(CompressionType.SNAPPY) from error


def _decompress_lz4(data: memoryview, size_max: int) -> bytes:
    if data[: len(LZ4_PLAIN_HEADER)] == LZ4_PLAIN_HEADER:
        return _decompress_lz4_blocks(data, size_max)
    return _decompress_lz4_frame(data, size_max)


def _decompress_lz4_blocks(data: memoryview, size_max: int) -> bytes:
    """Decompress a plain frame: twice as fast as the frame decoder for a small batch."""
    parts: list[bytes] = []
    size = 0
    position = len(LZ4_PLAIN_HEADER)
    while True:
        start = position + _LZ4_BLOCK_PREFIX.size
        if start > len(data):
            raise _cut_off(CompressionType.LZ4)
        (block_size,) = _LZ4_BLOCK_PREFIX.unpack_from(data, position)
        if block_size == 0:
            break
        position = start + (block_size & ~_LZ4_STORED_FLAG)
        if position > len(data):
            raise _cut_off(CompressionType.LZ4)
        parts.append(_unpack_lz4_block(data[start:position], block_size))
        size += len(parts[-1])
        if size > size_max:
            raise _too_large(CompressionType.LZ4, size_max)
    # A plain frame has no checksum, so nothing may follow its end mark.
    if start < len(data):
        raise _damaged(CompressionType.LZ4)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _unpack_lz4_block(block: memoryview, block_size: int) -> bytes:
    if len(block) > LZ4_BLOCK_SIZE_MAX:
        raise _damaged(CompressionType.LZ4)
    if block_size & _LZ4_STORED_FLAG:
        return bytes(block)
    try:
        unpacked: bytes = lz4.block.decompress(block, uncompressed_size=LZ4_BLOCK_SIZE_MAX)
    except lz4.block.LZ4BlockError as error:
        raise _damaged(CompressionType.LZ4) from error
    return unpacked


def unpack_lz4_block_into(block: memoryview, out: memoryview) -> int:
    """Decompress one block of a plain frame (LZ4_PLAIN_HEADER); returns the size of the result.

    `out` must have room for LZ4_BLOCK_SIZE_MAX bytes. Raises CorruptRecordError for a damaged
    block.
    """
    try:
        size: int = cramjam.lz4.decompress_block_into(block, out, output_len=LZ4_BLOCK_SIZE_MAX)
    except cramjam.DecompressionError as error:
        raise _damaged(CompressionType.LZ4) from error
    return size


def _decompress_lz4_frame(data: memoryview, size_max: int) -> bytes:
    if _announced_lz4_size(data) > size_max:
        raise _too_large(CompressionType.LZ4, size_max)
    decompressor = lz4.frame.LZ4FrameDecompressor()
    output_size = max(_LZ4_OUTPUT_SIZE_MIN, len(data) * _LZ4_OUTPUT_RATIO_GUESS)
    parts: list[bytes] = []
    size = 0
    source: memoryview | bytes = data
    while True:
        try:
            # One byte beyond the limit shows that it is exceeded, without decompressing the rest.
            part = decompressor.decompress(source, max_length=min(output_size, size_max - size + 1))
        except RuntimeError as error:
            raise _damaged(CompressionType.LZ4) from error
        size += len(part)
        if size > size_max:
            raise _too_large(CompressionType.LZ4, size_max)
        parts.append(part)
        if decompressor.eof:
            if decompressor.unused_data:
                raise _damaged(CompressionType.LZ4)
            return b"".join(parts)
        if decompressor.needs_input:
            raise _cut_off(CompressionType.LZ4)
        source = b""


def _announced_lz4_size(frame: memoryview) -> int:
    """0 if the frame announces none, or is no frame."""
    if frame[: len(_LZ4_MAGIC)] != _LZ4_MAGIC or len(frame) < _LZ4_CONTENT_SIZE_END:
        return 0
    if not frame[len(_LZ4_MAGIC)] & _LZ4_CONTENT_SIZE_FLAG:
        return 0
    return int.from_bytes(frame[len(_LZ4_MAGIC) + 2 : _LZ4_CONTENT_SIZE_END], "little")


def _decompress_zstd(data: memoryview, size_max: int) -> bytes:
    # Of the first frame: clients send one. A frame may announce less than it has, so what the
    # decoder produces is bounded below too.
    if _announced_zstd_size(data) > size_max:
        raise _too_large(CompressionType.ZSTD, size_max)
    parts: list[bytes] = []
    size = 0
    frame = _zstd_contexts.decompressor.decompressobj()
    # In one piece a batch of 16 KiB takes 5 us, in pieces of _ZSTD_INPUT_SIZE 8 us.
    step = len(data) if _is_zstd_frame_within(data, size_max) else _ZSTD_INPUT_SIZE
    for start in range(0, len(data), step):
        piece: memoryview | bytes = data[start : start + step]
        while piece:
            if frame.eof:
                frame = _zstd_contexts.decompressor.decompressobj()
            try:
                part = frame.decompress(piece)
            except zstandard.ZstdError as error:
                raise _damaged(CompressionType.ZSTD) from error
            parts.append(part)
            size += len(part)
            if size > size_max:
                raise _too_large(CompressionType.ZSTD, size_max)
            piece = frame.unused_data
    if not frame.eof:
        raise _cut_off(CompressionType.ZSTD)
    return b"".join(parts)


def _announced_zstd_size(data: memoryview) -> int:
    """0 or less if the first frame announces none, or is no frame."""
    try:
        size: int = zstandard.frame_content_size(data)
    except zstandard.ZstdError:
        return 0
    return size


def _is_zstd_frame_within(data: memoryview, size_max: int) -> bool:
    bound = zstd_frame_bound(data)
    return bound is not None and bound <= size_max


def zstd_frame_bound(data: memoryview) -> int | None:
    """An upper bound of the decompressed size of one frame, from its block headers (RFC 8878,
    3.1.1); None if the data is not exactly one whole frame.

    Reads no more block headers than there would be pieces of _ZSTD_INPUT_SIZE, and returns None for
    a frame with more.
    """
    if data[: len(ZSTD_MAGIC)] != ZSTD_MAGIC or len(data) == len(ZSTD_MAGIC):
        return None
    flags = data[len(ZSTD_MAGIC)]
    position = zstd_header_size(flags)
    size = 0
    for _ in range(1 + len(data) // _ZSTD_INPUT_SIZE):
        start = position + ZSTD_BLOCK_HEAD_SIZE
        head = int.from_bytes(data[position:start], "little")
        kind, block_size = head >> 1 & 3, head >> 3
        position = start + (1 if kind == ZSTD_RUN else block_size)
        size += ZSTD_BLOCK_SIZE_MAX if kind == _ZSTD_COMPRESSED else block_size
        if head & 1:
            break
    return size if head & 1 and position + zstd_checksum_size(flags) == len(data) else None


def zstd_header_size(flags: int) -> int:
    """The size of a frame's header, magic included, by the byte after the magic."""
    size = len(ZSTD_MAGIC) + 1 + _ZSTD_DICTIONARY_ID_SIZES[flags & 3]
    # A single-segment frame has no window descriptor, but at least one byte of content size.
    return size + max(1, _ZSTD_CONTENT_SIZE_SIZES[flags >> 6] + (0 if flags & 32 else 1))


def zstd_checksum_size(flags: int) -> int:
    # The flag of the checksum is bit 2, and a checksum has 4 bytes.
    return flags & 4


def unpack_zstd_frame_into(frame: memoryview, out: memoryview) -> int:
    """Decompress a frame that has a `zstd_frame_bound`; returns the size of the result.

    `out` must have room for one byte more than that bound: a decoder with a full output would not
    check the end of the frame. Raises CorruptRecordError for a damaged frame.
    """
    reader = _zstd_contexts.decompressor.stream_reader(frame, read_size=len(frame), closefd=False)
    try:
        size: int = reader.readinto(out)
    except zstandard.ZstdError as error:
        raise _damaged(CompressionType.ZSTD) from error
    return size


_DECOMPRESSORS: dict[CompressionType, Callable[[memoryview, int], bytes]] = {
    CompressionType.GZIP: _decompress_gzip,
    CompressionType.SNAPPY: _decompress_snappy,
    CompressionType.LZ4: _decompress_lz4,
    CompressionType.ZSTD: _decompress_zstd,
}


def _damaged(compression_type: CompressionType) -> CorruptRecordError:
    return CorruptRecordError(f"compressed records are damaged codec={compression_type.name}")


def _cut_off(compression_type: CompressionType) -> CorruptRecordError:
    return CorruptRecordError(f"compressed records are cut off codec={compression_type.name}")


def _too_large(compression_type: CompressionType, size_max: int) -> DecompressedSizeError:
    return DecompressedSizeError(
        f"compressed records exceed the decompressed size limit codec={compression_type.name}"
        f" size_max={size_max}"
    )
