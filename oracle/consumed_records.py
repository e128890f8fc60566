"""Records as librdkafka's consumer returns them, the client that shares no code with Isotherm or
Kafka.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CONSUME_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class ConsumedRecord:
    """One record as librdkafka's consumer returned it."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def consume_all(
    bootstrap_server: str,
    topic: str,
    *,
    isolation_level: str = "read_committed",
    just_started: bool = False,
    rack: str = "",
) -> list[ConsumedRecord]:
    """Every record of a topic, by partition, then offset.

    `isolation_level` is the consumer's: read_committed leaves out aborted and still open
    transactions, and everything behind the first open one. `just_started` asks again after an
    UNKNOWN_SERVER_ERROR, as the Java consumer always does: Kafka answers a remote fetch with it
    until its RemoteLogMetadataManager has the partition (RemotePartitionMetadataStore throws
    RemoteResourceNotFoundException), which is after the broker says that it has started.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_server,
            "group.id": "oracle",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation_level,
            "client.rack": rack,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=300).topics[topic].partitions
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
        records: list[ConsumedRecord] = []
        ends_to_come = len(partitions)
        deadline = time.monotonic() + CONSUME_TIMEOUT_S
        while ends_to_come:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the consumer saw no end: topic={topic}")
            # consume() waits until its timeout unless it gets num_messages.
            for message in consumer.consume(num_messages=1000, timeout=0.2):
                error = message.error()
                if error is None:
                    records.append(_consumed(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ends_to_come -= 1
                elif not (just_started and error.code() == KafkaError.UNKNOWN):
                    raise KafkaException(error)
    finally:
        consumer.close()
    return sorted(records, key=lambda record: (record.partition, record.offset))


def records_of_frame(frame: DataFrame) -> list[ConsumedRecord]:
    """The rows that Spark read with `includeHeaders`, as a consumer returns records."""
    selected = frame.selectExpr(
        "partition", "offset", "unix_millis(timestamp)", "key", "value", "headers"
    )
    rows = [
        ConsumedRecord(
            partition=row[0],
            offset=row[1],
            timestamp_ms=row[2],
            key=_bytes(row[3]),
            value=_bytes(row[4]),
            headers=tuple((header.key, _bytes(header.value)) for header in row[5] or ()),
        )
        for row in selected.collect()
    ]
    return sorted(rows, key=lambda record: (record.partition, record.offset))


def _bytes(value: bytes | bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def _consumed(message) -> ConsumedRecord:
    return ConsumedRecord(
        partition=message.partition(),
        offset=message.offset(),
        timestamp_ms=message.timestamp()[1],
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
    )
