"""Control records. The oracle of the bytes is Kafka."""

from __future__ import annotations

import struct

import pytest

from isotherm.errors import CorruptRecordError
from isotherm.record.batch import (
    NewRecord,
    build_batch,
    read_batch_header,
    verify_batch_crc,
)
from isotherm.record.control import (
    ControlRecord,
    ControlRecordType,
    build_end_transaction_marker,
    read_control_record,
    read_control_records,
)
from tests.support.filtered_batch import filtered_batch

NOW = 1_700_000_000_009
# Written by Apache Kafka.
KAFKA_ABORT = bytes.fromhex(
    "00000000000000c8000000420000000902591c34b80030000000000000018bcfe568090000018bcfe56809"
    "00000000000000070001ffffffff000000012000000008000000000c00000000000b00"
)
KAFKA_COMMIT_CRC = 0x59844275


def marker(marker_type: ControlRecordType, offset: int, timestamp_ms: int) -> bytearray:
    return build_end_transaction_marker(
        marker_type,
        producer_id=7,
        producer_epoch=1,
        coordinator_epoch=11,
        timestamp_ms=timestamp_ms,
        base_offset=offset,
        partition_leader_epoch=9,
    )


def control_batch(*records: tuple[bytes | None, bytes | None]) -> bytearray:
    return build_batch(
        [NewRecord(NOW, key, value) for key, value in records],
        is_control=True,
    )


def test_abort_marker_is_kafkas_bytes() -> None:
    assert marker(ControlRecordType.ABORT, 200, NOW) == KAFKA_ABORT


def test_commit_marker_has_kafkas_crc() -> None:
    batch = marker(ControlRecordType.COMMIT, 201, NOW + 1)
    assert read_batch_header(batch).crc == KAFKA_COMMIT_CRC
    assert len(batch) == 78


def test_marker_of_kafka_is_read() -> None:
    header = read_batch_header(KAFKA_ABORT)
    verify_batch_crc(KAFKA_ABORT, 0, header)
    assert header.is_control
    assert header.is_transactional
    record = read_control_record(KAFKA_ABORT, 0, header)
    value = bytes.fromhex("00000000000b")
    assert record == ControlRecord(200, NOW, ControlRecordType.ABORT, 0, 11, value)
    assert record.is_transaction_marker


def test_control_record_of_raft_is_read_by_type() -> None:
    batch = control_batch(
        (struct.pack(">hh", 0, 3), b"header"), (struct.pack(">hh", 0, 5), b"version")
    )
    records = read_control_records(batch, 0, read_batch_header(batch))
    assert [record.type for record in records] == [
        ControlRecordType.SNAPSHOT_HEADER,
        ControlRecordType.KRAFT_VERSION,
    ]
    assert not any(record.is_transaction_marker for record in records)
    assert records[1].value == b"version"


@pytest.mark.parametrize("type_id", [7, -1, 1000])
def test_control_record_of_another_type_is_unknown(type_id: int) -> None:
    batch = control_batch((struct.pack(">hh", 0, type_id), None))
    record = read_control_record(batch, 0, read_batch_header(batch))
    assert record is not None
    assert record.type is ControlRecordType.UNKNOWN


def test_control_record_of_a_later_version_may_be_longer() -> None:
    batch = control_batch((struct.pack(">hhh", 1, 1, 9), struct.pack(">hiq", 1, 11, 9)))
    record = read_control_record(batch, 0, read_batch_header(batch))
    assert record is not None
    assert (record.version, record.type) == (1, ControlRecordType.COMMIT)
    assert record.coordinator_epoch == 11


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, struct.pack(">hi", 0, 11)),
        (b"\x00\x00\x00", struct.pack(">hi", 0, 11)),
        (struct.pack(">hh", 0, 0), None),
        (struct.pack(">hh", 0, 1), b"\x00\x00\x00\x00\x0b"),
    ],
)
def test_control_record_too_short_is_corrupt(key: bytes | None, value: bytes | None) -> None:
    batch = control_batch((key, value))
    with pytest.raises(CorruptRecordError):
        read_control_record(batch, 0, read_batch_header(batch))


def test_control_batch_emptied_by_compaction_has_no_record() -> None:
    batch = filtered_batch(KAFKA_ABORT, [])
    assert read_control_record(batch, 0, read_batch_header(batch)) is None
