"""A compacted copy of a topic that Apache Kafka tiered: from its LocalTieredStorage, by its own
metadata topic, into the native layout. The oracles are the newest records per key that a consumer
got from Kafka, and a second Kafka cluster that serves the copy under a new topic id."""

from __future__ import annotations

import hashlib
import re
import shutil
import textwrap
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.errors import PolicyViolationError, RemoteResourceNotFoundError
from isotherm.remote.metadata.folding.fold import fold_metadata_topic
from isotherm.remote.metadata.topic.kafka_topic import KafkaMetadataTopic
from isotherm.remote.segment_metadata import IndexType, RemoteLogSegmentMetadata
from isotherm.remote.storage.layout.local_tiered_storage import (
    DEFAULT_KEY_PREFIX,
    LocalTieredStorageLayout,
)
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.segment_sources import SegmentSources, Source
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs.compact import (
    PartitionReport,
    compact,
    read_plan,
    settings_of,
)
from isotherm.spark.jobs.rewrite_run import check_settings
from isotherm.spark.option_parsing import parse_options
from isotherm.types import uuid_to_text
from oracle.consumed_records import ConsumedRecord, consume_all, records_of_frame
from oracle.kafka import EAGER_SETTINGS, KafkaOracle, running_kafka
from oracle.tiered_topic import TieredTopic
from oracle.topics import SEGMENT_BYTES_MIN, create_topic

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "pipeline" / "rebuild.md"


@dataclass(frozen=True)
class Copy:
    """The compacted copy, and the source's objects before and after it was made."""

    settings: ObjectStoreSettings
    reports: list[PartitionReport]
    before: dict[str, str]
    after: dict[str, str]


@pytest.fixture(scope="module")
def copy(
    spark: SparkSession, kafka_tiered_topic: TieredTopic, tmp_path_factory: pytest.TempPathFactory
) -> Copy:
    options = parse_options(
        {
            "path": kafka_tiered_topic.remote_dir.as_uri(),
            "kafka.bootstrap.servers": kafka_tiered_topic.bootstrap_server,
            "subscribe": kafka_tiered_topic.name,
        }
    )
    settings = settings_of(
        options,
        now_ms=1_790_000_000_000,
        delete_retention_ms=0,
        to_url=(tmp_path_factory.mktemp("compacted") / "copy").as_uri(),
    )
    check_settings(settings, options)
    in_place = settings_of(options, now_ms=1, delete_retention_ms=0)
    with pytest.raises(PolicyViolationError, match="cannot replace segments"):
        read_plan(options, in_place)
    before = objects_of(kafka_tiered_topic)
    reports = compact(spark, read_plan(options, settings), settings)
    return Copy(settings.written, reports, before, objects_of(kafka_tiered_topic))


def newest_per_key(topic: TieredTopic) -> list[ConsumedRecord]:
    """The newest record of each key in the bucket.

    Records on the broker's disk alone supersede nothing.
    """
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
    spark: SparkSession, kafka_tiered_topic: TieredTopic, copy: Copy
) -> None:
    assert copy.before == copy.after != {}
    assert [report.uncleanable for report in copy.reports] == [0, 0]
    expected = newest_per_key(kafka_tiered_topic)
    assert sum(report.records_after for report in copy.reports) == len(expected)
    frame = (
        spark.read.format("isotherm")
        .options(path=copy.settings.url, subscribe=kafka_tiered_topic.name, includeHeaders=True)
        .option("failOnOffsetGaps", value=False)
        .load()
    )
    found = records_of_frame(frame)
    assert found == expected
    # Kafka serves its topic unchanged.
    served = consume_all(kafka_tiered_topic.bootstrap_server, kafka_tiered_topic.name)
    assert served == list(kafka_tiered_topic.expected)
    # A tombstone survives the first round under any delete.retention.ms (KIP-534).
    assert any(record.value is None for record in found)


class NewCluster:
    """A Kafka cluster that gets the history of another cluster from a bucket."""

    def __init__(self, kafka: KafkaOracle, topic: TieredTopic, folder: Path) -> None:
        self.kafka = kafka
        self.topic = topic.name
        self.folder = folder
        self.admin = AdminClient({"bootstrap.servers": kafka.bootstrap_server})
        settings = {
            "remote.storage.enable": "true",
            "segment.bytes": str(SEGMENT_BYTES_MIN),
            "local.retention.bytes": "1",
            "retention.ms": "-1",
            "file.delete.delay.ms": "100",
        }
        create_topic(kafka.bootstrap_server, topic.name, len(topic.local_start_offsets), settings)

    def write_events(self) -> None:
        """Write the events with the program on the documentation's page."""
        page = PAGE.read_text(encoding="utf-8")
        (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        exec(textwrap.dedent(program).replace("broker:9092", self.kafka.bootstrap_server), {})

    def adopt_partitions(self) -> None:
        for directory in (self.folder / "partitions").glob(f"{self.topic}-*"):
            shutil.rmtree(self.kafka.log_dir / directory.name)
            shutil.move(directory, self.kafka.log_dir)

    def segments(self) -> list[RemoteLogSegmentMetadata]:
        """The topic's segments in this cluster's metadata topic."""
        properties = {"bootstrap.servers": self.kafka.bootstrap_server}
        with closing(KafkaMetadataTopic(properties)) as metadata:
            caches = fold_metadata_topic(metadata, lambda each: each.topic == self.topic)
        return [segment for cache in caches.values() for segment in cache.segments()]


@pytest.fixture
def new_cluster(
    kafka_tiered_topic: TieredTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[NewCluster]:
    monkeypatch.chdir(tmp_path)
    with running_kafka(tmp_path / "kafka", EAGER_SETTINGS) as kafka:
        yield NewCluster(kafka, kafka_tiered_topic, tmp_path)


def topic_id(bootstrap_server: str, topic: str) -> str:
    admin = AdminClient({"bootstrap.servers": bootstrap_server})
    described = admin.describe_topics(TopicCollection([topic]))
    kafkas_id = described[topic].result(300).topic_id
    halves = (kafkas_id.get_most_significant_bits(), kafkas_id.get_least_significant_bits())
    high, low = (half & 0xFFFFFFFFFFFFFFFF for half in halves)
    return uuid_to_text(uuid.UUID(int=(high << 64) | low))


def put_as_kafka_keeps_them(
    copy: ObjectStoreSettings, segments: list[RemoteLogSegmentMetadata], remote_dir: Path
) -> None:
    """Write the segments in LocalTieredStorage's layout: it has no manifests, and no custom
    metadata with keys.
    """
    storage, layout = (
        ObjectStoreRemoteStorageManager(copy),
        LocalTieredStorageLayout(DEFAULT_KEY_PREFIX),
    )
    for segment in segments:
        indexes = {}
        for kind in IndexType:
            try:
                content = storage.fetch_index(segment, kind)
            except RemoteResourceNotFoundError:
                assert kind is IndexType.TRANSACTION
                continue
            indexes[kind] = Source(content, len(content))
        log = bytes(storage.fetch_log_segment(segment, 0))
        for upload in layout.uploads(segment, SegmentSources(Source(log, len(log)), indexes)):
            path = remote_dir / upload.key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(upload.content)


@pytest.mark.nightly
def test_another_kafka_serves_the_copy_by_rebuilt_metadata(
    kafka_tiered_topic: TieredTopic, copy: Copy, new_cluster: NewCluster
) -> None:
    """The cluster never saw these records, and its topic has another id.

    The steps are those of the page.
    """
    name, kafka = kafka_tiered_topic.name, new_cluster.kafka
    old_id = topic_id(kafka_tiered_topic.bootstrap_server, name)
    new_id = topic_id(kafka.bootstrap_server, name)
    # Java has another working directory, so paths must be absolute.
    events = str(new_cluster.folder / "events")
    target = ["--topic-id", f"{old_id}={new_id}", "--to", events, "--partition-dirs", "partitions"]
    done = CliRunner().invoke(
        app, ["pipeline", "rebuild", "--path", copy.settings.url, *target, "--run"]
    )
    assert done.exit_code == 0, done.output + repr(done.exception)
    new_cluster.write_events()
    segments = new_cluster.segments()
    assert len(segments) == sum(report.segments for report in copy.reports)
    put_as_kafka_keeps_them(copy.settings, segments, kafka.remote_dir)
    kafka.stop()
    new_cluster.adopt_partitions()
    kafka.start()

    newest = newest_per_key(kafka_tiered_topic)
    assert consume_all(kafka.bootstrap_server, name, just_started=True) == newest
    # New records continue the log after its history.
    producer = Producer({"bootstrap.servers": kafka.bootstrap_server, "acks": "all"})
    producer.produce(name, b"value", b"key", partition=1)
    producer.flush(300)
    (appended,) = (
        message for message in consume_all(kafka.bootstrap_server, name) if message not in newest
    )
    assert (appended.partition, appended.value) == (1, b"value")
    assert appended.offset == kafka_tiered_topic.local_start_offsets[1]
