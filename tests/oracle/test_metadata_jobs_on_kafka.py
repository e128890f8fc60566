"""The metadata jobs on a topic that a real Kafka wrote, compared with Kafka's files and tools."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs.project import project, projected_segments
from isotherm.spark.jobs.project_topic import project_to_topic
from isotherm.spark.jobs.replay import replay
from isotherm.spark.jobs.verify import verify
from isotherm.spark.metadata.remote_metadata_log import DumpMetadataLog, TopicMetadataLog
from oracle.kafka import DUMP_LOG_SEGMENTS, KafkaOracle, run_tool
from oracle.tiered_topic import TieredTopic

_EVENT = re.compile(
    r"RemoteLogSegmentMetadata\{.*?topicIdPartition=(\S+?):(\S+?)-(\d+), id=(\S+?)\}.*?"
    r"startOffset=(\d+), endOffset=(\d+)"
)


def finished_by_kafkas_tool(kafka: KafkaOracle, topic: str) -> set[tuple[str, int, int, int]]:
    """Segment id, partition and offsets of the segments in Kafka's own dump of the metadata
    topic.
    """
    files = sorted(kafka.log_dir.glob("__remote_log_metadata-*/*.log"))
    written = ",".join(str(path) for path in files if path.stat().st_size)
    shown = run_tool(DUMP_LOG_SEGMENTS, "--remote-log-metadata-decoder", "--files", written)
    return {
        (segment, int(partition), int(start), int(end))
        for _, name, partition, segment, start, end in _EVENT.findall(shown)
        if name == topic
    }


@pytest.mark.spark
def test_jobs_tell_of_kafkas_topic_what_kafka_tells(
    spark: SparkSession, kafka: KafkaOracle, kafka_tiered_topic: TieredTopic, tmp_path: Path
) -> None:
    properties = {"bootstrap.servers": kafka.bootstrap_server}
    log = TopicMetadataLog(properties)
    target = ObjectStoreSettings(url=(tmp_path / "projection").as_uri())
    name = kafka_tiered_topic.name
    files = DumpMetadataLog((ObjectStoreSettings(url=kafka.log_dir.as_uri()),))
    identity, of_files = log.identity(), files.identity()
    assert identity.cluster_id
    assert not identity.contradicts(of_files)
    assert of_files.topic_id == identity.topic_id
    project(spark, log, target)
    with replay(spark, log) as through_client, replay(spark, files) as of_the_files:
        of_topic = through_client.segments.where(f"topic = '{name}'")
        assert of_topic.count() > 2
        for other in (of_the_files.segments, projected_segments(spark, target)):
            differences = verify(of_topic, other.where(f"topic = '{name}'"))
            assert differences.collect() == []
        shown = {
            (row.segment_id, row.partition, row.start_offset, row.end_offset)
            for row in of_topic.collect()
        }
    assert shown == finished_by_kafkas_tool(kafka, name)
    before = sum(log_slice.end_offset or 0 for log_slice in log.slices())
    written = project_to_topic(spark, properties, "isotherm-states")
    assert written.states >= len(shown)
    with replay(spark, TopicMetadataLog(properties, "isotherm-states")) as states:
        differences = verify(states.segments, projected_segments(spark, target))
        assert differences.where(f"topic = '{name}'").collect() == []
    assert sum(log_slice.end_offset or 0 for log_slice in log.slices()) >= before
