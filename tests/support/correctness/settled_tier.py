"""Checks from a broker's files that both tiers are consistent once its background tasks are done.

    hole                   an offset between log start and log end that no batch in either tier
                           covers
    leaked-object          an object of a segment that no live metadata names
    missing-object         an object of a finished segment that does not exist
    damaged-object         a `.log` that does not match the metadata
    unfinished-segment     a segment that stays in COPY_SEGMENT_STARTED or DELETE_SEGMENT_STARTED
    undeleted-topic        metadata of a deleted topic
    expired-early          the topic with a retention has less than its `retention.bytes`
    unsettled              copies and deletions did not end in time

`tests.support.bucket_scrub` finds the first four kinds of objects without the broker's own code.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from isotherm.clock import Clock
from isotherm.errors import IsothermError
from isotherm.log.checkpoints import read_offset_checkpoint
from isotherm.record.batch import iterate_batches
from isotherm.remote.metadata.topic.kafka_topic import KafkaMetadataTopic
from isotherm.remote.metadata.wire.events import iterate_records
from isotherm.remote.metadata.wire.serde import decode_event
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.testing.bucket_files import files_below
from isotherm.types import (
    REMOTE_LOG_METADATA_AUDIT_TOPIC,
    Offset,
    TopicPartition,
    uuid_to_text,
)
from tests.support.bucket_scrub import (
    live_segments,
    metadata_values_below,
    objects_below,
    scrub,
)
from tests.support.correctness.checker import Anomaly
from tests.support.correctness.workload import COPIES, EVENTS, EXPIRING, PARTITIONS

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_LOG_STARTS = "log-start-offset-checkpoint"
_SCRUBBED = {"leaked": "leaked-object", "missing": "missing-object", "damaged": "damaged-object"}

# Files that a crash may leave behind, and that no listing of the store shows.
UNFINISHED_UPLOAD = re.compile(r".*#\d+$|\.sgwtmp/.*")

_NOTHING: Mapping[TopicPartition, Collection[Offset]] = MappingProxyType({})

_LOOK_S = 0.5
_QUIET_LOOKS = 4
"""The tier counts as settled after this many equal observations in a row. Tasks run several times
in between."""


def await_settled(bootstrap_servers: str, bucket: Path, clock: Clock, *, timeout_s: float) -> bool:
    """Wait until copies and deletions are done. Returns False after the time limit."""
    topic = KafkaMetadataTopic({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    deadline_s = clock.monotonic_s() + timeout_s
    before: frozenset[str] = frozenset()
    quiet = 0
    try:
        while quiet < _QUIET_LOOKS and clock.monotonic_s() < deadline_s:
            clock.wait(threading.Event(), _LOOK_S)
            try:
                segments = read_live_segments(topic)
            except IsothermError:
                continue  # compaction has removed records during the read: read again
            names = frozenset(_object_names(bucket))
            is_quiet = names == before and not any(_unsettled(segments, names))
            quiet = quiet + 1 if is_quiet else 0
            before = names
    finally:
        topic.close()
    return quiet >= _QUIET_LOOKS


def read_live_segments(topic: KafkaMetadataTopic) -> dict[uuid.UUID, RemoteLogSegmentMetadata]:
    """The live segments, from a broker. Raises IsothermError if it is away, or if compaction has
    removed records during the read."""
    return live_segments(
        record.value
        for number in range(topic.partition_count)
        for record in iterate_records(topic, number)
    )


def _object_names(bucket: Path) -> Iterator[str]:
    for path in files_below(bucket):
        name = path.relative_to(bucket).as_posix()
        if not UNFINISHED_UPLOAD.fullmatch(name):
            yield name


def _unsettled(
    segments: Mapping[uuid.UUID, RemoteLogSegmentMetadata], names: Iterable[str] = ()
) -> Iterator[Anomaly]:
    for segment in segments.values():
        if segment.topic_id_partition.topic not in PARTITIONS:
            yield Anomaly("undeleted-topic", f"{segment.segment_id} state={segment.state.name}")
        elif segment.state is not FINISHED:
            yield Anomaly("unfinished-segment", f"{segment.segment_id} state={segment.state.name}")
    texts = [uuid_to_text(segment) for segment in segments]
    for name in names:
        if not any(text in name for text in texts):
            yield Anomaly("leaked-object", name)


@dataclass(frozen=True, slots=True)
class TierFindings:
    anomalies: list[Anomaly]
    finished_segments: int
    sole_copies_deleted: int
    """Deleted segments of topics without retention that no other finished segment covered. Such a
    deletion is wrong even if the records were still local, so that none was lost."""
    unfinished_uploads: int
    """Files that a crash left in a folder, and that no listing shows. They are not an anomaly."""


def check_tiers(
    log_directory: Path,
    bucket: Path,
    *,
    expiring_bytes: int | None = None,
    erased: Mapping[TopicPartition, Collection[Offset]] = _NOTHING,
) -> TierFindings:
    """The anomalies after an orderly stop of the broker. `expiring_bytes` is the `retention.bytes`
    of EXPIRING, None without that topic. `erased` has the offsets that no batch need cover."""
    values = metadata_values_below(log_directory)
    held = objects_below(bucket)
    objects = {name: held[name] for name in held if not UNFINISHED_UPLOAD.fullmatch(name)}
    segments = live_segments(values)
    anomalies = list(_unsettled(segments))
    for finding in scrub(objects, values):
        kind, _, detail = finding.partition(" ")
        anomalies.append(Anomaly(_SCRUBBED[kind], detail))
    checkpoint = log_directory / _LOG_STARTS
    log_starts = read_offset_checkpoint(checkpoint.read_bytes()) if checkpoint.exists() else {}
    by_uuid = {
        segment: content
        for segment, metadata in segments.items()
        if metadata.state is FINISHED
        for name, content in objects.items()
        if name.endswith(f"{uuid_to_text(segment)}.log")
    }
    for topic, count in PARTITIONS.items():
        for number in range(count):
            partition = TopicPartition(topic, number)
            remote = [
                by_uuid[each]
                for each, metadata in segments.items()
                if each in by_uuid and _partition_of(metadata) == partition
            ]
            local = [
                path.read_bytes()
                for path in sorted((log_directory / f"{topic}-{number}").glob("*.log"))
            ]
            if not local:
                continue
            # The other topics have no retention, so a raised log start must not hide a hole there.
            start = log_starts.get(partition, 0) if topic == EXPIRING else 0
            anomalies += holes(partition, start, [*remote, *local], erased.get(partition, ()))
            if topic == EXPIRING and expiring_bytes is not None and start > 0:
                anomalies += _expired_early(partition, start, [*remote, *local], expiring_bytes)
    events = metadata_values_below(log_directory, REMOTE_LOG_METADATA_AUDIT_TOPIC) or values
    sole = sum(1 for _ in sole_copies_deleted(events))
    return TierFindings(anomalies, len(by_uuid), sole, len(held) - len(objects))


def sole_copies_deleted(
    events: Iterable[bytes | None], keeping: Collection[str] = (EVENTS, COPIES)
) -> Iterator[RemoteLogSegmentId]:
    """Yield the segments of the topics `keeping` whose deletion began though no other finished
    segment covered them. `events` are those of the audit topic, or of the metadata topic at level
    0, in order."""
    segments: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}
    for value in events:
        event = decode_event(value) if value is not None else None
        if isinstance(event, RemoteLogSegmentMetadata):
            segments[event.segment_id] = event
        elif isinstance(event, RemoteLogSegmentMetadataUpdate) and event.segment_id in segments:
            before = segments[event.segment_id]
            segments[event.segment_id] = before.updated(event)
            is_begun = event.state is RemoteLogSegmentState.DELETE_SEGMENT_STARTED
            keeps_all = before.topic_id_partition.topic in keeping
            if (
                is_begun
                and keeps_all
                and before.state is FINISHED
                and not any(_covers(segment, before) for segment in segments.values())
            ):
                yield before.segment_id


def _covers(other: RemoteLogSegmentMetadata, segment: RemoteLogSegmentMetadata) -> bool:
    return (
        other.state is FINISHED
        and other.topic_id_partition == segment.topic_id_partition
        and other.start_offset <= segment.start_offset
        and other.end_offset_inclusive >= segment.end_offset_inclusive
    )


def _partition_of(metadata: RemoteLogSegmentMetadata) -> TopicPartition:
    partition = metadata.topic_id_partition
    return TopicPartition(partition.topic, partition.partition)


def holes(
    partition: TopicPartition,
    start: Offset,
    contents: Iterable[bytes],
    erased: Collection[Offset] = (),
) -> Iterator[Anomaly]:
    """Yield the offsets from `start` to the end of the last batch that no batch covers, and that
    are not erased. The topic must not be compacted, because compaction leaves gaps."""
    next_offset = start
    covered = _ranges(contents) | {(offset, offset + 1) for offset in erased}
    for first, following in sorted(covered):
        if first > next_offset:
            yield Anomaly(
                "hole", f"{partition}@{next_offset}-{first - 1} count={first - next_offset}"
            )
        next_offset = max(next_offset, following)


def _ranges(contents: Iterable[bytes]) -> set[tuple[Offset, Offset]]:
    """The first offset of each batch, and the offset after its last one."""
    return {
        (header.base_offset, header.next_offset)
        for content in contents
        for _, header in iterate_batches(content)
    }


def _expired_early(
    partition: TopicPartition, start: Offset, contents: Iterable[bytes], retention_bytes: int
) -> Iterator[Anomaly]:
    sizes = {
        header.base_offset: header.size_in_bytes
        for content in contents
        for _, header in iterate_batches(content)
        if header.next_offset > start
    }
    held = sum(sizes.values())
    if held < retention_bytes:
        yield Anomaly("expired-early", f"{partition} held={held} retention_bytes={retention_bytes}")
