"""A read replica in a process of its own, and a history of many segments for it to start on.

The history lies in a bucket of the Aiven layout, and its events in the metadata topic of a Kafka
cluster. Each segment is one small batch. All share the bytes of one copy: only their names, offsets
and manifests differ, and only the first one of a partition is read.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import AdminClient

from bench.servers import end_process
from isotherm.record.batch import NewRecord, build_batch
from isotherm.remote.metadata.wire.keys import metadata_partition
from isotherm.remote.metadata.wire.serde import encode_event
from isotherm.remote.segment_metadata import (
    LogSegmentData,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.manifest.aiven_manifest import read_manifest, write_manifest
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.segment.leader_epoch_checkpoint import EpochEntry, encode_leader_epoch_checkpoint
from isotherm.segment.producer_snapshot import encode_producer_snapshot
from isotherm.testing.local_servers import free_ports
from isotherm.types import REMOTE_LOG_METADATA_TOPIC, TopicIdPartition

_START_MS = 1_700_000_000_000
_SHOWN_BYTES = 2000


class ReplicaServer:
    """`isotherm replica` with its defaults over the tier at `path`, in front of the cluster
    `upstream` or without one."""

    name = "replica"

    def __init__(self, directory: Path, path: Path, upstream: str | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._log_path = directory / "replica.log"
        (port,) = free_ports(1)
        self.bootstrap_server = f"127.0.0.1:{port}"
        self._command = [
            sys.executable,
            "-m",
            "isotherm.cli.main",
            "replica",
            "--log-level=warning",
        ]
        self._command += [f"--path={path}", f"--listener=PLAINTEXT://{self.bootstrap_server}"]
        if upstream is not None:
            self._command.append(f"--upstream={upstream}")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the replica is started"
        return self._process.pid

    def start(self) -> None:
        """Return at once."""
        with self._log_path.open("wb") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=output)

    def check_runs(self) -> None:
        """Raise RuntimeError with its last words if it has ended."""
        assert self._process is not None, "the replica is started"
        if self._process.poll() is not None:
            words = self._log_path.read_text()[-_SHOWN_BYTES:]
            raise RuntimeError(f"the replica has ended:\n{words}")

    def kill(self) -> None:
        """End the process at once (SIGKILL)."""
        assert self._process is not None, "the replica is started"
        self._process.kill()
        self._process.wait()
        self._process = None

    def stop(self) -> None:
        if self._process is not None:
            end_process(self._process)
            self._process = None


def plant_history(upstream: str, bucket: Path, topic: str, segments: int) -> None:
    """Give each partition of the cluster's topic its share of `segments` segments in the bucket,
    and tell the cluster's metadata topic of them."""
    places = _places(upstream, topic)
    template = _Template(bucket)
    described = [
        template.segment(place, number)
        for place in places
        for number in range(segments // len(places))
    ]
    for segment in described:
        template.place(segment)
    _announce(upstream, described)


class _Template:
    """One copied segment, from which others are made."""

    def __init__(self, bucket: Path) -> None:
        settings = ObjectStoreSettings(url=bucket.as_uri())
        bucket.mkdir(parents=True, exist_ok=True)
        self._bucket, self._layout = bucket, settings.create_layout()
        batch = bytes(build_batch([NewRecord(_START_MS, b"key", bytes(100))], base_offset=0))
        self._metadata = RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(TopicIdPartition(uuid.UUID(int=1), "t", 0), uuid.uuid4()),
            start_offset=0,
            end_offset_inclusive=0,
            max_timestamp_ms=_START_MS,
            broker_id=1,
            event_timestamp_ms=_START_MS,
            segment_size_in_bytes=len(batch),
            segment_leader_epochs={0: 0},
            txn_index_empty=True,
        )
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "log").write_bytes(batch)
            (folder / "index").write_bytes(b"")
            (folder / "timeindex").write_bytes(b"")
            (folder / "snapshot").write_bytes(encode_producer_snapshot([]))
            data = LogSegmentData(
                log_path=folder / "log",
                offset_index_path=folder / "index",
                time_index_path=folder / "timeindex",
                transaction_index_path=None,
                producer_snapshot_path=folder / "snapshot",
                leader_epoch_checkpoint=encode_leader_epoch_checkpoint([EpochEntry(0, 0)]),
            )
            scratch = folder / "bucket"
            scratch.mkdir()
            storage = ObjectStoreRemoteStorageManager(ObjectStoreSettings(url=scratch.as_uri()))
            storage.copy_log_segment_data(self._metadata, data)
            keys = self._layout.object_keys(self._metadata)
            self._log, self._indexes, manifest = ((scratch / k).read_bytes() for k in keys)
        self._manifest = read_manifest(manifest)

    def segment(self, place: TopicIdPartition, number: int) -> RemoteLogSegmentMetadata:
        return replace(
            self._metadata,
            segment_id=RemoteLogSegmentId(place, uuid.uuid4()),
            start_offset=number,
            end_offset_inclusive=number,
            segment_leader_epochs={0: number},
        )

    def place(self, segment: RemoteLogSegmentMetadata) -> None:
        path = self._bucket / self._layout.log_key(segment)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self._log)
        path.with_suffix(".indexes").write_bytes(self._indexes)
        manifest = write_manifest(replace(self._manifest, segment=segment))
        path.with_suffix(".rsm-manifest").write_bytes(manifest)


def _places(upstream: str, topic: str) -> list[TopicIdPartition]:
    admin = AdminClient({"bootstrap.servers": upstream})
    described = admin.describe_topics(TopicCollection([topic]))[topic].result()
    topic_id = described.topic_id
    bits = (topic_id.get_most_significant_bits() % 2**64) << 64
    bits |= topic_id.get_least_significant_bits() % 2**64
    return [
        TopicIdPartition(uuid.UUID(int=bits), topic, partition.id)
        for partition in described.partitions
    ]


def _announce(upstream: str, segments: Sequence[RemoteLogSegmentMetadata]) -> None:
    """As a broker of Apache Kafka: two events for each segment, in the order of the copies."""
    admin = AdminClient({"bootstrap.servers": upstream})
    name = REMOTE_LOG_METADATA_TOPIC
    count = len(admin.list_topics(name, timeout=30).topics[name].partitions)
    producer = Producer({"bootstrap.servers": upstream, "linger.ms": 5, "acks": "all"})
    in_order = sorted(segments, key=lambda segment: segment.start_offset)
    for segment in in_order:
        number = metadata_partition(segment.topic_id_partition, count)
        for event in _events(segment):
            producer.produce(name, event, partition=number)
        producer.poll(0)
        while len(producer) > 50_000:
            producer.poll(0.1)
    if producer.flush(120):
        raise RuntimeError("events of segments were not stored")


def _events(segment: RemoteLogSegmentMetadata) -> Iterator[bytes]:
    yield encode_event(segment)
    yield encode_event(
        RemoteLogSegmentMetadataUpdate(
            segment_id=segment.segment_id,
            event_timestamp_ms=_START_MS,
            state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            broker_id=1,
            custom_metadata=None,
        )
    )


def await_tier(server: str) -> None:
    """Return once the cluster has its metadata topic."""
    admin = AdminClient({"bootstrap.servers": server})
    while REMOTE_LOG_METADATA_TOPIC not in admin.list_topics(timeout=30).topics:
        time.sleep(0.1)
