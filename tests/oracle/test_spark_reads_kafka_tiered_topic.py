"""The Spark source on a topic that Apache Kafka tiered: its LocalTieredStorage, its own metadata
topic, and its broker for the tail. The oracle is a consumer of that broker."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrameReader, SparkSession

from isotherm.spark.option_parsing import parse_options
from isotherm.spark.plan.planning import BrokerRead, SegmentRead
from isotherm.spark.row_schema import full_schema
from isotherm.spark.source import IsothermReader
from oracle.consumed_records import records_of_frame
from oracle.tiered_topic import TieredTopic

pytestmark = pytest.mark.spark


def options_of(topic: TieredTopic) -> dict[str, str]:
    return {
        "path": topic.remote_dir.as_uri(),
        "kafka.bootstrap.servers": topic.bootstrap_server,
        "subscribe": topic.name,
        "includeHeaders": "true",
    }


def load(spark: SparkSession, topic: TieredTopic, **more: object) -> DataFrameReader:
    reader = spark.read.format("isotherm").options(**options_of(topic))
    return reader.options(**{name: str(value) for name, value in more.items()})


def test_rows_are_what_a_consumer_got_from_kafka(
    spark: SparkSession, kafka_tiered_topic: TieredTopic
) -> None:
    assert records_of_frame(load(spark, kafka_tiered_topic).load()) == list(
        kafka_tiered_topic.expected
    )


def test_history_comes_from_the_bucket_up_to_kafkas_active_segment(
    kafka_tiered_topic: TieredTopic,
) -> None:
    options = parse_options(options_of(kafka_tiered_topic))
    tasks = IsothermReader(options, full_schema(include_headers=True)).partitions()
    reads = [read for partition in tasks for read in partition.task.reads]
    tails = {
        read.topic_partition.partition: read.start_offset
        for read in reads
        if isinstance(read, BrokerRead)
    }
    assert tails == kafka_tiered_topic.local_start_offsets
    assert sum(isinstance(read, SegmentRead) for read in reads) > len(tails)


def test_bucket_alone_gives_the_tiered_records(
    spark: SparkSession, kafka_tiered_topic: TieredTopic
) -> None:
    local_starts = kafka_tiered_topic.local_start_offsets
    assert records_of_frame(load(spark, kafka_tiered_topic, includeTail="false").load()) == [
        record
        for record in kafka_tiered_topic.expected
        if record.offset < local_starts[record.partition]
    ]


def test_large_segments_split_by_kafkas_offset_index_give_the_same_rows(
    spark: SparkSession, kafka_tiered_topic: TieredTopic
) -> None:
    frame = load(spark, kafka_tiered_topic, targetBytesPerTask=200_000).load()
    assert frame.rdd.getNumPartitions() > 20
    assert records_of_frame(frame) == list(kafka_tiered_topic.expected)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.97])
def test_times_are_found_in_kafkas_time_index(
    spark: SparkSession, kafka_tiered_topic: TieredTopic, share: float
) -> None:
    expected = kafka_tiered_topic.expected
    times = sorted(record.timestamp_ms for record in expected)
    start_ms, end_ms = times[int(len(times) * share)], times[int(len(times) * share) + 40]
    frame = load(spark, kafka_tiered_topic, startingTimestamp=start_ms, endingTimestamp=end_ms)
    # The topic's times rise with its offsets, so a time is a place.
    assert records_of_frame(frame.load()) == [
        r for r in expected if start_ms <= r.timestamp_ms < end_ms
    ]
