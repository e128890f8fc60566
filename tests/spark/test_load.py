"""A DataFrame becomes the history of a topic: read back by librdkafka's consumer and by Spark."""

from __future__ import annotations

import json
import random
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from aiokafka.partitioner import murmur2
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from typer.testing import CliRunner

import isotherm.spark
from isotherm.cli.main import app
from isotherm.errors import ConfigError, InvalidRecordError, PolicyViolationError
from isotherm.spark.jobs import load as load_job
from isotherm.spark.jobs.load_passes import plan_ranges
from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker
from oracle.consumed_records import ConsumedRecord, consume_all, records_of_frame
from tests.spark.conftest import Tier

START_MS = 1_700_000_000_000
TIMEOUT_S = 300
COUNT = 20_000
SCHEMA = (
    "key binary, value binary, headers array<struct<key:string,value:binary>>, timestamp timestamp"
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


def create(broker: EmbeddedBroker, topic: str, partitions: int, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    texts = {**TIERED_TOPIC, **{name.replace("_", "."): text for name, text in config.items()}}
    admin.create_topics([NewTopic(topic, partitions, config=texts)])[topic].result(TIMEOUT_S)


def options_of(broker: EmbeddedBroker) -> dict[str, object]:
    return {
        "path": str(broker.directory / "bucket"),
        "kafka.bootstrap.servers": broker.bootstrap_servers,
    }


def made_rows(spark: SparkSession) -> DataFrame:
    """Rows whose order is the reverse of their timestamps."""
    number = sql.col("id")
    header = sql.struct(sql.lit("h").alias("key"), sql.lit(b"1").alias("value"))
    return spark.range(0, COUNT, 1, 4).select(
        sql.when(number % 7 != 0, sql.concat(sql.lit("k"), number % 100)).alias("key"),
        sql.when(
            number % 11 != 0, sql.concat(number, sql.lit("-"), sql.repeat(sql.lit("x"), 200))
        ).alias("value"),
        sql.timestamp_millis(START_MS + COUNT - number).alias("timestamp"),
        sql.when(number % 5 == 0, sql.array(header)).alias("headers"),
    )


def produce(broker: EmbeddedBroker, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(count):
        producer.produce(topic, key=b"new", value=b"%d" % number, timestamp=START_MS + 2 * COUNT)
    assert producer.flush(TIMEOUT_S) == 0


@pytest.mark.parametrize("share_a_disk", [True, False])
def test_a_loaded_history_is_read_and_producers_go_on(
    spark: SparkSession,
    broker: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    share_a_disk: bool,
) -> None:
    topic = f"flights-{share_a_disk}"
    create(broker, topic, 3)
    if not share_a_disk:
        # As on a cluster: pieces are in Spark's rows, and shuffled to their tasks.
        monkeypatch.setattr(load_job, "_pieces_folder", lambda _: nullcontext())
    # Many ranges and tasks, as for a large input.
    monkeypatch.setattr(
        load_job, "plan_ranges", lambda packed, rows, _: plan_ranges(packed, rows, 300_000, 100_000)
    )
    frame = made_rows(spark)
    reports = isotherm.spark.write_history(
        frame,
        topic,
        options_of(broker),
        compression="zstd",
        batch_size=16_384,
        wait_s=TIMEOUT_S,
    )
    assert sum(report.records for report in reports) == COUNT
    assert min(report.segments for report in reports) > 3
    produce(broker, topic, 100)

    read = consume_all(broker.bootstrap_servers, topic)
    loaded = [each for each in read if each.key != b"new"]
    assert len(read) == COUNT + 100
    expected = {
        (
            START_MS + COUNT - number,
            None if number % 7 == 0 else b"k%d" % (number % 100),
            None if number % 11 == 0 else b"%d-" % number + b"x" * 200,
            (("h", b"1"),) if number % 5 == 0 else (),
        )
        for number in range(COUNT)
    }
    assert {(r.timestamp_ms, r.key, r.value, r.headers) for r in loaded} == expected
    places = defaultdict(list)
    for record in read:
        places[record.partition].append((record.offset, record.timestamp_ms))
        if record.key is not None and record in loaded[:2000]:
            assert record.partition == (murmur2(record.key) & 0x7FFFFFFF) % 3
    for of_partition in places.values():
        # Without gaps, and in the order of the timestamps: the producer's records are the last.
        assert [offset for offset, _ in of_partition] == list(range(len(of_partition)))
        assert of_partition == sorted(of_partition, key=lambda place: place[1])

    by_spark = (
        isotherm.spark.read(spark, {**options_of(broker), "subscribe": topic})
        .where("key IS NULL OR key != CAST('new' AS BINARY)")
        .select("key", "value", sql.unix_millis("timestamp").alias("timestamp"))
    )
    rows = frame.select(
        sql.col("key").cast("binary"),
        sql.col("value").cast("binary"),
        sql.unix_millis("timestamp").alias("timestamp"),
    )
    assert by_spark.exceptAll(rows).count() == rows.exceptAll(by_spark).count() == 0


def test_a_second_load_goes_on_where_the_first_ended(
    spark: SparkSession, broker: EmbeddedBroker
) -> None:
    create(broker, "twice", 1)
    for number in range(2):
        rows = spark.range(1000).select(
            sql.concat(sql.lit(f"{number}-"), sql.col("id")).alias("value"),
            (sql.col("id") + START_MS).alias("timestamp"),
        )
        isotherm.spark.write_history(
            rows, "twice", options_of(broker), append=number > 0, wait_s=TIMEOUT_S
        )
    values = [message.value for message in consume_all(broker.bootstrap_servers, "twice")]
    assert values == [b"%d-%d" % (load, row) for load in range(2) for row in range(1000)]


def test_partitions_by_column_and_by_the_crc_of_librdkafka(
    spark: SparkSession, broker: EmbeddedBroker
) -> None:
    keys = [random.Random(5).randbytes(size) for size in range(1, 60)]
    rows = spark.createDataFrame(
        [(key, b"v", n % 4) for n, key in enumerate(keys)],
        "key binary, value binary, partition int",
    )
    for partitioner in ("consistent", "column"):
        create(broker, partitioner, 4)
        isotherm.spark.write_history(
            rows, partitioner, options_of(broker), partitioner=partitioner, wait_s=TIMEOUT_S
        )
        read = {
            message.key: message.partition
            for message in consume_all(broker.bootstrap_servers, partitioner)
        }
        assert read == {
            key: zlib.crc32(key) % 4 if partitioner == "consistent" else n % 4
            for n, key in enumerate(keys)
        }


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ("'v' AS key", ConfigError, "no column value"),
        ("1.5 AS value", ConfigError, "neither binary nor string column=value"),
        ("'v' AS value, 'h' AS headers", ConfigError, "wrong type column=headers"),
        ("'v' AS value, -5L AS timestamp", InvalidRecordError, "before 1970"),
        ("'v' AS value, 0L AS timestamp", PolicyViolationError, "retention.ms=1000"),
    ],
)
def test_input_that_is_no_history_is_refused(
    spark: SparkSession,
    broker: EmbeddedBroker,
    columns: str,
    error: type[Exception],
    message: str,
) -> None:
    topic = "refused"
    if (
        topic
        not in AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics().topics
    ):
        create(broker, topic, 1, retention_ms="1000")
    with pytest.raises(error, match=message):
        isotherm.spark.write_history(spark.sql(f"SELECT {columns}"), topic, options_of(broker))


def test_no_time_stays_no_time(spark: SparkSession, broker: EmbeddedBroker) -> None:
    create(broker, "timeless", 1)
    # The source reads a record without a time as -1 ms, so that a topic is loaded as it is.
    for column in ("-1L", "timestamp_millis(-1)"):
        isotherm.spark.write_history(
            spark.sql(f"SELECT 'v' AS value, {column} AS timestamp"),
            "timeless",
            options_of(broker),
            append=True,
            wait_s=TIMEOUT_S,
        )
    assert [each.timestamp_ms for each in consume_all(broker.bootstrap_servers, "timeless")] == [
        -1,
        -1,
    ]


def test_topics_that_cannot_take_a_history_are_refused(
    spark: SparkSession, broker: EmbeddedBroker
) -> None:
    rows = spark.sql("SELECT 'v' AS value")
    create(broker, "local", 1, remote_storage_enable="false")
    with pytest.raises(PolicyViolationError, match="no remote tier topic=local"):
        isotherm.spark.write_history(rows, "local", options_of(broker))
    create(broker, "used", 1)
    produce(broker, "used", 3)
    with pytest.raises(PolicyViolationError, match=r"has records already .*end_offset=3"):
        isotherm.spark.write_history(rows, "used", options_of(broker))
    # Asked to append behind a producer's records: the broker refuses, and nothing is left.
    with pytest.raises(PolicyViolationError, match="records of producers"):
        isotherm.spark.write_history(
            rows, "used", options_of(broker), append=True, wait_s=TIMEOUT_S
        )
    left = [path.name for path in (broker.directory / "bucket").rglob("*") if path.is_file()]
    assert not [name for name in left if "journal" in name or "00000000000000000003" in name]
    assert len(consume_all(broker.bootstrap_servers, "used")) == 3


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["pipeline", "load", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_table_is_loaded_by_the_command_line(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    create(broker, "table", 2)
    rows = [(1, "a", 1.5), (2, None, None), (3, 'ü"', -0.0)]
    spark.createDataFrame(rows, "id int, name string, share double").write.parquet(
        str(tmp_path / "in")
    )
    common = ("table", "-b", broker.bootstrap_servers, "--path", str(broker.directory / "bucket"))
    command = (
        *(*common[:1], str(tmp_path / "in"), *common[1:], "--value-format", "json"),
        *("--key-format", "json", "--column", "key=id", "--column", "timestamp=CAST(id AS LONG)"),
        "--json",
    )
    plan = json.loads(run(*command))
    assert not plan["is_written"]
    assert sum(each["records"] for each in plan["partitions"]) == 3
    assert consume_all(broker.bootstrap_servers, "table") == []
    assert json.loads(run(*command, "--run"))["is_written"]
    read = sorted(
        consume_all(broker.bootstrap_servers, "table"), key=lambda each: each.timestamp_ms
    )
    assert [each.key for each in read] == [b"1", b"2", b"3"]
    assert [each.timestamp_ms for each in read] == [1, 2, 3]
    names = ("id", "name", "share")
    assert [json.loads(each.value or b"") for each in read] == [
        dict(zip(names, row, strict=True)) for row in rows
    ]
    assert run(*common, "--recover") == "no run was interrupted\n"


def test_a_bucket_of_another_cluster_is_loaded_as_it_is(
    spark: SparkSession, broker: EmbeddedBroker, flights: Tier
) -> None:
    """A topic's bucket is an input, too: Spark's source reads it without its cluster."""
    create(broker, "loaded-flights", 2)
    reads = ("--read-option", "subscribe=flights", "--read-option", "includeHeaders=true")
    place = ("-b", broker.bootstrap_servers, "--path", str(broker.directory / "bucket"))
    run("loaded-flights", flights.folder.as_uri(), "--from", "isotherm", *reads, *place, "--run")
    old = spark.read.format("isotherm").load(
        flights.folder.as_uri(), subscribe="flights", includeHeaders=True
    )
    loaded = consume_all(broker.bootstrap_servers, "loaded-flights")
    assert sorted(map(content_of, loaded)) == sorted(map(content_of, records_of_frame(old)))


def content_of(record: ConsumedRecord) -> tuple[object, ...]:
    """Everything but its place."""
    return (record.timestamp_ms, record.key or b"", record.value or b"", record.headers)


def test_an_interrupted_load_is_undone(
    spark: SparkSession, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(broker, "cut", 1)
    monkeypatch.setattr(load_job, "check_not_undone", interrupt)
    with pytest.raises(KeyboardInterrupt):
        isotherm.spark.write_history(spark.sql("SELECT 'v' AS value"), "cut", options_of(broker))
    bucket = broker.directory / "bucket"
    assert list(bucket.glob("isotherm-rewrites/cut-*/**/*.staging"))
    with pytest.raises(PolicyViolationError, match="earlier run is unfinished"):
        isotherm.spark.write_history(spark.sql("SELECT 'v' AS value"), "cut", options_of(broker))
    undone = run("cut", "-b", broker.bootstrap_servers, "--path", str(bucket), "--recover", "--run")
    assert "undo" in undone
    # Not "any path with the name": an id's letters may spell it.
    assert not [path for path in bucket.glob("**/cut-*/**/*") if path.is_file()]
    monkeypatch.undo()
    isotherm.spark.write_history(
        spark.sql("SELECT 'v' AS value"), "cut", options_of(broker), wait_s=TIMEOUT_S
    )
    assert [message.value for message in consume_all(broker.bootstrap_servers, "cut")] == [b"v"]


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt
