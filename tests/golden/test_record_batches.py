"""The batch codec against segments that Kafka wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from isotherm.record.batch import (
    BatchHeader,
    CompressionType,
    Record,
    TimestampType,
    build_batch,
    iterate_batches,
    read_records,
    verify_batch_crc,
)
from isotherm.record.control import read_control_record


def _batches(path: Path) -> Iterator[tuple[bytes, int, BatchHeader]]:
    data = path.read_bytes()
    for position, header in iterate_batches(data):
        yield data, position, header


def _as_dumped(position: int, header: BatchHeader) -> dict[str, str]:
    is_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    horizon = header.delete_horizon_ms
    return {
        "baseOffset": str(header.base_offset),
        "lastOffset": str(header.last_offset),
        "count": str(header.records_count),
        "baseSequence": str(header.base_sequence),
        "lastSequence": str(header.last_sequence),
        "producerId": str(header.producer_id),
        "producerEpoch": str(header.producer_epoch),
        "partitionLeaderEpoch": str(header.partition_leader_epoch),
        "isTransactional": str(header.is_transactional).lower(),
        "isControl": str(header.is_control).lower(),
        "deleteHorizonMs": "OptionalLong.empty" if horizon is None else f"OptionalLong[{horizon}]",
        "position": str(position),
        "LogAppendTime" if is_append_time else "CreateTime": str(header.max_timestamp),
        "size": str(header.size_in_bytes),
        "magic": str(header.magic),
        "compresscodec": header.compression_type.name.lower(),
        "crc": str(header.crc),
        "isvalid": "true",
    }


def test_batch_headers_are_what_kafka_prints(golden, partition_directory) -> None:
    dump = golden.dump(partition_directory)
    for path in sorted((golden.log_dir / partition_directory).glob("*.log")):
        ours = [_as_dumped(position, header) for _, position, header in _batches(path)]
        assert ours == dump[path.name].batches


def test_batches_cover_the_whole_segment_and_their_crc_holds(golden, partition_directory) -> None:
    for path in (golden.log_dir / partition_directory).glob("*.log"):
        end = 0
        for data, position, header in _batches(path):
            verify_batch_crc(data, position, header)
            assert position == end
            end = position + header.size_in_bytes
        assert end == path.stat().st_size


def test_records_are_what_the_consumer_got(golden, topic) -> None:
    # A deleted record is still in its segment, below the log start offset.
    expected = golden.records(topic)
    read = [
        record._replace(sequence=-1)
        for path in golden.segments(topic)
        for data, position, header in _batches(path)
        if not header.is_control
        for record in read_records(data, position, header)
        if record.offset >= expected[0].offset
    ]
    assert read == expected


def test_records_of_uncompressed_batches_encode_to_the_same_bytes(golden, topic) -> None:
    for path in golden.segments(topic):
        for data, position, header in _batches(path):
            if header.compression_type is not CompressionType.NONE or header.is_control:
                continue
            records = [_without_offset(r) for r in read_records(data, position, header)]
            rebuilt = build_batch(
                records,
                base_offset=header.base_offset,
                timestamp_type=header.timestamp_type,
                partition_leader_epoch=header.partition_leader_epoch,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
                is_transactional=header.is_transactional,
            )
            assert rebuilt == data[position : position + header.size_in_bytes]


def test_transaction_markers_are_what_kafka_prints(golden) -> None:
    dump = golden.dump("transactions-0")
    markers = 0
    for path in sorted((golden.log_dir / "transactions-0").glob("*.log")):
        printed = [r for r in dump[path.name].records if "endTxnMarker" in r]
        ours = [
            read_control_record(data, position, header)
            for data, position, header in _batches(path)
            if header.is_control
        ]
        assert [
            (str(m.offset), str(m.timestamp_ms), m.type.name, str(m.coordinator_epoch))
            for m in ours
        ] == [
            (r["offset"], r["CreateTime"], r["endTxnMarker"], r["coordinatorEpoch"])
            for r in printed
        ]
        markers += len(ours)
    assert markers == 16


def _without_offset(record: Record) -> tuple[int, bytes | None, bytes | None, tuple]:
    return record.timestamp_ms, record.key, record.value, record.headers
