"""A table of a topic that Apache Kafka wrote and tiered has the records that a consumer gets
from Kafka.
"""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from oracle.tiered_topic import TieredTopic
from tests.support.topic_tables import load_table, records_of, rows_of, run_table

pytestmark = pytest.mark.spark


def test_history_then_tail_are_what_a_consumer_got_from_kafka(
    spark: SparkSession, kafka_tiered_topic: TieredTopic, tmp_path: Path
) -> None:
    del spark
    topic = kafka_tiered_topic
    options = ("--warehouse", str(tmp_path), "-b", topic.bootstrap_server)

    def table() -> list[tuple[object, ...]]:
        return records_of(rows_of(load_table(tmp_path, f"kafka.{topic.name}")))

    run_table(topic.name, topic.remote_dir, *options, "-o", "includeTail=false")
    tails = topic.local_start_offsets
    tiered = [record for record in topic.expected if record.offset < tails[record.partition]]
    assert table() == [astuple(record) for record in tiered]
    run_table(topic.name, topic.remote_dir, *options)
    assert table() == [astuple(record) for record in topic.expected]
