"""The same queries through Spark's Kafka source and through this one: equal rows, equal refusals.

Both read an Isotherm broker; only the format, and the `path` beside it, differ. `spark` gets the
Kafka source's jars where Maven can resolve them.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from isotherm.errors import ConfigError, RejectedError
from isotherm.spark import source_metrics
from isotherm.spark.option_parsing import parse_options, parse_stream_options
from isotherm.spark.row_schema import full_schema
from isotherm.spark.source import IsothermReader
from isotherm.spark.streaming.stream_source import IsothermStreamReader
from isotherm.spark.topic_pattern import topic_pattern
from isotherm.testing.embedded_broker import EmbeddedBroker
from tests.support.conditions import wait_until

TIMEOUT_S = 300
# Later than the transactions' markers, which have the time of the test.
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
            "transaction.timeout.ms": 900_000,
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
    wait_until(
        lambda: len(list((directory / "log").glob("order*/*.log"))) <= 4, "the topic's tiering"
    )


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
        {"subscribePattern": "rders"},
        {"subscribePattern": r" (?i)^ORDERS$|\Qorder-i\E "},
        {"assign": '{"orders":[1,2]}'},
        ORDERS | {"includeHeaders": "true"},
        ORDERS | {"kafka.isolation.level": "read_committed"},
        {"subscribePattern": "order.*", "kafka.isolation.level": "read_committed"},
        ORDERS | {"startingOffsets": '{"orders":{"0":100,"1":-2,"2":-2}}'},
        ORDERS | {"startingOffsets": WHOLE, "endingOffsets": '{"orders":{"0":33,"1":-1,"2":-1}}'},
        ORDERS
        | {
            "startingOffsetsByTimestampStrategy": "LATEST",
            "startingTimestamp": FIRST_MS + 1_000_000,
        },
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


# The pieces of random expressions: of syntax that Java and Python share, and of syntax that they do
# not.
PIECES = [
    *("a", "b", "o", "r", "d", "ers", "orders", "-", "_", ".", "k", "K", "#", " ", ",", "&"),
    *(
        "\\.",
        "\\-",
        "\\_",
        "\\d",
        "\\w",
        "\\W",
        "\\D",
        "\\s",
        "\\S",
        "\\b",
        "\\B",
        "\\A",
        "\\Z",
        "^",
        "$",
    ),
    *(
        "[a-c]",
        "[^a-z]",
        "[.]",
        "[a-]",
        "[\\w.-]",
        "[a^]",
        "[\\]]",
        "[A-z]",
        "[",
        "]",
        "[^",
        "[]",
        "[^]",
    ),
    *("(", "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", ")", ")", "|", "(?i)", "(?i:", "(?-i:"),
    *("*", "+", "?", "{2}", "{1,}", "{0,2}", "{,2}", "{", "}", "*?", "++", "\\1", "\\2", "\\10"),
    *(
        "\\x41",
        "\\u0061",
        "\\Q",
        "\\E",
        "\\Qa.b\\E",
        "\\z",
        "\\h",
        "\\p{L}",
        "(?x)",
        "\u017f",
        "\u212a",
        "é",
    ),
    *("[a&&b]", "[[a]b]", "[^][b]]", "[a--b]", "[a||b]", "(?<n>", "(?P<n>", "(?#c)"),
]
TOPIC_NAMES = (
    "orders",
    "orders-eu",
    "eu-orders-2",
    "ORDERS",
    "A",
    "_x.y",
    "a.b-c_d",
    "0",
    "aab",
    "b1b1",
    "Kk",
    "-",
)


def test_patterns_find_what_javas_find(kafka_source: SparkSession) -> None:
    rng = random.Random(7)
    texts = {"".join(rng.choices(PIECES, k=rng.randint(1, 6))) for _ in range(8000)}
    read: dict[str, list[bool]] = {}
    for text in sorted(texts):
        with contextlib.suppress(ConfigError):
            pattern = topic_pattern(text)
            read[text] = [pattern.selects(name) for name in TOPIC_NAMES]
    assert len(read) > 1000, "too few are read to show anything"
    # Java, by Spark's `rlike`. An expression that it refuses would end the query.
    frame = kafka_source.createDataFrame([(text,) for text in read], "text string")
    columns = [f"'{name}' rlike text as n{number}" for number, name in enumerate(TOPIC_NAMES)]
    found = {text: list(matches) for text, *matches in frame.selectExpr("text", *columns).collect()}
    assert {text for text in read if found[text] != read[text]} == set()


def test_ranges_without_offsets_may_lie_anywhere(load: Load) -> None:
    """Partition 2 is empty, so its offsets 50 to 50 lie beyond its end."""
    nothing = ORDERS | {"startingOffsets": nth(50), "endingOffsets": nth(50)}
    assert load("kafka", **nothing).collect() == load("isotherm", **nothing).collect() == []


def test_schemas_are_equal(load: Load) -> None:
    for headers in ("false", "true"):
        ours, theirs = (
            load(name, **ORDERS, includeHeaders=headers).schema for name in ("isotherm", "kafka")
        )
        assert ours == theirs


def nth(number: int, **others: int) -> str:
    """Offsets or times for all partitions of `orders`: `number`, or that of `others` (p1=5)."""
    numbers = {str(p): others.get(f"p{p}", number) for p in range(3)}
    return json.dumps({"orders": numbers})


# Options of batch queries that both sources refuse.
REFUSED: list[dict[str, object]] = [
    {},
    {"subscribe": "orders", "subscribePattern": "o.*"},
    {"subscribe": "orders", "assign": '{"orders":[0]}'},
    {"subscribe": " , "},
    {"subscribePattern": " "},
    {"assign": "orders"},
    {"assign": '{"orders":["a"]}'},
    {"assign": '{"orders":0}'},
    ORDERS | {"startingOffsets": "latest"},
    ORDERS | {"startingOffsets": "first"},
    ORDERS | {"startingOffsets": ""},
    ORDERS | {"startingOffsets": '{"orders":[0]}'},
    ORDERS | {"startingOffsets": '{"orders":{"0":"x"}}'},
    ORDERS | {"startingOffsets": nth(0, p0=-1)},
    ORDERS | {"startingOffsets": '{"orders":{"0":0}}'},
    ORDERS | {"startingOffsets": '{"orders":{"0":0,"1":0,"2":0,"3":0}}'},
    ORDERS | {"startingOffsets": nth(0, p0=1_000_000)},
    ORDERS | {"startingOffsets": nth(0, p0=1_000_000), "failOnDataLoss": "false"},
    ORDERS | {"startingTimestamp": "soon"},
    ORDERS | {"startingTimestamp": FIRST_MS},
    ORDERS | {"startingOffsetsByTimestamp": "now"},
    ORDERS | {"startingOffsetsByTimestamp": '{"orders":{"0":0}}'},
    ORDERS | {"startingOffsetsByTimestamp": nth(FIRST_MS)},
    ORDERS | {"endingOffsets": "earliest"},
    ORDERS | {"endingOffsets": "last"},
    ORDERS | {"endingOffsets": nth(0, p0=-2)},
    ORDERS | {"endingTimestamp": "soon"},
    ORDERS | {"endingOffsetsByTimestamp": '{"orders":{"0":5}}'},
    ORDERS | {"startingOffsets": nth(0, p1=40), "endingOffsets": nth(0, p1=10)},
    ORDERS
    | {
        "startingOffsetsByTimestamp": nth(0, p0=FIRST_MS + 9),
        "endingOffsetsByTimestamp": nth(FIRST_MS),
    },
    ORDERS | FROM_LATE | {"startingTimestamp": FIRST_MS + 900_000, "endingTimestamp": FIRST_MS},
    ORDERS | {"minPartitions": "0"},
    ORDERS | {"maxRecordsPerPartition": "0"},
    ORDERS | {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
    ORDERS | {"kafka.auto.offset.reset": "earliest"},
    ORDERS | {"kafka.key.deserializer": "x"},
    ORDERS | {"kafka.value.deserializer": "x"},
    ORDERS | {"kafka.enable.auto.commit": "true"},
    ORDERS | {"kafka.interceptor.classes": "x"},
]
STREAMS_REFUSED: list[dict[str, object]] = [
    ORDERS | {"endingOffsets": "latest"},
    ORDERS | {"endingOffsetsByTimestamp": "{}"},
    ORDERS | {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
    ORDERS | {"startingOffsets": '{"orders":[0]}'},
    ORDERS | {"startingOffsetsByTimestamp": '{"orders":{"0":0}}'},
]


def first_sentence(error: Exception) -> str:
    """The first sentence of an error.

    Left out are the Kafka source's exception name, further lines of an example, and lists in
    Scala's form.
    """
    text = " ".join(str(getattr(error, "java_exception", None) or error).split())
    text = re.sub(r"^\[STREAM_FAILED\].*? terminated with exception: ", "", text)
    text = (
        re.sub(r"^[\w.$]+Exception: ", "", text).split(" JVM stacktrace")[0].split(" SQLSTATE")[0]
    )
    # The Kafka source says "start" for ending offsets too.
    return re.split(r"(?<=[a-z0-9)]\.) ", text)[0]


@pytest.mark.parametrize("options", REFUSED, ids=str)
def test_what_the_kafka_source_refuses_is_refused_in_its_words(
    load: Load, cluster: EmbeddedBroker, options: dict[str, object]
) -> None:
    with pytest.raises((PySparkException, Py4JJavaError)) as theirs:
        load("kafka", **options).collect()
    texts = texts_of(cluster, options)
    # Spark runs it in a new process; here it runs in this one, because a start takes longer than
    # all the rest.
    with pytest.raises(RejectedError) as ours:
        IsothermReader(parse_options(texts), full_schema(include_headers=False)).partitions()
    assert first_sentence(theirs.value) in str(ours.value)


@pytest.mark.parametrize("options", STREAMS_REFUSED, ids=str)
def test_what_a_stream_of_the_kafka_source_refuses_is_refused_in_its_words(
    kafka_source: SparkSession, cluster: EmbeddedBroker, options: dict[str, object]
) -> None:
    texts = texts_of(cluster, options)
    reader = kafka_source.readStream.format("kafka").options(**texts)
    with pytest.raises((PySparkException, Py4JJavaError)) as theirs:
        reader.load().writeStream.format("noop").start().processAllAvailable()
    schema = full_schema(include_headers=False)
    with pytest.raises(RejectedError) as ours:
        IsothermStreamReader(parse_stream_options(texts), schema).initialOffset()
    assert first_sentence(theirs.value) in str(ours.value)


def test_refusals_arrive_in_the_query(load: Load) -> None:
    with pytest.raises(PySparkException, match="minPartitions must be positive"):
        load("isotherm", **ORDERS, minPartitions="0").collect()


def texts_of(cluster: EmbeddedBroker, options: dict[str, object]) -> dict[str, str]:
    given = {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "path": (cluster.directory / "bucket").as_uri(),
        **options,
    }
    return {name: str(value) for name, value in given.items()}


@pytest.mark.parametrize(
    "options",
    [
        {"subscribePattern": "order.*", "kafka.isolation.level": "read_committed"},
        *(
            pytest.param(each, marks=pytest.mark.nightly)
            for each in (
                ORDERS | {"maxOffsetsPerTrigger": 700, "includeHeaders": "true"},
                {"assign": '{"orders":[0,2]}', "startingOffsets": '{"orders":{"0":300,"2":-1}}'},
                ORDERS | FROM_LATE | {"startingTimestamp": FIRST_MS + 1_000_000},
            )
        ),
    ],
    ids=str,
)
def test_streams_are_equal(
    kafka_source: SparkSession, cluster: EmbeddedBroker, options: dict[str, object]
) -> None:
    """Rows are equal; with the same limit so are the end of each batch and its remaining
    offsets.
    """
    texts = {"startingOffsets": "earliest"} | texts_of(cluster, options)
    rows, ends, metrics = {}, {}, {}
    for name in ("kafka", "isotherm"):
        stream = kafka_source.readStream.format(name).options(**texts).load()
        writer = stream.writeStream.format("memory").queryName(f"{name}_rows")
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        rows[name] = rows_of(kafka_source.table(f"{name}_rows"))
        batches = [progress for progress in query.recentProgress if progress.numInputRows]
        reported = [json.loads(progress.json)["sources"][0] for progress in batches]
        ends[name] = [source["endOffset"] for source in reported]
        metrics[name] = (
            [source["metrics"] for source in reported]
            if name == "kafka"
            else [source_metrics(progress) for progress in batches]
        )
    assert rows["isotherm"] == rows["kafka"]
    assert rows["isotherm"]
    for end in ends["isotherm"]:
        end.pop("@start", None)
    assert ends["isotherm"] == ends["kafka"]
    assert metrics["isotherm"] == metrics["kafka"]


@pytest.mark.nightly
def test_streams_from_the_end_go_on_from_where_they_were_first_started(
    kafka_source: SparkSession, cluster: EmbeddedBroker, tmp_path: Path
) -> None:
    """By default a stream starts at the end. Runs at intervals get the records in between, also if
    the first run had nothing to read.
    """
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic("later", 1, 1, config=CONFIG)])["later"].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    texts = texts_of(cluster, {"subscribe": "later"})
    rows: dict[str, list[tuple]] = {"kafka": [], "isotherm": []}
    for value in (b"before", b"between", b"after"):
        producer.produce("later", value, timestamp=FIRST_MS)
        assert producer.flush(TIMEOUT_S) == 0
        for name, taken in rows.items():
            stream = kafka_source.readStream.format(name).options(**texts).load()
            writer = stream.writeStream.option("checkpointLocation", str(tmp_path / name))
            writer = writer.foreachBatch(lambda frame, _, taken=taken: taken.extend(rows_of(frame)))
            writer.trigger(availableNow=True).start().awaitTermination()
    assert [bytes(row[1]) for row in rows["kafka"]] == [b"between", b"after"]
    assert rows["isotherm"] == rows["kafka"]


def test_timestamp_that_no_row_can_hold_is_refused(
    kafka_source: SparkSession, cluster: EmbeddedBroker
) -> None:
    """A producer sent nanoseconds as milliseconds."""
    topic = NewTopic("nanoseconds", 1, 1, config=CONFIG)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([topic])["nanoseconds"].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    producer.produce("nanoseconds", b"v", timestamp=FIRST_MS * 1_000_000)
    assert producer.flush(TIMEOUT_S) == 0
    texts = texts_of(cluster, {"subscribe": "nanoseconds"})
    words = f"offset 0 has timestamp value {FIRST_MS * 1_000_000} that overflows"
    for name in ("kafka", "isotherm"):
        with pytest.raises((PySparkException, Py4JJavaError), match=words):
            kafka_source.read.format(name).options(**texts).load().collect()
