"""Variable-length integers. The vectors are those of Kafka's ByteUtilsTest."""

from __future__ import annotations

import pytest

from isotherm.errors import CorruptRecordError
from isotherm.record.varint import (
    read_unsigned_varint,
    read_varint,
    read_varlong,
    write_unsigned_varint,
    write_varint,
    write_varlong,
)

# The vectors of Kafka's ByteUtilsTest: each int with its bytes.
VARINTS = [
    (0, "00"),
    (-1, "01"),
    (1, "02"),
    (63, "7e"),
    (-64, "7f"),
    (64, "8001"),
    (-65, "8101"),
    (8191, "fe7f"),
    (-8192, "ff7f"),
    (8192, "808001"),
    (2**31 - 1, "feffffff0f"),
    (-(2**31), "ffffffff0f"),
]
VARLONGS = [
    *VARINTS,
    (2**31, "8080808010"),
    (-(2**31) - 1, "8180808010"),
    (2**63 - 1, "feffffffffffffffff01"),
    (-(2**63), "ffffffffffffffffff01"),
]


@pytest.mark.parametrize(("value", "expected"), VARINTS)
def test_varint_is_written_and_read_as_kafka_does(value: int, expected: str) -> None:
    out = bytearray(b"\xaa")
    write_varint(out, value)
    assert out[1:].hex() == expected
    assert read_varint(out, 1) == (value, len(out))


@pytest.mark.parametrize(("value", "expected"), VARLONGS)
def test_varlong_is_written_and_read_as_kafka_does(value: int, expected: str) -> None:
    out = bytearray(b"\xaa")
    write_varlong(out, value)
    assert out[1:].hex() == expected
    assert read_varlong(out, 1) == (value, len(out))


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**14, 2**28, 2**32 - 1])
def test_unsigned_varint_comes_back(value: int) -> None:
    out = bytearray()
    write_unsigned_varint(out, value)
    assert read_unsigned_varint(memoryview(out)) == (value, len(out))
    assert len(out) == max(1, (value.bit_length() + 6) // 7)


def test_varint_bits_beyond_its_width_are_dropped_as_in_java() -> None:
    # The fifth byte has 7 bits, of which an int uses 4.
    assert read_unsigned_varint(b"\xff\xff\xff\xff\x7f")[0] == 0xFFFF_FFFF
    assert read_varlong(b"\xff" * 9 + b"\x7f")[0] == -(2**63)


@pytest.mark.parametrize("reader", [read_varint, read_varlong, read_unsigned_varint])
@pytest.mark.parametrize("raw", [b"", b"\x80", b"\xff\xff\xff"])
def test_varint_cut_off_is_corrupt(reader, raw: bytes) -> None:
    with pytest.raises(CorruptRecordError, match="cut off"):
        reader(raw)


@pytest.mark.parametrize(
    ("reader", "size_max"), [(read_varint, 5), (read_varlong, 10), (read_unsigned_varint, 5)]
)
def test_varint_without_end_is_corrupt(reader, size_max: int) -> None:
    with pytest.raises(CorruptRecordError, match="too long"):
        reader(b"\x80" * size_max + b"\x01")
    reader(b"\x80" * (size_max - 1) + b"\x01")
