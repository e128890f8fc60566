"""Reads record batches below the local log start (Kafka: RemoteLogReader, RemoteLogManager.read).

    offset -> leader epoch -> segment (metadata) -> position (index) -> batches (ranged GETs)

Differences from Kafka, all towards more: a read goes on into the next segment while there is room;
only whole batches are returned; every CRC is checked; a segment is read only as far as its epoch
reaches in this log's lineage, so records that were cut off here never come back from the remote
tier; and a reader who goes on where he stopped needs no index.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from isotherm.errors import (
    OffsetOutOfRangeError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from isotherm.log.log_read import FetchIsolation, aborted_transactions
from isotherm.log.partition_log import PartitionLog
from isotherm.remote.index_cache import RemoteIndexCache
from isotherm.remote.lineage import epoch_end_offset, epoch_for_offset, without_empty_epochs
from isotherm.remote.metadata.api import RemoteLogMetadataManager
from isotherm.remote.read_ahead import ReadAhead
from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.remote.segment_reader import BatchRun, RemoteSegmentReader, damaged_segment
from isotherm.segment.leader_epoch_checkpoint import EpochEntry
from isotherm.segment.transaction_index import AbortedTransaction, collect_aborted_transactions
from isotherm.types import Offset, Position, TopicIdPartition

_REMEMBERED_POSITIONS_MAX = 4096
"""Where readers stopped; some 200 bytes each. One that is forgotten costs an index look-up."""


class RemoteRead(NamedTuple):
    """Whole batches, the first of which holds the offset asked for, or begins at the first one
    after it that exists. `aborted_transactions` is None unless the read was TXN_COMMITTED."""

    records: memoryview
    start_offset_segment_base: Offset
    position: Position
    log_start_offset: Offset
    high_watermark: Offset
    last_stable_offset: Offset
    aborted_transactions: list[AbortedTransaction] | None


class _Span(NamedTuple):
    """What one segment holds of one epoch of the lineage, from an offset on."""

    metadata: RemoteLogSegmentMetadata
    end_offset: Offset


class _Taken(NamedTuple):
    run: BatchRun
    metadata: RemoteLogSegmentMetadata
    position: Position
    went_on: bool


class _SegmentReplacedError(RemoteStorageError):
    """Another segment holds the offset by now: a compacted one, or a later leader's copy."""


_NOTHING = BatchRun(memoryview(b""), 0, is_last=False)


class RemoteLogReader:
    """Thread-safe."""

    def __init__(
        self,
        metadata: RemoteLogMetadataManager,
        index_cache: RemoteIndexCache,
        read_ahead: ReadAhead,
    ) -> None:
        self._metadata = metadata
        self._index_cache = index_cache
        self._read_ahead = read_ahead
        self._segments = RemoteSegmentReader(read_ahead)
        self._lock = threading.Lock()
        self._positions: OrderedDict[tuple[RemoteLogSegmentId, Offset], Position] = OrderedDict()

    def read(
        self,
        log: PartitionLog,
        partition: TopicIdPartition,
        offset: Offset,
        max_bytes: int,
        *,
        isolation: FetchIsolation,
        min_one_message: bool,
    ) -> RemoteRead:
        """Batches from the one that holds `offset` on, at most `max_bytes` of them.

        The first batch is returned even when it is larger, if `min_one_message`; else the answer
        is empty. Raises OffsetOutOfRangeError when the remote tier does not hold the offset,
        CorruptObjectError when what it holds is damaged or missing, and what the storage and
        metadata managers raise when they cannot answer now (try again).
        """
        lineage = without_empty_epochs(log.leader_epochs.entries)
        try:
            taken = self._take_spans(log, partition, lineage, offset, max_bytes, min_one_message)
        except _SegmentReplacedError:
            taken = self._take_spans(log, partition, lineage, offset, max_bytes, min_one_message)
        aborted = None
        if isolation is FetchIsolation.TXN_COMMITTED:
            end_offset = taken[-1].run.next_offset
            aborted = self._aborted_transactions(log, partition, lineage, offset, end_offset)
        if taken[-1].went_on:
            self._fetch_following_segment(partition, lineage, taken[-1])
        return RemoteRead(
            memoryview(b"".join(each.run.records for each in taken)),
            taken[0].metadata.start_offset,
            taken[0].position,
            log.log_start_offset,
            log.high_watermark,
            log.last_stable_offset,
            aborted,
        )

    def _take_spans(
        self,
        log: PartitionLog,
        partition: TopicIdPartition,
        lineage: Sequence[EpochEntry],
        offset: Offset,
        max_bytes: int,
        min_one_message: bool,
    ) -> list[_Taken]:
        """What is read of each segment; at least one, which may be empty."""
        taken: list[_Taken] = []
        next_offset, room = offset, max_bytes
        span = self._span(log, partition, lineage, offset)
        if span is None:
            raise OffsetOutOfRangeError(
                f"offset does not exist in the remote tier partition={partition} offset={offset}"
            )
        while span is not None:
            found = self._take(
                span,
                next_offset,
                room,
                must=min_one_message and room == max_bytes,
                goes_on=bool(taken) and room < max_bytes,
            )
            taken.append(found)
            room -= len(found.run.records)
            next_offset = span.end_offset
            has_records = room < max_bytes
            is_enough = room <= 0 or next_offset >= log.local_log_start_offset
            if not found.run.is_last or (has_records and is_enough):
                break
            span = self._span(log, partition, lineage, next_offset)
        kept = [each for each in taken if len(each.run.records) > 0]
        return kept or taken[:1]

    def _span(
        self,
        log: PartitionLog,
        partition: TopicIdPartition,
        lineage: Sequence[EpochEntry],
        offset: Offset,
    ) -> _Span | None:
        entry = epoch_for_offset(lineage, offset)
        if entry is None:
            return None
        metadata = self._metadata.remote_log_segment_metadata(partition, entry.epoch, offset)
        if metadata is None:
            return None
        epoch_end = epoch_end_offset(lineage, entry.epoch, log.log_end_offset)
        return _Span(metadata, min(metadata.end_offset_inclusive + 1, epoch_end))

    def _take(
        self, span: _Span, from_offset: Offset, room: int, *, must: bool, goes_on: bool
    ) -> _Taken:
        """The batches of `span` from `from_offset` on that fit.

        With `goes_on` the answer has records already: then a batch that begins below
        `from_offset` is not taken, for it would repeat some of them.
        """
        metadata = span.metadata
        try:
            remembered = self._remembered(metadata, from_offset)
            if remembered is None:
                headers = self._segments.headers(metadata, self._position(metadata, from_offset))
            else:
                headers = self._segments.headers(metadata, remembered, from_offset)
            first = next((each for each in headers if each[1].last_offset >= from_offset), None)
            if first is None:
                return _Taken(_NOTHING._replace(is_last=True), metadata, 0, went_on=False)
            position, header = first
            if header.base_offset >= span.end_offset:
                return _Taken(_NOTHING._replace(is_last=True), metadata, position, went_on=False)
            size = max(room, header.size_in_bytes) if must else room
            if header.size_in_bytes > size or (goes_on and header.base_offset < from_offset):
                return _Taken(_NOTHING, metadata, position, went_on=False)
            run = self._segments.run(metadata, position, size, span.end_offset)
        except RemoteResourceNotFoundError as error:
            raise self._missing(span, from_offset, error) from error
        self._remember(metadata, run.next_offset, position + len(run.records))
        return _Taken(run, metadata, position, went_on=remembered is not None)

    def _position(self, metadata: RemoteLogSegmentMetadata, offset: Offset) -> Position:
        if offset <= metadata.start_offset:
            return 0
        return self._index_cache.get(metadata).lookup_offset(offset)

    def _remembered(self, metadata: RemoteLogSegmentMetadata, offset: Offset) -> Position | None:
        with self._lock:
            return self._positions.get((metadata.segment_id, offset))

    def _remember(
        self, metadata: RemoteLogSegmentMetadata, offset: Offset, position: Position
    ) -> None:
        with self._lock:
            self._positions[metadata.segment_id, offset] = position
            self._positions.move_to_end((metadata.segment_id, offset))
            if len(self._positions) > _REMEMBERED_POSITIONS_MAX:
                self._positions.popitem(last=False)

    def _missing(
        self, span: _Span, offset: Offset, error: RemoteResourceNotFoundError
    ) -> Exception:
        """A segment whose objects are gone: replaced or deleted meanwhile, or lost."""
        partition, segment_id = span.metadata.topic_id_partition, span.metadata.segment_id
        for epoch in span.metadata.segment_leader_epochs:
            now = self._metadata.remote_log_segment_metadata(partition, epoch, offset)
            if now is not None and now.segment_id == segment_id:
                return damaged_segment(span.metadata, str(error))
            if now is not None:
                return _SegmentReplacedError(
                    f"remote segment was replaced while it was read segment={segment_id}"
                    f" now={now.segment_id} offset={offset}"
                )
        return OffsetOutOfRangeError(
            f"remote segment was deleted while it was read segment={span.metadata.segment_id}"
            f" offset={offset}"
        )

    def _fetch_following_segment(
        self, partition: TopicIdPartition, lineage: Sequence[EpochEntry], last: _Taken
    ) -> None:
        """A sequential reader near a segment's end gets the next one's first range."""
        metadata = last.metadata
        read_to = last.position + len(last.run.records)
        if metadata.segment_size_in_bytes - read_to > self._read_ahead.settings.range_size_max:
            return
        offset = metadata.end_offset_inclusive + 1
        entry = epoch_for_offset(lineage, offset)
        if entry is None:
            return
        following = self._metadata.remote_log_segment_metadata(partition, entry.epoch, offset)
        if following is not None:
            self._read_ahead.prefetch(following, 0)

    def _aborted_transactions(
        self,
        log: PartitionLog,
        partition: TopicIdPartition,
        lineage: Sequence[EpochEntry],
        offset: Offset,
        end_offset: Offset,
    ) -> list[AbortedTransaction]:
        """Aborted transactions that touch [offset, end_offset): their markers may lie in any
        later segment, of either tier."""
        found: set[AbortedTransaction] = set()
        if end_offset <= offset:
            return []
        for metadata in self._segments_with_transactions(partition, lineage, offset):
            entries = self._index_cache.get(metadata).transaction_index
            aborted, complete = collect_aborted_transactions(entries, offset, end_offset)
            found.update(aborted)
            if complete:
                return sorted(found, key=lambda each: each.first_offset)
        try:
            found.update(aborted_transactions(log.segments(), offset, end_offset))
        except FileNotFoundError as error:
            raise RemoteStorageError(
                f"a local segment went to the remote tier meanwhile partition={partition}"
            ) from error
        return sorted(found, key=lambda each: each.first_offset)

    def _segments_with_transactions(
        self, partition: TopicIdPartition, lineage: Sequence[EpochEntry], offset: Offset
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """Segments with a transaction index from the one that holds `offset` on."""
        seen: set[RemoteLogSegmentId] = set()
        for index, entry in enumerate(lineage):
            is_past = index + 1 < len(lineage) and lineage[index + 1].start_offset <= offset
            at = max(offset, entry.start_offset)
            while not is_past:
                metadata = self._metadata.next_segment_with_txn_index(partition, entry.epoch, at)
                if metadata is None:
                    break
                if metadata.segment_id not in seen:
                    seen.add(metadata.segment_id)
                    yield metadata
                at = metadata.end_offset_inclusive + 1
