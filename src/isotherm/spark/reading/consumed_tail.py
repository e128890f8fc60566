"""Reads the tail of a partition with a librdkafka consumer, for connections that only it can make.

The client makes one object per record, and each field of it is a call. One `map` over the messages
makes a column, so no Python code runs for each message: a field costs some 40 ns. The Arrow buffers
are built by hand; arrow_rows gives the reason.

The client cannot give a header whose name is not UTF-8, and ends a name at its first NUL
(docs/decisions/0190).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
)
from confluent_kafka import TopicPartition as ClientTopicPartition

from isotherm.client.broker_probe import QUIET_CLIENT, check_brokers
from isotherm.client.record_headers import unreadable_name
from isotherm.clock import Clock
from isotherm.errors import OffsetOutOfRangeError, RequestTimedOutError, RetriableError
from isotherm.spark.arrow_rows import (
    TIMESTAMP_MS_MAX,
    ArrowArray,
    malformed_timestamp,
    numbers,
    repeated,
)
from isotherm.spark.plan.planning import BrokerRead
from isotherm.types import Offset, TopicPartition

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
        is_valid = np.fromiter((value is not None for value in values), np.bool_, len(values))
        validity = _buffer(np.packbits(is_valid, bitorder="little"))
        texts = [b"" if value is None else value for value in values]
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
    lists = [header or () for header in headers]
    pairs = list(itertools.chain.from_iterable(lists))
    fields = kind.value_type
    names = [name.encode() for name, _ in pairs]
    values = [value for _, value in pairs]
    columns = [_binary(names, fields.field(0).type), _binary(values, fields.field(1).type)]
    items = pa.StructArray.from_arrays(columns, fields=list(fields))
    has_some = np.fromiter(map(bool, lists), np.bool_, len(lists))
    validity = _buffer(np.packbits(has_some, bitorder="little"))
    return _from_buffers(kind, len(lists), [validity, _ends(lists, len(lists))], children=[items])


_RECORDS_PER_POLL = 10_000
# consume() returns after this many records or this time. The last poll takes the whole time if the
# offsets at the end have no record.
_POLL_S = 0.1
_PARTITION_EOF = KafkaError._PARTITION_EOF
_LOST = (
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)


def consume_tail(
    read: BrokerRead,
    properties: Mapping[str, Any],
    schema: pa.Schema,
    *,
    clock: Clock,
    batch_bytes: int,
    poll_timeout_ms: int,
) -> Generator[pa.RecordBatch, None, None]:
    """As `tail.read_tail`. A header whose name is not UTF-8 raises RejectedError.

    Offsets without a record (control batches, compaction, aborted transactions) are skipped. So the
    end is reached at a record at or beyond it, or at the partition's end.
    """
    # Without this check a read took minutes to fail at an unreachable broker, and gave no reason.
    check_brokers(properties)
    consumer = Consumer({**QUIET_CLIENT, **properties})
    partition = read.topic_partition
    with closing(consumer):
        # Not `subscribe`, which would join a group: every task reads its own range.
        consumer.assign(
            [ClientTopicPartition(partition.topic, partition.partition, read.start_offset)]
        )
        yield from _read_assigned(consumer, read, schema, clock, batch_bytes, poll_timeout_ms)


def _read_assigned(
    consumer: Consumer,
    read: BrokerRead,
    schema: pa.Schema,
    clock: Clock,
    batch_bytes: int,
    poll_timeout_ms: int,
) -> Iterator[pa.RecordBatch]:
    waiting: list[Message] = []
    size = 0
    reached = read.start_offset
    heard_s = clock.monotonic_s()
    while reached < read.end_offset:
        count = min(_RECORDS_PER_POLL, read.end_offset - reached)
        messages = consumer.consume(count, _POLL_S)
        if messages:
            heard_s = clock.monotonic_s()
            reached, records = _settled(messages, read)
            waiting += records
            size += sum(map(len, records))
        elif clock.monotonic_s() - heard_s > poll_timeout_ms / 1000:
            raise RequestTimedOutError(
                f"brokers sent no record in time {_place(read)} reached={reached}"
                f" timeout_ms={poll_timeout_ms}"
            )
        if size >= batch_bytes or (waiting and reached >= read.end_offset):
            yield message_batch(waiting, read.topic_partition, schema)
            waiting, size = [], 0


def _settled(messages: Sequence[Message], read: BrokerRead) -> tuple[Offset, Sequence[Message]]:
    """The offset after these messages (at least one), and the messages that are records of the
    read. Only if one is an error does Python code run for each."""
    reached = _reached(messages[-1], read)
    if any(map(Message.error, messages)):
        # The reported end of the partition may be older than the records in the same answer.
        reached = max(_reached(message, read) for message in messages)
        messages = [message for message in messages if message.error() is None]
    if reached > read.end_offset:
        within = int(np.searchsorted(offsets_of(messages), read.end_offset))
        messages = messages[:within]
    return reached, messages


def _reached(message: Message, read: BrokerRead) -> Offset:
    """The offset after this message, or the partition's end if the message reports that."""
    error = message.error()
    offset = message.offset()
    if offset is not None and error is None:
        return offset + 1
    if offset is not None and error is not None and error.code() == _PARTITION_EOF:
        return offset
    assert error is not None, "a record has an offset"
    if error.code() in _LOST:
        raise OffsetOutOfRangeError(
            f"brokers no longer have the records {_place(read)} reason={error.str()!r}"
        )
    raise RetriableError(
        f"brokers cannot be read {_place(read)} reason={error.str()!r}"
    ) from KafkaException(error)


def _place(read: BrokerRead) -> str:
    return (
        f"topic={read.topic_partition.topic} partition={read.topic_partition.partition}"
        f" start_offset={read.start_offset} end_offset={read.end_offset}"
    )
