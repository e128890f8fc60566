"""The batch header: its fields by the format page, damaged headers, CRCs, and offsets assigned in
place."""

from __future__ import annotations

import struct

import pytest

from isotherm.errors import CorruptRecordError
from isotherm.record.batch import (
    CompressionType,
    NewRecord,
    TimestampType,
    assign_offsets,
    build_batch,
    iterate_batches,
    read_batch_header,
    read_magic,
    verify_batch_crc,
)

NOW = 1_700_000_000_000


def batch_at(base_offset: int, count: int = 3) -> bytearray:
    records = [NewRecord(NOW + index, b"key", b"value") for index in range(count)]
    return build_batch(records, base_offset=base_offset)


def test_header_fields_are_where_the_format_says() -> None:
    batch = build_batch(
        [NewRecord(NOW, None, None), NewRecord(NOW + 9, None, None)],
        base_offset=0x0102030405060708,
        compression=CompressionType.LZ4,
        partition_leader_epoch=0x11121314,
        producer_id=0x2122232425262728,
        producer_epoch=0x3132,
        base_sequence=0x41424344,
        is_transactional=True,
        is_control=True,
    )
    assert batch[0:8].hex() == "0102030405060708"
    assert int.from_bytes(batch[8:12]) == len(batch) - 12
    assert batch[12:16].hex() == "11121314"
    assert batch[16] == 2
    assert batch[21:23].hex() == "0033"
    assert int.from_bytes(batch[23:27]) == 1
    assert int.from_bytes(batch[27:35]) == NOW
    assert int.from_bytes(batch[35:43]) == NOW + 9
    assert batch[43:51].hex() == "2122232425262728"
    assert batch[51:53].hex() == "3132"
    assert batch[53:57].hex() == "41424344"
    assert int.from_bytes(batch[57:61]) == 2


def test_header_properties_follow_the_fields() -> None:
    header = read_batch_header(batch_at(100))
    assert (header.last_offset, header.next_offset) == (102, 103)
    assert header.size_in_bytes == len(batch_at(100))
    assert header.compression_type is CompressionType.NONE
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert not header.is_transactional
    assert not header.is_control
    assert not header.has_producer_id
    assert header.delete_horizon_ms is None
    assert header.last_sequence == -1
    flagged = header._replace(attributes=0x7C, base_timestamp=5)
    assert flagged.compression_type is CompressionType.ZSTD
    assert flagged.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert flagged.is_transactional
    assert flagged.is_control
    assert flagged.delete_horizon_ms == 5


@pytest.mark.parametrize(
    ("layout", "position", "value"),
    [
        (">i", 8, 48),
        (">i", 8, -1),
        (">b", 16, 0),
        (">b", 16, 1),
        (">b", 16, 3),
        (">q", 0, -1),
        (">q", 0, 2**63 - 1),
        (">i", 23, -1),
        (">i", 57, -1),
        (">h", 21, 5),
        (">h", 21, 7),
    ],
)
def test_header_that_no_writer_produces_is_corrupt(layout: str, position: int, value: int) -> None:
    batch = bytearray(3) + batch_at(0)
    struct.pack_into(layout, batch, 3 + position, value)
    with pytest.raises(CorruptRecordError, match="position=3"):
        read_batch_header(batch, 3)


def test_header_cut_off_is_corrupt() -> None:
    with pytest.raises(CorruptRecordError, match="cut off"):
        read_batch_header(batch_at(0)[:60])
    with pytest.raises(CorruptRecordError, match="cut off"):
        read_magic(batch_at(0)[:16])


def test_iterate_batches_gives_complete_batches_and_stops_at_a_partial_one() -> None:
    run = batch_at(0) + batch_at(3, 1) + batch_at(4, 2)
    starts = [0, len(batch_at(0)), len(batch_at(0) + batch_at(3, 1))]
    found = list(iterate_batches(run))
    assert [position for position, _ in found] == starts
    assert [header.base_offset for _, header in found] == [0, 3, 4]
    assert list(iterate_batches(run, starts[1])) == found[1:]
    for end in range(starts[2], len(run)):
        assert list(iterate_batches(memoryview(run)[:end])) == found[:2]


def test_iterate_batches_gives_what_is_sound_before_it_raises() -> None:
    run = batch_at(0) + batch_at(3)
    run[len(batch_at(0)) + 16] = 1
    batches = iterate_batches(run)
    assert next(batches)[1].base_offset == 0
    with pytest.raises(CorruptRecordError, match="magic=1"):
        next(batches)


def test_crc_covers_all_but_offset_length_epoch_and_magic() -> None:
    sound = batch_at(0)
    for position in range(12, len(sound)):
        batch = bytearray(sound)
        batch[position] ^= 1
        if position == 16:
            continue
        header = read_batch_header(sound)._replace(crc=int.from_bytes(batch[17:21]))
        if position < 16:
            verify_batch_crc(batch, 0, header)
        else:
            with pytest.raises(CorruptRecordError, match="fails its crc"):
                verify_batch_crc(batch, 0, header)


def test_crc_of_a_batch_that_is_not_all_there_is_not_computed() -> None:
    batch = batch_at(0)
    with pytest.raises(CorruptRecordError, match="cut off"):
        verify_batch_crc(batch[:-1], 0, read_batch_header(batch))


def test_assign_offsets_leaves_the_crc_valid_without_computing_it() -> None:
    run = batch_at(0) + batch_at(0)
    position = len(batch_at(0))
    before = read_batch_header(run, position)
    assigned = assign_offsets(memoryview(run), position, 2**40, 7)
    after = read_batch_header(run, position)
    assert assigned == after
    assert after == before._replace(base_offset=2**40, partition_leader_epoch=7)
    verify_batch_crc(run, position, after)
    assert run[:position] == batch_at(0)


def test_assign_offsets_with_append_time_sets_type_timestamp_and_crc() -> None:
    batch = batch_at(0)
    before = read_batch_header(batch)
    assigned = assign_offsets(
        batch, 0, 5, 7, timestamp_type=TimestampType.LOG_APPEND_TIME, max_timestamp=NOW + 99
    )
    after = read_batch_header(batch)
    assert assigned == after
    verify_batch_crc(batch, 0, after)
    assert after.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert after.max_timestamp == NOW + 99
    assert after.crc != before.crc
    assign_offsets(batch, 0, 0, -1, timestamp_type=TimestampType.CREATE_TIME, max_timestamp=NOW + 2)
    assert batch == batch_at(0)


def test_assign_offsets_with_another_type_alone_computes_the_crc() -> None:
    batch = batch_at(0)
    assign_offsets(batch, 0, 5, 7, timestamp_type=TimestampType.LOG_APPEND_TIME)
    header = read_batch_header(batch)
    verify_batch_crc(batch, 0, header)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.max_timestamp == NOW + 2


def test_assign_offsets_with_what_is_there_already_writes_no_crc() -> None:
    batch = batch_at(0)
    batch[17:21] = b"\x00\x00\x00\x00"
    assign_offsets(batch, 0, 5, 7, timestamp_type=TimestampType.CREATE_TIME, max_timestamp=NOW + 2)
    assert read_batch_header(batch).crc == 0
