"""Reads the tail of a partition, which is only on the brokers, by a librdkafka consumer.

The client makes one object per record, so this path costs about as much per record as the Kafka
source. It reads only records that are not in the bucket yet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

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

from isotherm.clock import Clock
from isotherm.config.client_security import librdkafka_properties
from isotherm.errors import OffsetOutOfRangeError, RequestTimedOutError, RetriableError
from isotherm.protocol.broker_probe import QUIET_CLIENT, check_brokers
from isotherm.spark.arrow_rows import TIMESTAMP_MS_MAX, malformed_timestamp, message_batch
from isotherm.spark.plan.planning import BrokerRead
from isotherm.types import Offset, TopicPartition

_logger = logging.getLogger(__name__)

_RECORDS_PER_POLL = 10_000
# consume() waits for so many records or so long. The tail's last poll always takes that time.
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
    """Client properties of the tail's consumers; `isolation` is Kafka's isolation.level. Called where
    the consumer runs: key and trust stores are read from this machine's files.

    librdkafka's defaults differ from the Kafka source's: it would hide records of open
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

    Offsets without a record (control batches, compaction, aborted transactions) are passed over: the end is reached at
    a record at or beyond it, or at the partition's end. Raises OffsetOutOfRangeError when the
    brokers no longer have the offsets, RequestTimedOutError when nothing comes for
    `poll_timeout_ms`.
    """
    check_brokers(properties)
    consumer = Consumer({**QUIET_CLIENT, **properties})
    partition = read.topic_partition
    with closing(consumer):
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
    rows: list[tuple[object, ...]] = []
    columns = _columns(schema)
    size = 0
    reached = read.start_offset
    heard_s = clock.monotonic_s()
    while reached < read.end_offset:
        messages = consumer.consume(_RECORDS_PER_POLL, _POLL_S)
        if messages:
            heard_s = clock.monotonic_s()
        elif clock.monotonic_s() - heard_s > poll_timeout_ms / 1000:
            raise RequestTimedOutError(
                f"brokers sent no record in time {_place(read)} reached={reached}"
                f" timeout_ms={poll_timeout_ms}"
            )
        for message in messages:
            reached = _reached(message, read)
            if message.error() is None and reached <= read.end_offset:
                rows.append(tuple(column(message) for column in columns))
                size += len(message)
        if size >= batch_bytes or (rows and reached >= read.end_offset):
            yield message_batch(rows, schema)
            rows, size = [], 0


def _reached(message: Message, read: BrokerRead) -> Offset:
    """The offset after this message, or the partition's end if that is reached."""
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


def _columns(schema: pa.Schema) -> list[Callable[[Message], object]]:
    return [
        _timestamp_ms
        if field.name == "timestamp" and field.type == pa.int64()
        # A table has its own column for times that are too far.
        else _COLUMNS[field.name]
        for field in schema
    ]


def _timestamp_ms(message: Message) -> int:
    milliseconds: int = message.timestamp()[1]
    return milliseconds


def _timestamp_us(message: Message) -> int:
    milliseconds = _timestamp_ms(message)
    if abs(milliseconds) > TIMESTAMP_MS_MAX:
        place = TopicPartition(message.topic() or "", message.partition() or 0)
        raise malformed_timestamp(place, message.offset() or 0, milliseconds)
    return milliseconds * 1000


def _timestamp_type(message: Message) -> int:
    kind = message.timestamp()[0]
    if kind == TIMESTAMP_NOT_AVAILABLE:
        return -1
    return 1 if kind == TIMESTAMP_LOG_APPEND_TIME else 0


_COLUMNS: dict[str, Callable[[Message], object]] = {
    "key": lambda message: message.key(),
    "value": lambda message: message.value(),
    "topic": lambda message: message.topic(),
    "partition": lambda message: message.partition(),
    "offset": lambda message: message.offset(),
    "timestamp": _timestamp_us,
    "timestampType": _timestamp_type,
    "headers": lambda message: message.headers(),
}


def _place(read: BrokerRead) -> str:
    return (
        f"topic={read.topic_partition.topic} partition={read.topic_partition.partition}"
        f" start_offset={read.start_offset} end_offset={read.end_offset}"
    )
