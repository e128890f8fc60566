"""CRC-32C against published check values."""

from __future__ import annotations

import pytest

from isotherm.record.crc32c import crc32c, crc32c_extended


@pytest.mark.parametrize("buffer_type", [bytes, bytearray, memoryview])
def test_crc_is_castagnolis(buffer_type) -> None:
    # The check value of CRC-32C, and two vectors of RFC 3720, B.4.
    assert crc32c(buffer_type(b"123456789")) == 0xE3069283
    assert crc32c(buffer_type(bytes(32))) == 0x8A9136AA
    assert crc32c(buffer_type(bytes(range(32)))) == 0x46DD794E
    assert crc32c(buffer_type(b"")) == 0


@pytest.mark.parametrize("size", [0, 1, 4, 9])
def test_crc_is_extended_by_the_bytes_behind(size: int) -> None:
    data = b"123456789"
    assert crc32c_extended(crc32c(data[:size]), memoryview(data)[size:]) == 0xE3069283


def test_crc_of_slice_covers_the_slice_alone() -> None:
    buffer = bytearray(b"xx123456789yy")
    assert crc32c(memoryview(buffer)[2:-2]) == 0xE3069283
    buffer.append(0)  # fails if a view of the buffer is left
