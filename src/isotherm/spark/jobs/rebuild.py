"""Rebuilds metadata from the bucket's manifests, for a cluster that lost it or for a new cluster.

    manifests -> segments -> lineage of each partition -> events, and state for a broker

A user's RemoteStorageManager has no manifests. It lists its segments itself, if it can
(ListsSegments).

A segment is left out, with a finding, if others hold all of its offsets: no reader would use it.
A partition is left out whose segments overlap and have other leader epochs than their manifests
say. These decide which segment is the log, and a deposed leader's records would be served.
`write_to_topic` writes the events to a topic that the caller names.
isotherm.broker.startup.log_dir_rebuild writes them to the log directories of an Isotherm broker.

Topics keep their ids, unless a mapping gives them new ones. Object keys contain the old id. So with
a new id, each event also contains the place of its segment's objects, as custom metadata (KIP-917),
and Isotherm finds the objects there. The Aiven plugin looks for manifests under the new id only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as sql

from isotherm.errors import (
    ConfigError,
    UnreadableDataError,
    UnsupportedVersionError,
)
from isotherm.remote.history.lineage import segment_epochs
from isotherm.remote.metadata.api import NewMetadataRecord
from isotherm.remote.metadata.state.segment_columns import LEADER_EPOCH
from isotherm.remote.metadata.topic.kafka_topic import KafkaMetadataTopic, check_is_own_topic
from isotherm.remote.metadata.topic.keyed_writes import key_of_start
from isotherm.remote.metadata.wire.keys import metadata_partition
from isotherm.remote.metadata.wire.serde import encode_event, encode_keyed_event
from isotherm.remote.scrub.findings import Finding, FindingKind, Problem, segment_finding
from isotherm.remote.segment_metadata import (
    IndexType,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.layout.aiven_custom_metadata import AivenCustomMetadata
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.segment.leader_epoch_checkpoint import EpochEntry
from isotherm.segment.leader_epochs import epochs_within
from isotherm.segment.producer_snapshot import read_producer_snapshot
from isotherm.spark.jobs.manifests import read_manifests
from isotherm.spark.jobs.scrub import FINDINGS, history_findings
from isotherm.spark.metadata.segment_frames import SEGMENT_ARROW, segment_row, segments_of
from isotherm.spark.options import SourceOptions
from isotherm.spark.plan.epoch_claims import contested_epochs
from isotherm.spark.plan.planning import SegmentPiece, lineage_pieces
from isotherm.spark.reading.epoch_proof import prove_epochs
from isotherm.spark.reading.read_errors import WrongRowsError
from isotherm.spark.small_input import is_small, map_batches, map_groups
from isotherm.spark.tier.storage import storage_of_job
from isotherm.types import (
    TopicIdPartition,
    uuid_from_text,
    uuid_to_text,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PARTITION_FIELDS: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "topic_id": pa.string(),
    "partition": pa.int32(),
    "log_start": pa.int64(),
    "log_end": pa.int64(),
    # Below this offset every transaction is complete. The markers of open transactions were not
    # tiered.
    "stable_end": pa.int64(),
    "epochs": pa.list_(LEADER_EPOCH),
    "segments": pa.int64(),
    "bytes": pa.int64(),
    "producer_snapshot": pa.binary(),
}
_PARTITIONS = pa.schema(_PARTITION_FIELDS)
_EVENT_FIELDS: dict[str, pa.DataType] = {
    "metadata_partition": pa.int32(),
    "topic": pa.string(),
    "topic_id": pa.string(),
    "partition": pa.int32(),
    "start_offset": pa.int64(),
    "step": pa.int32(),
    "state": pa.string(),
    "timestamp_ms": pa.int64(),
    "key": pa.binary(),
    "value": pa.binary(),
}
EVENTS = pa.schema(_EVENT_FIELDS)
_ORDER = ("metadata_partition", "topic_id", "partition", "start_offset", "step")
_RECORDS_PER_APPEND = 500
_OF_PARTITION = ("topic_id", "partition")


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """DataFrames from one read of the manifests, persisted until `close`.

    segments   the finished segments in each partition's lineage: the new metadata
    partitions one row each: the offsets, epochs and producers that its leader must know
    findings   damaged manifests, gaps, and segments left out, in the columns of a Finding
    """

    segments: DataFrame
    partitions: DataFrame
    findings: DataFrame
    kept: tuple[DataFrame, ...]

    def close(self) -> None:
        for frame in self.kept:
            frame.unpersist()


def rebuild(listing: DataFrame, store: ObjectStoreSettings) -> Rebuilt:
    """Rebuild metadata from a listing (bucket_listing). Raises UnsupportedVersionError for a layout
    without manifests."""
    manifests = read_manifests(listing, store)
    rebuilt = rebuild_from(manifests.segments, store)
    findings = manifests.findings.unionByName(rebuilt.findings)
    return replace(rebuilt, findings=findings, kept=(manifests.rows, *rebuilt.kept))


def rebuild_from(segments: DataFrame, store: ObjectStoreSettings | SourceOptions) -> Rebuilt:
    """Rebuild metadata from finished segments (segment_frames). `store` is the bucket that has
    them, or options that name a user's RemoteStorageManager."""

    def kept_of(group: pa.Table) -> pa.Table:
        return kept_segments(group, store)

    def found_in(group: pa.Table) -> pa.Table:
        return findings_of(group, store)

    def partition_of(group: pa.Table) -> pa.Table:
        return _partition(group, store)

    kept = map_groups(segments, _OF_PARTITION, kept_of, SEGMENT_ARROW)
    findings = map_groups(segments, _OF_PARTITION, found_in, FINDINGS)
    partitions = map_groups(kept, _OF_PARTITION, partition_of, _PARTITIONS)
    if is_small(segments.sparkSession):
        # The driver has their rows.
        return Rebuilt(kept, partitions, findings, ())
    kept.persist()
    return Rebuilt(kept, partitions.persist(), findings, (kept, partitions))


def kept_segments(group: pa.Table, store: ObjectStoreSettings | SourceOptions) -> pa.Table:
    """The segments of one partition that are its log, as rows.

    None if their leader epochs contradict their batches.
    """
    segments = _segments(group)
    pieces = lineage_pieces(segments) if _contradiction(segments, store) is None else []
    kept = {piece.segment.segment_id.id: piece.segment for piece in pieces}
    return pa.Table.from_pylist([segment_row(segment) for segment in kept.values()], SEGMENT_ARROW)


def findings_of(group: pa.Table, store: ObjectStoreSettings | SourceOptions) -> pa.Table:
    """The findings about the segments of one partition, as rows."""
    segments = _segments(group)
    findings: list[Finding] = list(history_findings(segments))
    error = _contradiction(segments, store)
    if error is not None:
        problem = Problem(FindingKind.WRONG_EPOCH, f"the partition is left out cause='{error}'")
        findings.append(segment_finding(error.read.segment, problem))
    return pa.Table.from_pylist([finding._asdict() for finding in findings], FINDINGS)


def _contradiction(
    segments: list[RemoteLogSegmentMetadata], store: ObjectStoreSettings | SourceOptions
) -> WrongRowsError | None:
    """The first segment whose batches have other leader epochs than its metadata, among those that
    overlap. A segment that cannot be read contradicts nothing."""
    try:
        prove_epochs(contested_epochs(segments), storage_of_job(store), may_be_unreadable=True)
    except WrongRowsError as error:
        return error
    return None


def _partition(group: pa.Table, store: ObjectStoreSettings | SourceOptions) -> pa.Table:
    pieces = lineage_pieces(_segments(group))
    last = pieces[-1].segment
    owner = last.topic_id_partition
    snapshot = _producer_snapshot(last, store)
    producers = read_producer_snapshot(snapshot) if snapshot is not None else []
    undecided = [producer.current_transaction_first_offset for producer in producers]
    row = {
        "topic": owner.topic,
        "topic_id": uuid_to_text(owner.topic_id),
        "partition": owner.partition,
        "log_start": pieces[0].start_offset,
        "log_end": pieces[-1].end_offset,
        "stable_end": min((o for o in undecided if o >= 0), default=pieces[-1].end_offset),
        "epochs": [
            {"epoch": entry.epoch, "start_offset": entry.start_offset} for entry in lineage(pieces)
        ],
        "segments": len(pieces),
        "bytes": sum(piece.segment.segment_size_in_bytes for piece in pieces),
        "producer_snapshot": snapshot,
    }
    return pa.Table.from_pylist([row], _PARTITIONS)


def lineage(pieces: Iterable[SegmentPiece]) -> list[EpochEntry]:
    """The leader epochs, ascending, of the log that these pieces make up."""
    starts: dict[int, int] = {}
    for piece in pieces:
        epochs = segment_epochs(piece.segment)
        held = epochs_within(epochs, piece.start_offset, piece.end_offset)
        # An epoch begins where the first piece that has it says.
        starts = held | starts
    entries: list[EpochEntry] = []
    for epoch, start in sorted(starts.items()):
        if not entries or start >= entries[-1].start_offset:
            entries.append(EpochEntry(epoch, start))
    return entries


def _producer_snapshot(
    segment: RemoteLogSegmentMetadata, store: ObjectStoreSettings | SourceOptions
) -> bytes | None:
    """The producer snapshot of a segment, or None if it is damaged or missing. Idempotent producers
    then start with a new state, as Kafka allows."""
    try:
        snapshot = storage_of_job(store).fetch_index(segment, IndexType.PRODUCER_SNAPSHOT)
        read_producer_snapshot(snapshot)
    except UnreadableDataError:
        return None
    return snapshot


def mapped(
    segments: DataFrame, store: ObjectStoreSettings, topic_ids: Mapping[str, str]
) -> DataFrame:
    """The segments under other topic ids (old -> new, as text), with the place of their objects."""
    for text in (*topic_ids, *topic_ids.values()):
        try:
            uuid_from_text(text)
        except ValueError as error:
            raise ConfigError(f"not a topic id value={text!r}") from error
    if store.create_layout().commit_suffix is None:
        raise UnsupportedVersionError("layout has no keys for objects of another topic id")
    ids = dict(topic_ids)

    def rename(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [
                segment_row(renamed_segment(segment, store, ids)) for segment in segments_of(batch)
            ]
            yield pa.RecordBatch.from_pylist(rows, schema=SEGMENT_ARROW)

    return map_batches(segments, rename, SEGMENT_ARROW)


def renamed_segment(
    segment: RemoteLogSegmentMetadata, store: ObjectStoreSettings, ids: Mapping[str, str]
) -> RemoteLogSegmentMetadata:
    owner = segment.topic_id_partition
    new_id = ids.get(uuid_to_text(owner.topic_id))
    if new_id is None:
        return segment
    prefix = store.key_prefix or ""
    key = store.create_layout().log_key(segment).removeprefix(prefix).rpartition(".")[0]
    renamed = TopicIdPartition(uuid_from_text(new_id), owner.topic, owner.partition)
    return replace(
        segment,
        segment_id=RemoteLogSegmentId(renamed, segment.segment_id.id),
        custom_metadata=AivenCustomMetadata(object_prefix=prefix, object_key=key).encode(),
    )


def events(segments: DataFrame, partition_count: int, *, level: int = 0) -> DataFrame:
    """The records for these segments, with the columns EVENTS, in append order for each metadata
    partition.

    At level 0 a segment has two events without a key, which any Kafka broker can read. At level 1
    it has its state under its key (KIP-1266).
    """

    def make(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [
                row
                for segment in segments_of(batch)
                for row in events_of(segment, partition_count, level)
            ]
            yield pa.RecordBatch.from_pylist(rows, schema=EVENTS)

    made = map_batches(segments, make, EVENTS)
    # One task appends a metadata partition, in the order in which it was sorted.
    return made.repartition("metadata_partition").sortWithinPartitions(*_ORDER)


def events_of(
    segment: RemoteLogSegmentMetadata, partition_count: int, level: int
) -> Iterator[dict[str, Any]]:
    owner = segment.topic_id_partition
    started = replace(
        segment, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED, custom_metadata=None
    )
    finished = RemoteLogSegmentMetadataUpdate(
        segment_id=segment.segment_id,
        event_timestamp_ms=segment.event_timestamp_ms,
        state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        broker_id=segment.broker_id,
        custom_metadata=segment.custom_metadata,
    )
    key = key_of_start(segment)
    records: list[tuple[str, bytes | None, bytes]] = [
        (started.state.name, None, encode_event(started)),
        (finished.state.name, None, encode_event(finished)),
    ]
    if level > 0:
        keyed = replace(segment, broker_leader_epoch=key.broker_leader_epoch)
        records = [(keyed.state.name, key.encode(), encode_keyed_event(keyed))]
    for step, (state, encoded_key, value) in enumerate(records):
        yield {
            "metadata_partition": metadata_partition(owner, partition_count),
            "topic": owner.topic,
            "topic_id": uuid_to_text(owner.topic_id),
            "partition": owner.partition,
            "start_offset": segment.start_offset,
            "step": step,
            "state": state,
            "timestamp_ms": segment.event_timestamp_ms,
            "key": encoded_key,
            "value": value,
        }


def write_to_topic(made: DataFrame, client_properties: Mapping[str, str], topic: str) -> int:
    """Append the events, one task for each metadata partition, and return their number. Raises
    PolicyViolationError if `topic` is a cluster's own `__remote_log_metadata`."""
    properties = dict(client_properties)

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        count = 0
        with closing(KafkaMetadataTopic(properties, topic=topic)) as target:
            for batch in batches:
                pending: list[NewMetadataRecord] = []
                number = -1
                for row in batch.to_pylist():
                    if row["metadata_partition"] != number or len(pending) == _RECORDS_PER_APPEND:
                        _append(target, number, pending)
                        pending, number = [], row["metadata_partition"]
                    pending.append(NewMetadataRecord(row["key"], row["value"], row["timestamp_ms"]))
                    count += 1
                _append(target, number, pending)
        yield pa.RecordBatch.from_pydict({"written": pa.array([count], pa.int64())})

    check_is_own_topic(topic)
    with closing(KafkaMetadataTopic(properties, topic=topic)) as target:
        partitions = target.partition_count
    beyond = made.where(sql.col("metadata_partition") >= partitions)
    if not beyond.isEmpty():
        raise ConfigError(f"events are made for more partitions than the topic has {topic=}")
    written = made.mapInArrow(write, "written bigint").agg(sql.sum("written")).first()
    return 0 if written is None else int(written[0] or 0)


def _append(target: KafkaMetadataTopic, number: int, records: list[NewMetadataRecord]) -> None:
    if records:
        target.append_all(number, records)


def _segments(group: pa.Table) -> list[RemoteLogSegmentMetadata]:
    return [segment for batch in group.to_batches() for segment in segments_of(batch)]
