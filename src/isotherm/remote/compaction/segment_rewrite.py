"""The second pass over a piece: writes its segment again, in files, without superseded records.

The rules are the log cleaner's (isotherm.segment.cleaning.filtering), with two additions: segments
are not merged, and the last batch stays even if it is empty. So every segment has bytes, and they
contain its end offset (docs/decisions/0050).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from isotherm.record.batch_header import CONTROL_FLAG
from isotherm.record.batch_table import verify_crcs
from isotherm.record.filter import FilteredBatches, copy_batches
from isotherm.remote.compaction.pieces import Piece, located, read_chunks
from isotherm.remote.history.lineage import segment_epochs
from isotherm.remote.segment_metadata import (
    IndexType,
    LogSegmentData,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.segment.cleaning.chunk import Chunk
from isotherm.segment.cleaning.filtering import BatchRules, filter_chunk
from isotherm.segment.cleaning.transactions import CleanedTransactions
from isotherm.segment.cleaning.written_indexes import WrittenIndexes
from isotherm.segment.leader_epoch_checkpoint import (
    encode_leader_epoch_checkpoint,
    read_leader_epoch_checkpoint,
)
from isotherm.segment.leader_epochs import epochs_within
from isotherm.segment.producer_snapshot import encode_producer_snapshot, read_producer_snapshot
from isotherm.types import NO_TIMESTAMP, ProducerId, TimestampMs

if TYPE_CHECKING:
    from isotherm.record.batch_table import Int64Array
    from isotherm.record.filter import PlaceTable


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRules:
    """The rules for all pieces of a run. Delete horizons are compared with `now_ms` and set from
    it. `fetch_bytes` is the size of a read."""

    now_ms: TimestampMs
    delete_retention_ms: int
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
    """`data` are files in the given folder; `digest` is that of the `.log` file."""

    metadata: RemoteLogSegmentMetadata
    data: LogSegmentData
    counts: RewriteCounts
    digest: bytes
    has_new_batches: bool

    @property
    def is_changed(self) -> bool:
        """Whether it differs from its source. A new delete horizon counts."""
        return self.has_new_batches or self.counts.bytes_read != self.counts.bytes_written


def rewrite_piece(
    storage: RemoteStorageManager,
    piece: Piece,
    newest: Int64Array,
    open_producers: Collection[ProducerId],
    rules: CompactionRules,
    segment_id: RemoteLogSegmentId,
    directory: Path,
) -> RewrittenSegment:
    """Write the files of the segment that replaces a piece.

    `newest` has the offsets of the newest records of their keys, ascending and relative to the
    piece's start. `open_producers` have a transaction that is open at the start. Raises
    CorruptObjectError with the segment's name; the caller removes the files.
    """
    rewriter = _PieceRewriter(piece, newest, open_producers, rules)
    log_path = directory / "log"
    digest = hashlib.sha256()
    with log_path.open("wb") as log:
        for chunk, is_last in read_chunks(storage, piece, rules.fetch_bytes):
            with located(piece):
                filtered = rewriter.filter(chunk, is_last=is_last)
            log.write(filtered.records)
            # Of the bytes as they are written: the read-back is compared with it.
            digest.update(filtered.records)
    with located(piece):
        data = _index_files(storage, piece, rewriter.indexes, log_path)
    return RewrittenSegment(
        _metadata(piece, rewriter.indexes, rules, segment_id, data),
        data,
        rewriter.counts,
        digest.digest(),
        rewriter.has_new_batches,
    )


class _PieceRewriter:
    def __init__(
        self,
        piece: Piece,
        newest: Int64Array,
        open_producers: Collection[ProducerId],
        rules: CompactionRules,
    ) -> None:
        self.indexes = WrittenIndexes(piece.start_offset, interval_bytes=rules.index_interval_bytes)
        self.counts = RewriteCounts()
        self.has_new_batches = False
        self._piece = piece
        self._newest = newest + piece.start_offset
        self._rules = rules
        self._transactions = CleanedTransactions(open_producers, start_offset=piece.start_offset)
        self._transactions.add_aborted(piece.aborted)

    def filter(self, chunk: Chunk, *, is_last: bool) -> FilteredBatches:
        self.counts.bytes_read += int(chunk.batches["size"].sum())
        self.counts.records_read += int(chunk.records_count.sum())
        filtered = (
            self._clean(chunk, is_last=is_last) if self._piece.is_cleaned else self._keep(chunk)
        )
        self.indexes.append(filtered.batches)
        self.counts.bytes_written += len(filtered.records)
        self.has_new_batches |= bool(filtered.batches["is_new"].any())
        return filtered

    def _clean(self, chunk: Chunk, *, is_last: bool) -> FilteredBatches:
        always = np.ones(len(chunk.batches), dtype=np.bool_)
        stays = ~always
        stays[-1] = is_last
        batch_rules = BatchRules(
            self._rules.now_ms,
            self._rules.delete_retention_ms,
            self._piece.last_records or {},
            kept_when_empty=stays,
            in_map=always,
            # The first pass has verified the CRCs, but in an earlier read of the object.
            is_verified=~always,
        )
        done = filter_chunk(chunk, batch_rules, self._transactions, self._choose)
        self.indexes.append_aborted(self._transactions.take_retained())
        self.counts.records_kept += done.records_kept
        return done.filtered

    def _keep(self, chunk: Chunk) -> FilteredBatches:
        verify_crcs(chunk.data, chunk.batches)
        last_offsets = chunk.last_offsets
        first, last = int(chunk.batches["base_offset"][0]), int(last_offsets[-1])
        self.indexes.append_aborted(
            [each for each in self._piece.aborted if first <= each.last_offset <= last]
        )
        self.counts.records_kept += int(chunk.records_count.sum())
        return copy_batches(chunk.data, chunk.batches)

    def _choose(self, chunk: Chunk, places: PlaceTable, expiry_ms: Int64Array) -> int:
        batches = places["batch"]
        is_control = chunk.batches["attributes"][batches] & CONTROL_FLAG != 0
        has_key = places["key_size"] >= 0
        # `newest` is sorted. np.isin would sort it again for each chunk.
        rows = np.searchsorted(self._newest, places["offset"])
        is_newest = np.zeros(len(places), dtype=np.bool_)
        inside = rows < len(self._newest)
        is_newest[inside] = self._newest[rows[inside]] == places["offset"][inside]
        has_expired = (places["value_size"] < 0) & (self._rules.now_ms >= expiry_ms[batches])
        # Control records are dropped with their batches alone, records without a key always.
        places["is_kept"] = is_control | (has_key & is_newest & ~has_expired)
        return int((~is_control & ~has_key).sum())


def _metadata(
    piece: Piece,
    indexes: WrittenIndexes,
    rules: CompactionRules,
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
    """The rebuilt indexes, and those that compaction does not change: the producer snapshot and the
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
