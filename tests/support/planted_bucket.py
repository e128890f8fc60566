"""A bucket of small topics with a metadata topic, for tests that plant damage.

Every topic has the same three segments of a real log: several leader epochs, an idempotent
producer, committed and aborted transactions.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from isotherm.config.topic import TopicConfig
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import NewRecord, build_batch
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.record.validation import AppendOrigin
from isotherm.remote.metadata.wire.serde import RemoteLogMetadataEvent, encode_event
from isotherm.remote.segment_metadata import (
    IndexType,
    LogSegmentData,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.manifest.aiven_manifest import read_manifest, write_manifest
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.remote.tasks.copy import segment_data
from isotherm.remote.tasks.copy_plan import CandidateSegment
from isotherm.segment.leader_epochs import epochs_within
from isotherm.types import REMOTE_LOG_METADATA_TOPIC, Offset, TopicIdPartition
from tests.support.local_log import open_local_log

_START_MS = 1_700_000_000_000
_STATE = RemoteLogSegmentState
SOUND_TOPICS = 2
_EVENTS_PER_BATCH = 50


@dataclass(frozen=True, slots=True)
class MadeObjects:
    """A closed segment of a real log, as the storage manager stored it."""

    metadata: RemoteLogSegmentMetadata
    log: bytes
    indexes: bytes
    manifest: bytes


@dataclass
class PlantedTopic:
    """A topic of one partition. `segments` has their final states in the metadata topic."""

    owner: TopicIdPartition
    bucket: PlantedBucket
    segments: list[RemoteLogSegmentMetadata] = field(default_factory=list)

    @property
    def middle(self) -> RemoteLogSegmentMetadata:
        return self.segments[1]

    def path(self, segment: RemoteLogSegmentMetadata, suffix: str) -> Path:
        key = self.bucket.layout.log_key(segment).removesuffix("log") + suffix
        return self.bucket.folder / key

    def copy_more(self, like: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
        """Write the objects of a second copy of a segment, without metadata."""
        copied = replace(
            like, segment_id=replace(like.segment_id, id=self.bucket.new_id()), state=_STATE(0)
        )
        self.bucket.place(copied)
        return copied

    def announce(self, segment: RemoteLogSegmentMetadata) -> None:
        self.bucket.events.append(replace(segment, state=_STATE.COPY_SEGMENT_STARTED))

    def update(self, segment: RemoteLogSegmentMetadata, state: RemoteLogSegmentState) -> None:
        self.bucket.events.append(
            RemoteLogSegmentMetadataUpdate(
                segment_id=segment.segment_id,
                event_timestamp_ms=segment.event_timestamp_ms + int(state),
                state=state,
                broker_id=segment.broker_id,
            )
        )

    def change_bytes(
        self, segment: RemoteLogSegmentMetadata, suffix: str, position: int, content: bytes
    ) -> None:
        path = self.path(segment, suffix)
        data = bytearray(path.read_bytes())
        assert bytes(data[position : position + len(content)]) != content
        data[position : position + len(content)] = content
        path.write_bytes(data)

    def flip_bit(self, segment: RemoteLogSegmentMetadata, suffix: str, position: int) -> None:
        (byte,) = self.path(segment, suffix).read_bytes()[position : position + 1]
        self.change_bytes(segment, suffix, position, bytes([byte ^ 0x10]))

    def retell_manifest(self, segment: RemoteLogSegmentMetadata, **numbers: object) -> None:
        """Change fields of a manifest, about its segment or its log."""
        path = self.path(segment, "rsm-manifest")
        members = json.loads(path.read_bytes())
        for name, number in numbers.items():
            parts = (members["remoteLogSegmentMetadata"], members["chunkIndex"])
            next(part for part in parts if name in part)[name] = number
        path.write_text(json.dumps(members))

    def index_position(self, segment: RemoteLogSegmentMetadata, kind: IndexType) -> int:
        manifest = read_manifest(self.path(segment, "rsm-manifest").read_bytes())
        return manifest.indexes[kind].position


class PlantedBucket:
    """`segments` and `events` are the metadata after `make`."""

    def __init__(self, directory: Path, seed: int = 0) -> None:
        self.folder = directory / "bucket"
        self.dump = directory / "metadata-dump"
        self.settings = ObjectStoreSettings(url=self.folder.as_uri(), key_prefix="tiered/")
        self.layout = self.settings.create_layout()
        self.sound_dump = directory / "sound-metadata-dump"
        self.events: list[RemoteLogMetadataEvent] = []
        # The metadata of the same topics without damage.
        self._sound_events: list[RemoteLogMetadataEvent] = []
        self.topics: dict[str, PlantedTopic] = {}
        self._rng = random.Random(seed)
        self._template = _copied_segments(directory)

    def new_id(self) -> uuid.UUID:
        return uuid.UUID(bytes=self._rng.randbytes(16))

    def place(self, segment: RemoteLogSegmentMetadata) -> None:
        """Write the objects of this template as a segment."""
        made = self._template[segment.start_offset]
        described = replace(segment, segment_size_in_bytes=made.metadata.segment_size_in_bytes)
        manifest = write_manifest(replace(read_manifest(made.manifest), segment=described))
        path = self.folder / self.layout.log_key(segment)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(made.log)
        path.with_suffix(".indexes").write_bytes(made.indexes)
        path.with_suffix(".rsm-manifest").write_bytes(manifest)

    def add_topic(self, name: str) -> PlantedTopic:
        topic = PlantedTopic(TopicIdPartition(self.new_id(), name, 0), self)
        self.topics[name] = topic
        before = len(self.events)
        for made in self._template.values():
            segment_id = RemoteLogSegmentId(topic.owner, self.new_id())
            segment = replace(made.metadata, segment_id=segment_id)
            topic.announce(segment)
            self.place(segment)
            topic.update(segment, _STATE.COPY_SEGMENT_FINISHED)
            topic.segments.append(replace(segment, state=_STATE.COPY_SEGMENT_FINISHED))
        self._sound_events += self.events[before:]
        return topic

    def lose_last_event(self) -> None:
        """Remove the topic's metadata."""
        self._sound_events.append(self.events.pop())

    def add_sound_topics(self) -> None:
        for number in range(SOUND_TOPICS):
            self.add_topic(f"sound-{number}")

    def write_dumps(self) -> None:
        """The metadata topic as files of a broker's log directory with one partition; and the same
        without damage."""
        _write_dump(self.dump, self.events)
        _write_dump(self.sound_dump, self._sound_events)


def _write_dump(folder: Path, described: Sequence[RemoteLogMetadataEvent]) -> None:
    directory = folder / f"{REMOTE_LOG_METADATA_TOPIC}-0"
    directory.mkdir(parents=True, exist_ok=True)
    content = bytearray()
    for start in range(0, len(described), _EVENTS_PER_BATCH):
        events = described[start : start + _EVENTS_PER_BATCH]
        content += build_batch(
            [NewRecord(_START_MS, None, encode_event(event)) for event in events],
            base_offset=start,
        )
    (directory / f"{0:020d}.log").write_bytes(content)


def _copied_segments(directory: Path) -> dict[Offset, MadeObjects]:
    """The objects of each closed segment of a real log, by start offset."""
    folder = directory / "template"
    settings = ObjectStoreSettings(url=folder.as_uri())
    storage, layout = ObjectStoreRemoteStorageManager(settings), settings.create_layout()
    made = {}
    for metadata, data in _closed_segments(_make_log(directory / "local" / "template-0")):
        storage.copy_log_segment_data(metadata, data)
        objects = [(folder / key).read_bytes() for key in layout.object_keys(metadata)]
        made[metadata.start_offset] = MadeObjects(metadata, *objects)
    return made


def _make_log(directory: Path) -> PartitionLog:
    """Three consecutive closed segments of equal size, and an active one."""
    config = TopicConfig(remote_storage_enable=True, index_interval_bytes=100, retention_ms=-1)
    log = open_local_log(directory, config=config)
    for number in range(3):
        _append_segment(log, number, epoch=2 + number // 2)
        log.roll()
    return log


def _append_segment(log: PartitionLog, number: int, *, epoch: int) -> None:
    start = log.log_end_offset
    for batch in range(4):
        records = [
            NewRecord(_START_MS + start + index, b"key-%d" % index, bytes(60)) for index in range(5)
        ]
        _append(log, build_batch(records), epoch)
        idempotent = build_batch(
            [NewRecord(_START_MS + start, b"i", b"%05d" % (4 * number + batch))],
            producer_id=7,
            producer_epoch=0,
            base_sequence=4 * number + batch,
        )
        _append(log, idempotent, epoch)
    for kind in (ControlRecordType.COMMIT, ControlRecordType.ABORT):
        transactional = build_batch(
            [NewRecord(_START_MS + start, b"t", b"in a transaction")],
            producer_id=9,
            producer_epoch=0,
            base_sequence=2 * number + (kind is ControlRecordType.ABORT),
            is_transactional=True,
        )
        _append(log, transactional, epoch)
        marker = build_end_transaction_marker(
            kind,
            producer_id=9,
            producer_epoch=0,
            timestamp_ms=_START_MS + start,
            coordinator_epoch=0,
        )
        _append(log, marker, epoch, AppendOrigin.COORDINATOR)


def _append(
    log: PartitionLog, batch: bytearray, epoch: int, origin: AppendOrigin = AppendOrigin.CLIENT
) -> None:
    log.append_as_leader(batch, epoch, now_ms=_START_MS, origin=origin)
    log.update_high_watermark(log.log_end_offset)


def _closed_segments(
    log: PartitionLog,
) -> list[tuple[RemoteLogSegmentMetadata, LogSegmentData]]:
    made = []
    for segment, after in pairwise(log.segments()):
        candidate = CandidateSegment(segment, after.base_offset)
        metadata = RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(
                TopicIdPartition(uuid.UUID(int=1), "template", 0), uuid.UUID(int=1)
            ),
            start_offset=segment.base_offset,
            end_offset_inclusive=after.base_offset - 1,
            max_timestamp_ms=segment.largest_timestamp_ms,
            broker_id=1,
            event_timestamp_ms=_START_MS,
            segment_size_in_bytes=segment.size_in_bytes,
            segment_leader_epochs=epochs_within(
                log.leader_epochs.entries, segment.base_offset, after.base_offset
            ),
            txn_index_empty=not segment.aborted_transactions(),
        )
        made.append((metadata, segment_data(log, candidate)))
    return made
