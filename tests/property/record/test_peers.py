"""Isotherm's batches read by kafka-python and kio, and theirs read by Isotherm."""

from __future__ import annotations

import io

from hypothesis import given, settings
from hypothesis import strategies as st
from kio.records.readers import read_batch
from kio.records.writers import write_prepared_batch

from isotherm.record.batch import (
    CompressionType,
    build_batch,
    iterate_batches,
    read_batch_header,
    read_records,
    verify_batch_crc,
)
from isotherm.record.compression import compress, decompress
from isotherm.record.varint import write_varint, write_varlong

# kafka-python needs a package for snappy that no other test uses.
KAFKA_PYTHON_CODECS = [codec for codec in CompressionType if codec is not CompressionType.SNAPPY]
DATA = st.data()
MANY = settings(max_examples=100)


@given(st.integers(-(2**63), 2**63 - 1))
def test_varint_is_kafka_pythons(kafka_python, value: int) -> None:
    theirs = bytearray()
    kafka_python.encode_varint(value, theirs.append)
    ours = bytearray()
    if -(2**31) <= value < 2**31:
        write_varint(ours, value)
    else:
        write_varlong(ours, value)
    assert ours == theirs


@given(DATA)
@MANY
def test_uncompressed_batch_is_kafka_pythons_byte_for_byte(kafka_python, strategies, data) -> None:
    records = data.draw(st.lists(strategies.records, min_size=1, max_size=6))
    producer_id = data.draw(st.sampled_from([-1, 7]))
    epoch_and_sequence = (-1, -1) if producer_id == -1 else (3, data.draw(st.integers(0, 2**30)))
    builder = kafka_python.DefaultRecordBatchBuilder(
        2, 0, producer_id != -1, producer_id, *epoch_and_sequence, 1 << 20
    )
    for offset, (timestamp_ms, key, value, headers) in enumerate(records):
        builder.append(offset, timestamp_ms, key, value, headers)
    ours = build_batch(
        records,
        producer_id=producer_id,
        producer_epoch=epoch_and_sequence[0],
        base_sequence=epoch_and_sequence[1],
        is_transactional=producer_id != -1,
        partition_leader_epoch=0,
    )
    theirs = builder.build()
    ours[12:16] = theirs[12:16]  # the leader sets the epoch; producers write different values
    assert ours == theirs


@given(DATA)
@MANY
def test_kafka_python_reads_our_batches(kafka_python, strategies, data) -> None:
    run = data.draw(strategies.batch_runs(KAFKA_PYTHON_CODECS))
    theirs = []
    for batch in kafka_python.MemoryRecords(bytes(run)):
        assert batch.validate_crc()
        if not batch.is_control_batch:
            theirs += [
                (record.offset, record.timestamp, record.key, record.value, tuple(record.headers))
                for record in batch
            ]
    ours = []
    for position, header in iterate_batches(run):
        if not header.is_control:
            ours += [record[:5] for record in read_records(run, position, header)]
    assert theirs == ours


@given(DATA)
@MANY
def test_kafka_pythons_compressed_batch_is_read(kafka_python, strategies, data) -> None:
    records = data.draw(st.lists(strategies.records, min_size=1, max_size=6))
    codec = data.draw(st.sampled_from(KAFKA_PYTHON_CODECS))
    builder = kafka_python.DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 20)
    for offset, (timestamp_ms, key, value, headers) in enumerate(records):
        builder.append(offset, timestamp_ms, key, value, headers)
    theirs = builder.build()
    header = read_batch_header(theirs)
    verify_batch_crc(theirs, 0, header)
    assert [record[1:5] for record in read_records(theirs, 0, header)] == [
        (timestamp_ms, key, value, tuple(headers)) for timestamp_ms, key, value, headers in records
    ]


@given(st.binary(max_size=300), st.integers(1, 400))
@MANY
def test_codecs_are_kafka_pythons(kafka_python, piece: bytes, times: int) -> None:
    data = piece * times
    for codec, name in [
        (CompressionType.GZIP, "gzip"),
        (CompressionType.LZ4, "lz4"),
        (CompressionType.ZSTD, "zstd"),
    ]:
        encode = getattr(kafka_python.codec, f"{name}_encode")
        decode = getattr(kafka_python.codec, f"{name}_decode")
        assert decode(compress(codec, data)) == data
        assert decompress(codec, encode(data)) == data


@given(DATA)
@MANY
def test_kio_reads_our_uncompressed_batch_and_writes_it_again(strategies, data) -> None:
    # kio drops the milliseconds of timestamps, so these are whole seconds.
    records = [
        record._replace(timestamp_ms=record.timestamp_ms // 1000 * 1000)
        for record in data.draw(st.lists(strategies.records, min_size=1, max_size=6))
    ]
    ours = build_batch(records, base_offset=77, partition_leader_epoch=5)
    theirs, size = read_batch(bytes(ours), 0)
    assert size == len(ours)
    header = read_batch_header(ours)
    assert (theirs.base_offset, theirs.crc, theirs.max_timestamp) == (
        header.base_offset,
        header.crc,
        header.max_timestamp,
    )
    assert [
        (
            record.offset,
            int(record.timestamp.timestamp() * 1000),
            record.key,
            record.value,
            tuple((item.key.decode(), item.value) for item in record.headers),
        )
        for record in theirs.records
    ] == [record[:5] for record in read_records(ours, 0, header)]
    again = io.BytesIO()
    write_prepared_batch(again, theirs)
    assert again.getvalue() == ours
