"""`erase` as a copy of a bucket that Kafka wrote: the selected records are gone, the others are
those that Kafka serves."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from isotherm.errors import PolicyViolationError
from isotherm.remote.erasure.erased_piece import EraseAction
from isotherm.spark.jobs.erase import erase
from isotherm.spark.jobs.erase_matches import find_matches
from isotherm.spark.jobs.erase_plan import read_erasure_plan
from isotherm.spark.jobs.erase_proof import prove
from isotherm.spark.jobs.erase_selection import Selector
from isotherm.spark.jobs.erase_settings import settings_of
from isotherm.spark.option_parsing import parse_options
from oracle.consumed_records import records_of_frame
from oracle.tiered_topic import TieredTopic

pytestmark = pytest.mark.spark


def test_copy_of_a_kafka_tiered_topic_lacks_the_selected_keys_alone(
    spark: SparkSession, kafka_tiered_topic: TieredTopic, tmp_path: Path
) -> None:
    topic = kafka_tiered_topic
    options = parse_options(
        {
            "path": topic.remote_dir.as_uri(),
            "kafka.bootstrap.servers": topic.bootstrap_server,
            "subscribe": topic.name,
        }
    )
    tiered = [
        record
        for record in topic.expected
        if record.offset < topic.local_start_offsets[record.partition]
    ]
    keys = sorted({record.key for record in tiered if record.key is not None})[::3]
    selector = Selector(keys=keys)
    settings = settings_of(
        options, now_ms=5, action=EraseAction.DROP, to_url=(tmp_path / "copy").as_uri()
    )
    with pytest.raises(PolicyViolationError, match="cannot replace segments"):
        read_erasure_plan(
            options, settings_of(options, now_ms=5, action=EraseAction.DROP), selector
        )
    plan = read_erasure_plan(options, settings, selector)
    matches = find_matches(spark, plan, selector, settings)
    certificate, _ = erase(spark, plan, matches, selector, settings)
    matches.unpersist()
    certificate = prove(spark, options, settings, selector, certificate, 6)

    frame = (
        spark.read.format("isotherm")
        .options(path=settings.written.url, subscribe=topic.name, includeHeaders=True)
        .option("failOnOffsetGaps", value=False)
        .load()
    )
    expected = [record for record in tiered if record.key not in keys]
    assert 0 < len(expected) < len(tiered)
    assert records_of_frame(frame) == sorted(
        expected, key=lambda record: (record.partition, record.offset)
    )
    assert certificate.left == 0
    # Aborted records match, too, and a consumer shows none of them.
    matched = sum(partition.matched for partition in certificate.partitions)
    assert matched >= len(tiered) - len(expected)
    # The tail is on Kafka's disk only.
    ends = {
        partition.partition.partition: partition.unreachable for partition in certificate.partitions
    }
    assert {"on brokers only" in end[-1].reason for end in ends.values()} == {True}
