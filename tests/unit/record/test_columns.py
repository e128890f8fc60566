"""Record batches decoded as columns. The oracle is the reader of single records."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from isotherm.errors import CorruptRecordError
from isotherm.record.batch import (
    HEADER_SIZE,
    CompressionType,
    NewRecord,
    Record,
    TimestampType,
    build_batch,
    read_batch_header,
    read_records,
)
from isotherm.record.batch_header import encode_batch
from isotherm.record.columns import COLUMNS, RecordColumns, decode_columns
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.record.crc32c import crc32c
from tests.support.filtered_batch import filtered_batch

NOW = 1_700_000_000_000
ABORT, COMMIT = ControlRecordType.ABORT, ControlRecordType.COMMIT


def batch_at(base_offset: int, count: int = 3, **fields) -> bytearray:
    records = [
        NewRecord(NOW + base_offset + index, b"k%d" % index, b"value")
        for index in range(base_offset, base_offset + count)
    ]
    return build_batch(records, base_offset=base_offset, **fields)


def transactional(base_offset: int, producer_id: int, count: int = 1) -> bytearray:
    return batch_at(
        base_offset,
        count,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )


def marker(marker_type: ControlRecordType, base_offset: int, producer_id: int) -> bytearray:
    return build_end_transaction_marker(
        marker_type,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=NOW,
        base_offset=base_offset,
    )


def rows(columns: RecordColumns) -> list[tuple]:
    for column in (columns.key, columns.value, columns.headers):
        assert column is not None
        column.validate(full=True)
    return [
        Record(offset, timestamp_ms, key, value, tuple((h["key"], h["value"]) for h in headers))
        for offset, timestamp_ms, key, value, headers in zip(
            columns.offset.tolist(),
            columns.timestamp_ms.tolist(),
            columns.key.to_pylist(),
            columns.value.to_pylist(),
            columns.headers.to_pylist(),
            strict=True,
        )
    ]


@pytest.mark.parametrize("codec", CompressionType, ids=lambda codec: codec.name)
def test_columns_hold_what_the_reader_reads(codec: CompressionType) -> None:
    records = [
        NewRecord(NOW, b"key", b"value", [("name", b"x"), ("näme", None), ("", b"")]),
        NewRecord(NOW - 9, None, b""),
        NewRecord(NOW + 10**9, b"", None, [("again", b"y")]),
    ]
    batch = build_batch(records, base_offset=2**40, compression=codec)
    columns = decode_columns(batch, columns=COLUMNS)
    assert rows(columns) == read_records(batch, 0, read_batch_header(batch))
    assert columns.count == 3
    assert columns.position_end == len(batch)
    assert columns.timestamp_type.tolist() == [0, 0, 0]


def test_keys_and_values_of_any_length_stay_apart() -> None:
    # The borders of varints' bytes, and of the blocks in which the kernel copies.
    sizes = [0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 300, 8191, 8192, 2**20, 2**20 + 1]
    times = [0, 63, 64, 8191, 8192, 2**20 - 1, 2**20, -(2**20), -(2**20) - 1, 2**40]
    written = [
        NewRecord(NOW + times[index % len(times)], bytes([1]) * size, bytes([2]) * other, headers)
        for index, (size, other, headers) in enumerate(
            (size, other, headers)
            for size in sizes
            for other, headers in ((size, ()), (3, [("name", b"x")]), (100, ()))
        )
    ]
    for base, records in ((0, written), (len(written), written[::-1])):
        batch = build_batch(records, base_offset=base)
        # A second batch, so that the last records of the first one have bytes behind them, too.
        columns = decode_columns(batch + batch_at(1000), columns=COLUMNS)
        read = read_records(batch, 0, read_batch_header(batch))
        assert rows(columns)[:-3] == read
        decoded = [(row.timestamp_ms, row.key, row.value, row.headers) for row in read]
        assert decoded == [(*record[:3], tuple(record.headers)) for record in records]
        assert columns.offset.tolist() == [*range(base, base + len(records)), 1000, 1001, 1002]


@pytest.mark.parametrize("bits", [0x01, 0x02, 0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("behind", [b"", batch_at(100)], ids=["last batch", "another behind"])
def test_damage_that_the_reader_sees_is_seen_in_columns(bits: int, behind: bytes) -> None:
    records = [
        NewRecord(NOW, b"key", b"v" * 9),
        NewRecord(NOW - 9, None, b"", [("n", b"x")]),
        NewRecord(NOW, b"k" * 70, None),
    ]
    batch = build_batch(records)
    for position in range(HEADER_SIZE, len(batch)):
        changed = bytearray(batch)
        changed[position] ^= bits
        try:
            expected = read_records(changed, 0, read_batch_header(changed))
        except CorruptRecordError:
            expected = None
        # Kafka's batches have these two, which the reader leaves to other checks.
        if expected and max(row.timestamp_ms for row in expected) != NOW:
            expected = None
        if expected and not all(0 <= row.offset <= 2 for row in expected):
            expected = None
        try:
            decoded = rows(decode_columns(changed + behind, columns=COLUMNS, verify_crc=False))
        except CorruptRecordError:
            decoded = None
        assert (decoded and decoded[:3]) == expected, position


def test_columns_have_the_types_that_arrow_users_expect() -> None:
    columns = decode_columns(batch_at(0), columns=COLUMNS)
    assert columns.offset.dtype == columns.timestamp_ms.dtype == np.int64
    assert columns.timestamp_type.dtype == np.int8
    assert isinstance(columns.key, pa.BinaryArray)
    assert isinstance(columns.value, pa.BinaryArray)
    assert columns.headers.type == pa.list_(
        pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    )


def test_columns_that_are_not_asked_for_are_none() -> None:
    columns = decode_columns(batch_at(0), columns=frozenset({"value"}))
    assert columns.key is None
    assert columns.headers is None
    assert columns.value.to_pylist() == [b"value"] * 3
    assert columns.offset.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="keys"):
        decode_columns(b"", columns=frozenset({"keys"}))


@pytest.mark.parametrize("buffer", [b"", bytes(11), batch_at(0)[:-1]])
def test_columns_of_nothing_complete_are_empty(buffer: bytes) -> None:
    columns = decode_columns(buffer, columns=COLUMNS)
    assert (columns.count, columns.position_end) == (0, 0)
    assert rows(columns) == []


def test_partial_batch_at_the_end_is_left() -> None:
    run = batch_at(0) + batch_at(3)
    columns = decode_columns(run + batch_at(6)[:-1])
    assert columns.offset.tolist() == [0, 1, 2, 3, 4, 5]
    assert columns.position_end == len(run)


def test_append_time_is_every_records_timestamp() -> None:
    run = batch_at(0) + batch_at(
        3, timestamp_type=TimestampType.LOG_APPEND_TIME, max_timestamp=NOW + 77
    )
    columns = decode_columns(run)
    assert columns.timestamp_ms.tolist() == [NOW, NOW + 1, NOW + 2] + [NOW + 77] * 3
    assert columns.timestamp_type.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.LZ4])
@pytest.mark.parametrize(
    ("start", "end"), [(0, 12), (2, 7), (3, 6), (4, 5), (5, 5), (6, 3), (11, 99), (12, 99)]
)
def test_offset_range_is_half_open(codec: CompressionType, start: int, end: int) -> None:
    run = b"".join(batch_at(base, compression=codec) for base in range(0, 12, 3))
    columns = decode_columns(run, offset_range=(start, end), columns=COLUMNS)
    assert columns.offset.tolist() == list(range(start, min(end, 12)))
    assert [row.key for row in rows(columns)] == [b"k%d" % o for o in columns.offset.tolist()]
    assert columns.position_end == len(run)


def test_holes_that_compaction_left_are_kept() -> None:
    emptied = filtered_batch(batch_at(5), [])
    run = filtered_batch(batch_at(0, 5), [1, 4], delete_horizon_ms=NOW * 2) + emptied + batch_at(8)
    columns = decode_columns(run)
    assert columns.offset.tolist() == [1, 4, 8, 9, 10]
    assert columns.timestamp_ms.tolist()[:2] == [NOW + 1, NOW + 4]
    assert columns.position_end == len(run)


def test_control_records_are_left_out() -> None:
    run = transactional(0, 7) + marker(COMMIT, 1, 7) + batch_at(2)
    assert decode_columns(run).offset.tolist() == [0, 2, 3, 4]


TRANSACTIONS = (
    transactional(0, producer_id=1)
    + transactional(1, producer_id=2)
    + batch_at(2, 1)
    + marker(ABORT, 3, producer_id=1)
    + transactional(4, producer_id=1)
    + marker(COMMIT, 5, producer_id=2)
    + transactional(6, producer_id=2)
    + marker(COMMIT, 7, producer_id=1)
    + marker(ABORT, 8, producer_id=2)
    + transactional(9, producer_id=2)
)


@pytest.mark.parametrize(
    "aborted", [[(1, 0), (2, 6)], [(2, 6), (1, 0)], [(1, 0, 3, 0), (2, 6, 8, 4)]]
)
def test_aborted_transactions_are_left_out(aborted: list[tuple[int, ...]]) -> None:
    assert decode_columns(TRANSACTIONS).offset.tolist() == [0, 1, 2, 4, 6, 9]
    assert decode_columns(TRANSACTIONS, aborted=aborted).offset.tolist() == [1, 2, 4, 9]


def test_aborted_transaction_with_known_end_needs_no_marker_in_the_buffer() -> None:
    later = TRANSACTIONS[TRANSACTIONS.index(marker(ABORT, 3, 1)) + 78 :]
    assert decode_columns(later).offset.tolist() == [4, 6, 9]
    assert decode_columns(later, aborted=[(1, 0, 3, 0)]).offset.tolist() == [4, 6, 9]


def test_call_ends_before_the_batch_that_is_too_much() -> None:
    run = b"".join(
        batch_at(base, compression=CompressionType.GZIP if base % 2 else CompressionType.NONE)
        for base in range(0, 30, 3)
    )
    payload_size = len(batch_at(0)) - 61
    offsets = []
    position = 0
    calls = 0
    while position < len(run):
        columns = decode_columns(memoryview(run)[position:], decoded_size_max=2 * payload_size + 9)
        offsets += columns.offset.tolist()
        position += columns.position_end
        calls += 1
    assert offsets == list(range(30))
    assert calls == 5
    # The first batch is decoded whatever its size.
    assert decode_columns(run, decoded_size_max=1).count == 3
    assert decode_columns(run[: len(batch_at(0)) * 1], decoded_size_max=1).count == 3


def test_crc_is_verified_by_default() -> None:
    run = batch_at(0) + batch_at(3)
    run[-2] ^= 1
    with pytest.raises(CorruptRecordError, match=r"fails its crc .*base_offset=3"):
        decode_columns(run)
    assert decode_columns(run, verify_crc=False).count == 6


def test_crc_of_batches_outside_the_range_is_not_verified() -> None:
    run = batch_at(0) + batch_at(3) + batch_at(6)
    size = len(batch_at(0))
    run[size - 2] ^= 1
    run[-2] ^= 1
    assert decode_columns(run, offset_range=(3, 6)).offset.tolist() == [3, 4, 5]
    for overlapping in [(2, 6), (3, 7)]:
        with pytest.raises(CorruptRecordError, match="fails its crc"):
            decode_columns(run, offset_range=overlapping)


def test_crc_of_a_marker_outside_the_range_is_verified() -> None:
    run = bytearray(TRANSACTIONS)
    run[run.index(marker(ABORT, 3, producer_id=1)) + 77] ^= 1
    assert decode_columns(run, offset_range=(4, 10)).offset.tolist() == [4, 6, 9]
    with pytest.raises(CorruptRecordError, match="base_offset=3"):
        decode_columns(run, offset_range=(4, 10), aborted=[(1, 0)])


@pytest.mark.parametrize("position", [22, 60], ids=["control flag", "count"])
def test_crc_of_batches_without_a_record_to_give_is_verified(position: int) -> None:
    run = batch_at(0, 1)
    run[position] ^= {22: 0x20, 60: 1}[position]
    with pytest.raises(CorruptRecordError, match="fails its crc"):
        decode_columns(run)


def test_offsets_that_go_back_are_corrupt() -> None:
    with pytest.raises(CorruptRecordError, match="base_offset=2"):
        decode_columns(batch_at(0) + batch_at(2))


def test_damaged_header_is_corrupt() -> None:
    run = batch_at(0) + batch_at(3)
    run[len(batch_at(0)) + 16] = 1
    with pytest.raises(CorruptRecordError, match="magic=1"):
        decode_columns(run)


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.ZSTD])
@pytest.mark.parametrize("count", [1, 2, 4, 5, 2**31 - 1])
def test_wrong_count_is_corrupt_and_costs_no_memory(codec: CompressionType, count: int) -> None:
    batch = batch_at(0, 3, compression=codec)
    decode_columns(batch, columns=COLUMNS)  # load the kernels first: their memory must not count
    struct.pack_into(">i", batch, 57, count)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecordError, match="base_offset=0"):
            decode_columns(batch, columns=COLUMNS)
        with pytest.raises(CorruptRecordError, match="base_offset=0"):
            decode_columns(batch, columns=frozenset({"timestamp"}))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * 1024 * 1024  # includes the interpreter's own; the count claims gigabytes


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.ZSTD])
def test_offsets_alone_come_from_the_headers(codec: CompressionType) -> None:
    run = batch_at(0, 3, compression=codec) + batch_at(5, 2, compression=codec)
    for position in (61, len(run) - 1):
        run[position] ^= 0xFF
    columns = decode_columns(run, columns=frozenset(), offset_range=(1, 6), verify_crc=False)
    assert columns.offset.tolist() == [1, 2, 5]
    assert columns.timestamp_type.tolist() == [0, 0, 0]
    assert columns.timestamp_ms is None
    with pytest.raises(CorruptRecordError, match="fails its crc"):
        decode_columns(run, columns=frozenset())
    with pytest.raises(CorruptRecordError):
        decode_columns(run, columns=frozenset({"timestamp"}), verify_crc=False)


def test_append_times_come_from_the_headers() -> None:
    run = batch_at(0, 3, timestamp_type=TimestampType.LOG_APPEND_TIME, max_timestamp=NOW + 2)
    run[61] ^= 0xFF
    columns = decode_columns(run, columns=frozenset({"timestamp"}), verify_crc=False)
    assert columns.timestamp_ms is not None
    assert columns.timestamp_ms.tolist() == [NOW + 2] * 3
    assert columns.timestamp_type.tolist() == [1, 1, 1]


def test_offsets_of_a_batch_with_holes_are_those_of_its_records() -> None:
    run = filtered_batch(batch_at(0, 5), {1, 4})
    assert decode_columns(run, columns=frozenset()).offset.tolist() == [1, 4]


def test_headers_that_tell_all_cost_no_more_rows_than_asked_for() -> None:
    run = b"".join(batch_at(start, 100) for start in range(0, 1000, 100))
    assert decode_columns(run, columns=frozenset(), decoded_size_max=17 * 250).count == 200
    assert decode_columns(run, columns=frozenset(), decoded_size_max=1).count == 100


def test_bomb_is_corrupt() -> None:
    batch = build_batch([NewRecord(NOW, None, bytes(10**6))], compression=CompressionType.ZSTD)
    with pytest.raises(CorruptRecordError, match="exceed the decompressed size limit"):
        decode_columns(batch, decompressed_size_max=10**5)


def test_header_name_that_is_not_utf8_is_shown_with_replacement_characters() -> None:
    batch = build_batch([NewRecord(NOW, b"k", b"v", [("name", b"v"), ("é", None)])])
    batch[batch.index(b"name")] = 0xFF
    columns = decode_columns(batch, columns=COLUMNS, verify_crc=False)
    assert rows(columns) == read_records(batch, 0, read_batch_header(batch))
    assert rows(columns)[0].headers == (("�ame", b"v"), ("é", None))


def test_columns_outlive_the_buffer() -> None:
    batch = batch_at(0)
    columns = decode_columns(batch, columns=COLUMNS)
    expected = rows(columns)
    batch[:] = bytes(len(batch))
    batch.clear()  # fails if a view of the buffer is left
    assert rows(columns) == expected


@pytest.mark.parametrize("columns", [COLUMNS, frozenset({"timestamp"})])
@pytest.mark.parametrize("timestamp_ms", [-(2**63), -2, -1, 0])
def test_batch_without_a_timestamp_above_that_of_no_time_has_that(
    columns: frozenset[str], timestamp_ms: int
) -> None:
    """Kafka's writers begin with NO_TIMESTAMP when they look for the largest timestamp."""
    batch = build_batch([NewRecord(timestamp_ms, None, b"v")])
    assert read_batch_header(batch).max_timestamp == max(timestamp_ms, -1)
    decoded = decode_columns(batch, columns=columns).timestamp_ms
    assert decoded is not None
    assert decoded.tolist() == [timestamp_ms]


@pytest.mark.parametrize("columns", [COLUMNS, frozenset({"timestamp"})])
@pytest.mark.parametrize(
    ("fields", "changed"),
    [
        ({}, {"max_timestamp": NOW + 1}),
        ({}, {"base_timestamp": NOW - 1}),
        (
            {"timestamp_type": TimestampType.LOG_APPEND_TIME, "max_timestamp": NOW + 77},
            {"attributes": 0},
        ),
    ],
)
def test_batch_with_another_largest_timestamp_than_its_records_is_damage(
    columns: frozenset[str], fields: dict, changed: dict
) -> None:
    sound = batch_at(0, **fields)
    header = read_batch_header(sound)._replace(**changed)
    with pytest.raises(CorruptRecordError, match="another largest timestamp"):
        decode_columns(encode_batch(header, bytes(sound[HEADER_SIZE:])), columns=columns)


@pytest.mark.parametrize("columns", [COLUMNS, frozenset({"timestamp"})])
def test_record_behind_the_last_offset_of_its_batch_is_damage(columns: frozenset[str]) -> None:
    sound = batch_at(0)
    header = read_batch_header(sound)._replace(last_offset_delta=1)
    with pytest.raises(CorruptRecordError, match="record is damaged record_index=2"):
        decode_columns(encode_batch(header, bytes(sound[HEADER_SIZE:])), columns=columns)
