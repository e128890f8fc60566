"""The codecs: round trips, formats that Kafka's readers accept, bounds on memory, and damage."""

from __future__ import annotations

import gzip
import random
import struct
import tracemalloc
import zlib

import cramjam
import lz4.block
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from isotherm.errors import CorruptRecordError, DecompressedSizeError
from isotherm.record.compression import (
    CompressionType,
    compress,
    decompress,
    decompressed_size_bound,
)

CODECS = [codec for codec in CompressionType if codec is not CompressionType.NONE]
TEXT = b"".join(b"record %d of a topic, " % number for number in range(9_000))
XERIAL_HEADER = bytes.fromhex("82534e41505059000000000100000001")

each_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)


@each_codec
@pytest.mark.parametrize("data", [b"", b"x", TEXT, bytes(300_000)], ids=["0", "1", "text", "zeros"])
def test_decompress_inverts_compress(codec: CompressionType, data: bytes) -> None:
    assert decompress(codec, compress(codec, data)) == data
    assert decompress(codec, memoryview(compress(codec, memoryview(data)))) == data


@each_codec
@pytest.mark.parametrize("level", [1, 3, 6, 9])
def test_level_is_accepted(codec: CompressionType, level: int) -> None:
    assert decompress(codec, compress(codec, TEXT, level)) == TEXT


@each_codec
def test_size_bound_is_exact(codec: CompressionType) -> None:
    compressed = compress(codec, TEXT)
    assert decompress(codec, compressed, len(TEXT)) == TEXT
    with pytest.raises(CorruptRecordError, match="exceed the decompressed size limit"):
        decompress(codec, compressed, len(TEXT) - 1)


@each_codec
def test_every_truncation_is_corrupt(codec: CompressionType) -> None:
    compressed = compress(codec, TEXT[:3000])
    for size in range(1, len(compressed)):
        if codec is CompressionType.SNAPPY and size == len(XERIAL_HEADER):
            continue  # an xerial stream without blocks
        with pytest.raises(CorruptRecordError):
            decompress(codec, compressed[:size])


@each_codec
def test_bytes_after_the_end_are_corrupt(codec: CompressionType) -> None:
    with pytest.raises(CorruptRecordError):
        decompress(codec, compress(codec, TEXT) + b"\x01\x02\x03\x04\x05\x06\x07\x08")


@each_codec
@pytest.mark.parametrize("garbage", [b"\x01", b"\xff" * 64, b"no codec at all" * 9])
def test_garbage_is_corrupt(codec: CompressionType, garbage: bytes) -> None:
    with pytest.raises(CorruptRecordError):
        decompress(codec, garbage)


@pytest.mark.slow
@pytest.mark.parametrize("codec", [CompressionType.GZIP, CompressionType.LZ4, CompressionType.ZSTD])
def test_bomb_is_refused_with_little_memory(codec: CompressionType) -> None:
    assert_refused_with_little_memory(codec, compress(codec, bytes(400_000_000)))


@pytest.mark.slow
def test_zstd_bomb_that_announces_no_size_is_refused_with_little_memory() -> None:
    assert_refused_with_little_memory(CompressionType.ZSTD, unannounced(bytes(400_000_000)))


@pytest.mark.slow
def test_zstd_blocks_that_each_hold_something_are_refused_with_little_memory() -> None:
    """So few blocks per KiB that the reader checks their headers."""
    rng = random.Random(0)
    block = 128 * 1024
    blocks = [rng.randbytes(1200) + bytes(block - 1200) for _ in range(800)]
    assert_refused_with_little_memory(CompressionType.ZSTD, unannounced(b"".join(blocks)))


def unannounced(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1, write_content_size=False).compress(data)


@pytest.mark.parametrize("codec", [CompressionType.LZ4, CompressionType.ZSTD])
def test_frame_that_announces_too_much_is_refused_unread(codec: CompressionType) -> None:
    """The rest of the frame is missing, which a decoder would say."""
    data = bytes(2_000_000)
    packed = (
        lz4.frame.compress(data, store_size=True)
        if codec is CompressionType.LZ4
        else compress(codec, data)
    )
    head = packed[:20]
    with pytest.raises(CorruptRecordError, match="exceed the decompressed size limit"):
        decompress(codec, head, len(data) - 1)
    with pytest.raises(CorruptRecordError, match="are cut off"):
        decompress(codec, head, len(data))


def is_lz4_head(head: bytes, checksum: int) -> bool:
    try:
        lz4.frame.get_frame_info(head + bytes([checksum, 0, 0, 0, 0]))
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("announced", [1, 255, 1_000_000])
@pytest.mark.parametrize("codec", [CompressionType.LZ4, CompressionType.ZSTD])
def test_frame_that_announces_less_than_it_has_is_refused(
    codec: CompressionType, announced: int
) -> None:
    data = bytes(2_000_000)
    if codec is CompressionType.LZ4:
        packed = bytearray(lz4.frame.compress(data, store_size=True))
        packed[6:14] = announced.to_bytes(8, "little")
        packed[14] = next(byte for byte in range(256) if is_lz4_head(packed[:14], byte))
    else:
        packed = bytearray(compress(codec, data))
        # A single segment, whose size has 4 bytes.
        assert packed[4] & 0xE0 == 0xA0
        packed[5:9] = announced.to_bytes(4, "little")
    for size_max in (1_500_000, 3_000_000):
        with pytest.raises(CorruptRecordError):
            decompress(codec, packed, size_max)


def assert_refused_with_little_memory(codec: CompressionType, bomb: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecordError, match="exceed the decompressed size limit"):
            decompress(codec, bomb, 1_000_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024 * 1024


@each_codec
def test_error_that_is_kept_does_not_keep_the_output(codec: CompressionType) -> None:
    """The errors of a request are kept until its answer."""
    size = 8_000_000
    too_large = compress(codec, TEXT * (size // len(TEXT)))
    errors: list[BaseException] = []
    tracemalloc.start()
    try:
        for data, size_max in ((too_large, size // 2), (memoryview(too_large)[:-5], size)):
            with pytest.raises(CorruptRecordError) as caught:
                decompress(codec, data, size_max)
            errors.append(caught.value)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < size // 8
    assert all(error.__traceback__ for error in errors)


@pytest.mark.parametrize("header", [b"", XERIAL_HEADER])
def test_snappy_block_that_claims_gigabytes_is_refused(header: bytes) -> None:
    block = b"\xff\xff\xff\xff\x0f" + b"\x00" * 20  # varint 2^32 - 1
    prefix = struct.pack(">i", len(block)) if header else b""
    with pytest.raises(CorruptRecordError):
        decompress(CompressionType.SNAPPY, header + prefix + block)


def test_snappy_is_written_as_xerial_blocks() -> None:
    compressed = compress(CompressionType.SNAPPY, TEXT)
    assert compressed.startswith(XERIAL_HEADER)
    position = len(XERIAL_HEADER)
    blocks = []
    while position < len(compressed):
        (size,) = struct.unpack_from(">i", compressed, position)
        position += 4 + size
        blocks.append(bytes(cramjam.snappy.decompress_raw(compressed[position - size : position])))
    assert b"".join(blocks) == TEXT
    assert max(map(len, blocks)) == 32 * 1024


def test_snappy_without_framing_is_read() -> None:
    assert decompress(CompressionType.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))) == TEXT


def test_snappy_streams_after_each_other_are_read() -> None:
    streams = compress(CompressionType.SNAPPY, b"one ") + compress(CompressionType.SNAPPY, b"two")
    assert decompress(CompressionType.SNAPPY, streams) == b"one two"


def test_lz4_frame_is_what_kafkas_reader_takes() -> None:
    info = lz4.frame.get_frame_info(compress(CompressionType.LZ4, TEXT))
    assert not info["block_linked"]
    assert info["block_size"] == 64 * 1024
    assert info["content_size"] == 0
    # Magic, flags (version 1, independent blocks), block size 64 KiB, and the second byte of xxHash
    # over flags and size alone. Kafka 0.8 computed the checksum over the wrong bytes.
    assert compress(CompressionType.LZ4, TEXT)[:7].hex() == "04224d18604082"


LZ4_ALL_OPTIONS = {"content_checksum": True, "block_checksum": True, "store_size": True}


@pytest.mark.parametrize(
    "options",
    [
        LZ4_ALL_OPTIONS,
        {"block_linked": True},
        {"block_size": lz4.frame.BLOCKSIZE_MAX4MB, "block_linked": False},
    ],
    ids=["all", "linked", "4 MiB"],
)
def test_lz4_frame_with_other_options_is_read(options: dict[str, bool | int]) -> None:
    frame = lz4.frame.compress(TEXT, **options)
    assert frame[:7] != compress(CompressionType.LZ4, TEXT)[:7]
    assert decompress(CompressionType.LZ4, frame) == TEXT
    with pytest.raises(CorruptRecordError, match="exceed the decompressed size limit"):
        decompress(CompressionType.LZ4, frame, len(TEXT) - 1)
    for size in (8, len(frame) // 2, len(frame) - 1):
        with pytest.raises(CorruptRecordError):
            decompress(CompressionType.LZ4, frame[:size])
    with pytest.raises(CorruptRecordError):
        decompress(CompressionType.LZ4, frame + b"\x01")


def test_lz4_blocks_that_would_not_shrink_are_stored_and_read() -> None:
    noise = random.Random(0).randbytes(100_000)
    frame = compress(CompressionType.LZ4, noise)
    assert frame[10] & 0x80
    assert decompress(CompressionType.LZ4, frame) == noise


def lz4_frame_of(*blocks: bytes) -> bytes:
    body = b"".join(struct.pack("<I", len(block)) + block for block in blocks)
    return bytes.fromhex("04224d18604082") + body + bytes(4)


def test_lz4_block_that_is_damaged_or_unfolds_beyond_its_bound_is_corrupt() -> None:
    sound = lz4.block.compress(bytes(64 * 1024), store_size=False)
    assert decompress(CompressionType.LZ4, lz4_frame_of(sound, sound)) == bytes(128 * 1024)
    larger = lz4.block.compress(bytes(64 * 1024 + 1), store_size=False)
    for block in (larger, b"\xff" * 20, bytes(64 * 1024 + 1)):
        with pytest.raises(CorruptRecordError, match="damaged"):
            decompress(CompressionType.LZ4, lz4_frame_of(block))


def test_gzip_is_read_by_zlib_and_reads_its_own() -> None:
    assert gzip.decompress(compress(CompressionType.GZIP, TEXT)) == TEXT
    assert decompress(CompressionType.GZIP, gzip.compress(TEXT)) == TEXT
    members = gzip.compress(b"one ") + gzip.compress(b"two")
    assert decompress(CompressionType.GZIP, members) == b"one two"


def test_gzip_checksum_is_checked() -> None:
    damaged = bytearray(gzip.compress(TEXT))
    assert struct.unpack_from("<I", damaged, len(damaged) - 8)[0] == zlib.crc32(TEXT)
    damaged[-8] ^= 1
    with pytest.raises(CorruptRecordError):
        decompress(CompressionType.GZIP, damaged)


@pytest.mark.parametrize("with_size", [True, False])
def test_zstd_frames_of_any_kind_are_read(with_size: bool) -> None:
    compressor = zstandard.ZstdCompressor(write_content_size=with_size, write_checksum=True)
    assert decompress(CompressionType.ZSTD, compressor.compress(TEXT)) == TEXT
    assert (
        decompress(CompressionType.ZSTD, compressor.compress(TEXT) + compressor.compress(b"!"))
        == TEXT + b"!"
    )


def runs(codec: CompressionType, size: int) -> memoryview:
    return memoryview(compress(codec, bytes(size)))


DATA = st.lists(st.tuples(st.binary(max_size=40), st.integers(1, 40_000)), max_size=6).map(
    lambda parts: b"".join(part * count for part, count in parts)[:300_000]
)


@given(codec=st.sampled_from(CODECS), data=DATA, parts=st.integers(1, 3))
def test_bound_is_never_below_the_decompressed_size(
    codec: CompressionType, data: bytes, parts: int
) -> None:
    # Frames may follow one another, except in lz4.
    packed = compress(codec, data) * (1 if codec is CompressionType.LZ4 else parts)
    unpacked = decompress(codec, packed)
    assert decompressed_size_bound(codec, memoryview(packed), 1 << 30) >= len(unpacked)
    for enough in (0, 1000, len(unpacked) - 1):
        bound = decompressed_size_bound(codec, memoryview(packed), enough)
        assert bound >= min(len(unpacked), enough + 1)


@pytest.mark.parametrize(
    "codec", [CompressionType.SNAPPY, CompressionType.LZ4, CompressionType.ZSTD]
)
@pytest.mark.parametrize("size", [100, 16_000, 64 * 1024])
def test_bound_of_usual_batches_is_near_their_size(codec: CompressionType, size: int) -> None:
    data = random.Random(1).randbytes(size // 4).hex().encode()[:size]
    bound = decompressed_size_bound(codec, memoryview(compress(codec, data)), 1 << 20)
    assert bound <= 2 * 128 * 1024


@given(codec=st.sampled_from(CODECS), garbage=st.binary(max_size=200), head=st.integers(0, 40))
def test_bound_of_damaged_data_is_a_number_or_what_is_refused(
    codec: CompressionType, garbage: bytes, head: int
) -> None:
    data = memoryview(bytes(compress(codec, bytes(5000)))[:head] + garbage)
    bound = decompressed_size_bound(codec, data, 1 << 20)
    try:
        unpacked = decompress(codec, data, 1 << 24)
    except CorruptRecordError:
        return
    assert len(unpacked) <= bound


@pytest.mark.parametrize("codec", CODECS)
def test_bound_of_a_bomb_is_large_and_found_at_once(codec: CompressionType) -> None:
    assert decompressed_size_bound(codec, runs(codec, 32 << 20), 1 << 20) > 1 << 20


def test_too_large_is_an_error_of_its_own() -> None:
    for codec in CODECS:
        with pytest.raises(DecompressedSizeError, match="size_max=999"):
            decompress(codec, runs(codec, 1000), 999)
