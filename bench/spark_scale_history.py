"""The histories that bench/spark_scale.py measures on."""

from __future__ import annotations

import random
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import obstore
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from Crypto.PublicKey import RSA
from obstore.store import LocalStore, MemoryStore

from isotherm.record.batch import NewRecord, assign_offsets, build_batch
from isotherm.remote.metadata.wire.keys import metadata_partition
from isotherm.remote.metadata.wire.serde import encode_event
from isotherm.remote.segment_metadata import (
    IndexType,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.manifest.aiven_manifest import (
    INDEX_MEMBERS,
    SegmentManifest,
    StoredIndex,
    write_manifest,
)
from isotherm.remote.storage.manifest.chunk_index import plain_chunk_index
from isotherm.remote.storage.object_client import ObjectClient
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.testing.embedded_broker import EmbeddedBroker
from isotherm.types import TopicIdPartition
from tests.support.record_segments import RecordSegmentMaker

PARTITIONS = 100
SIZE_UNIT = 2**20
METADATA_PARTITIONS = 50
OFFSETS_PER_SEGMENT = 1_000_000
START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
_TOPIC_ID = uuid.UUID(int=0x5CA1E)
_TIMEOUT_S = 60


def _owners() -> list[TopicIdPartition]:
    return [TopicIdPartition(_TOPIC_ID, "flights", number) for number in range(PARTITIONS)]


def _segments(count: int, size: int) -> Iterator[RemoteLogSegmentMetadata]:
    """Segments of all partitions, in the order of their timestamps."""
    for number in range(count // PARTITIONS):
        for owner in _owners():
            start = number * OFFSETS_PER_SEGMENT
            segment_uuid = uuid.UUID(int=(number * PARTITIONS + owner.partition) * 7919 << 40 | 1)
            time_ms = START_MS + number * 60_000
            yield RemoteLogSegmentMetadata(
                segment_id=RemoteLogSegmentId(owner, segment_uuid),
                start_offset=start,
                end_offset_inclusive=start + OFFSETS_PER_SEGMENT - 1,
                max_timestamp_ms=time_ms,
                broker_id=1,
                event_timestamp_ms=time_ms,
                segment_size_in_bytes=size,
                segment_leader_epochs={3: start},
            )


@contextmanager
def metadata_topic() -> Iterator[tuple[dict[str, Any], str]]:
    with (
        tempfile.TemporaryDirectory(prefix="isotherm-bench-") as folder,
        EmbeddedBroker(Path(folder)) as broker,
    ):
        properties = {"bootstrap.servers": broker.bootstrap_servers}
        admin = AdminClient(properties)
        created = admin.create_topics([NewTopic("metadata", METADATA_PARTITIONS, 1)])
        created["metadata"].result(_TIMEOUT_S)
        yield properties, "metadata"


def fill_metadata_topic(
    properties: dict[str, Any], topic: str, count: int, size: int
) -> tuple[list[TopicIdPartition], int]:
    """Write the events of `count` segments; return the partitions, and the end offset of each."""
    producer = Producer(
        {**properties, "linger.ms": 50, "queue.buffering.max.messages": 2 * count + 1}
    )
    for segment in _segments(count, size):
        finished = RemoteLogSegmentMetadataUpdate(
            segment_id=segment.segment_id,
            event_timestamp_ms=segment.event_timestamp_ms,
            state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            broker_id=1,
        )
        partition = metadata_partition(segment.topic_id_partition, METADATA_PARTITIONS)
        for event in (segment, finished):
            producer.produce(topic, encode_event(event), partition=partition)
    assert producer.flush(_TIMEOUT_S) == 0
    return _owners(), count // PARTITIONS * OFFSETS_PER_SEGMENT


def fill_store(store: MemoryStore, settings: ObjectStoreSettings, count: int, size: int) -> None:
    """Put the objects of `count` segments: whole manifests, empty indexes, and a byte per
    `SIZE_UNIT` of each log.
    """
    layout = settings.create_layout()
    indexes = {
        kind: StoredIndex(0, 0) for kind in INDEX_MEMBERS if kind is not IndexType.TRANSACTION
    }
    chunks = plain_chunk_index(size, 4 * 2**20)
    for segment in _segments(count, size):
        log_key, indexes_key, manifest_key = layout.object_keys(segment)
        manifest = write_manifest(SegmentManifest(chunks, indexes, segment=segment))
        log = bytes(size // SIZE_UNIT)
        for key, content in ((log_key, log), (indexes_key, b""), (manifest_key, manifest)):
            obstore.put(store, key, content)


@dataclass(frozen=True, slots=True)
class Year:
    """365 days in weekly segments of each partition, and the bytes that three of them take."""

    settings: ObjectStoreSettings
    store: Any
    segments: list[RemoteLogSegmentMetadata]
    wanted_records: int
    wanted_bytes: float
    records_per_day: int

    def limits(self) -> Iterator[tuple[str, dict[str, str]]]:
        first, last = (day * self.records_per_day for day in (_FIRST_DAY, _LAST_DAY))
        low, high = (START_MS + day * DAY_MS for day in (_FIRST_DAY, _LAST_DAY))
        starts = f'{{"year":{{"0":{first},"1":{first}}}}}'
        ends = f'{{"year":{{"0":{last},"1":{last}}}}}'
        yield "offsets", {"startingOffsets": starts, "endingOffsets": ends}
        yield "times", {"startingTimestamp": str(low), "endingTimestamp": str(high)}


_FIRST_DAY, _LAST_DAY, _DAYS = 200, 203, 365
_VALUE_SIZE, _PER_BATCH = 1000, 16


def fill_year(folder: Path, kind: str, *, day_size: int) -> Year:
    """Write a year of two partitions with `day_size` bytes a day together."""
    settings = _settings(folder, kind, chunk_size=64 * 1024)
    bucket = folder / "bucket"
    bucket.mkdir()
    store = LocalStore(bucket)
    storage = ObjectStoreRemoteStorageManager(settings, store=store)
    maker, rng = RecordSegmentMaker(folder / "made", storage), random.Random(1)
    batches_per_day = day_size // 2 // (_PER_BATCH * _VALUE_SIZE)
    per_day = batches_per_day * _PER_BATCH
    segments, stored = [], 0
    client, layout = ObjectClient(settings, store), settings.create_layout()
    for week in range(0, _DAYS, 7):
        for partition in range(2):
            owner = TopicIdPartition(_TOPIC_ID, "year", partition)
            days = min(7, _DAYS - week)
            starts = range(week * per_day, (week + days) * per_day, _PER_BATCH)
            batches = [_batch_at(start, per_day, rng) for start in starts]
            segments.append(maker.tier(owner, batches))
            stored += client.object_size(layout.log_key(segments[-1]))
    days = _LAST_DAY - _FIRST_DAY
    size = stored / _DAYS * days
    return Year(settings, store, segments, 2 * per_day * days, size, per_day)


def _batch_at(start: int, per_day: int, rng: random.Random) -> bytearray:
    half = _VALUE_SIZE // 2
    records = [
        NewRecord(START_MS + offset * DAY_MS // per_day, None, rng.randbytes(half) + bytes(half))
        for offset in range(start, start + _PER_BATCH)
    ]
    return build_batch(records, base_offset=start)


def write_large_segment(folder: Path, kind: str, size: int) -> tuple[dict[str, str], int]:
    """Write a segment of 1 KB records that compress to half; return the options that read it,
    and the record count.
    """
    config = _config(folder, kind, chunk_size=4 * 2**20)
    storage = ObjectStoreRemoteStorageManager(ObjectStoreSettings.from_config(config))
    rng, per_batch = random.Random(1), 64
    templates = []
    for _ in range(64):
        values = [rng.randbytes(500) + bytes(500) for _ in range(per_batch)]
        records = [NewRecord(START_MS, b"key", value) for value in values]
        templates.append(build_batch(records))
    batches = []
    for number in range(size // len(templates[0])):
        batch = bytearray(templates[number % len(templates)])
        assign_offsets(batch, 0, number * per_batch, 0)
        batches.append(batch)
    owner = TopicIdPartition(_TOPIC_ID, "large", 0)
    RecordSegmentMaker(folder / "made", storage).tier(owner, batches)
    options = {
        name: text for name, text in config.items() if name.startswith("encryption.key.pairs")
    }
    options = {name: text for name, text in options.items() if "public" not in name}
    return options | {"path": config["url"], "subscribe": "large"}, len(batches) * per_batch


def _settings(folder: Path, kind: str, chunk_size: int) -> ObjectStoreSettings:
    return ObjectStoreSettings.from_config(_config(folder, kind, chunk_size))


def _config(folder: Path, kind: str, chunk_size: int) -> dict[str, str]:
    config = {"url": (folder / "bucket").as_uri(), "layout": kind.partition(",")[0]}
    if "encrypted" not in kind:
        return config
    key = RSA.generate(2048)
    (folder / "public.pem").write_bytes(key.public_key().export_key())
    (folder / "private.pem").write_bytes(key.export_key(pkcs=8))
    return config | {
        "compression.enabled": "true",
        "encryption.enabled": "true",
        "chunk.size": str(chunk_size),
        "encryption.key.pair.id": "bench",
        "encryption.key.pairs": "bench",
        "encryption.key.pairs.bench.public.key.file": str(folder / "public.pem"),
        "encryption.key.pairs.bench.private.key.file": str(folder / "private.pem"),
    }
