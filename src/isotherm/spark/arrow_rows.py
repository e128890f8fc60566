"""Turns record columns into Arrow batches for Spark, with exactly the declared schema.

Spark compares types, order, names and nullability, and accepts no large, dictionary or view types.

Arrays are built from buffers, because `pa.array` and `pa.scalar` import pandas if it is installed.
That would cost a third of a second and 300 modules in every Python worker.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from isotherm.errors import InvalidTimestampError
from isotherm.record.columns import RecordColumns
from isotherm.types import Offset, TimestampMs, TopicPartition

ArrowArray: TypeAlias = "pa.Array[Any]"
ArrowField: TypeAlias = "pa.Field[Any]"

# Spark counts microseconds in 64 bits.
TIMESTAMP_MS_MAX = (2**63 - 1) // 1000

# Column of the source -> column of the decoder. The decoder always has topic, partition and
# timestamp type.
_DECODED = {
    "key": "key",
    "value": "value",
    "offset": "offset",
    "timestamp": "timestamp",
    "headers": "headers",
}


def decoded_columns(schema: pa.Schema) -> frozenset[str]:
    """The columns of the record decoder that rows of this schema need."""
    return frozenset(_DECODED[name] for name in schema.names if name in _DECODED)


def record_batch(
    columns: RecordColumns, topic_partition: TopicPartition, schema: pa.Schema
) -> pa.RecordBatch:
    """The rows of one decoded run of batches. Keys, values and headers are not copied."""
    arrays = [_column(columns, topic_partition, field) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(
    columns: RecordColumns, topic_partition: TopicPartition, field: ArrowField
) -> ArrowArray:
    match field.name:
        case "key":
            assert columns.key is not None
            return columns.key
        case "value":
            assert columns.value is not None
            return columns.value
        case "topic":
            return repeated(topic_partition.topic.encode(), columns.count, field.type)
        case "partition":
            partitions = np.full(columns.count, topic_partition.partition, np.int32)
            return numbers(partitions, field.type)
        case "offset":
            return numbers(columns.offset, field.type)
        case "timestamp":
            return _timestamps(columns, topic_partition, field.type)
        case "timestampType":
            return numbers(columns.timestamp_type.astype(np.int32), field.type)
        case _:
            assert columns.headers is not None
            return _headers(columns.headers, field.type)


def repeated(value: bytes, count: int, kind: pa.DataType) -> ArrowArray:
    """A column with the same string or binary in `count` rows. It must be smaller than 2 GiB."""
    assert len(value) * count < 2**31
    ends = np.arange(count + 1, dtype=np.int32) * len(value)
    buffers = [None, pa.py_buffer(ends.data), pa.py_buffer(value * count)]
    return pa.Array.from_buffers(kind, count, buffers)


def numbers(values: npt.NDArray[np.integer[Any]], kind: pa.DataType) -> ArrowArray:
    """A column that shares the memory of `values`, which must be contiguous and have the width of
    `kind`."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values.data)])


def _timestamps(
    columns: RecordColumns, topic_partition: TopicPartition, kind: pa.DataType
) -> ArrowArray:
    timestamp_ms = columns.timestamp_ms
    assert timestamp_ms is not None
    if kind == pa.int64():  # a table has its own column for times that are too far
        return numbers(timestamp_ms, kind)
    too_far = (timestamp_ms > TIMESTAMP_MS_MAX) | (timestamp_ms < -TIMESTAMP_MS_MAX)
    if too_far.any():
        at = int(np.argmax(too_far))
        raise malformed_timestamp(topic_partition, int(columns.offset[at]), int(timestamp_ms[at]))
    # -1, "no timestamp", becomes a time before 1970, as in the Kafka source.
    return numbers(timestamp_ms * 1000, kind)


def malformed_timestamp(
    topic_partition: TopicPartition, offset: Offset, timestamp_ms: TimestampMs
) -> InvalidTimestampError:
    """The error for a time outside Spark's range. Most often a producer has written microseconds or
    nanoseconds as milliseconds."""
    return InvalidTimestampError(
        f"Record at topic {topic_partition.topic} partition {topic_partition.partition} offset"
        f" {offset} has timestamp value {timestamp_ms} that overflows when converting to Spark's"
        " microsecond-precision TimestampType. hint='leave the record out with startingOffsets"
        " and endingOffsets, or read without the column timestamp'"
    )


def _headers(headers: pa.ListArray[Any], kind: pa.DataType) -> ArrowArray:
    """The column of headers, with Spark's field names. NULL for a record without headers."""
    assert isinstance(kind, pa.ListType)
    has_none = headers.value_lengths().to_numpy(zero_copy_only=False) == 0
    values: ArrowArray = headers.values.cast(kind.value_type)
    return pa.ListArray.from_arrays(headers.offsets, values, type=kind, mask=pa.array(has_none))
