"""A compacted copy of what Apache Kafka tiered: from its LocalTieredStorage, by its own metadata
topic, into the native layout. The oracle is what a consumer got from Kafka, newest record per key."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from isotherm.errors import PolicyViolationError
from isotherm.spark.jobs.compact import check_settings, compact, read_plan, settings_of
from isotherm.spark.option_parsing import parse_options
from oracle.consumed_records import ConsumedRecord, consume_all
from oracle.tiered_topic import TieredTopic

pytestmark = pytest.mark.spark


def newest_per_key(topic: TieredTopic) -> list[ConsumedRecord]:
    """Of the records in the bucket: those on the broker's disk alone supersede nothing."""
    newest: dict[tuple[int, bytes], ConsumedRecord] = {}
    for record in topic.expected:
        if record.key is not None and record.offset < topic.local_start_offsets[record.partition]:
            newest[record.partition, record.key] = record
    return sorted(newest.values(), key=lambda record: (record.partition, record.offset))


def objects_of(topic: TieredTopic) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in topic.remote_root.glob(f"{topic.name}-*/*")
    }


def test_copy_of_a_kafka_tiered_topic_has_the_newest_record_of_each_key(
    spark: SparkSession, kafka_tiered_topic: TieredTopic, tmp_path: Path
) -> None:
    options = parse_options(
        {
            "path": kafka_tiered_topic.remote_dir.as_uri(),
            "kafka.bootstrap.servers": kafka_tiered_topic.bootstrap_server,
            "subscribe": kafka_tiered_topic.name,
        }
    )
    settings = settings_of(
        options,
        now_ms=1_800_000_000_000,
        delete_retention_ms=0,
        to_url=(tmp_path / "copy").as_uri(),
    )
    check_settings(settings, options)
    in_place = settings_of(options, now_ms=1, delete_retention_ms=0)
    with pytest.raises(PolicyViolationError, match="cannot replace segments"):
        read_plan(options, in_place)
    before = objects_of(kafka_tiered_topic)
    plan = read_plan(options, settings)
    reports = compact(spark, plan, settings)
    assert objects_of(kafka_tiered_topic) == before != {}
    assert [each.uncleanable for each in reports] == [0, 0]
    expected = newest_per_key(kafka_tiered_topic)
    assert sum(each.records_after for each in reports) == len(expected)
    frame = (
        spark.read.format("isotherm")
        .options(path=settings.written.url, subscribe=kafka_tiered_topic.name, includeHeaders=True)
        .load()
        .selectExpr("partition", "offset", "unix_millis(timestamp)", "key", "value", "headers")
    )
    found = [
        ConsumedRecord(
            row[0],
            row[1],
            row[2],
            bytes(row[3]),
            None if row[4] is None else bytes(row[4]),
            tuple((h.key, None if h.value is None else bytes(h.value)) for h in row[5] or ()),
        )
        for row in frame.orderBy("partition", "offset").collect()
    ]
    assert found == expected
    # Kafka goes on as if nothing had been.
    served = consume_all(kafka_tiered_topic.bootstrap_server, kafka_tiered_topic.name)
    assert served == list(kafka_tiered_topic.expected)
    # A tombstone stays in the first round, whatever delete.retention.ms says (KIP-534).
    assert any(record.value is None for record in found)
