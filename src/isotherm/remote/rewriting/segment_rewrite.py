"""Writes the segment that replaces a piece, in files: its batches as a job leaves them, and indexes
rebuilt for them. The parts come from the job, chunk after chunk.

The last batch stays even if it is empty. So every segment has bytes, and they contain its end
offset (docs/decisions/0050).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from isotherm.record.batch_table import verify_crcs
from isotherm.record.crc32c import crc32c_extended
from isotherm.record.filter import SplicedBatches, copy_batches
from isotherm.remote.history.lineage import segment_epochs
from isotherm.remote.rewriting.pieces import Piece, located
from isotherm.remote.segment_metadata import (
    IndexType,
    LogSegmentData,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.segment.cleaning.chunk import Chunk
from isotherm.segment.cleaning.written_indexes import WrittenIndexes
from isotherm.segment.leader_epoch_checkpoint import (
    encode_leader_epoch_checkpoint,
    read_leader_epoch_checkpoint,
)
from isotherm.segment.leader_epochs import epochs_within
from isotherm.segment.producer_snapshot import encode_producer_snapshot, read_producer_snapshot
from isotherm.segment.transaction_index import AbortedTransaction
from isotherm.types import NO_TIMESTAMP, TimestampMs


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteRules:
    """The rules for all pieces of a run. New segments have the time `now_ms`. `fetch_bytes` is the
    size of a read."""

    now_ms: TimestampMs
    index_interval_bytes: int = 4096
    fetch_bytes: int = 8 * 1024 * 1024


@dataclass(slots=True)
class RewriteCounts:
    records_read: int = 0
    records_kept: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


@dataclass(frozen=True, slots=True)
class RewrittenSegment:
    """`data` are files in the given folder; `crc32c` is that of the bytes that were written
    to the `.log` file."""

    metadata: RemoteLogSegmentMetadata
    data: LogSegmentData
    counts: RewriteCounts
    crc32c: int
    has_new_batches: bool

    @property
    def is_changed(self) -> bool:
        """Whether it differs from its source. A new delete horizon counts."""
        return self.has_new_batches or self.counts.bytes_read != self.counts.bytes_written


class RewrittenPart(NamedTuple):
    """A chunk, and what stays of it. `aborted` are the aborted transactions whose markers it
    keeps."""

    chunk: Chunk
    spliced: SplicedBatches
    records_kept: int
    aborted: Sequence[AbortedTransaction]


def kept_part(piece: Piece, chunk: Chunk) -> RewrittenPart:
    """A chunk that stays as it is. Raises CorruptRecordError for damage."""
    verify_crcs(chunk.data, chunk.batches)
    return RewrittenPart(
        chunk,
        copy_batches(chunk.data, chunk.batches).spliced,
        int(chunk.records_count.sum()),
        aborted_of(piece, chunk),
    )


def aborted_of(piece: Piece, chunk: Chunk) -> list[AbortedTransaction]:
    """The aborted transactions of the piece whose markers are in the chunk."""
    first, last = int(chunk.batches["base_offset"][0]), int(chunk.last_offsets[-1])
    return [
        transaction for transaction in piece.aborted if first <= transaction.last_offset <= last
    ]


def write_segment(
    storage: RemoteStorageManager,
    piece: Piece,
    parts: Iterable[RewrittenPart],
    rules: RewriteRules,
    segment_id: RemoteLogSegmentId,
    directory: Path,
) -> RewrittenSegment:
    """Write the files of the segment that replaces a piece. The caller removes the files."""
    indexes = WrittenIndexes(piece.start_offset, interval_bytes=rules.index_interval_bytes)
    counts = RewriteCounts()
    has_new_batches = False
    log_path = directory / "log"
    crc = 0
    with log_path.open("wb") as log:
        for part in parts:
            counts.bytes_read += int(part.chunk.batches["size"].sum())
            counts.records_read += int(part.chunk.records_count.sum())
            counts.records_kept += part.records_kept
            has_new_batches |= bool(part.spliced.batches["is_new"].any())
            with located(piece):
                indexes.append_aborted(part.aborted)
                indexes.append(part.spliced.batches)
            for records in part.spliced.records:
                counts.bytes_written += log.write(records)
                # Of the bytes as they are written: the read-back is compared with it.
                crc = crc32c_extended(crc, records)
    with located(piece):
        data = _index_files(storage, piece, indexes, log_path)
    return RewrittenSegment(
        _metadata(piece, indexes, rules, segment_id, data),
        data,
        counts,
        crc,
        has_new_batches,
    )


def _metadata(
    piece: Piece,
    indexes: WrittenIndexes,
    rules: RewriteRules,
    segment_id: RemoteLogSegmentId,
    data: LogSegmentData,
) -> RemoteLogSegmentMetadata:
    old = piece.segment
    largest = indexes.largest_timestamp_ms
    return replace(
        old,
        segment_id=segment_id,
        start_offset=piece.start_offset,
        end_offset_inclusive=piece.end_offset - 1,
        # Emptied batches have no timestamp. Retention by time goes on with the old one.
        max_timestamp_ms=old.max_timestamp_ms if largest == NO_TIMESTAMP else largest,
        # Readers of manifests take the newer one of two segments with the same offsets.
        event_timestamp_ms=max(rules.now_ms, old.event_timestamp_ms + 1),
        segment_size_in_bytes=indexes.position,
        segment_leader_epochs=epochs_within(
            segment_epochs(old), piece.start_offset, piece.end_offset
        ),
        state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
        custom_metadata=None,
        txn_index_empty=data.transaction_index_path is None,
    )


def _index_files(
    storage: RemoteStorageManager, piece: Piece, indexes: WrittenIndexes, log_path: Path
) -> LogSegmentData:
    """The rebuilt indexes, and those that a rewrite does not change: the producer snapshot and the
    leader epochs at the segment's end. If the piece ends before the segment they lose their entries
    beyond its end."""
    segment = piece.segment
    snapshot = storage.fetch_index(segment, IndexType.PRODUCER_SNAPSHOT)
    epochs = storage.fetch_index(segment, IndexType.LEADER_EPOCH)
    if piece.end_offset <= segment.end_offset_inclusive:
        snapshot = encode_producer_snapshot(
            entry
            for entry in read_producer_snapshot(snapshot)
            if entry.last_offset < piece.end_offset
        )
        epochs = encode_leader_epoch_checkpoint(
            entry
            for entry in read_leader_epoch_checkpoint(epochs)
            if entry.start_offset < piece.end_offset
        )
    transaction_index = indexes.transaction_index()

    def write(name: str, content: bytes | memoryview) -> Path:
        path = log_path.with_name(name)
        path.write_bytes(content)
        return path

    return LogSegmentData(
        log_path=log_path,
        offset_index_path=write("index", indexes.offset_index()),
        time_index_path=write("timeindex", indexes.time_index()),
        transaction_index_path=write("txnindex", transaction_index) if transaction_index else None,
        producer_snapshot_path=write("snapshot", snapshot),
        leader_epoch_checkpoint=epochs,
    )
