"""read_committed: which records of the bucket are decided, and which of them were aborted.

A segment does not tell by itself: the marker that ends a transaction may lie in a later segment,
or not in the bucket at all.

- The producer snapshot of the last segment names the transactions that are open where the bucket
  ends. The bucket is read up to the first record of the earliest of them, the bucket's last stable
  offset; from there on the brokers are read, which know the outcome.
- The transaction indexes of a segment and of those after it name the aborted transactions that
  touch it. An entry's last stable offset says from where on no later index can matter.

Source: Kafka RemoteLogManager.addAbortedTransactions and ProducerStateManager.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice, pairwise

from isotherm.errors import (
    CorruptDataError,
    CorruptIndexError,
    CorruptObjectError,
    RemoteResourceNotFoundError,
)
from isotherm.remote.history.gaps import Gaps
from isotherm.remote.segment_metadata import IndexType, RemoteLogSegmentMetadata
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.segment.transaction_index import (
    AbortedTransaction,
    collect_aborted_transactions,
    read_transaction_index,
)
from isotherm.spark.plan.offsets import OffsetRange
from isotherm.spark.plan.planning import Beside, Read, SegmentPiece, SegmentRead, cut_pieces
from isotherm.spark.reading.readers import (
    SegmentGoneError,
    open_transactions,
    prove_committed,
    prove_open,
)
from isotherm.types import UNKNOWN_OFFSET, Offset, TopicPartition

# Indexes are small: nearly all of a fetch is waiting.
_FETCH_THREADS = 16


class CommittedHistory:
    """The transactions in the history of the partitions of one query.

    `histories` are the pieces of each partition from `lineage_pieces`, not cut. Both methods fetch
    indexes, several at a time, and raise CorruptObjectError naming the segment of one that is
    damaged, or SegmentGoneError when it is missing: without it no record of an aborted transaction
    can be recognised. With `hides_undecided` a transaction whose marker may lie in a hole
    counts as aborted; holes are none of this class's business otherwise. `proven_ends` are segments
    whose snapshot was held against the log; None where that is not asked for: an end that is too low
    would leave out records in silence only where no broker has them.
    """

    def __init__(
        self,
        storage: RemoteStorageManager,
        histories: Mapping[TopicPartition, Sequence[SegmentPiece]],
        *,
        hides_undecided: bool = False,
        proven_ends: set[uuid.UUID] | None = None,
        gaps: Gaps = Gaps.PERMITTED,
    ) -> None:
        self._gaps = gaps
        self._hides_undecided = hides_undecided
        self._proven_ends = proven_ends
        self._storage = storage
        self._histories = histories

    def stable_pieces(self) -> dict[TopicPartition, list[SegmentPiece]]:
        """The histories up to the bucket's last stable offset of each; one GET a partition, and
        where transactions are open the batches behind it, once."""
        last = {partition: pieces for partition, pieces in self._histories.items() if pieces}
        with _fetching() as pool:
            ends = dict(zip(last, pool.map(self._last_stable_offset, last.values()), strict=True))
        return {
            partition: cut_pieces(pieces, ends[partition]) if pieces else []
            for partition, pieces in self._histories.items()
        }

    def with_aborted(self, reads_of_ranges: Iterable[Sequence[Read]]) -> list[list[Read]]:
        """The same reads, those of segments with the aborted transactions that touch them."""
        reads_of_ranges = [list(reads) for reads in reads_of_ranges]
        spans = _spans(read for reads in reads_of_ranges for read in reads)
        with _fetching() as pool:
            found = self._aborted_within(spans, pool)
            later = {
                partition: pool.submit(self._aborted_later, span, found[partition])
                for partition, span in spans.items()
            }
            aborted = {partition: future.result() for partition, future in later.items()}
        return [[self._marked(read, aborted) for read in reads] for reads in reads_of_ranges]

    def _marked(
        self, read: Read, aborted: Mapping[TopicPartition, list[AbortedTransaction]]
    ) -> Read:
        if not isinstance(read, SegmentRead):
            return read
        entries = aborted[read.topic_partition]
        # Entries rise by last offset: the first that can touch the read is found by halving.
        first = bisect_left(entries, read.start_offset, key=_last_offset)
        touching, _ = collect_aborted_transactions(
            islice(entries, first, None), read.start_offset, read.end_offset
        )
        history = self._histories[read.topic_partition]
        at = bisect_right(history, read.start_offset, key=_end_offset)
        return replace(read, aborted=tuple(touching), beside=_beside(history, at))

    def _last_stable_offset(self, pieces: Sequence[SegmentPiece]) -> Offset:
        last = pieces[-1]
        with _named(last.segment):
            named = open_transactions(self._storage, last.segment)
        proven = self._proven_ends
        if proven is not None and last.segment.segment_id.id not in proven:
            before = _beside(pieces, len(pieces) - 1).before
            prove_open(named, last, before, self._storage, self._gaps)
            proven.add(last.segment.segment_id.id)
        return min(named.values(), default=last.end_offset)

    def _aborted_within(
        self, spans: Mapping[TopicPartition, OffsetRange], pool: ThreadPoolExecutor
    ) -> dict[TopicPartition, list[AbortedTransaction]]:
        """What the indexes of the pieces that are read say."""
        under_way = {
            partition: [
                pool.submit(self._aborted_in, piece)
                for piece in self._histories[partition]
                if piece.end_offset > span.start and piece.start_offset < span.end
            ]
            for partition, span in spans.items()
        }
        return {
            partition: [entry for future in futures for entry in future.result()]
            for partition, futures in under_way.items()
        }

    def _aborted_later(
        self, span: OffsetRange, found: list[AbortedTransaction]
    ) -> list[AbortedTransaction]:
        """`found`, and what later indexes say until one says that it is all; by last offset."""
        touching, is_complete = collect_aborted_transactions(found, span.start, span.end)
        for piece in self._histories[span.topic_partition]:
            if is_complete:
                break
            if piece.start_offset >= span.end:
                entries, is_complete = collect_aborted_transactions(
                    self._aborted_in(piece), span.start, span.end
                )
                touching.extend(entries)
        self._prove_end(span, touching)
        if self._hides_undecided:
            touching = sorted([*touching, *self._lost_in_holes(span)], key=_last_offset)
        return touching

    def _prove_end(self, span: OffsetRange, listed: Sequence[AbortedTransaction]) -> None:
        """That transactions open where the last segment of the span ends are rightly not listed.
        Inside that segment the task that reads it sees to it."""
        history = self._histories[span.topic_partition]
        at = bisect_right(history, span.end - 1, key=_end_offset)
        if at + 1 >= len(history) or history[at].end_offset != history[at + 1].start_offset:
            return
        last = history[at]
        if last.end_offset <= last.segment.end_offset_inclusive:
            return
        with _named(last.segment):
            undecided = open_transactions(self._storage, last.segment)
        named = {(entry.producer_id, entry.first_offset) for entry in listed}
        undecided = {p: o for p, o in undecided.items() if o < span.end and (p, o) not in named}
        prove_committed(undecided, history[at + 1 :], self._storage, self._gaps)

    def _lost_in_holes(self, span: OffsetRange) -> list[AbortedTransaction]:
        """Transactions whose markers may lie in a hole, so that it is unknown whether they committed:
        for each hole in the span and the first one behind it, those open before it, up to its end."""
        lost: list[AbortedTransaction] = []
        for before, after in pairwise(self._histories[span.topic_partition]):
            if before.end_offset == after.start_offset:
                continue
            end = after.start_offset - 1
            with _named(before.segment):
                undecided = open_transactions(self._storage, before.segment)
            for producer, first in undecided.items():
                if first < min(before.end_offset, span.end):
                    lost.append(AbortedTransaction(producer, first, end, UNKNOWN_OFFSET))
            if before.end_offset >= span.end:
                # What is still open at a later hole was open at this one.
                break
        return lost

    def _aborted_in(self, piece: SegmentPiece) -> list[AbortedTransaction]:
        """Transactions whose abort marker is a record of this piece."""
        segment = piece.segment
        if segment.txn_index_empty:
            return []
        with _named(segment):
            try:
                index = self._storage.fetch_index(segment, IndexType.TRANSACTION)
            except RemoteResourceNotFoundError:
                # Metadata from before KIP-1023 does not say that there is none. What every
                # segment has tells whether the segment itself is gone.
                self._storage.fetch_index(segment, IndexType.OFFSET)
                return []
            entries = read_transaction_index(index, segment.start_offset)
            _check_within(entries, segment)
        return [e for e in entries if piece.start_offset <= e.last_offset < piece.end_offset]


def _check_within(entries: Sequence[AbortedTransaction], segment: RemoteLogSegmentMetadata) -> None:
    """CorruptIndexError for a marker beyond the segment's end: index or metadata is wrong, and what
    the entry says of earlier segments would be lost with it."""
    beyond = [e.last_offset for e in entries if e.last_offset > segment.end_offset_inclusive]
    if beyond:
        raise CorruptIndexError(
            "transaction index has an entry beyond its segment"
            f" last_offset={beyond[0]} end_offset={segment.end_offset_inclusive}"
        )


def _spans(reads: Iterable[Read]) -> dict[TopicPartition, OffsetRange]:
    """From the first to the last offset that is read of segments, by partition."""
    limits: dict[TopicPartition, list[Offset]] = defaultdict(list)
    for read in reads:
        if isinstance(read, SegmentRead):
            limits[read.topic_partition] += (read.start_offset, read.end_offset)
    return {
        partition: OffsetRange(partition, min(offsets), max(offsets))
        for partition, offsets in limits.items()
    }


def _beside(history: Sequence[SegmentPiece], at: int) -> Beside:
    piece = history[at]
    before = history[at - 1] if at else None
    # The snapshot of a segment is that of its end: where a piece is cut it says nothing.
    borders = before is not None and before.end_offset == piece.segment.start_offset
    is_uncut = before is not None and before.end_offset > before.segment.end_offset_inclusive
    return Beside(
        piece.end_offset,
        before.segment if before is not None and borders and is_uncut else None,
    )


def _end_offset(piece: SegmentPiece) -> Offset:
    return piece.end_offset


def _last_offset(entry: AbortedTransaction) -> Offset:
    return entry.last_offset


def _fetching() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_FETCH_THREADS, thread_name_prefix="isotherm-transactions")


@contextmanager
def _named(segment: RemoteLogSegmentMetadata) -> Iterator[None]:
    try:
        yield
    except (RemoteResourceNotFoundError, CorruptDataError) as error:
        partition = segment.topic_id_partition
        problem = (
            f"transactions cannot be read from the tier topic={partition.topic}"
            f" partition={partition.partition} start_offset={segment.start_offset}"
            f" segment={segment.segment_id} reason={str(error)!r}"
            " hint='isolationLevel=read_uncommitted reads without'"
        )
        if isinstance(error, RemoteResourceNotFoundError):
            whole = SegmentRead(segment, segment.start_offset, segment.end_offset_inclusive + 1)
            raise SegmentGoneError(problem, whole) from error
        raise CorruptObjectError(problem) from error
