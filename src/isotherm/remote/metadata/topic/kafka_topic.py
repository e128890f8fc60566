"""A metadata topic on any Kafka cluster, through confluent-kafka.

`__remote_log_metadata` is read and never written: it belongs to the cluster's brokers. At the first
record that it does not expect (a tombstone, a keyed record of a later version), a broker of Apache
Kafka stops following the topic, and its remote tier stops with it. A topic of another name belongs
to the caller, to read and to write, with any number of partitions. Projections of a real cluster go
there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from isotherm.client.broker_probe import QUIET_CLIENT, check_brokers
from isotherm.config.client_security import librdkafka_properties
from isotherm.errors import (
    ConfigError,
    PolicyViolationError,
    RemoteStorageError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from isotherm.remote.metadata.api import MetadataColumns, MetadataTopicRecord, NewMetadataRecord
from isotherm.remote.metadata.wire.events import columns_of, joined_columns
from isotherm.types import (
    REMOTE_LOG_METADATA_TOPIC,
    REMOTE_LOG_METADATA_TOPICS,
    Offset,
    TimestampMs,
)

_CONSUMER_PROPERTIES = {
    "group.id": "isotherm-remote-log-metadata",  # demanded by the client; nothing is committed
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_uncommitted",
    "allow.auto.create.topics": False,
    # A ListOffsets request waits behind the fetch on the same connection, which the broker delays
    # while a partition has no new records: half a second per metadata partition by default.
    "fetch.wait.max.ms": 10,
    # Records that the client reads ahead: by default 100,000, which take 60 MB. With a full queue
    # it pauses its fetches, by default for a second.
    "queued.min.messages": 10_000,
    "queued.max.messages.kbytes": 8 * 1024,
    "fetch.queue.backoff.ms": 5,
}
_PRODUCER_PROPERTIES = {"acks": "all", "enable.idempotence": True, "linger.ms": 0}
_MESSAGES_PER_CONSUME = 500
_CONSUME_WAIT_S = 0.1


def check_is_own_topic(topic: str) -> None:
    """Raise PolicyViolationError for a topic with the metadata of a cluster's brokers."""
    if topic in REMOTE_LOG_METADATA_TOPICS:
        raise PolicyViolationError(
            "the metadata topic of a cluster is never written to from outside: its brokers keep it,"
            " and Apache Kafka's stop at a record they do not know; name a topic of your own"
            f" topic={topic}"
        )


class KafkaMetadataTopic:
    """A `MetadataTopic` on a cluster. Thread-safe: one call at a time uses the consumer.

    client_properties are Kafka's or librdkafka's, `bootstrap.servers` among them. Consecutive reads
    of a partition are a stream. A read of another partition, or of an earlier offset, starts a new
    stream and costs a round trip, as does the look-up of a partition's end. A stream ends at its
    partition's end: then the client sends no more requests. Raises BrokerUnreachableError if no
    broker answers at the start.
    """

    def __init__(
        self,
        client_properties: Mapping[str, Any],
        *,
        topic: str = REMOTE_LOG_METADATA_TOPIC,
        request_timeout_s: float = 30.0,
    ) -> None:
        self._topic = topic
        self._timeout_s = request_timeout_s
        self._lock = threading.Lock()
        self._stream: tuple[int, Offset] | None = None
        self._closed = False
        properties = librdkafka_properties(client_properties)
        check_brokers(properties)
        self._client_properties = {**QUIET_CLIENT, **properties}
        try:
            self._consumer = Consumer({**self._client_properties, **_CONSUMER_PROPERTIES})
        except KafkaException as error:
            raise ConfigError(
                f"kafka properties are refused by the client reason={str(error)!r}"
            ) from error
        self._producer: Producer | None = None
        self._partition_count: int | None = None

    @property
    def partition_count(self) -> int:
        """The cluster's answer, cached. Raises UnknownTopicOrPartitionError if there is no such
        topic."""
        with self._lock:
            if self._partition_count is None:
                self._partition_count = self._describe_partitions()
            return self._partition_count

    def append(
        self, partition: int, key: bytes | None, value: bytes | None, timestamp_ms: TimestampMs
    ) -> Offset:
        return self.append_all(partition, [NewMetadataRecord(key, value, timestamp_ms)])

    def append_all(self, partition: int, records: Sequence[NewMetadataRecord]) -> Offset:
        """See the interface. Raises PolicyViolationError for a cluster's own metadata topic."""
        producer = self._own_producer()
        delivered: list[tuple[KafkaError | None, Message]] = []
        for record in records:
            producer.produce(
                self._topic,
                record.value,
                record.key,
                partition,
                timestamp=record.timestamp_ms,
                on_delivery=lambda error, message: delivered.append((error, message)),
            )
        producer.flush(self._timeout_s)
        for error, _ in delivered:
            if error is not None:
                raise _translated(error, self._topic, partition)
        if len(delivered) < len(records):
            raise RequestTimedOutError(
                f"metadata event was not acknowledged in time topic={self._topic}"
                f" partition={partition} timeout_s={self._timeout_s}"
            )
        return min(int(message.offset() or 0) for _, message in delivered)

    def read(
        self, partition: int, start_offset: Offset, max_bytes: int
    ) -> list[MetadataTopicRecord]:
        """See `MetadataTopic.read`. Raises RequestTimedOutError after `request_timeout_s` without
        an answer."""
        with self._lock:
            parts = self._parts(partition, start_offset, max_bytes)
            return [record for records, _ in parts for record in records]

    def read_columns(self, partition: int, start_offset: Offset, max_bytes: int) -> MetadataColumns:
        """See `MetadataTopic.read_columns`. The client makes an object per record; only those of
        one answer exist at a time."""
        columns = [columns_of([], start_offset)]
        with self._lock:
            for records, position in self._parts(partition, start_offset, max_bytes):
                columns.append(replace(columns_of(records, start_offset), next_offset=position))
        return joined_columns(columns)

    def offsets(self, partition: int) -> tuple[Offset, Offset]:
        with self._lock:
            return self._watermarks(partition)

    def is_current(self, partition: int) -> bool:
        return True

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._consumer.close()

    def _own_producer(self) -> Producer:
        check_is_own_topic(self._topic)
        with self._lock:
            if self._producer is None:
                self._producer = Producer({**self._client_properties, **_PRODUCER_PROPERTIES})
            return self._producer

    def _watermarks(self, partition: int) -> tuple[Offset, Offset]:
        try:
            first, end = self._consumer.get_watermark_offsets(
                TopicPartition(self._topic, partition, OFFSET_BEGINNING), timeout=self._timeout_s
            )
        except KafkaException as error:
            raise _translated(error.args[0], self._topic, partition) from error
        return first, end

    def _parts(
        self, partition: int, start_offset: Offset, max_bytes: int
    ) -> Iterator[tuple[list[MetadataTopicRecord], Offset]]:
        """The client's answers, each with the offset after it, until the budget is spent or the
        partition's end is reached. An answer has no records if only compacted records or
        transaction markers lie before that offset.

        The last answer is kept whole, so the records may exceed max_bytes by it.
        """
        _, end = self._watermarks(partition)
        if start_offset >= end:
            return
        if self._stream != (partition, start_offset):
            self._consumer.assign([TopicPartition(self._topic, partition, start_offset)])
        # After an error the consumer's position is unknown: the next read assigns it anew.
        self._stream = None
        size = 0
        position = start_offset
        waits_max = waits_left = max(1, round(self._timeout_s / _CONSUME_WAIT_S))
        while size < max_bytes and position < end:
            # The client waits for the requested number: request no more than there are.
            count = min(_MESSAGES_PER_CONSUME, end - position)
            messages = self._consumer.consume(count, _CONSUME_WAIT_S)
            before = position
            records, position = self._records(messages, partition, position)
            waits_left = waits_max if position > before else waits_left - 1
            if waits_left == 0:
                raise RequestTimedOutError(
                    f"metadata topic cannot be read in time topic={self._topic}"
                    f" partition={partition} timeout_s={self._timeout_s}"
                )
            size += sum(len(record.value or b"") for record in records)
            yield records, position
        if position < end:
            self._stream = (partition, position)
        else:
            # An assigned consumer fetches in the background: stop it until the next read.
            self._consumer.unassign()

    def _records(
        self, messages: list[Message], partition: int, position: Offset
    ) -> tuple[list[MetadataTopicRecord], Offset]:
        """The records of an answer, and the offset at which the next one starts."""
        records: list[MetadataTopicRecord] = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(_record(message, partition))
                position = records[-1].offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                # The reported end may be older than the last appends.
                position = max(position, message.offset() or 0)
            else:
                raise _translated(error, self._topic, partition)
        return records, position

    def _describe_partitions(self) -> int:
        try:
            description = self._consumer.list_topics(self._topic, timeout=self._timeout_s)
        except KafkaException as error:
            raise _translated(error.args[0], self._topic, None) from error
        topic = description.topics[self._topic]
        if topic.error is not None:
            raise _translated(topic.error, self._topic, None)
        return len(topic.partitions)


def _record(message: Message, partition: int) -> MetadataTopicRecord:
    _, timestamp_ms = message.timestamp()
    return MetadataTopicRecord(
        partition=partition,
        offset=message.offset() or 0,
        timestamp_ms=timestamp_ms,
        key=message.key(),
        value=message.value(),
    )


def _translated(
    error: KafkaError, topic: str, partition: int | None
) -> RemoteStorageError | UnknownTopicOrPartitionError:
    place = f"topic={topic} partition={partition} reason={error.str()!r}"
    if error.code() in (
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    ):
        return UnknownTopicOrPartitionError(f"the cluster has no such metadata topic {place}")
    unread = RemoteStorageError(f"the cluster's metadata topic cannot be read {place}")
    unread.is_refusal = error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    return unread
