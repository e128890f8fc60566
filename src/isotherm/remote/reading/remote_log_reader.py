"""Reads record batches below the local log start (Kafka: RemoteLogReader, RemoteLogManager.read).

    offset -> leader epoch -> segment (metadata) -> position (index) -> batches (ranged GETs)

Differences from Kafka:
- A read continues in the next segment while there is room.
- Only whole batches are returned, and every CRC is checked.
- A segment is read only up to the end of its epoch in this log's lineage. So records that an
  unclean election cut off never come back from the remote tier.
- An answer ends before damage. The read that begins at the damaged batch gets the error.
- A reader that continues where it stopped needs no index.
- An answer may be shorter than requested while the rest is in flight (ANSWER_SIZE_MIN).
- Where the remote tier has no further record, the local log answers. Kafka's answer is empty then,
  and the consumer stays where it is.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from isotherm.errors import (
    CorruptDataError,
    OffsetOutOfRangeError,
    RemoteHoleError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    UnreadableDataError,
)
from isotherm.log.log_read import FetchIsolation, aborted_transactions
from isotherm.log.log_segment import LogSegment
from isotherm.remote.history.holes import hole_error
from isotherm.remote.history.lineage import is_segment_within_lineage
from isotherm.remote.indexes.index_cache import RemoteIndexCache
from isotherm.remote.metadata.api import RemoteLogMetadataManager, check_ready
from isotherm.remote.reading.damage_log import DamageLog
from isotherm.remote.reading.marker_proof import contradicted_transaction
from isotherm.remote.reading.read_ahead import ReadAhead
from isotherm.remote.reading.read_request import ReadRequest, RemoteRead, SegmentSpan
from isotherm.remote.reading.read_wait import NO_WAIT, NotInMemoryError
from isotherm.remote.reading.segment_reader import (
    ANSWER_SIZE_MIN,
    BatchRun,
    RemoteSegmentReader,
    damaged_segment,
)
from isotherm.remote.reading.tier_border import read_local_log, search_both_tiers
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.segment.leader_epochs import (
    epoch_end_offset,
    epoch_for_offset,
    without_empty_epochs,
)
from isotherm.segment.transaction_index import AbortedTransaction, collect_aborted_transactions
from isotherm.types import Offset, Position, TopicIdPartition

_logger = logging.getLogger(__name__)

_REMEMBERED_STOPS_MAX = 4096
"""Places where reads ended; some 300 bytes each. A forgotten place costs an index look-up."""


class _Stop(NamedTuple):
    """The place where a read ended. A read of the next offset continues there, without an index."""

    segment_id: RemoteLogSegmentId
    position: Position


class _Taken(NamedTuple):
    run: BatchRun
    metadata: RemoteLogSegmentMetadata
    position: Position

    @property
    def end(self) -> Position:
        return self.position + self.run.size


class _SegmentReplacedError(RemoteStorageError):
    """Another segment holds the offset now: a compacted one, or a later leader's copy."""


_NOTHING = BatchRun((), 0, 0, is_last=False)


class RemoteLogReader:
    """Thread-safe."""

    def __init__(
        self,
        metadata: RemoteLogMetadataManager,
        index_cache: RemoteIndexCache,
        read_ahead: ReadAhead,
        damage_log: DamageLog | None = None,
    ) -> None:
        self._metadata = metadata
        self._index_cache = index_cache
        self._read_ahead = read_ahead
        self._segments = RemoteSegmentReader(read_ahead)
        self._lock = threading.Lock()
        self._damage_log = damage_log or DamageLog()
        self._stops: OrderedDict[tuple[TopicIdPartition, Offset], _Stop] = OrderedDict()

    def look_up(self, request: ReadRequest) -> ReadRequest:
        """`request` with the lineage of its log, and with the segment where the read begins, if
        there is one. Needs no request to the store.

        Raises what the metadata manager raises while it cannot answer (try again).
        """
        # Before any look-up: a segment that is not known yet would look like a hole.
        check_ready(self._metadata, request.partition)
        # A copy: the log's epochs may change during the read.
        request = request._replace(lineage=without_empty_epochs(request.log.leader_epochs.entries))
        return request._replace(span=self._span(request, request.first_offset))

    def read(self, request: ReadRequest) -> RemoteRead:
        """Read the requested batches, after a look-up unless `request` has the result of one.

        Raises OffsetOutOfRangeError for an offset that the tier should not hold, RemoteHoleError
        for a hole, and CorruptObjectError if a segment is damaged or its objects are missing.
        Raises what the storage and metadata managers raise while they cannot answer (try again),
        and what `asked.wait` raises: with NO_WAIT NotInMemoryError, before any request to the
        store.
        """
        log, partition = request.log, request.partition
        with self._lock:
            continues = (partition, request.offset) in self._stops
        try:
            # A segment that an earlier look-up has missed may be there by now.
            if request.span is None:
                request = self.look_up(request)
            # A second try: the metadata names the new segment by now. A second error is retriable.
            try:
                taken, next_offset = self._take_spans(request)
            except _SegmentReplacedError:
                request = self.look_up(request)
                taken, next_offset = self._take_spans(request)
        except RemoteHoleError as error:
            self._damage_log.log_once(error.place, str(error))
            raise
        except CorruptDataError as error:
            self._damage_log.log_once(str(error), str(error))
            raise
        if not taken:
            return read_local_log(request, next_offset)
        last = taken[-1]
        aborted = None
        if request.isolation is FetchIsolation.TXN_COMMITTED:
            end_offset = last.run.next_offset
            aborted = self._aborted_transactions(request, end_offset)
            # Without aborted transactions only a marker can contradict the indexes, and most reads
            # have neither.
            if aborted or any(read.run.may_have_markers for read in taken):
                aborted = self._proven_by_markers(request, taken, aborted)
        size = sum(read.run.size for read in taken)
        if size > 0:
            self._note_stop(partition, last)
        if size > 0 and continues:
            self._read_ahead.read_on(
                last.metadata,
                last.end,
                size,
                lambda segment: self._following_segment(request, segment),
            )
        return RemoteRead(
            tuple(piece for read in taken for piece in read.run.records),
            size,
            taken[0].metadata.start_offset,
            taken[0].position,
            log.log_start_offset,
            log.high_watermark,
            log.last_stable_offset,
            aborted,
        )

    def _take_spans(self, request: ReadRequest) -> tuple[list[_Taken], Offset]:
        """The batches of each segment in turn, and the offset after them. At least one entry, which
        may be empty; none if the tier has no further record, and the local log goes on there."""
        taken: list[_Taken] = []
        next_offset, room = request.first_offset, request.max_bytes
        span = request.span
        ended_early: list[RemoteLogSegmentMetadata] = []
        while span is not None:
            # Enough for an answer. More is added only from memory.
            has_enough = request.max_bytes - room >= ANSWER_SIZE_MIN
            try:
                taken_span = self._take(
                    request._replace(wait=NO_WAIT) if has_enough else request,
                    span,
                    next_offset,
                    room,
                )
            except NotInMemoryError:
                if has_enough:
                    break
                raise
            except CorruptDataError:
                # The records before the damage are returned. The next read begins at it.
                if room < request.max_bytes:
                    break
                raise
            taken.append(taken_span)
            room -= taken_span.run.size
            has_records = room < request.max_bytes
            if taken_span.run.is_last and taken_span.run.next_offset < span.end_offset:
                # Return the records before the gap. The next read starts at the gap and finds
                # out whether compaction left it or records are missing.
                if has_records:
                    break
                ended_early.append(span.metadata)
                next_offset, span = self._past_end(request, ended_early, span, next_offset)
                continue
            next_offset = span.end_offset
            # From the local log start on the next fetch reads the local log. Without records the
            # read continues: an empty answer would bring the same request again.
            is_enough = room <= 0 or next_offset >= request.log.local_log_start_offset
            if not taken_span.run.is_last or (has_records and is_enough):
                break
            span = self._span(request, next_offset)
        kept = [read for read in taken if read.run.size > 0]
        if kept or span is not None:
            return kept or taken[:1], next_offset
        self._check_local_log_goes_on(request, next_offset)
        return [], next_offset

    def _check_local_log_goes_on(self, request: ReadRequest, offset: Offset) -> None:
        """Raise the error for an offset that no segment holds, unless the look-up has passed
        segments without a record up to the local log."""
        if offset == request.offset or offset < request.log.local_log_start_offset:
            raise self._no_segment_error(request, offset)

    def _span(self, request: ReadRequest, offset: Offset) -> SegmentSpan | None:
        entry = epoch_for_offset(request.lineage, offset)
        if entry is None:
            return None
        metadata = self._metadata.remote_log_segment_metadata(
            request.partition, entry.epoch, offset
        )
        if metadata is None:
            return None
        epoch_end = epoch_end_offset(request.lineage, entry.epoch, request.log.log_end_offset)
        end_offset = min(metadata.end_offset_inclusive + 1, epoch_end)
        if request.isolation is FetchIsolation.TXN_COMMITTED:
            # In the log of a read replica, a transaction may end behind the remote tier.
            end_offset = min(end_offset, request.log.last_stable_offset)
        return SegmentSpan(metadata, end_offset) if offset < end_offset else None

    def _past_end(
        self,
        request: ReadRequest,
        ended_early: Sequence[RemoteLogSegmentMetadata],
        span: SegmentSpan,
        offset: Offset,
    ) -> tuple[Offset, SegmentSpan | None]:
        """The offset and the span at which to continue if the batches of `span` end before
        `offset`, which its metadata covers.

        Another segment of the lineage may hold `offset`. If none does, compaction left a gap or
        records are lost: raises CorruptObjectError if an index of a segment in `ended_early` names
        an offset there, up to the end of the span (docs/decisions/0066).
        """
        # Before the listing too: it decodes every segment of the partition, which is not for the
        # event loop.
        _check_may_fetch_index(request)
        others = self._overlapping(request, ended_early, span, offset)
        holder = next((other for other in others if other.start_offset <= offset), None)
        if holder is None:
            for segment in ended_early:
                last = self._index_cache.get(segment).last_offset_named(span.end_offset)
                if last >= offset:
                    raise damaged_segment(
                        segment,
                        f"batches end before the segment's indexes do first_missing={offset}"
                        f" last_named={last} hint='`isotherm pipeline scrub` lists the missing"
                        " offsets'",
                    )
        if not others:
            return span.end_offset, self._span(request, span.end_offset)
        going_on = holder or min(others, key=lambda segment: segment.start_offset)
        end_offset = min(span.end_offset, going_on.end_offset_inclusive + 1)
        return max(offset, going_on.start_offset), SegmentSpan(going_on, end_offset)

    def _overlapping(
        self,
        request: ReadRequest,
        ended_early: Sequence[RemoteLogSegmentMetadata],
        span: SegmentSpan,
        offset: Offset,
    ) -> list[RemoteLogSegmentMetadata]:
        """The lineage's other segments with offsets of `span` from `offset` on."""
        entry = epoch_for_offset(request.lineage, offset)
        # Each step adds a segment that is not looked at again, so the steps end.
        segment_ids = {segment.segment_id for segment in ended_early}
        return [
            segment
            for segment in self._metadata.list_remote_log_segments(request.partition)
            if segment.segment_id not in segment_ids
            and segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
            and segment.start_offset < span.end_offset
            and segment.end_offset_inclusive >= offset
            # The segment must hold `offset` in the same leader epoch, not in a later one.
            and entry is not None
            and segment.segment_leader_epochs.get(entry.epoch, span.end_offset)
            <= max(offset, segment.start_offset)
            and is_segment_within_lineage(segment, request.log.log_end_offset, request.lineage)
        ]

    def _take(
        self, request: ReadRequest, span: SegmentSpan, from_offset: Offset, room: int
    ) -> _Taken:
        """The batches of `span` from `from_offset` on that fit into `room`."""
        metadata, wait = span.metadata, request.wait
        has_records = room < request.max_bytes
        try:
            start, floor = self._position(request, metadata, from_offset)
            first = self._segments.find(metadata, start, from_offset, wait, floor=floor)
            if first is None:
                return _Taken(_NOTHING._replace(is_last=True), metadata, 0)
            if first.base_offset >= span.end_offset:
                return _Taken(_NOTHING._replace(is_last=True), metadata, first.position)
            must_fit = has_records or not request.min_one_message
            size = room if must_fit else max(room, first.size)
            # A batch that begins below `from_offset` would repeat records of the answer.
            if first.size > size or (has_records and first.base_offset < from_offset):
                return _Taken(_NOTHING, metadata, first.position)
            run = self._segments.run(
                metadata, first.position, from_offset, size, span.end_offset, wait
            )
        except RemoteResourceNotFoundError as error:
            raise self._missing_objects_error(request, span, from_offset, error) from error
        return _Taken(run, metadata, first.position)

    def _position(
        self, request: ReadRequest, metadata: RemoteLogSegmentMetadata, offset: Offset
    ) -> tuple[Position, Offset]:
        """The position of a batch at or before `offset`, from which to look for it, and the lowest
        offset at which that batch may begin."""
        if offset <= metadata.start_offset:
            return 0, metadata.start_offset
        with self._lock:
            stop = self._stops.get((request.partition, offset))
        # Another segment may hold the offset by now, with other positions.
        if stop is not None and stop.segment_id == metadata.segment_id:
            return stop.position, offset
        _check_may_fetch_index(request)
        try:
            hint = self._index_cache.get(metadata).lookup_offset(offset)
        except RemoteResourceNotFoundError:
            raise  # the segment may be deleted
        except UnreadableDataError as error:
            _logger.warning(
                "index cannot be used, segment is read from its start segment=%s reason=%r",
                metadata.segment_id,
                str(error),
            )
            return 0, metadata.start_offset
        return self._segments.proven(metadata, hint, request.wait), metadata.start_offset

    def _note_stop(self, partition: TopicIdPartition, last: _Taken) -> None:
        key = (partition, last.run.next_offset)
        with self._lock:
            self._stops[key] = _Stop(last.metadata.segment_id, last.end)
            self._stops.move_to_end(key)
            if len(self._stops) > _REMEMBERED_STOPS_MAX:
                self._stops.popitem(last=False)

    def _no_segment_error(self, request: ReadRequest, offset: Offset) -> Exception:
        """The error for an offset that no segment holds.

        Retention raises the log start before it deletes, so the log start is read after the
        segment was looked up: an offset above it is lost, not expired. OFFSET_OUT_OF_RANGE would
        make consumers reset past the lost records."""
        log, partition = request.log, request.partition
        local_log_start_offset = log.local_log_start_offset
        if log.remote_log_enabled and log.log_start_offset <= offset < local_log_start_offset:
            segments = self._metadata.list_remote_log_segments(partition)
            return hole_error(partition, segments, offset, local_log_start_offset)
        return OffsetOutOfRangeError(
            f"offset does not exist in the remote tier partition={partition} offset={offset}"
        )

    def _missing_objects_error(
        self,
        request: ReadRequest,
        span: SegmentSpan,
        offset: Offset,
        error: RemoteResourceNotFoundError,
    ) -> Exception:
        """The error for a segment without its objects: replaced or deleted meanwhile, or lost."""
        segment_id = span.metadata.segment_id
        for epoch in span.metadata.segment_leader_epochs:
            now = self._metadata.remote_log_segment_metadata(request.partition, epoch, offset)
            if now is not None and now.segment_id == segment_id:
                return damaged_segment(span.metadata, str(error))
            if now is not None:
                return _SegmentReplacedError(
                    f"remote segment was replaced while it was read segment={segment_id}"
                    f" now={now.segment_id} offset={offset}"
                )
        return self._no_segment_error(request, offset)

    def _following_segment(
        self, request: ReadRequest, metadata: RemoteLogSegmentMetadata
    ) -> RemoteLogSegmentMetadata | None:
        span = self._span(request, metadata.end_offset_inclusive + 1)
        return None if span is None else span.metadata

    def _aborted_transactions(
        self, request: ReadRequest, end_offset: Offset
    ) -> list[AbortedTransaction]:
        """The aborted transactions that overlap the records read, up to `end_offset`. Their markers
        may lie in any later segment, of either tier. The index of a deleted local segment looks
        empty."""
        offset = request.offset
        if end_offset <= offset:
            return []

        def search(local: Sequence[LogSegment]) -> tuple[set[AbortedTransaction], bool]:
            transactions, is_complete = self._aborted_in_remote_tier(request, end_offset)
            if not is_complete:
                transactions.update(aborted_transactions(local, offset, end_offset))
            return transactions, is_complete

        transactions = search_both_tiers(request.log, request.partition, "read", search)
        return sorted(transactions, key=lambda transaction: transaction.first_offset)

    def _aborted_in_remote_tier(
        self, request: ReadRequest, end_offset: Offset
    ) -> tuple[set[AbortedTransaction], bool]:
        """The aborted transactions with markers in the remote tier, and whether no later segment
        can have another one."""
        transactions: set[AbortedTransaction] = set()
        for metadata in self._segments_with_transactions(request):
            _check_may_fetch_index(request)
            entries = self._index_cache.get(metadata).transaction_index
            aborted, is_complete = collect_aborted_transactions(entries, request.offset, end_offset)
            transactions.update(aborted)
            if is_complete:
                return transactions, True
        return transactions, False

    def _proven_by_markers(
        self,
        request: ReadRequest,
        taken: Sequence[_Taken],
        aborted: list[AbortedTransaction],
    ) -> list[AbortedTransaction]:
        """`aborted`, if the batches do not contradict it. Otherwise rebuild the contradicted
        indexes and look up again. Raises CorruptObjectError if the batches still contradict the
        indexes."""
        # Each round rebuilds the index of one segment of the answer.
        for _ in taken:
            if self._agrees_with_markers(taken, aborted):
                return aborted
            aborted = self._aborted_transactions(request, taken[-1].run.next_offset)
        self._check_markers(taken, aborted)
        return aborted

    def _agrees_with_markers(
        self, taken: Sequence[_Taken], aborted: list[AbortedTransaction]
    ) -> bool:
        """Whether no batch of the answer contradicts the transaction indexes. If one does, rebuild
        the index of its segment from the log."""
        contradiction = contradicted_transaction(_records_of(taken), aborted)
        if contradiction is None:
            return True
        holder = _holder(taken, contradiction.offset)
        error = damaged_segment(holder, contradiction.fact)
        self._damage_log.log_once(str(error), str(error))
        self._index_cache.rebuild_transaction_index(holder)
        return False

    def _check_markers(self, taken: Sequence[_Taken], aborted: list[AbortedTransaction]) -> None:
        """Raise CorruptObjectError if a batch of the answer contradicts the transaction indexes."""
        contradiction = contradicted_transaction(_records_of(taken), aborted)
        if contradiction is not None:
            raise damaged_segment(_holder(taken, contradiction.offset), contradiction.fact)

    def _segments_with_transactions(
        self, request: ReadRequest
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """The segments with a transaction index, from the one that holds the requested offset
        on."""
        partition, offset, lineage = request.partition, request.offset, request.lineage
        seen: set[RemoteLogSegmentId] = set()
        for index, entry in enumerate(lineage):
            is_past = index + 1 < len(lineage) and lineage[index + 1].start_offset <= offset
            at = max(offset, entry.start_offset)
            while not is_past:
                metadata = self._metadata.next_segment_with_txn_index(partition, entry.epoch, at)
                if metadata is None:
                    break
                # A segment that spans two epochs is found in both.
                if metadata.segment_id not in seen:
                    seen.add(metadata.segment_id)
                    yield metadata
                at = metadata.end_offset_inclusive + 1


def _records_of(taken: Sequence[_Taken]) -> list[memoryview]:
    return [piece for read in taken for piece in read.run.records]


def _holder(taken: Sequence[_Taken], offset: Offset) -> RemoteLogSegmentMetadata:
    return next(read.metadata for read in taken if offset <= read.metadata.end_offset_inclusive)


def _check_may_fetch_index(request: ReadRequest) -> None:
    """Raise NotInMemoryError for a read that must not wait: an index may have to be fetched."""
    if not request.wait.may_wait:
        raise NotInMemoryError(f"an index may have to be fetched partition={request.partition}")
