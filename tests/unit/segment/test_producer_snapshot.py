"""The producer snapshot. The bytes are Kafka's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.errors import CorruptSnapshotError
from isotherm.segment.producer_snapshot import (
    ProducerSnapshotEntry,
    encode_producer_snapshot,
    read_producer_snapshot,
)

EMPTY = bytes.fromhex("000148674bc700000000")
SAMPLE = [
    ProducerSnapshotEntry(7, 1, 7, 102, 2, 1700000000007, -1, -1),
    ProducerSnapshotEntry(8, 0, -1, -1, 0, 1700000000009, 3, 110),
]


def test_empty_snapshot_is_kafkas_ten_bytes() -> None:
    assert encode_producer_snapshot([]) == EMPTY
    assert read_producer_snapshot(EMPTY) == []


def test_snapshot_of_two_producers_has_kafkas_crc_and_entry_size() -> None:
    data = encode_producer_snapshot(SAMPLE)
    assert data[:6].hex() == "0001ea411feb"
    assert len(data) == 10 + 2 * 46
    assert read_producer_snapshot(data) == SAMPLE


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "shorter"),
        (b"\x00\x02" + EMPTY[2:], "version=2"),
        (EMPTY + b"\x00", "disagrees"),
        (EMPTY[:9] + b"\x01", "disagrees"),
        (EMPTY[:2] + bytes(4) + EMPTY[6:], "fails its crc"),
        (EMPTY[:6] + b"\xff\xff\xff\xff", "disagrees"),
    ],
)
def test_damaged_snapshot_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(CorruptSnapshotError, match=message):
        read_producer_snapshot(data)


@given(st.integers(0, 101), st.integers(1, 255))
def test_snapshot_with_any_byte_changed_is_refused(position: int, change: int) -> None:
    data = bytearray(encode_producer_snapshot(SAMPLE))
    data[position] ^= change
    with pytest.raises(CorruptSnapshotError):
        read_producer_snapshot(data)
