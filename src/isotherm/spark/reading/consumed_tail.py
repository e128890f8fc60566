"""Reads the tail of a partition with a librdkafka consumer, for connections that only it can make.

The client makes one object per record, and message_columns turns these into columns. It cannot give
a header whose name is not UTF-8, and ends a name at its first NUL (docs/decisions/0190).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
)
from confluent_kafka import TopicPartition as ClientTopicPartition

from isotherm.client.broker_probe import QUIET_CLIENT, check_brokers
from isotherm.clock import Clock
from isotherm.errors import OffsetOutOfRangeError, RequestTimedOutError, RetriableError
from isotherm.spark.plan.planning import BrokerRead
from isotherm.spark.reading.message_columns import message_batch, offsets_of
from isotherm.types import Offset

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
        reached = max(_reached(each, read) for each in messages)
        messages = [each for each in messages if each.error() is None]
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
