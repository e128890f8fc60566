"""The contents of the golden files: the topics and the records written to them.

Keys, values, headers and create times are fixed; offsets follow from the order of sending. Topic
ids, producer ids, and append times differ from run to run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from oracle.kafka import KafkaOracle
from oracle.tiered_topic import fully_tiered
from oracle.topics import create_topic, wait_until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BASE_TIMESTAMP_MS = 1_700_000_000_000
FLUSH_TIMEOUT_S = 300
# The number of the one record with a value length that needs three varint bytes.
LONG_VALUE = 1000


class GoldenRecord(NamedTuple):
    """One record to send."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def golden_record(i: int) -> GoldenRecord:
    """Record number i, with nulls, empty fields, odd headers and unordered times in turn."""
    headers: list[tuple[str, bytes | None]] = []
    if i % 4 == 0:
        headers = [("trace", bytes([i % 256, 0, 255])), ("null", None), ("trace", b"")]
    if i % 10 == 0:
        headers.append(("größe", "µ".encode()))
    key: bytes | None = f"key-{i % 23}".encode()
    if i % 5 == 0:
        key = b"" if i % 2 else None
    value: bytes | None = f"record {i}, ".encode() * (i % 4)
    if i % 9 == 0:
        value = None
    elif i == LONG_VALUE:
        value = b"a value longer than two varint bytes can say; " * 200
    shuffle_ms = (i * 7919) % 5000
    return GoldenRecord(BASE_TIMESTAMP_MS + i * 1000 + shuffle_ms, key, value, headers)


def write_all(kafka: KafkaOracle) -> None:
    """Create and fill every topic that needs no restart of the broker."""
    server = kafka.bootstrap_server
    for codec in CODECS:
        _plain_topic(server, f"client-{codec}", {}, codec=codec)
        if codec != "none":
            _plain_topic(server, f"broker-{codec}", {"compression.type": codec}, codec="none")
    _plain_topic(server, "append-time", {"message.timestamp.type": "LogAppendTime"}, codec="lz4")
    write_idempotent(server)
    write_transactions(server, "transactions", {"internal.segment.bytes": "2048"})
    write_compacted(kafka)
    write_tiered(kafka)
    write_committed_offsets(server)


def write_idempotent(server: str) -> None:
    """Write with three idempotent producers in turn over several segments, for producer
    snapshots.
    """
    create_topic(server, "idempotent", 1, {**_SMALL, "internal.segment.bytes": "2048"})
    producers = [_producer(server, enable_idempotence=True) for _ in range(3)]
    for turn in range(30):
        _send(producers[turn % 3], "idempotent", range(turn * 5, turn * 5 + 5))


def write_transactions(server: str, topic: str, config: dict[str, str]) -> None:
    """Write interleaved transactions, aborted and committed in turn, and records outside of any."""
    create_topic(server, topic, 1, {**_SMALL, **config})
    first, second = (_transactional(server, f"{topic}-{n}") for n in (1, 2))
    plain = _producer(server)
    for turn in range(8):
        i = turn * 20
        first.begin_transaction()
        second.begin_transaction()
        _send(first, topic, range(i, i + 6))
        _send(second, topic, range(i + 6, i + 11))
        _send(plain, topic, range(i + 11, i + 14))
        _send(first, topic, range(i + 14, i + 18))
        for n, producer in enumerate((second, first)):
            (producer.abort_transaction if (turn + n) % 3 else producer.commit_transaction)()


def open_transaction(server: str, topic: str) -> Producer:
    """Leave a transaction open: the last stable offset stays behind the log end."""
    producer = _transactional(server, f"{topic}-open")
    producer.begin_transaction()
    _send(producer, topic, range(200, 204))
    return producer


def write_compacted(kafka: KafkaOracle) -> None:
    """Write few keys, many values and tombstones; return when the cleaner has run once.

    The cleaner leaves batches with holes and, on those with tombstones, a delete horizon.
    """
    topic = "compacted"
    config = {
        "cleanup.policy": "compact",
        "internal.segment.bytes": "4096",
        "min.cleanable.dirty.ratio": "0.01",
        "index.interval.bytes": "256",
    }
    create_topic(kafka.bootstrap_server, topic, 1, config)
    producer = _producer(kafka.bootstrap_server, compression_type="lz4")
    for i in range(600):
        value = None if i % 50 == 7 else f"value {i} ".encode() * 5
        producer.produce(
            topic, partition=0, key=f"k{i % 37}", value=value, timestamp=BASE_TIMESTAMP_MS + i
        )
        if i % 20 == 19:
            _flush(producer)
    active = max(int(p.stem) for p in kafka.partition_directory(topic).glob("*.log"))
    checkpoint = kafka.log_dir / "cleaner-offset-checkpoint"
    wait_until(
        lambda: checkpoint.exists() and f"{topic} 0 {active}" in checkpoint.read_text(),
        f"the cleaning of topic={topic}",
    )


def write_tiered(kafka: KafkaOracle) -> None:
    """Make three tiered topics: with transactions, with expired remote segments, and deleted
    again.
    """
    server = kafka.bootstrap_server
    tiered = {
        "remote.storage.enable": "true",
        "internal.segment.bytes": "2048",
        "local.retention.bytes": "1",
    }
    write_transactions(server, "tiered", tiered)
    for topic in ("tiered-expired", "tiered-deleted"):
        create_topic(server, topic, 1, {**_SMALL, **tiered})
        producer = _producer(server)
        for start in range(0, 120, 8):
            _send(producer, topic, range(start, start + 8))
    for topic in ("tiered", "tiered-expired", "tiered-deleted"):
        wait_until(
            lambda name=topic: fully_tiered(kafka.log_dir, name, 1), f"the tiering of topic={topic}"
        )
    admin = AdminClient({"bootstrap.servers": server})
    records_to_delete = [TopicPartition("tiered-expired", 0, 60)]
    for deletion in admin.delete_records(records_to_delete).values():
        deletion.result(FLUSH_TIMEOUT_S)
    for deletion in admin.delete_topics(["tiered-deleted"]).values():
        deletion.result(FLUSH_TIMEOUT_S)
    wait_until(lambda: _first_remote_offset(kafka) > 40, "the expiration of remote segments")
    wait_until(
        lambda: not list(kafka.tiered_root.glob("tiered-deleted-0-*/*.log")),
        "the deletion of topic=tiered-deleted",
    )


def write_committed_offsets(server: str) -> None:
    """Commit one group offset, for the formats of `__consumer_offsets`."""
    admin = AdminClient({"bootstrap.servers": server})
    offsets = ConsumerGroupTopicPartitions("golden-group", [TopicPartition("client-none", 0, 42)])
    for alteration in admin.alter_consumer_group_offsets([offsets]).values():
        alteration.result(FLUSH_TIMEOUT_S)


def write_again(server: str) -> None:
    """Write after a restart of the broker, so that one topic has a second leader epoch."""
    _send(_producer(server), "client-none", range(70, 90))


_SMALL = {"retention.ms": "-1", "index.interval.bytes": "256"}


def _plain_topic(server: str, topic: str, config: dict[str, str], *, codec: str) -> None:
    create_topic(server, topic, 1, {**_SMALL, **config})
    producer = _producer(server, compression_type=codec)
    for start in range(0, 70, 7):
        _send(producer, topic, range(start, start + 7))
    _send(producer, topic, [LONG_VALUE])


def _producer(server: str, **settings: str | bool) -> Producer:
    options = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({"bootstrap.servers": server, "linger.ms": 100, "log_level": 2, **options})


def _transactional(server: str, transactional_id: str) -> Producer:
    producer = _producer(server, transactional_id=transactional_id)
    producer.init_transactions(FLUSH_TIMEOUT_S)
    return producer


def _send(producer: Producer, topic: str, numbers: Iterable[int]) -> None:
    """Send records as one batch (the linger time is long enough) and wait for it."""
    for record in _golden_records(numbers):
        producer.produce(
            topic,
            partition=0,
            key=record.key,
            value=record.value,
            timestamp=record.timestamp_ms,
            headers=record.headers,
            on_delivery=_raise_undelivered,
        )
    _flush(producer)


def _golden_records(numbers: Iterable[int]) -> Iterator[GoldenRecord]:
    return (golden_record(i) for i in numbers)


def _raise_undelivered(error: KafkaError | None, _message: Message) -> None:
    if error is not None:
        raise KafkaException(error)


def _flush(producer: Producer) -> None:
    if producer.flush(FLUSH_TIMEOUT_S):
        raise TimeoutError(f"the producer could not send: timeout_s={FLUSH_TIMEOUT_S}")


def _first_remote_offset(kafka: KafkaOracle) -> int:
    segments = kafka.tiered_root.glob("tiered-expired-0-*/*.log")
    return min((int(path.name[:20]) for path in segments), default=-1)
