"""A record is found by its timestamp as a reader of all records finds it, in bounded memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.errors import CorruptRecordError
from isotherm.record import record_search
from isotherm.record.batch import (
    HEADER_SIZE,
    build_batch,
    encode_batch,
    read_batch_header,
    read_record_times,
    read_records,
)
from isotherm.record.batch_header import TimestampType
from isotherm.record.compression import CompressionType, compress
from isotherm.record.decompression_memory import DecompressionMemory
from isotherm.record.record_search import PYTHON_RECORDS_MAX, find_record

T0 = 1_700_000_000_000
ways = pytest.mark.parametrize("python_records_max", [PYTHON_RECORDS_MAX, 0])


@ways
@given(
    timestamps=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    wanted=st.integers(0, 10),
    start=st.integers(0, 13),
    codec=st.sampled_from(CompressionType),
    stamp=st.sampled_from(TimestampType),
)
def test_search_finds_the_first_of_all_records(
    python_records_max: int,
    timestamps: list[int],
    wanted: int,
    start: int,
    codec: CompressionType,
    stamp: TimestampType,
) -> None:
    records = [(T0 + timestamp, b"k", b"v", ()) for timestamp in timestamps]
    batch = build_batch(records, base_offset=70, compression=codec, timestamp_type=stamp)
    header = read_batch_header(batch)
    expected = next(
        (
            (record.timestamp_ms, record.offset)
            for record in read_records(batch, 0, header)
            if record.timestamp_ms >= T0 + wanted and record.offset >= 70 + start
        ),
        None,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_search, "PYTHON_RECORDS_MAX", python_records_max)
        assert find_record(batch, header, T0 + wanted, 70 + start) == expected


@ways
def test_damaged_batch_is_named(python_records_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_search, "PYTHON_RECORDS_MAX", python_records_max)
    batch = build_batch([(T0, b"k", b"v", ())] * 3)
    header = read_batch_header(batch)
    batch[HEADER_SIZE] = 0x7E
    with pytest.raises(CorruptRecordError):
        find_record(batch, header, T0, 0)


_fields = st.none() | st.binary(max_size=6)
_records = st.lists(
    st.tuples(
        st.integers(T0, T0 + 9),
        _fields,
        _fields,
        st.lists(st.tuples(st.text(max_size=2), _fields), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=4,
)


@given(_records, st.integers(0), st.integers(0, 255))
def test_times_of_records_are_read_as_the_records_are(
    records: list[Any], place: int, byte: int
) -> None:
    """Also of damaged ones: what is passed over is checked as what is copied."""
    batch = build_batch(records)
    header = read_batch_header(batch)
    whole = [(record.timestamp_ms, record.offset) for record in read_records(batch, 0, header)]
    assert list(read_record_times(batch, 0, header)) == whole
    batch[HEADER_SIZE + place % (len(batch) - HEADER_SIZE)] = byte

    def outcome(read: Callable[[], Iterable[tuple[int, int]]]) -> list[tuple[int, int]] | str:
        try:
            return list(read())
        except CorruptRecordError as error:
            return str(error)

    expected = outcome(lambda: [record[1::-1] for record in read_records(batch, 0, header)])
    assert outcome(lambda: read_record_times(batch, 0, header)) == expected


class NotedMemory(DecompressionMemory):
    def __init__(self) -> None:
        super().__init__(1 << 30)
        self.sizes: list[int] = []

    @contextmanager
    def hold(self, size: int) -> Iterator[None]:
        self.sizes.append(size)
        with super().hold(size):
            yield


def test_millions_of_records_in_some_hundred_bytes_take_no_object_each() -> None:
    """Before, a look-up by time made a list of all: 72 seconds and 340 MB for 3 million."""
    count = 1_000_000
    plain = build_batch([(T0, None, None, ())])
    payload = bytes(plain[HEADER_SIZE:]) * count
    header = read_batch_header(plain)._replace(
        records_count=count, last_offset_delta=count - 1, attributes=int(CompressionType.ZSTD)
    )
    batch = encode_batch(header, compress(CompressionType.ZSTD, payload))
    assert len(batch) < 2_000
    find_record(plain, read_batch_header(plain), T0, 0)
    memory = NotedMemory()
    from isotherm.kernels import places  # noqa: F401 - loaded before memory is counted

    tracemalloc.start()
    try:
        assert find_record(batch, read_batch_header(batch), T0 + 1, 0, memory) is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    (held,) = memory.sizes
    # But for one piece of the records' places.
    assert peak < 2 * len(payload) + (1 << 20) < held
