"""A topic of Apache Kafka that is written, tiered and trimmed on the disk, all at once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from confluent_kafka import Producer

from oracle.topics import SEGMENT_BYTES_MIN, create_topic, delete_topic

TIMEOUT_S = 300
RECORDS_PER_TRANSACTION = 40
_CONFIG = {
    "remote.storage.enable": "true",
    "segment.bytes": str(SEGMENT_BYTES_MIN),
    "local.retention.bytes": "1",
    "retention.ms": "-1",
    "file.delete.delay.ms": "100",
}


@contextlib.contextmanager
def moving_topic(
    server: str, topic: str, *, before: int, meanwhile: int
) -> Iterator[threading.Thread]:
    """The topic with `before` transactions, and the writer of `meanwhile` more, which the caller
    starts. The end of the block waits for it, and deletes the topic.

    A transaction has RECORDS_PER_TRANSACTION records of 1000 bytes in partition 0; every third is
    aborted.
    """
    create_topic(server, topic, 1, _CONFIG)
    _write(server, topic, 0, before)
    writer = threading.Thread(target=_write, args=(server, topic, before, before + meanwhile))
    try:
        yield writer
    finally:
        if writer.ident is not None:
            writer.join()
    delete_topic(server, topic)


def committed_records(transactions: int) -> int:
    committed = sum(1 for number in range(transactions) if number % 3)
    return committed * RECORDS_PER_TRANSACTION


def _write(server: str, topic: str, first: int, end: int) -> None:
    producer = Producer(
        {
            "bootstrap.servers": server,
            "transactional.id": topic,
            "transaction.timeout.ms": 900_000,
            "linger.ms": 5,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    for number in range(first, end):
        producer.begin_transaction()
        for each in range(RECORDS_PER_TRANSACTION):
            producer.produce(topic, b"%d-%d " % (number, each) + b"x" * 990, partition=0)
        # An abort drops what is not sent yet, and Kafka knows no transaction without a record.
        assert producer.flush(TIMEOUT_S) == 0
        (producer.abort_transaction if number % 3 == 0 else producer.commit_transaction)(TIMEOUT_S)
