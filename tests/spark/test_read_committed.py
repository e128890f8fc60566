"""read_committed across the tiers, compared with a consumer's records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession

from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker
from oracle.consumed_records import consume_all
from tests.support.conditions import wait_until

TOPIC = "orders"
TIMEOUT_S = 300


def transactional(broker: EmbeddedBroker, name: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": name,
            "transaction.timeout.ms": 900_000,
            "batch.size": 50_000,
            "linger.ms": 1,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    return producer


def write(producer: Producer, label: str, count: int) -> None:
    for number in range(count):
        producer.produce(TOPIC, value=f"{label}-{number}-".encode().ljust(7000, b"x"))
    assert producer.flush(TIMEOUT_S) == 0


def await_closed_segments_are_remote(broker: EmbeddedBroker, count: int) -> None:
    folder: Path = broker.directory / "log" / f"{TOPIC}-0"
    bucket = broker.directory / "bucket"
    wait_until(
        lambda: (
            len(list(folder.glob("*.log"))) <= 1 + count
            and len(list(bucket.rglob("*.rsm-manifest"))) > 0
        ),
        "the topic's tiering",
    )


@pytest.fixture(scope="module")
def orders(broker: EmbeddedBroker) -> Iterator[dict[str, str]]:
    """Transactions that end in a later segment, in the tail, or not at all."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.create_topics([NewTopic(TOPIC, 1, 1, config=TIERED_TOPIC)]).values():
        future.result(TIMEOUT_S)
    first, second, late = (transactional(broker, name) for name in ("first", "second", "late"))
    for round_number in range(4):
        for producer in (first, second):
            producer.begin_transaction()
        write(first, f"committed-{round_number}", 150)
        write(second, f"aborted-{round_number}", 150)
        write(first, f"committed-too-{round_number}", 20)
        first.commit_transaction(TIMEOUT_S)
        second.abort_transaction(TIMEOUT_S)
    await_closed_segments_are_remote(broker, 0)
    # Begins in a segment that is copied once the transaction is over, ends in the tail.
    late.begin_transaction()
    write(late, "aborted-in-the-tail", 250)
    late.abort_transaction(TIMEOUT_S)
    await_closed_segments_are_remote(broker, 0)
    first.begin_transaction()
    write(first, "committed-at-the-end", 5)
    first.commit_transaction(TIMEOUT_S)
    second.begin_transaction()
    write(second, "open", 5)
    yield {
        "path": (broker.directory / "bucket").as_uri(),
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "subscribe": TOPIC,
    }
    second.abort_transaction(TIMEOUT_S)


def load(spark: SparkSession, options: dict[str, str], **more: object) -> DataFrame:
    reader = spark.read.format("isotherm").options(**options)
    return reader.options(**{name: str(value) for name, value in more.items()}).load()


def rows_of(frame: DataFrame) -> list[tuple[int, bytes]]:
    return sorted(
        (row.offset, bytes(row.value)) for row in frame.select("offset", "value").collect()
    )


@pytest.mark.parametrize("more", [{}, {"minPartitions": 7}, {"targetBytesPerTask": 300_000}])
def test_rows_are_what_a_read_committed_consumer_reads(
    spark: SparkSession, broker: EmbeddedBroker, orders: dict[str, str], more: dict[str, object]
) -> None:
    consumed = consume_all(broker.bootstrap_servers, TOPIC, isolation_level="read_committed")
    expected = sorted((record.offset, record.value) for record in consumed)
    assert len(expected) == 4 * 170 + 5
    assert rows_of(load(spark, orders, isolationLevel="read_committed", **more)) == expected


def test_kafkas_own_property_means_the_same(spark: SparkSession, orders: dict[str, str]) -> None:
    committed = load(spark, orders, **{"kafka.isolation.level": "read_committed"})
    assert committed.count() == 4 * 170 + 5


def test_uncommitted_rows_are_all_records(spark: SparkSession, orders: dict[str, str]) -> None:
    assert load(spark, orders).count() == 4 * 320 + 250 + 5 + 5


def test_bucket_alone_ends_before_what_it_cannot_decide(
    spark: SparkSession, orders: dict[str, str]
) -> None:
    alone = {"path": orders["path"], "subscribe": TOPIC}
    rows = rows_of(load(spark, alone, isolationLevel="read_committed"))
    assert rows
    assert all(value.startswith(b"committed-") for _, value in rows)
    everything = rows_of(load(spark, orders, isolationLevel="read_committed"))
    assert rows == everything[: len(rows)]
