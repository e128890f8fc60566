"""Batches with some records removed, as compaction writes them. The oracle of the bytes is Kafka's
cleaner."""

from __future__ import annotations

import pytest

from isotherm.errors import CorruptRecordError
from isotherm.record.batch import (
    HEADER_SIZE,
    BatchHeader,
    CompressionType,
    NewRecord,
    Record,
    TimestampType,
    build_batch,
    read_batch_header,
    read_records,
    verify_batch_crc,
)
from tests.support.filtered_batch import filtered_batch

NOW = 1_700_000_000_000
HEADERS = (("h", b"x"), ("n", None))
# The idempotent batch that Kafka 4 wrote for docs/formats, and its copy after Kafka's cleaner.
KAFKA_RECORDS = [
    NewRecord(NOW, b"k1", b"v1"),
    NewRecord(NOW + 5, b"k2", None),
    NewRecord(NOW + 7, b"k3", b"v3", HEADERS),
]
KAFKA_BATCH = build_batch(
    KAFKA_RECORDS, base_offset=100, producer_id=7, producer_epoch=1, base_sequence=5
)
KAFKA_FILTERED_CRC, KAFKA_EMPTIED_CRC = 0x7514C06D, 0x3402F951
DELETE_HORIZON_MS = 1_700_086_500_000


def read(batch: bytes | bytearray) -> tuple[BatchHeader, list[Record]]:
    header = read_batch_header(batch)
    verify_batch_crc(batch, 0, header)
    return header, read_records(batch, 0, header)


def test_filtered_batch_with_delete_horizon_has_kafkas_bytes() -> None:
    filtered = filtered_batch(KAFKA_BATCH, [1, 2], delete_horizon_ms=DELETE_HORIZON_MS)
    header, records = read(filtered)
    assert len(filtered) == 94
    assert header.crc == KAFKA_FILTERED_CRC
    assert header.attributes == 0x40
    assert header.delete_horizon_ms == DELETE_HORIZON_MS
    assert (header.base_offset, header.last_offset, header.records_count) == (100, 102, 2)
    assert records == read(KAFKA_BATCH)[1][1:]


def test_filtered_batch_without_records_has_kafkas_bytes() -> None:
    emptied = filtered_batch(KAFKA_BATCH, [], delete_horizon_ms=DELETE_HORIZON_MS)
    header, records = read(emptied)
    assert len(emptied) == HEADER_SIZE
    assert header.crc == KAFKA_EMPTIED_CRC
    assert header.base_timestamp == -1
    assert header.max_timestamp == NOW + 7
    assert header.next_offset == 103
    assert records == []


def test_emptied_batch_has_neither_codec_nor_horizon() -> None:
    batch = build_batch(KAFKA_RECORDS, compression=CompressionType.LZ4, is_transactional=True)
    once = filtered_batch(batch, [1], delete_horizon_ms=DELETE_HORIZON_MS)
    assert read(once)[0].attributes == 0x53
    assert read(filtered_batch(once, []))[0].attributes == 0x10


def test_batch_that_keeps_everything_is_not_touched() -> None:
    batch = build_batch(KAFKA_RECORDS, compression=CompressionType.GZIP, compression_level=9)
    assert filtered_batch(batch, [0, 1, 2]) == batch


def test_horizon_that_is_set_stays() -> None:
    once = filtered_batch(KAFKA_BATCH, [1, 2], delete_horizon_ms=DELETE_HORIZON_MS)
    twice = filtered_batch(once, [1], delete_horizon_ms=DELETE_HORIZON_MS + 1)
    assert read(twice)[0].delete_horizon_ms == DELETE_HORIZON_MS
    assert read(twice)[1] == read(KAFKA_BATCH)[1][2:]


@pytest.mark.parametrize("codec", list(CompressionType))
def test_codec_flags_producer_and_append_time_stay(codec: CompressionType) -> None:
    batch = build_batch(
        KAFKA_RECORDS,
        compression=codec,
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        max_timestamp=NOW + 99,
        partition_leader_epoch=4,
        producer_id=7,
        producer_epoch=1,
        base_sequence=5,
        is_transactional=True,
    )
    before, _ = read(batch)
    after, records = read(filtered_batch(batch, [2]))
    assert records == [Record(2, NOW + 99, b"k3", b"v3", HEADERS, 7)]
    assert after._replace(length=0, crc=0) == before._replace(
        length=0, crc=0, base_timestamp=NOW + 99, records_count=1
    )


def test_maximum_timestamp_sinks_to_what_is_left() -> None:
    assert read(filtered_batch(KAFKA_BATCH, [0, 1]))[0].max_timestamp == NOW + 5


@pytest.mark.parametrize("horizon_ms", [0, NOW - 2**40, NOW + 2**50, 2**63 - 1])
def test_deltas_of_any_length_are_written(horizon_ms: int) -> None:
    batch = build_batch([(NOW + i, b"k" * i, b"v" * 100 * i, ()) for i in range(50)])
    filtered = filtered_batch(batch, range(50), delete_horizon_ms=horizon_ms)
    assert read(filtered)[1] == read(batch)[1]
    assert len(filtered) > len(batch)


def test_damaged_batch_gets_no_new_crc() -> None:
    batch = bytearray(KAFKA_BATCH)
    batch[batch.index(b"v1")] ^= 1
    with pytest.raises(CorruptRecordError, match="crc"):
        filtered_batch(batch, [0])
    with pytest.raises(CorruptRecordError, match="crc"):
        filtered_batch(batch, [])
