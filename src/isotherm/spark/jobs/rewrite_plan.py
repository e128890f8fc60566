"""Reads what a job that rewrites histories plans with: the log's pieces of each partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from isotherm.remote.rewriting.pieces import Piece, located
from isotherm.remote.segment_metadata import IndexType, RemoteLogSegmentMetadata
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.segment.producer_snapshot import LastRecord, read_producer_snapshot
from isotherm.spark.jobs.rewrite_run import RewriteSettings, check_cluster_publishes
from isotherm.spark.options import SourceOptions
from isotherm.spark.plan.epoch_claims import contested_epochs
from isotherm.spark.plan.offsets import OffsetBounds
from isotherm.spark.plan.planning import SegmentPiece, SegmentRead, lineage_pieces
from isotherm.spark.reading.committed_history import CommittedHistory
from isotherm.spark.reading.epoch_proof import prove_epochs
from isotherm.spark.reading.read_errors import SegmentReadError
from isotherm.spark.tier.open_log import open_brokers, open_segment_source
from isotherm.spark.tier.storage import storage_of_job
from isotherm.spark.tier.tiered_log import choose_partitions, newest_histories
from isotherm.types import ProducerId, TopicIdPartition, TopicPartition


@dataclass(frozen=True, slots=True)
class TieredHistories:
    """The tiered part of the selected partitions.

    `segments` are all that the bucket has of a partition, `pieces` those of its log above the log
    start. `bounds` is empty without brokers. `unproven` has the partitions whose leader epochs are
    not proven, with the reason.
    """

    segments: Mapping[TopicPartition, Sequence[RemoteLogSegmentMetadata]]
    pieces: Mapping[TopicPartition, Sequence[SegmentPiece]]
    bounds: Mapping[TopicPartition, OffsetBounds]
    unproven: Mapping[TopicPartition, SegmentReadError]


def read_histories(options: SourceOptions, settings: RewriteSettings) -> TieredHistories:
    """Read the metadata, or list the bucket. Offsets below the log start are left out if brokers
    report the log start.

    Raises CorruptObjectError if a manifest cannot be read, even with failOnDataLoss=false: the
    rewritten log would lack that segment. Raises SegmentReadError, for a copy, if the leader epochs
    of a partition are not proven: the copy would have records of a deposed leader.
    """
    brokers = open_brokers(options)
    owners: list[TopicIdPartition] | None = None
    if brokers is not None:
        names = [name for name in brokers.topic_names() if options.selects_topic(name)]
        owners = brokers.partitions(names)
        if settings.in_place:
            check_cluster_publishes(brokers)
    strict = replace(options, fail_on_data_loss=True)
    with open_segment_source(strict, settings.bucket) as source:
        segments = newest_histories(source.visible_segments(options.selects_topic, owners))
    chosen = choose_partitions(options, segments)
    bounds = {} if brokers is None else brokers.bounds(chosen)
    log_pieces = {}
    for partition in chosen:
        pieces = lineage_pieces(segments.get(partition, ()))
        start = bounds[partition].start if partition in bounds else 0
        log_pieces[partition] = [piece for piece in pieces if piece.end_offset > start]
    storage = storage_of_job(settings.source)
    selected = {partition: segments.get(partition, ()) for partition in chosen}
    unproven = unproven_histories(storage, selected)
    if not settings.in_place:
        for error in unproven.values():
            raise error
    return TieredHistories(selected, log_pieces, bounds, unproven)


def unproven_histories(
    storage: RemoteStorageManager,
    segments: Mapping[TopicPartition, Sequence[RemoteLogSegmentMetadata]],
) -> dict[TopicPartition, SegmentReadError]:
    """The partitions whose segments have other leader epochs than their metadata say, or cannot be
    read to show that they have not, with the reason. Fetches batches only where segments overlap.
    """
    histories = {}
    for partition, history in segments.items():
        try:
            prove_epochs(contested_epochs(history), storage)
        except SegmentReadError as error:
            histories[partition] = error
    return histories


def marked_pieces(
    transactions: CommittedHistory, histories: Mapping[TopicPartition, Sequence[SegmentPiece]]
) -> dict[TopicPartition, list[Piece]]:
    """The pieces of each partition with the aborted transactions in them, numbered over all.
    `histories` are those of `transactions`, and none is empty."""
    reads = transactions.with_aborted(
        [
            [SegmentRead(piece.segment, piece.start_offset, piece.end_offset) for piece in pieces]
            for pieces in histories.values()
        ]
    )
    count = 0
    marked: dict[TopicPartition, list[Piece]] = {}
    for partition, of_partition in zip(histories, reads, strict=True):
        marked[partition] = [
            Piece(
                count + index,
                read.segment,
                read.start_offset,
                read.end_offset,
                read.aborted or (),
            )
            for index, read in enumerate(of_partition)
            if isinstance(read, SegmentRead)
        ]
        count += len(marked[partition])
    return marked


def with_last_records(storage: RemoteStorageManager, pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces of one partition with the last records of the producers."""
    # The producers that are active at the end of the bucket, as Kafka's cleaner takes those that
    # are active at the end of the log.
    last = pieces[-1]
    with located(last):
        entries = read_producer_snapshot(
            storage.fetch_index(last.segment, IndexType.PRODUCER_SNAPSHOT)
        )
    last_records = {
        entry.producer_id: LastRecord(
            entry.last_offset if entry.last_offset >= 0 else None, entry.producer_epoch
        )
        for entry in entries
    }
    return [replace(piece, last_records=_within(last_records, piece)) for piece in pieces]


def _within(
    last_records: Mapping[ProducerId, LastRecord], piece: Piece
) -> dict[ProducerId, LastRecord]:
    return {
        producer_id: last
        for producer_id, last in last_records.items()
        if last.data_offset is None or piece.start_offset <= last.data_offset < piece.end_offset
    }
