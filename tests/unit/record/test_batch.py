"""Building and reading record batches. The oracle of the bytes is a batch that Kafka wrote."""

from __future__ import annotations

import struct

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
    recompress_batch,
    verify_batch_crc,
)
from tests.support.filtered_batch import filtered_batch

NOW = 1_700_000_000_000
HEADERS = (("h", b"x"), ("n", None))
# The idempotent batch that Kafka 4 wrote for docs/formats.
KAFKA_RECORDS = [
    NewRecord(NOW, b"k1", b"v1"),
    NewRecord(NOW + 5, b"k2", None),
    NewRecord(NOW + 7, b"k3", b"v3", HEADERS),
]
KAFKA_CRC = 0x3D186EB0


def kafka_batch() -> bytearray:
    return build_batch(
        KAFKA_RECORDS, base_offset=100, producer_id=7, producer_epoch=1, base_sequence=5
    )


def read(batch: bytes | bytearray) -> tuple[BatchHeader, list[Record]]:
    header = read_batch_header(batch)
    verify_batch_crc(batch, 0, header)
    return header, read_records(batch, 0, header)


def test_build_batch_gives_kafkas_bytes() -> None:
    batch = kafka_batch()
    header, records = read(batch)
    assert len(batch) == 99
    assert header.crc == KAFKA_CRC
    assert records == [
        Record(100, NOW, b"k1", b"v1", (), 5),
        Record(101, NOW + 5, b"k2", None, (), 6),
        Record(102, NOW + 7, b"k3", b"v3", HEADERS, 7),
    ]


def test_recompress_batch_changes_nothing_but_the_codec() -> None:
    header, records = read(kafka_batch())
    batch = recompress_batch(kafka_batch(), 0, header, CompressionType.LZ4)
    recompressed, again = read(batch)
    assert recompressed.compression_type is CompressionType.LZ4
    assert again == records
    back = recompress_batch(batch, 0, recompressed, CompressionType.NONE)
    assert back == kafka_batch()


def test_build_batch_takes_bare_tuples() -> None:
    _, records = read(build_batch([(NOW, None, memoryview(b"v"), [("name", b"")])]))
    assert records == [Record(0, NOW, None, b"v", (("name", b""),))]


def test_read_records_with_append_time_gives_it_to_every_record() -> None:
    batch = build_batch(
        KAFKA_RECORDS, timestamp_type=TimestampType.LOG_APPEND_TIME, max_timestamp=NOW + 99
    )
    assert [record.timestamp_ms for record in read(batch)[1]] == [NOW + 99] * 3


def test_read_records_wraps_the_sequence() -> None:
    batch = build_batch(KAFKA_RECORDS, producer_id=7, producer_epoch=1, base_sequence=2**31 - 2)
    header, records = read(batch)
    assert [record.sequence for record in records] == [2**31 - 2, 2**31 - 1, 0]
    assert header.last_sequence == 0


def test_read_records_of_an_empty_batch_does_not_look_into_it() -> None:
    batch = bytearray(filtered_batch(kafka_batch(), []))
    struct.pack_into(">h", batch, 21, CompressionType.GZIP)
    assert read_records(batch, 0, read_batch_header(batch)) == []
    full = kafka_batch()
    struct.pack_into(">i", full, 57, 0)
    assert read_records(full, 0, read_batch_header(full)) == []


def test_read_records_shows_a_header_name_that_is_not_utf8() -> None:
    batch = build_batch([NewRecord(NOW, b"k", b"v", [("name", b"v")])])
    batch[batch.index(b"name")] = 0xFF
    [record] = read_records(batch, 0, read_batch_header(batch))
    assert record.headers == (("�ame", b"v"),)


def one_record(body: bytes) -> bytearray:
    """A batch of one record with `body` after its size."""
    batch = build_batch([NewRecord(NOW, None, None)])[:HEADER_SIZE]
    batch += bytes([2 * len(body)]) + body
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    return batch


# attributes, timestamp delta, offset delta, null key, null value, no headers
SOUND = bytes.fromhex("000000010100")


def test_read_records_reads_the_smallest_record() -> None:
    batch = one_record(SOUND)
    assert read_records(batch, 0, read_batch_header(batch)) == [Record(0, NOW, None, None)]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(SOUND[:-1], id="header count missing"),
        pytest.param(SOUND + b"\x00", id="byte after the headers"),
        pytest.param(bytes.fromhex("000002010100"), id="offset beyond the last"),
        pytest.param(bytes.fromhex("000001010100"), id="offset negative"),
        pytest.param(bytes.fromhex("000000080100"), id="key longer than the record"),
        pytest.param(bytes.fromhex("000000010800"), id="value longer than the record"),
        pytest.param(bytes.fromhex("000000010101"), id="header count negative"),
        pytest.param(bytes.fromhex("00000001017e"), id="more headers than bytes"),
        pytest.param(bytes.fromhex("00000001010201"), id="header name null"),
        pytest.param(bytes.fromhex("00000001010202610a"), id="header value cut off"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_read_records_refuses_a_damaged_record(body: bytes) -> None:
    batch = one_record(body)
    with pytest.raises(CorruptRecordError):
        read_records(batch, 0, read_batch_header(batch))


@pytest.mark.parametrize("count", [1, 2, 4, 2**31 - 1])
def test_read_records_refuses_a_wrong_count(count: int) -> None:
    batch = kafka_batch()
    struct.pack_into(">i", batch, 57, count)
    with pytest.raises(CorruptRecordError):
        read_records(batch, 0, read_batch_header(batch))


def test_read_records_refuses_a_batch_that_is_not_there() -> None:
    batch = kafka_batch()
    with pytest.raises(CorruptRecordError, match="cut off"):
        read_records(batch[:-1], 0, read_batch_header(batch))


def test_read_records_bounds_what_it_unpacks() -> None:
    batch = build_batch([NewRecord(NOW, None, bytes(10_000))], compression=CompressionType.GZIP)
    with pytest.raises(CorruptRecordError, match="exceed the decompressed size limit"):
        read_records(batch, 0, read_batch_header(batch), size_max=5_000)
