"""What is written can be read, by the reader of records and as columns."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.config.topic import TopicConfig
from isotherm.record.batch import (
    CompressionType,
    Record,
    build_batch,
    iterate_batches,
    read_batch_header,
    read_records,
    verify_batch_crc,
)
from isotherm.record.columns import COLUMNS, RecordColumns, decode_columns
from isotherm.record.compression import compress, decompress
from isotherm.record.validation import validate_and_assign_offsets
from isotherm.record.varint import read_varint, read_varlong, write_varint, write_varlong
from isotherm.types import TopicPartition
from tests.support.filtered_batch import filtered_batch

DATA = st.data()
MANY = settings(max_examples=100)


def rows(columns: RecordColumns) -> list[tuple]:
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


def listed(column) -> list:
    return [] if column is None else column.tolist()


@given(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=3))
def test_varint_comes_back(value: int, before: bytes) -> None:
    out = bytearray(before)
    write_varint(out, value)
    assert read_varint(out, len(before)) == (value, len(out))


@given(st.integers(-(2**63), 2**63 - 1))
def test_varlong_comes_back(value: int) -> None:
    out = bytearray()
    write_varlong(out, value)
    assert read_varlong(out) == (value, len(out))


@given(st.sampled_from(CompressionType), st.binary(max_size=300), st.integers(1, 400))
@MANY
def test_compressed_data_comes_back(codec: CompressionType, piece: bytes, times: int) -> None:
    data = piece * times
    assert decompress(codec, compress(codec, data), len(data)) == data


@given(DATA)
@MANY
def test_batch_comes_back(strategies, data) -> None:
    records = data.draw(st.lists(strategies.records, min_size=1, max_size=6))
    batch = build_batch(records, compression=data.draw(st.sampled_from(CompressionType)))
    header = read_batch_header(batch)
    verify_batch_crc(batch, 0, header)
    assert [record[1:5] for record in read_records(batch, 0, header)] == [
        (timestamp_ms, key, value, tuple(headers)) for timestamp_ms, key, value, headers in records
    ]


@given(DATA)
@MANY
def test_columns_are_what_the_reader_reads(strategies, data) -> None:
    run = data.draw(strategies.batch_runs())
    start = data.draw(st.integers(0, 2**41))
    batches = list(iterate_batches(run))
    if batches and data.draw(st.booleans()):
        start = batches[0][1].base_offset + data.draw(st.integers(0, 20))
    end = start + data.draw(st.integers(0, 20) | st.just(2**50))
    expected: list[Record] = []
    for position, header in batches:
        if not header.is_control:
            expected += read_records(run, position, header)
    everything = decode_columns(run, columns=COLUMNS)
    assert rows(everything) == [record[:5] for record in expected]
    assert everything.position_end == len(run)
    ranged = decode_columns(run, columns=COLUMNS, offset_range=(start, end))
    assert rows(ranged) == [record[:5] for record in expected if start <= record.offset < end]


@given(DATA)
@MANY
def test_fewer_columns_and_smaller_steps_give_the_same_rows(strategies, data) -> None:
    run = data.draw(strategies.batch_runs())
    batches = list(iterate_batches(run))
    start = data.draw(st.sampled_from([header.base_offset + 1 for _, header in batches] or [0]))
    offset_range = (start, start + data.draw(st.integers(0, 20) | st.just(2**50)))
    wanted = data.draw(st.frozensets(st.sampled_from(sorted(COLUMNS))))
    everything = decode_columns(run, columns=COLUMNS, offset_range=offset_range)
    size_max = data.draw(st.integers(1, 2000))
    parts: list[RecordColumns] = []
    rest = memoryview(run)
    while len(rest):
        part = decode_columns(
            rest, columns=wanted, offset_range=offset_range, decoded_size_max=size_max
        )
        assert part.position_end > 0
        rest = rest[part.position_end :]
        parts.append(part)
    assert parts[-1].next_offset == everything.next_offset if parts else not len(run)
    for name in ("offset", "timestamp_ms", "timestamp_type", "key", "value", "headers"):
        column = name.removesuffix("_ms")
        found = [value for part in parts if part.count for value in listed(getattr(part, name))]
        if column in wanted or name in ("offset", "timestamp_type"):
            assert found == listed(getattr(everything, name))
        else:
            assert all(getattr(part, name) is None for part in parts)


@given(DATA)
@MANY
def test_filtered_batch_holds_what_was_retained(strategies, data) -> None:
    records = data.draw(st.lists(strategies.records, min_size=1, max_size=6))
    batch = build_batch(
        records, base_offset=9, compression=data.draw(st.sampled_from(CompressionType))
    )
    header = read_batch_header(batch)
    kept = data.draw(st.sets(st.integers(0, len(records) - 1)))
    retained = [read_records(batch, 0, header)[index] for index in sorted(kept)]
    horizon = data.draw(st.none() | st.integers(0, 2**42))
    rebuilt = filtered_batch(batch, kept, delete_horizon_ms=horizon)
    again = read_batch_header(rebuilt)
    verify_batch_crc(rebuilt, 0, again)
    assert read_records(rebuilt, 0, again) == retained
    assert (again.base_offset, again.next_offset) == (header.base_offset, header.next_offset)
    assert again.delete_horizon_ms == (horizon if retained else None)


@given(DATA)
@MANY
def test_validated_batch_holds_the_same_records_at_the_next_offsets(strategies, data) -> None:
    records = data.draw(st.lists(strategies.records, min_size=1, max_size=6))
    batch = build_batch(records, compression=data.draw(st.sampled_from(CompressionType)))
    next_offset = data.draw(st.integers(0, 2**50))
    config = TopicConfig(
        compression_type=data.draw(st.sampled_from(["producer", "zstd", "none", "snappy"])),
        message_timestamp_after_max_ms=2**62,
    )
    validated = validate_and_assign_offsets(
        batch,
        TopicPartition("t", 0),
        config=config,
        next_offset=next_offset,
        leader_epoch=3,
        now_ms=2**41,
    )
    [header] = validated.batch_headers
    stored = read_records(validated.records, 0, header)
    assert [record[1:5] for record in stored] == [
        (timestamp_ms, key, value, tuple(headers)) for timestamp_ms, key, value, headers in records
    ]
    assert [record.offset for record in stored] == [
        next_offset + index for index in range(len(records))
    ]
    assert validated.last_offset == stored[-1].offset
    largest_ms = max(record.timestamp_ms for record in stored)
    assert validated.max_timestamp == header.max_timestamp == largest_ms
