"""Reads the tail of a partition, which is only on the brokers, with a librdkafka consumer.

The client makes one object per record, and message_columns turns these into columns. It is slower
than the bucket, but reads only records that are not in the bucket yet.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
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

from isotherm.clock import Clock
from isotherm.config.client_security import librdkafka_properties
from isotherm.errors import OffsetOutOfRangeError, RequestTimedOutError, RetriableError
from isotherm.protocol.broker_probe import QUIET_CLIENT, check_brokers
from isotherm.spark.plan.planning import BrokerRead
from isotherm.spark.reading.message_columns import message_batch, offsets_of
from isotherm.types import Offset

_logger = logging.getLogger(__name__)

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


def consumer_properties(
    kafka_properties: Mapping[str, str], group_id: str, isolation: str
) -> dict[str, Any]:
    """Client properties of the tail's consumers. `isolation` is Kafka's isolation.level.

    Call it on the machine where the consumer runs, because key and trust stores are read from its
    files. librdkafka's defaults differ from the Kafka source's: it would hide records of open
    transactions, and silently skip offsets that no longer exist.
    """
    return (
        {"group.id": group_id}
        | dict(librdkafka_properties(kafka_properties))
        | {
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": isolation,
        }
    )


def read_tail(
    read: BrokerRead,
    properties: Mapping[str, Any],
    schema: pa.Schema,
    *,
    clock: Clock,
    batch_bytes: int,
    poll_timeout_ms: int,
    fail_on_data_loss: bool,
) -> Iterator[pa.RecordBatch]:
    """Records of `read` in batches of about `batch_bytes` of keys and values.

    Offsets without a record (control batches, compaction, aborted transactions) are skipped. So the
    end is reached at a record at or beyond it, or at the partition's end. Raises
    OffsetOutOfRangeError if the brokers no longer have the offsets, and RequestTimedOutError if
    nothing arrives for `poll_timeout_ms`.
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
        try:
            yield from _read_assigned(consumer, read, schema, clock, batch_bytes, poll_timeout_ms)
        except OffsetOutOfRangeError as error:
            if fail_on_data_loss:
                raise
            _logger.warning("records are left out, failOnDataLoss=false: %s", error)


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
        wanted = min(_RECORDS_PER_POLL, read.end_offset - reached)
        messages = consumer.consume(wanted, _POLL_S)
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
    """The offset after these messages (at least one), and the messages that are records of the read.
    Only if one is an error does Python code run for each."""
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
