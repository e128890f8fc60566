"""Arrow columns of the messages that librdkafka's Python client delivers.

A message is an object, and each of its fields is a call. One `map` over the messages makes a
column, so no Python code runs for each message: a field costs some 40 ns. The Arrow buffers are
built by hand; arrow_rows gives the reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from isotherm.client.record_headers import unreadable_name
from isotherm.spark.arrow_rows import (
    TIMESTAMP_MS_MAX,
    ArrowArray,
    malformed_timestamp,
    numbers,
    repeated,
)
from isotherm.types import TopicPartition

# The stubs do not know arrays of NumPy.
_buffer: Any = pa.py_buffer
_from_buffers: Callable[..., ArrowArray] = pa.Array.from_buffers

Times: TypeAlias = npt.NDArray[np.int64]
_TIMES = {"timestamp", "timestampType"}


def message_batch(
    messages: Sequence[Message], place: TopicPartition, schema: pa.Schema
) -> pa.RecordBatch:
    """The rows of messages of one partition, none of which is an error.

    Raises InvalidTimestampError for a time that the column cannot hold, and RejectedError for a
    header whose name is not UTF-8.
    """
    times = _times(messages) if _TIMES & {*schema.names} else None
    arrays = [_column(messages, place, times, field.name, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def offsets_of(messages: Sequence[Message]) -> npt.NDArray[np.int64]:
    return np.fromiter(map(Message.offset, messages), np.int64, len(messages))


def _column(
    messages: Sequence[Message],
    place: TopicPartition,
    times: Times | None,
    name: str,
    kind: pa.DataType,
) -> ArrowArray:
    match name:
        case "key":
            return _binary(list(map(Message.key, messages)), kind)
        case "value":
            return _binary(list(map(Message.value, messages)), kind)
        case "topic":
            return repeated(place.topic.encode(), len(messages), kind)
        case "partition":
            return numbers(np.full(len(messages), place.partition, np.int32), kind)
        case "offset":
            return numbers(offsets_of(messages), kind)
        case "timestamp":
            assert times is not None
            return _timestamps(messages, times[:, 1], place, kind)
        case "timestampType":
            assert times is not None
            return numbers(_timestamp_types(times[:, 0]), kind)
        case _:
            assert isinstance(kind, pa.ListType)
            return _headers(_headers_of(messages, place), kind)


def _times(messages: Sequence[Message]) -> Times:
    """The timestamp type and the milliseconds of each message, as two columns."""
    flat = itertools.chain.from_iterable(map(Message.timestamp, messages))
    return np.fromiter(flat, np.int64, 2 * len(messages)).reshape(-1, 2)


def _timestamps(
    messages: Sequence[Message], times_ms: Times, place: TopicPartition, kind: pa.DataType
) -> ArrowArray:
    milliseconds = np.ascontiguousarray(times_ms)
    if kind == pa.int64():  # tables read plain milliseconds, and keep times beyond Spark's range
        return numbers(milliseconds, kind)
    too_far = (milliseconds > TIMESTAMP_MS_MAX) | (milliseconds < -TIMESTAMP_MS_MAX)
    if too_far.any():
        at = int(np.argmax(too_far))
        raise malformed_timestamp(place, messages[at].offset() or 0, int(milliseconds[at]))
    return numbers(milliseconds * 1000, kind)


def _timestamp_types(kinds: Times) -> npt.NDArray[np.int32]:
    types: npt.NDArray[np.int32] = (kinds == TIMESTAMP_LOG_APPEND_TIME).astype(np.int32)
    types[kinds == TIMESTAMP_NOT_AVAILABLE] = -1
    return types


def _binary(values: Sequence[str | bytes | None], kind: pa.DataType) -> ArrowArray:
    texts: Iterable[Any] = values
    validity = None
    if None in values:
        is_valid = np.fromiter((each is not None for each in values), np.bool_, len(values))
        validity = _buffer(np.packbits(is_valid, bitorder="little"))
        texts = [b"" if each is None else each for each in values]
    joined = b"".join(texts)
    return _from_buffers(kind, len(values), [validity, _ends(texts, len(values)), _buffer(joined)])


def _ends(sequences: Iterable[Any], count: int) -> Any:
    """Arrow's offsets buffer of sequences that are stored one after another."""
    ends = np.zeros(count + 1, np.int64)
    np.cumsum(np.fromiter(map(len, sequences), np.int64, count), out=ends[1:])
    assert ends[-1] < 2**31, "a batch is bounded"
    return _buffer(ends.astype(np.int32))


def _headers_of(messages: Sequence[Message], place: TopicPartition) -> list[Any]:
    headers: list[Any] = []
    try:
        # Called from C, which checks for errors (isotherm.client.record_headers).
        headers.extend(map(Message.headers, messages))
    except SystemError as error:
        raise unreadable_name(place, messages[len(headers)].offset() or 0) from error
    return headers


def _headers(headers: Sequence[Any], kind: pa.ListType[Any]) -> ArrowArray:
    """The column of headers: NULL for a record without headers, as in the Kafka source."""
    lists = [each or () for each in headers]
    pairs = list(itertools.chain.from_iterable(lists))
    fields = kind.value_type
    names = [name.encode() for name, _ in pairs]
    values = [value for _, value in pairs]
    columns = [_binary(names, fields.field(0).type), _binary(values, fields.field(1).type)]
    items = pa.StructArray.from_arrays(columns, fields=list(fields))
    has_some = np.fromiter(map(bool, lists), np.bool_, len(lists))
    validity = _buffer(np.packbits(has_some, bitorder="little"))
    return _from_buffers(kind, len(lists), [validity, _ends(lists, len(lists))], children=[items])
