"""A tier in a local folder to read."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import DataFrameReader, SparkSession

from isotherm.record.batch import CompressionType, NewRecord, build_batch
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.testing.embedded_broker import EmbeddedBroker
from isotherm.testing.local_servers import free_ports
from isotherm.types import TopicIdPartition
from tests.support.conditions import wait_until
from tests.support.record_segments import RecordSegmentMaker


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.spark)


def made_record(partition: int, offset: int) -> NewRecord:
    return NewRecord(
        timestamp_ms=1_700_000_000_000 + offset * 1000 + partition,
        key=None if offset % 5 == 0 else b"key-%d" % offset,
        value=None if offset % 11 == 0 else b"value-%d-%d" % (partition, offset),
        headers=(("source", b"test"), ("empty", None)) if offset % 3 == 0 else (),
    )


@dataclass
class Tier:
    """A bucket in the Aiven layout, and the records put there, by partition and offset."""

    folder: Path
    storage: ObjectStoreRemoteStorageManager
    settings: ObjectStoreSettings
    maker: RecordSegmentMaker
    records: dict[tuple[str, int, int], NewRecord] = field(default_factory=dict)
    segments: list[RemoteLogSegmentMetadata] = field(default_factory=list)

    def add(
        self,
        owner: TopicIdPartition,
        offsets: range,
        *,
        codec: CompressionType = CompressionType.NONE,
        per_batch: int = 10,
        event_timestamp_ms: int = 0,
    ) -> RemoteLogSegmentMetadata:
        made = [made_record(owner.partition, offset) for offset in offsets]
        batches = [
            build_batch(
                made[start : start + per_batch],
                base_offset=offsets.start + start,
                compression=codec,
            )
            for start in range(0, len(made), per_batch)
        ]
        segment = self.maker.tier(owner, batches, event_timestamp_ms=event_timestamp_ms)
        for offset, record in zip(offsets, made, strict=True):
            self.records[owner.topic, owner.partition, offset] = record
        self.segments.append(segment)
        return segment

    def log_path(self, segment: RemoteLogSegmentMetadata) -> Path:
        return self.folder / self.settings.create_layout().log_key(segment)

    def load(self, spark: SparkSession, **options: object) -> DataFrameReader:
        reader = spark.read.format("isotherm").option("path", self.folder.as_uri())
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return reader


def make_tier(directory: Path) -> Tier:
    folder = directory / "bucket"
    folder.mkdir(parents=True)
    settings = ObjectStoreSettings(url=folder.as_uri())
    storage = ObjectStoreRemoteStorageManager(settings)
    return Tier(folder, storage, settings, RecordSegmentMaker(directory / "segments", storage))


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    return make_tier(tmp_path)


@pytest.fixture(scope="session")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Tier:
    """Topic `flights` of three partitions in segments of every codec. Tests must not change it."""
    tier = make_tier(tmp_path_factory.mktemp("flights"))
    topic_id = uuid.UUID(int=77)
    codecs = list(CompressionType)
    for partition in range(3):
        owner = TopicIdPartition(topic_id, "flights", partition)
        first = 0
        for number, size in enumerate((300, 170, 90, 40)):
            codec = codecs[(partition + number) % len(codecs)]
            tier.add(owner, range(first, first + size), codec=codec)
            first += size
    return tier


@pytest.fixture
def unused_port() -> int:
    (port,) = free_ports(1)
    return port


@pytest.fixture
def await_manifests() -> Callable[[EmbeddedBroker, str, int], None]:
    """Wait until this many segments of a topic are complete in a broker's bucket."""

    def wait(broker: EmbeddedBroker, topic: str, count: int) -> None:
        bucket = broker.directory / "bucket"
        wait_until(
            lambda: len(list(bucket.glob(f"{topic}-*/*/*.rsm-manifest"))) >= count,
            "the topic's tiering",
        )

    return wait
