"""The chunk index of the Aiven layout. Texts and binary forms are those of the plug-in."""

from __future__ import annotations

import base64
import random

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from isotherm.errors import CorruptMetadataError
from isotherm.remote.storage.manifest.chunk_index import (
    ENCODED_SIZE_MAX,
    FixedChunkIndex,
    VariableChunkIndex,
    decode_chunk_sizes,
    encode_chunk_sizes,
    plain_chunk_index,
    stored_chunk_size_max,
    stored_file_size,
    stored_range,
)


def packed(binary: bytes) -> str:
    return base64.b64encode(zstandard.compress(binary)).decode()


def test_sizes_in_the_plugins_own_text_are_read() -> None:
    """The text was checked against the plug-in itself."""
    assert decode_chunk_sizes("KLUv/SAPeQAAAAAAAwAAAAoBAAoAAAAe") == (10, 20, 30)


@pytest.mark.parametrize(
    ("sizes", "binary"),
    [
        ((), "00000000"),
        ((7,), "0000000100000007"),
        ((10, 20, 30), "000000030000000a01000a0000001e"),
        ((300, 300, 1), "000000030000012c01000000000001"),
        ((5, 5 + 65_536, 1), "0000000300000005030000000100000000 0001".replace(" ", "")),
    ],
)
def test_sizes_are_written_in_the_plugins_binary_form(sizes: tuple[int, ...], binary: str) -> None:
    text = encode_chunk_sizes(sizes)
    assert zstandard.decompress(base64.b64decode(text)).hex() == binary
    assert decode_chunk_sizes(text) == sizes


@given(st.lists(st.integers(0, 2**31 - 1), max_size=50))
def test_sizes_round_trip(sizes: list[int]) -> None:
    assert decode_chunk_sizes(encode_chunk_sizes(sizes)) == tuple(sizes)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not base64!",
        base64.b64encode(b"not zstd").decode(),
        packed(b""),
        packed(bytes.fromhex("ffffffff")),
        packed(bytes.fromhex("00000001")),
        packed(bytes.fromhex("000000030000000a01000a")),
        packed(bytes.fromhex("000000030000000a05000a0000001e")),
        packed(bytes.fromhex("7fffffff0000000a01000a0000001e")),
        packed(bytes.fromhex("00000001ffffffff")),
        packed(bytes(ENCODED_SIZE_MAX + 1)),
    ],
)
def test_malformed_sizes_are_corrupt(text: str) -> None:
    with pytest.raises(CorruptMetadataError):
        decode_chunk_sizes(text)


def test_number_of_sizes_must_fit_the_file() -> None:
    with pytest.raises(CorruptMetadataError, match="chunks=2 expected=3"):
        VariableChunkIndex(100, 250, (10, 20))


@pytest.mark.parametrize(
    ("chunk_size", "file_size"), [(0, 5), (-1, 5), (5, -1), (2**30, 5), (2**31 - 1, 2**31 - 1)]
)
def test_impossible_sizes_are_corrupt(chunk_size: int, file_size: int) -> None:
    with pytest.raises(CorruptMetadataError):
        FixedChunkIndex(chunk_size, file_size, 1, 1)


@pytest.mark.parametrize("stored", [-1, 6 + 1024, 2**31 - 1])
def test_stored_chunk_is_no_larger_than_a_transformation_makes_it(stored: int) -> None:
    """A reader would take memory for it."""
    for sizes in ((stored, 5), (5, stored)):
        with pytest.raises(CorruptMetadataError, match="impossible size"):
            FixedChunkIndex(5, 10, *sizes)
    with pytest.raises(CorruptMetadataError, match="impossible size"):
        VariableChunkIndex(5, 10, (5, max(stored, 6 + 1024)))


@pytest.mark.parametrize("size", [0, 1, 1000, 128 * 1024, 4 * 1024 * 1024])
def test_chunk_that_does_not_compress_is_within_the_bound(size: int) -> None:
    encrypted = len(zstandard.compress(random.Random(size).randbytes(size))) + 28
    assert encrypted <= stored_chunk_size_max(size)


def test_sizes_beyond_an_int_are_corrupt() -> None:
    with pytest.raises(CorruptMetadataError, match="malformed"):
        decode_chunk_sizes(packed(bytes.fromhex("000000027fffffff04ffffffff00000001")))


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 1, (0, 1, 0, 110)),
        (99, 100, (0, 1, 0, 110)),
        (99, 101, (0, 2, 0, 220)),
        (100, 200, (1, 2, 110, 220)),
        (200, 250, (2, 3, 220, 300)),
        (0, 250, (0, 3, 0, 300)),
        (249, 250, (2, 3, 220, 300)),
    ],
)
@pytest.mark.parametrize(
    "index",
    [FixedChunkIndex(100, 250, 110, 80), VariableChunkIndex(100, 250, (110, 110, 80))],
)
def test_range_is_covered_by_whole_chunks(
    index: FixedChunkIndex | VariableChunkIndex,
    start: int,
    end: int,
    expected: tuple[int, int, int, int],
) -> None:
    assert stored_range(index, start, end) == expected
    assert stored_file_size(index) == 300


@pytest.mark.parametrize(
    ("file_size", "final"), [(0, 0), (1, 1), (99, 99), (100, 100), (101, 1), (200, 100)]
)
def test_plain_index_stores_each_byte_as_it_is(file_size: int, final: int) -> None:
    index = plain_chunk_index(file_size, 100)
    assert (index.transformed_chunk_size, index.final_transformed_chunk_size) == (100, final)
    assert stored_file_size(index) == file_size


def test_huge_fixed_index_takes_no_room() -> None:
    index = FixedChunkIndex(1, 2**31 - 1, 29, 29)
    assert stored_range(index, 2**30, 2**30 + 1).start == 29 * 2**30
