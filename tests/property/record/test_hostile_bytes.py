"""Hostile bytes: every decoder returns a value or raises its documented error.

The column kernels are compiled without bounds checks. Their input lies directly before a page
without access rights, so a read of one byte too many kills the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.config.topic import TopicConfig
from isotherm.errors import CorruptRecordError, RejectedError
from isotherm.record.batch import (
    BatchHeader,
    CompressionType,
    NewRecord,
    Record,
    TimestampType,
    build_batch,
    iterate_batches,
    read_batch_header,
    read_records,
)
from isotherm.record.columns import COLUMNS, RecordColumns, decode_columns
from isotherm.record.compression import compress, decompress
from isotherm.record.control import read_control_records
from isotherm.record.crc32c import crc32c
from isotherm.record.validation import validate_and_assign_offsets
from isotherm.record.varint import read_unsigned_varint, read_varint, read_varlong
from isotherm.types import TopicPartition

SIZE_MAX = 1 << 16
DATA = st.data()
MANY = settings(max_examples=100)
PAGES_SIZE = 16 * mmap.PAGESIZE


class GuardedMemory:
    """Memory that ends at a page which faults on any access."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, PAGES_SIZE + mmap.PAGESIZE)
        self._size = PAGES_SIZE
        guard = ctypes.addressof(ctypes.c_char.from_buffer(self._map, PAGES_SIZE))
        no_access = 0
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        assert protect(guard, mmap.PAGESIZE, no_access) == 0

    def put(self, data: bytes | bytearray) -> memoryview:
        start = self._size - len(data)
        assert start >= 0
        view = memoryview(self._map)[start : self._size]
        view[:] = data
        return view


@pytest.fixture(scope="module")
def guarded() -> GuardedMemory:
    return GuardedMemory()


@st.composite
def damaged(draw, run: bytearray, *, fix_crc: bool) -> bytearray:
    """The batches with some bytes changed, dropped or added, and their CRCs right if `fix_crc`."""
    run = bytearray(run)
    for _ in range(draw(st.integers(0, 4))):
        if not run:
            break
        position = draw(st.integers(0, len(run) - 1))
        match draw(st.sampled_from(["set", "flip", "delete", "insert", "integer"])):
            case "set":
                run[position] = draw(st.sampled_from([0x00, 0x01, 0x7F, 0x80, 0xFF]))
            case "flip":
                run[position] ^= 1 << draw(st.integers(0, 7))
            case "delete":
                del run[position : position + draw(st.integers(1, 8))]
            case "insert":
                run[position:position] = draw(st.binary(min_size=1, max_size=8))
            case "integer" if position + 4 <= len(run):
                value = draw(st.sampled_from([-(2**31), -1, 0, 1, 2**31 - 1]))
                struct.pack_into(">i", run, position, value)
    if fix_crc:
        fix_crcs(run)
    return run


def fix_crcs(run: bytearray) -> None:
    position = 0
    while len(run) - position >= 61:
        (length,) = struct.unpack_from(">i", run, position + 8)
        end = position + 12 + length
        if length < 49 or end > len(run):
            return
        struct.pack_into(">I", run, position + 17, crc32c(memoryview(run)[position + 21 : end]))
        position = end


def columns_or_none(buffer: memoryview | bytearray) -> RecordColumns | None:
    heads = decoded_or_none(buffer, frozenset({"timestamp"}))
    columns = decoded_or_none(buffer, COLUMNS)
    assert columns is None or heads is not None
    return columns


def decoded_or_none(
    buffer: memoryview | bytearray, columns: frozenset[str]
) -> RecordColumns | None:
    try:
        return decode_columns(
            buffer, columns=columns, verify_crc=False, decompressed_size_max=SIZE_MAX
        )
    except CorruptRecordError:
        return None


def has_wrong_max_timestamp(header: BatchHeader, records: list[Record]) -> bool:
    """Whether the header's max timestamp differs from that of the records.

    Columns are read from batches that a leader appended, and the leader sets this field. The reader
    of single records also accepts what a producer sends, so it does not check the field.
    """
    if not records or header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return False
    return max(-1, *(record.timestamp_ms for record in records)) != header.max_timestamp


def records_or_none(buffer: memoryview | bytearray) -> list[tuple] | None:
    records: list[tuple] = []
    next_offset = 0
    try:
        for position, header in list(iterate_batches(buffer)):
            if header.base_offset < next_offset:
                return None
            next_offset = header.next_offset
            if not header.is_control:
                found = read_records(buffer, position, header, SIZE_MAX)
                if has_wrong_max_timestamp(header, found):
                    return None
                records += found
    except CorruptRecordError:
        return None
    return [record[:5] for record in records]


def rows(columns: RecordColumns) -> list[tuple]:
    for column in (columns.key, columns.value, columns.headers):
        column.validate(full=True)
    return [
        (offset, timestamp_ms, key, value, tuple((h["key"], h["value"]) for h in headers))
        for offset, timestamp_ms, key, value, headers in zip(
            columns.offset.tolist(),
            columns.timestamp_ms.tolist(),
            columns.key.to_pylist(),
            columns.value.to_pylist(),
            columns.headers.to_pylist(),
            strict=True,
        )
    ]


@given(DATA)
@settings(max_examples=300)
def test_columns_and_reader_agree_on_damaged_batches(strategies, guarded, data) -> None:
    run = data.draw(damaged(data.draw(strategies.batch_runs()), fix_crc=False))
    buffer = guarded.put(run)
    columns = columns_or_none(buffer)
    records = records_or_none(buffer)
    assert (None if columns is None else rows(columns)) == records


@given(DATA)
@MANY
def test_columns_of_a_record_body_made_of_anything(guarded, data) -> None:
    """Random bytes in the place of the records, under a right header."""
    body = data.draw(st.binary(max_size=60))
    batch = build_batch([NewRecord(0, None, None)], max_timestamp=BODY_TIMESTAMP)[:61] + body
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    count = data.draw(st.integers(1, 3) | st.just(2**31 - 1))
    struct.pack_into(">i", batch, 57, count)
    struct.pack_into(">i", batch, 23, 2**31 - 1)
    buffer = guarded.put(batch)
    columns = columns_or_none(buffer)
    assert (None if columns is None else rows(columns)) == records_or_none(buffer)


# attributes, timestamp delta, offset delta, a key of 2 bytes, a value of 3, and two headers, the
# second with a null value
BODY = bytes.fromhex("00 82 02 00 04 6b6b 06 767676 04 02 61 04 7878 02 62 01")
BODY_TIMESTAMP = 129


def record_at_the_guard(guarded: GuardedMemory, size: int, body: bytes) -> memoryview:
    """A batch of one record that claims `size` bytes and ends with `body`, directly before the
    guard page."""
    batch = (
        build_batch([NewRecord(0, None, None)], max_timestamp=BODY_TIMESTAMP)[:61]
        + bytes([2 * size])
        + body
    )
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    fix_crcs(batch)
    return guarded.put(batch)


def validated_or_none(buffer: memoryview) -> int | None:
    try:
        return validate_and_assign_offsets(
            buffer,
            TopicPartition("t", 0),
            config=TopicConfig(),
            next_offset=0,
            leader_epoch=0,
            now_ms=2**42,
        ).last_offset
    except RejectedError:
        return None


def test_record_that_is_whole_is_read_at_the_guard(guarded) -> None:
    buffer = record_at_the_guard(guarded, len(BODY), BODY)
    assert rows(columns_or_none(buffer)) == records_or_none(buffer)
    assert validated_or_none(buffer) == 0


@pytest.mark.parametrize("excess", range(4))
@pytest.mark.parametrize("cut", range(len(BODY)))
def test_record_that_is_cut_off_is_not_read_beyond(guarded, cut: int, excess: int) -> None:
    buffer = record_at_the_guard(guarded, cut + excess, BODY[:cut])
    assert columns_or_none(buffer) is None
    assert records_or_none(buffer) is None
    assert validated_or_none(buffer) is None


@pytest.mark.parametrize("position", range(len(BODY)))
def test_record_with_any_byte_changed_is_not_read_beyond(guarded, position: int) -> None:
    for value in range(256):
        body = BODY[:position] + bytes([value]) + BODY[position + 1 :]
        buffer = record_at_the_guard(guarded, len(BODY), body)
        columns = columns_or_none(buffer)
        assert (None if columns is None else rows(columns)) == records_or_none(buffer)
        validated_or_none(buffer)


@given(st.binary(max_size=200))
@MANY
def test_columns_of_anything(guarded, raw: bytes) -> None:
    columns = columns_or_none(guarded.put(raw))
    assert columns is None or columns.position_end <= len(raw)


@given(DATA)
@settings(max_examples=200)
def test_validation_rejects_or_stores_what_can_be_read(strategies, data) -> None:
    records = data.draw(st.lists(strategies.records, min_size=1, max_size=4))
    codec = data.draw(st.sampled_from(CompressionType))
    batch = data.draw(damaged(build_batch(records, compression=codec), fix_crc=True))
    given_bytes = bytes(batch)
    config = TopicConfig(compression_type=data.draw(st.sampled_from(["producer", "lz4"])))
    try:
        validated = validate_and_assign_offsets(
            batch,
            TopicPartition("t", 0),
            config=config,
            next_offset=10,
            leader_epoch=0,
            now_ms=2**42,
        )
    except RejectedError:
        # The leader appends the producer's own buffer, so a refusal must leave it unchanged.
        assert batch == given_bytes
        return
    expected = 10
    for position, header in iterate_batches(validated.records):
        for record in read_records(validated.records, position, header):
            assert record.offset == expected
            expected += 1
    assert validated.last_offset == expected - 1


@given(DATA)
@MANY
def test_control_records_of_damaged_batches(strategies, data) -> None:
    run = data.draw(damaged(data.draw(strategies.batch_runs()), fix_crc=False))
    with contextlib.suppress(CorruptRecordError):
        read_control_records(run, 0, read_batch_header(run))


@given(DATA)
@settings(max_examples=200)
def test_decompress_gives_at_most_what_is_allowed(data) -> None:
    codec = data.draw(st.sampled_from(CompressionType))
    plain = data.draw(st.binary(max_size=100)) * data.draw(st.integers(1, 2000))
    compressed = data.draw(damaged(bytearray(compress(codec, plain)), fix_crc=False))
    with contextlib.suppress(CorruptRecordError):
        assert len(decompress(codec, compressed, SIZE_MAX)) <= SIZE_MAX


@given(st.sampled_from(CompressionType), st.binary(max_size=100))
@MANY
def test_decompress_of_anything(codec: CompressionType, raw: bytes) -> None:
    with contextlib.suppress(CorruptRecordError):
        assert len(decompress(codec, raw, SIZE_MAX)) <= SIZE_MAX


@given(st.binary(max_size=12), st.integers(0, 14))
def test_varint_of_anything(raw: bytes, position: int) -> None:
    for reader in (read_varint, read_varlong, read_unsigned_varint):
        try:
            _, next_position = reader(raw, position)
        except CorruptRecordError:
            continue
        assert position < next_position <= len(raw)


@pytest.mark.parametrize("size", [1, 61, 200])
def test_guard_is_next_to_the_data(guarded, size: int) -> None:
    view = guarded.put(bytes(size))
    behind = ctypes.addressof(ctypes.c_char.from_buffer(view)) + size
    for line in Path("/proc/self/maps").read_text(encoding="ascii").splitlines():
        addresses, mode, *_ = line.split()
        low, high = (int(address, 16) for address in addresses.split("-"))
        if low <= behind < high:
            assert (low, mode[:3]) == (behind, "---")
            return
    pytest.fail("the page behind the data is not mapped at all")
