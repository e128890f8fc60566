"""`isotherm.spark.topic`: a table, and the records that it lacks, make up the topic, each record
once.

Oracles: the records put into the bucket, and a consumer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession

import isotherm.spark
from isotherm.errors import ConfigError
from isotherm.record.batch import NewRecord, build_batch
from isotherm.spark import sql_views
from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker
from oracle.consumed_records import consume_all
from tests.spark.conftest import Tier
from tests.spark.test_table import DEAD, OTHER, OWNER, documents, put, without_nulls
from tests.support.topic_tables import load_table, run_table


def places(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted(
        (row.partition, row.offset) for row in frame.select("partition", "offset").collect()
    )


def values(frame: DataFrame) -> dict[tuple[int, int], Any]:
    rows = frame.select("partition", "offset", "value").collect()
    return {(row.partition, row.offset): without_nulls(row.asDict(True)["value"]) for row in rows}


def good(tier: Tier) -> dict[tuple[int, int], Any]:
    """The table's expected values: the fields that it has columns for, of records that are no
    dead letters.
    """
    return {
        (partition, offset): None
        if record.value is None
        else {name: value for name, value in json.loads(record.value).items() if name != "later"}
        for (_, partition, offset), record in tier.records.items()
        if record.value not in DEAD
    }


@pytest.mark.parametrize("to", ["iceberg", "delta", "parquet"])
def test_table_and_bucket_are_the_topic(
    spark: SparkSession, tier: Tier, tmp_path: Path, to: str
) -> None:
    lake = tmp_path / "lake"
    options = ("--to", to, "--value", "json", "--warehouse", str(lake))
    put(tier, OWNER, documents(range(20)))
    put(tier, OTHER, [*documents(range(5)), *DEAD])
    put(tier, OWNER, documents(range(8), usd=1.5, tags=["x"]))
    run_table("prices", tier.folder, *options)
    read = {"path": tier.folder.as_uri()}
    covered = isotherm.spark.topic(spark, "prices", read, to=to, warehouse=str(lake))
    assert values(covered) == good(tier)

    # Fields that no run has met are no columns yet.
    put(tier, OTHER, [*documents(range(5), later={"x": 1}, usd=2.5), *DEAD])
    frame = isotherm.spark.topic(spark, "prices", read, to=to, warehouse=str(lake))
    assert values(frame) == good(tier)
    assert frame.schema == covered.schema
    before = places(frame)
    assert len(before) == len(set(before))

    # Runs afterwards move rows into the table, and change nothing in either.
    run_table("prices", tier.folder, *options)
    assert places(frame) == before
    assert places(isotherm.spark.topic(spark, "prices", read, to=to, warehouse=str(lake))) == before

    frame.createOrReplaceTempView("prices")
    counted = spark.sql("SELECT count(value.usd) AS n FROM prices WHERE partition = 0").first()
    assert counted is not None
    assert counted.n == sum(
        "usd" in (value or {}) for (at, _), value in good(tier).items() if at == 0
    )


def test_sql_names_topics(
    spark: SparkSession, tier: Tier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = str(tmp_path / "lake")
    read = {"path": tier.folder.as_uri()}
    put(tier, OWNER, documents(range(20)))
    run_table("prices", tier.folder, "--value", "json", "--warehouse", lake)
    isotherm.spark.register(isotherm.spark.topic(spark, "prices", read, warehouse=lake), "prices")
    sql = "SELECT count(*), sum(value.n) FROM isotherm.prices"
    (before,) = spark.sql(sql).collect()
    assert before == (20, sum(n for n in range(20) if n % 11 != 5))

    # The call fixes the frame's records, in each session of the application.
    put(tier, OWNER, documents(range(5)))
    assert spark.newSession().sql(sql).collect() == [before]
    isotherm.spark.register(isotherm.spark.topic(spark, "prices", read, warehouse=lake), "prices")
    assert spark.sql(sql).first() == (25, before[1] + 10)

    # A topic without a table, by a name that SQL takes in backticks alone.
    log = isotherm.spark.read(spark, {**read, "subscribe": "prices"})
    name = isotherm.spark.register(log, "eu-west.prices_1")
    assert name == "isotherm.`eu-west.prices_1`"
    assert spark.sql(f"SELECT max(offset) FROM {name}").first() == (24,)
    assert {row.viewName for row in spark.sql("SHOW VIEWS IN isotherm").collect()} >= {
        "prices",
        "eu-west.prices_1",
    }

    monkeypatch.setattr(sql_views, "VIEWS_DATABASE", "topics")
    with pytest.raises(ConfigError, match=r"another database database=isotherm wanted=topics hint"):
        isotherm.spark.register(log, "prices")


def test_brokers_give_the_tail(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic("trades", 1, 1, config=TIERED_TOPIC)])["trades"].result(300)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 1})

    def produce(count: int) -> None:
        for number in range(count):
            producer.produce("trades", value=f"{number}-".ljust(2000, "x"), key=b"k")
        producer.flush(300)

    bucket, lake = broker.directory / "bucket", str(tmp_path / "lake")
    produce(200)
    run_table("trades", bucket, "--warehouse", lake, "-b", broker.bootstrap_servers)
    produce(300)
    options = {"path": bucket.as_uri(), "kafka.bootstrap.servers": broker.bootstrap_servers}
    frame = isotherm.spark.topic(spark, "trades", options, warehouse=lake)
    rows = frame.select("offset", "key", "value").orderBy("offset").collect()
    consumed = consume_all(broker.bootstrap_servers, "trades")
    assert len(consumed) == 500
    assert [(row.offset, bytes(row.key), bytes(row.value)) for row in rows] == [
        (record.offset, record.key, record.value) for record in consumed
    ]


def test_what_cannot_be_read_is_named(spark: SparkSession, tier: Tier, tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    read = {"path": tier.folder.as_uri()}
    tier.maker.tier(OWNER, [build_batch([NewRecord(5, b"k", b'{"n": 1}')], base_offset=0)])
    with pytest.raises(ConfigError, match=r"no such table table=kafka.prices .*pipeline table"):
        isotherm.spark.topic(spark, "prices", read, warehouse=lake)
    with pytest.raises(ConfigError, match=r"decides these options .*options=startingOffsets"):
        isotherm.spark.topic(spark, "prices", {**read, "startingOffsets": "latest"}, warehouse=lake)
    run_table("prices", tier.folder, "--value", "json", "--warehouse", lake)
    with load_table(Path(lake), "kafka.prices").update_schema() as update:
        update.rename_column("value.n", "m")
    with pytest.raises(ConfigError, match=r"renamed or made anew .*column=value.m"):
        isotherm.spark.topic(spark, "prices", read, warehouse=lake)


@pytest.mark.parametrize("to", ["iceberg", "delta", "parquet"])
def test_names_of_folders_are_no_patterns(
    spark: SparkSession, tier: Tier, tmp_path: Path, to: str
) -> None:
    # Iceberg's locations cannot have a question mark, Delta's no percent sign either.
    more = {"iceberg": " %41", "delta": "", "parquet": " %41?"}
    lake = str(tmp_path / f"la[k]e *{{x}}{more[to]}")
    options = ("--to", to, "--warehouse", lake)
    put(tier, OWNER, [b"one", b"two"])
    run_table("prices", tier.folder, *options)
    put(tier, OWNER, [b"three"])
    read = {"path": tier.folder.as_uri()}
    frame = isotherm.spark.topic(spark, "prices", read, to=to, warehouse=lake)
    assert places(frame) == [(0, 0), (0, 1), (0, 2)]
    assert list(Path(lake).rglob("*.parquet"))
