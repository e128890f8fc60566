"""Batches from Arrow columns. The oracle is aiokafka's reader and partitioner, and zlib's CRC;
tests/oracle gives whole segments to Kafka's own tool."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.partitioner import murmur2
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import example, given
from hypothesis import strategies as st

from isotherm.errors import RecordTooLargeError
from isotherm.record.compression import CompressionType
from isotherm.record.encode import Partitioner, assign_partitions, encode_batches

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
NULLABLE = st.none() | st.binary(max_size=200)
ROW = st.fixed_dictionaries(
    {
        "key": NULLABLE,
        "value": NULLABLE,
        "timestamp": st.integers(-1, 2**41) | st.just(2**62),
        "timestamp_type": st.sampled_from([0, 0, 0, 1]),
        "headers": st.none()
        | st.lists(st.fixed_dictionaries({"key": st.text(max_size=5), "value": NULLABLE})),
    }
)
CODECS = st.sampled_from(CompressionType)


def columns_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([row.get("key") for row in rows], pa.binary()),
            pa.array([row.get("value") for row in rows], pa.binary()),
            pa.array([row.get("timestamp", 0) for row in rows], pa.int64()),
            pa.array([row.get("timestamp_type", 0) for row in rows], pa.int8()),
            pa.array([row.get("headers") for row in rows], HEADERS),
        ],
        names=["key", "value", "timestamp", "timestamp_type", "headers"],
    )


def encoded(rows: pa.RecordBatch, codec: CompressionType, batch_size: int) -> memoryview:
    return encode_batches(
        rows,
        1000,
        3,
        compression=codec,
        batch_size=batch_size,
        max_message_bytes=1 << 20,
    ).records


def read_by_aiokafka(data: memoryview) -> list[dict[str, Any]]:
    records = MemoryRecords(bytes(data))
    read: list[dict[str, Any]] = []
    while (batch := records.next_batch()) is not None:
        assert batch.validate_crc()
        read += [
            {
                "offset": record.offset,
                "key": record.key,
                "value": record.value,
                "timestamp": record.timestamp,
                "timestamp_type": record.timestamp_type,
                "headers": [{"key": name, "value": value} for name, value in record.headers],
            }
            for record in batch
        ]
    return read


@given(st.lists(ROW, min_size=1, max_size=40), CODECS, st.integers(1, 2000), st.integers(0, 3))
@example([{"timestamp": 2**62}, {"timestamp": -1}], CompressionType.NONE, 2000, 0)
def test_another_reader_gets_the_rows(
    rows: list[dict[str, Any]], codec: CompressionType, batch_size: int, skipped: int
) -> None:
    # A slice has offsets that do not begin at 0.
    table = columns_of(rows).slice(skipped)
    if not len(table):
        return
    expected = [
        {
            "offset": 1000 + number,
            "key": row.get("key"),
            "value": row.get("value"),
            "timestamp": row["timestamp"],
            "timestamp_type": row.get("timestamp_type", 0),
            "headers": row.get("headers") or [],
        }
        for number, row in enumerate(rows[skipped:])
    ]
    assert read_by_aiokafka(encoded(table, codec, batch_size)) == expected


def test_a_batch_ends_before_it_is_larger_than_the_batch_size() -> None:
    table = columns_of([{"value": bytes(100)}] * 1000)
    result = encode_batches(
        table, 0, 0, compression=CompressionType.NONE, batch_size=1000, max_message_bytes=1 << 20
    )
    sizes = result.batches["size"]
    assert sizes.max() <= 1000
    # One more record of 107 bytes would not fit into any but the last one.
    assert (sizes[:-1] > 1000 - 110).all()


def test_a_record_larger_than_the_limit_is_named() -> None:
    table = columns_of([{"value": b"small"}, {"value": bytes(3000)}])
    with pytest.raises(RecordTooLargeError, match="offset=8 size=30"):
        encode_batches(
            table, 7, 0, compression=CompressionType.NONE, batch_size=1000, max_message_bytes=2000
        )


@given(st.lists(st.binary(max_size=40), min_size=1), st.integers(1, 50))
def test_partitions_are_those_of_the_clients(keys: list[bytes], count: int) -> None:
    def assigned(partitioner: Partitioner) -> list[int]:
        return assign_partitions(
            pa.array(keys, pa.binary()),
            pa.array(keys, pa.binary()),
            partitioner,
            count,
            run_size=1,
            sticky=np.zeros(2, dtype=np.int64),
        ).tolist()

    assert assigned(Partitioner.MURMUR2) == [(murmur2(k) & 0x7FFFFFFF) % count for k in keys]
    assert assigned(Partitioner.CONSISTENT) == [zlib.crc32(k) % count for k in keys]


def test_rows_without_keys_stay_in_a_partition_for_a_run() -> None:
    values = pa.array([bytes(9)] * 25, pa.binary())
    sticky = np.array([1, 0], dtype=np.int64)
    partitions = assign_partitions(
        pa.nulls(25, pa.binary()), values, Partitioner.MURMUR2, 3, run_size=100, sticky=sticky
    )
    assert partitions.tolist() == [1] * 10 + [2] * 10 + [0] * 5
    assert sticky.tolist() == [0, 50]
