from __future__ import annotations

import random

import pytest

from isotherm.errors import CorruptRecordError
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
"""A block that would not shrink."""


def encoded(*batches: tuple[CompressionType, list[bytes]]) -> tuple[bytes, list[bytes]]:
    """Batches after each other, and the bytes of each one's records."""
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
        [(ZSTD, SMALL)],
        [(NONE, SMALL), (NONE, LARGE)],
    ],
    ids=["blocks", "several blocks", "stored", "mixed", "zstd", "plain"],
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


@pytest.mark.parametrize("size_max", [100, 70_000])
def test_batch_that_unfolds_to_too_much_is_corrupt(size_max: int) -> None:
    buffer, _ = encoded((LZ4, SMALL), (LZ4, LARGE))
    with pytest.raises(CorruptRecordError, match="exceed the decompressed size limit"):
        unpacked_payloads(buffer, decompressed_size_max=size_max)


def test_damaged_block_is_corrupt() -> None:
    buffer, _ = encoded((LZ4, SMALL), (LZ4, SMALL))
    damaged = bytearray(buffer)
    damaged[61 + 11 : 61 + 15] = b"\xff\xff\xff\xff"
    with pytest.raises(CorruptRecordError, match="damaged codec=LZ4"):
        unpacked_payloads(bytes(damaged))
