"""Decompression of many batches at once: results, bounds and damage."""

from __future__ import annotations

import random

import pytest
import zstandard

from isotherm.errors import CorruptRecordError
from isotherm.record import batch_table
from isotherm.record.batch import build_batch
from isotherm.record.batch_table import read_batch_table, unpack_records
from isotherm.record.compression import CompressionType

T0 = 1_700_000_000_000
LZ4, ZSTD, NONE = CompressionType.LZ4, CompressionType.ZSTD, CompressionType.NONE
NOISE = random.Random(0).randbytes(40_000)
SMALL = [b"text " * 50, b"other text " * 9]
LARGE = [b"text " * 30_000]
"""More than one block of 64 KiB."""
STORED = [NOISE]
"""A block that compression does not shrink."""


def encoded(*batches: tuple[CompressionType, list[bytes]]) -> tuple[bytes, list[bytes]]:
    """The batches one after the other, and the uncompressed records of each."""
    buffer, payloads = bytearray(), []
    for codec, values in batches:
        records = [(T0, None, value, ()) for value in values]
        buffer += build_batch(records, base_offset=len(payloads), compression=codec)
        payloads.append(bytes(build_batch(records)[61:]))
    return bytes(buffer), payloads


def unpacked_payloads(buffer: bytes, **bounds: int) -> list[bytes]:
    batches, _ = read_batch_table(buffer)
    unpacked, taken = unpack_records(buffer, batches, **bounds)
    return [
        bytes((unpacked.data if row["is_unpacked"] else memoryview(buffer))[start:end])
        for row in batches[:taken]
        for start, end in [(int(row["payload_start"]), int(row["payload_end"]))]
    ]


@pytest.mark.parametrize(
    "batches",
    [
        [(LZ4, SMALL)] * 3,
        [(LZ4, SMALL), (LZ4, LARGE), (LZ4, SMALL)],
        [(LZ4, SMALL), (LZ4, STORED)],
        [(LZ4, SMALL), (NONE, SMALL), (ZSTD, SMALL), (LZ4, SMALL)],
        [(ZSTD, SMALL)] * 3,
        [(ZSTD, SMALL), (ZSTD, LARGE), (ZSTD, SMALL)],
        [(ZSTD, SMALL), (ZSTD, STORED)],
        [(NONE, SMALL), (NONE, LARGE)],
    ],
    ids=[
        *("blocks", "several blocks", "stored", "mixed"),
        *("zstd", "several zstd blocks", "stored zstd", "plain"),
    ],
)
def test_unpacked_records_are_those_that_were_compressed(
    batches: list[tuple[CompressionType, list[bytes]]],
) -> None:
    buffer, payloads = encoded(*batches)
    assert unpacked_payloads(buffer) == payloads


@pytest.mark.parametrize("codec", [LZ4, ZSTD, NONE])
def test_unpacking_stops_before_the_bound_and_takes_at_least_one(codec: CompressionType) -> None:
    buffer, payloads = encoded(*[(codec, SMALL)] * 4)
    size = len(payloads[0])
    assert len(unpacked_payloads(buffer, decoded_size_max=3 * size)) == 3
    assert len(unpacked_payloads(buffer, decoded_size_max=3 * size - 1)) == 2
    assert unpacked_payloads(buffer, decoded_size_max=1) == payloads[:1]


@pytest.mark.parametrize("codec", [LZ4, ZSTD])
@pytest.mark.parametrize("size_max", [100, 70_000])
def test_batch_that_unfolds_to_too_much_is_corrupt(codec: CompressionType, size_max: int) -> None:
    buffer, _ = encoded((codec, SMALL), (codec, LARGE))
    with pytest.raises(CorruptRecordError, match="exceed the decompressed size limit"):
        unpacked_payloads(buffer, decompressed_size_max=size_max)


def test_damaged_block_is_corrupt() -> None:
    buffer, _ = encoded((LZ4, SMALL), (LZ4, SMALL))
    damaged = bytearray(buffer)
    damaged[61 + 11 : 61 + 15] = b"\xff\xff\xff\xff"
    with pytest.raises(CorruptRecordError, match="damaged codec=LZ4"):
        unpacked_payloads(bytes(damaged))


SIZED = zstandard.ZstdCompressor(write_checksum=True)
UNSIZED = zstandard.ZstdCompressor(write_content_size=False)
UNSIZED_CHECKED = zstandard.ZstdCompressor(write_content_size=False, write_checksum=True)


def encoded_frames(values: list[bytes], *compressors: zstandard.ZstdCompressor) -> bytes:
    """Batches with the same records, each compressed by another compressor."""
    batch = build_batch([(T0, None, value, ()) for value in values], compression=ZSTD)
    payload = build_batch([(T0, None, value, ()) for value in values])[61:]
    return b"".join(with_payload(batch, c.compress(payload)) for c in compressors)


def with_payload(batch: bytes | bytearray, payload: bytes) -> bytes:
    return bytes(batch[:8]) + (49 + len(payload)).to_bytes(4, "big") + bytes(batch[12:61]) + payload


@pytest.mark.parametrize("values", [SMALL, [NOISE] * 5, STORED], ids=["block", "blocks", "stored"])
@pytest.mark.parametrize(
    "compressors",
    [[UNSIZED] * 3, [UNSIZED_CHECKED] * 2, [SIZED, UNSIZED, UNSIZED_CHECKED]],
    ids=["unsized", "checksums", "mixed"],
)
def test_zstd_frames_of_other_writers_are_unpacked_in_place(
    monkeypatch: pytest.MonkeyPatch,
    values: list[bytes],
    compressors: list[zstandard.ZstdCompressor],
) -> None:
    monkeypatch.delattr(batch_table, "decompress")
    _, payloads = encoded((NONE, values))
    buffer = encoded_frames(values, *compressors)
    assert unpacked_payloads(buffer) == payloads * len(compressors)
    assert unpacked_payloads(buffer, decoded_size_max=1) == payloads


@pytest.mark.parametrize("values", [SMALL, LARGE, STORED], ids=["block", "blocks", "stored"])
def test_zstd_frames_after_each_other_in_a_batch_are_unpacked(values: list[bytes]) -> None:
    _, [payload] = encoded((NONE, values))
    batch = encoded_frames(values, SIZED)
    halves = SIZED.compress(payload[:100]) + UNSIZED.compress(payload[100:])
    buffer = batch + with_payload(batch, halves)
    assert unpacked_payloads(buffer) == [payload, payload]


@pytest.mark.parametrize("values", [SMALL, LARGE, STORED], ids=["block", "blocks", "stored"])
@pytest.mark.parametrize("at", [-1, -5, 61 + 1, 61 + 4])
def test_damaged_zstd_frame_is_corrupt(values: list[bytes], at: int) -> None:
    """The damaged bytes are in the checksum, the content, the magic number and the header."""
    sound = encoded_frames(values, UNSIZED_CHECKED)
    damaged = bytearray(sound)
    damaged[at] ^= 0xFF
    with pytest.raises(CorruptRecordError, match="codec=ZSTD"):
        unpacked_payloads(sound + bytes(damaged))


def test_zstd_frame_without_its_end_is_corrupt() -> None:
    batch = encoded_frames(LARGE, UNSIZED)
    with pytest.raises(CorruptRecordError, match="cut off"):
        unpacked_payloads(batch + with_payload(batch, batch[61:-3]))
