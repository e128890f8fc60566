"""The same queries through Spark's Kafka source and through this one: equal rows, equal refusals.

Both read an Isotherm broker; only the format, and the `path` beside it, differ. `spark` gets the
Kafka source's jars where Maven can resolve them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from isotherm.testing.embedded_broker import EmbeddedBroker

TIMEOUT_S = 60
# Younger than the markers of the transactions, which have the time of the test.
FIRST_MS = 4_000_000_000_000
RECORDS = 2400
CONFIG = {
    "remote.storage.enable": "true",
    "local.retention.bytes": "1",
    "segment.bytes": "1048576",
    "retention.ms": "-1",
    "file.delete.delay.ms": "100",
    "message.timestamp.after.max.ms": str(2**62),
}


@pytest.fixture(scope="module")
def kafka_source(spark_with_kafka_source: SparkSession) -> SparkSession:
    return spark_with_kafka_source


@pytest.fixture(scope="module")
def cluster(broker: EmbeddedBroker) -> EmbeddedBroker:
    """Topics `orders` (3 partitions, one of them empty) and `order-items`, mostly in the bucket."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    topics = [NewTopic("orders", 3, 1, config=CONFIG), NewTopic("order-items", 1, 1, config=CONFIG)]
    for future in admin.create_topics(topics).values():
        future.result(TIMEOUT_S)
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "batch.size": 65536,
            "compression.type": "none",
            "transactional.id": "writer",
        }
    )
    producer.init_transactions(TIMEOUT_S)
    for first in range(0, RECORDS, 200):
        producer.begin_transaction()
        for number in range(first, first + 200):
            topic, partition = ("orders", number % 2) if number % 4 else ("order-items", 0)
            producer.produce(
                topic,
                key=None if number % 7 == 0 else b"key-%d" % number,
                value=None if number % 13 == 0 else (b"%d-" % number).ljust(1800, b"x"),
                partition=partition,
                timestamp=FIRST_MS + number * 1000,
                headers=[("n", b"%d" % number), ("none", None)] if number % 3 == 0 else [],
            )
        assert producer.flush(TIMEOUT_S) == 0
        if first % 1000 == 600:
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)
    _await_tiered(broker.directory)
    return broker


def _await_tiered(directory: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while len(list((directory / "log").glob("order*/*.log"))) > 4:
        assert time.monotonic() < deadline, "the topics were not tiered in time"
        time.sleep(0.05)


Load = Callable[..., DataFrame]


@pytest.fixture(scope="module")
def load(kafka_source: SparkSession, cluster: EmbeddedBroker) -> Load:
    def read(name: str, **options: object) -> DataFrame:
        reader = kafka_source.read.format(name)
        given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, **options}
        if name == "isotherm":
            given["path"] = (cluster.directory / "bucket").as_uri()
        return reader.options(**{key: str(value) for key, value in given.items()}).load()

    return read


def rows_of(frame: DataFrame) -> list[tuple]:
    return sorted(map(tuple, frame.collect()), key=lambda row: (row[2], row[3], row[4]))


ORDERS = {"subscribe": "orders"}
# Partition 2 is empty: no record is young enough there.
FROM_LATE = {"startingOffsetsByTimestampStrategy": "latest"}
WHOLE = '{"orders":{"0":-2,"1":-2,"2":-2}}'


@pytest.mark.parametrize(
    "options",
    [
        ORDERS,
        {"subscribe": "orders, order-items"},
        {"subscribePattern": "order.*"},
        {"assign": '{"orders":[1,2]}'},
        ORDERS | {"includeHeaders": "true"},
        ORDERS | {"kafka.isolation.level": "read_committed"},
        {"subscribePattern": "order.*", "kafka.isolation.level": "read_committed"},
        ORDERS | {"startingOffsets": '{"orders":{"0":100,"1":-2,"2":-2}}'},
        ORDERS | {"startingOffsets": WHOLE, "endingOffsets": '{"orders":{"0":33,"1":-1,"2":-1}}'},
        ORDERS | FROM_LATE | {"startingTimestamp": FIRST_MS + 1_000_000},
        ORDERS
        | FROM_LATE
        | {"startingTimestamp": FIRST_MS + 700_500, "endingTimestamp": FIRST_MS + 900_500},
        ORDERS
        | {
            "startingOffsetsByTimestamp": f'{{"orders":{{"0":{FIRST_MS + 5000},"1":0,"2":0}}}}',
            "startingOffsetsByTimestampStrategy": "latest",
        },
        ORDERS | {"endingTimestamp": FIRST_MS + 10_000_000_000},
        ORDERS | {"minPartitions": 7},
        ORDERS | {"maxRecordsPerPartition": 100},
        ORDERS | {"failOnDataLoss": "false", "startingOffsets": "earliest"},
    ],
)
def test_rows_are_equal(load: Load, options: dict[str, object]) -> None:
    ours = rows_of(load("isotherm", **options))
    assert ours == rows_of(load("kafka", **options))
    assert ours


def test_schemas_are_equal(load: Load) -> None:
    for headers in ("false", "true"):
        ours, theirs = (
            load(name, **ORDERS, includeHeaders=headers).schema for name in ("isotherm", "kafka")
        )
        assert ours == theirs


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"subscribe": "orders", "subscribePattern": "o.*"},
        {"subscribe": ""},
        {"assign": '{"orders":["a"]}'},
        ORDERS | {"startingOffsets": "latest"},
        ORDERS | {"endingOffsets": "earliest"},
        ORDERS | {"startingOffsets": '{"orders":{"0":-1,"1":0,"2":0}}'},
        ORDERS | {"endingOffsets": '{"orders":{"0":-2,"1":0,"2":0}}'},
        ORDERS | {"startingOffsets": '{"orders":{"0":0}}'},
        ORDERS | {"startingOffsets": '{"orders":{"0":0,"1":0,"2":0,"3":0}}'},
        ORDERS | {"startingTimestamp": FIRST_MS},
        ORDERS | {"kafka.auto.offset.reset": "earliest"},
        ORDERS | {"kafka.enable.auto.commit": "true"},
        ORDERS | {"minPartitions": "0"},
        {"subscribe": "no-such-topic"},
    ],
)
def test_what_the_kafka_source_refuses_is_refused(load: Load, options: dict[str, object]) -> None:
    for name in ("kafka", "isotherm"):
        with pytest.raises((PySparkException, Py4JJavaError)):
            load(name, **options).collect()
