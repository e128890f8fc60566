"""read_committed: the last stable offset of the bucket, and the aborted transactions below it.

A segment alone is not enough: the marker of a transaction may be in a later segment, or not in the
bucket at all.

- The producer snapshot of the last segment names the transactions that are open where the bucket
  ends. The bucket's last stable offset is the first record of the earliest of them. The bucket is
  read up to there. The rest is read from the brokers, which know the outcome.
- The transaction indexes of a segment and of later ones name the aborted transactions with records
  in it. The last stable offset of an entry tells where the search in later indexes may stop.

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
    CorruptIndexError,
    CorruptObjectError,
    KeyPairNotConfiguredError,
    RemoteResourceNotFoundError,
    UnreadableDataError,
)
from isotherm.remote.segment_metadata import IndexType, RemoteLogSegmentMetadata
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.segment.transaction_index import (
    AbortedTransaction,
    collect_aborted_transactions,
    read_transaction_index,
)
from isotherm.spark.plan.offsets import OffsetRange
from isotherm.spark.plan.planning import (
    Beside,
    Read,
    SegmentPiece,
    SegmentRead,
    cut_pieces,
    producers_at_end,
)
from isotherm.spark.reading.read_errors import SegmentGoneError, SegmentReadError
from isotherm.spark.reading.readers import (
    open_transactions,
    producer_states,
    prove_committed,
    prove_open,
)
from isotherm.types import UNKNOWN_OFFSET, Offset, ProducerId, TopicPartition

# Indexes are small: nearly all of the time of a fetch is latency.
_FETCH_THREADS = 16


class CommittedHistory:
    """The transactions in the history of the partitions of one query.

    `histories` has the pieces of each partition from `lineage_pieces`, not cut. Both methods fetch
    several indexes in parallel. They raise CorruptObjectError, which names the segment, for a
    damaged index, and SegmentGoneError for a missing one: without it records of aborted
    transactions look committed.

    With `hides_undecided` a transaction counts as aborted if its marker may be in a hole; otherwise
    holes are ignored. `proven_ends` has the ids of the last segments whose snapshot was compared
    with the log, and grows. None turns this check off. It is needed only if no brokers are read
    after the bucket: a snapshot that names too early an offset would then omit records silently.
    """

    def __init__(
        self,
        storage: RemoteStorageManager,
        histories: Mapping[TopicPartition, Sequence[SegmentPiece]],
        *,
        hides_undecided: bool = False,
        proven_ends: set[uuid.UUID] | None = None,
    ) -> None:
        self._hides_undecided = hides_undecided
        self._proven_ends = proven_ends
        self._storage = storage
        self._histories = histories

    def stable_pieces(self) -> dict[TopicPartition, list[SegmentPiece]]:
        """The histories, each cut at the bucket's last stable offset. Costs one GET per partition,
        and if transactions are open, a read of the batches from the first of them on."""
        last = {partition: pieces for partition, pieces in self._histories.items() if pieces}
        with _fetching() as pool:
            ends = dict(zip(last, pool.map(self._last_stable_offset, last.values()), strict=True))
        return {
            partition: cut_pieces(pieces, ends[partition]) if pieces else []
            for partition, pieces in self._histories.items()
        }

    def with_aborted(self, reads_of_ranges: Iterable[Sequence[Read]]) -> list[list[Read]]:
        """The same reads, where reads of segments have the aborted transactions in their range."""
        reads_of_ranges = [list(reads) for reads in reads_of_ranges]
        spans = _spans(read for reads in reads_of_ranges for read in reads)
        with _fetching() as pool:
            # First all indexes inside the spans, in parallel. They show whether later indexes are
            # needed at all, and those are fetched one after the other, up to one that completes the
            # search.
            found_spans = self._aborted_within(spans, pool)
            later = {
                partition: pool.submit(self._aborted_later, span, found_spans[partition])
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
        # Entries are sorted by last offset: bisect for the first that can be in the read.
        first = bisect_left(entries, read.start_offset, key=_last_offset)
        touching, _ = collect_aborted_transactions(
            islice(entries, first, None), read.start_offset, read.end_offset
        )
        history = self._histories[read.topic_partition]
        at = bisect_right(history, read.start_offset, key=_end_offset)
        return replace(read, aborted=tuple(touching), beside=_beside(history, at))

    def _last_stable_offset(self, pieces: Sequence[SegmentPiece]) -> Offset:
        last = pieces[-1]
        named = self._open_at_end(pieces, len(pieces) - 1)
        proven = self._proven_ends
        if proven is not None and last.segment.segment_id.id not in proven:
            before = _beside(pieces, len(pieces) - 1).before
            prove_open(named, last, before, self._storage)
            proven.add(last.segment.segment_id.id)
        return min(named.values(), default=last.end_offset)

    def _aborted_within(
        self, spans: Mapping[TopicPartition, OffsetRange], pool: ThreadPoolExecutor
    ) -> dict[TopicPartition, list[AbortedTransaction]]:
        """The entries in the indexes of the pieces in the spans."""
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
        self, span: OffsetRange, aborted: list[AbortedTransaction]
    ) -> list[AbortedTransaction]:
        """`aborted` and the entries of later indexes, sorted by last offset. The search stops at an
        entry that shows that no later index can have more."""
        touching, is_complete = collect_aborted_transactions(aborted, span.start, span.end)
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
        """Check that a transaction that is open at the end of the span's last segment, and that no
        index lists, is committed. The task that reads the segment checks the listed ones."""
        history = self._histories[span.topic_partition]
        at = bisect_right(history, span.end - 1, key=_end_offset)
        if at + 1 >= len(history) or history[at].end_offset != history[at + 1].start_offset:
            # The log ends there, or a hole follows in which the markers may be: nothing can be
            # proven.
            return
        undecided = self._open_at_end(history, at)
        named = {(entry.producer_id, entry.first_offset) for entry in listed}
        undecided = {p: o for p, o in undecided.items() if o < span.end and (p, o) not in named}
        prove_committed(undecided, history[at + 1 :], self._storage)

    def _lost_in_holes(self, span: OffsetRange) -> list[AbortedTransaction]:
        """The transactions whose marker may be in a hole, so that their outcome is unknown.

        They are open before a hole in the span, or before the first hole after it. The entry of
        each ends where the hole ends.
        """
        lost: list[AbortedTransaction] = []
        history = self._histories[span.topic_partition]
        for at, (before, after) in enumerate(pairwise(history)):
            if before.end_offset == after.start_offset:
                continue
            end = after.start_offset - 1
            for producer, first in self._open_at_end(history, at).items():
                if first < min(before.end_offset, span.end):
                    lost.append(AbortedTransaction(producer, first, end, UNKNOWN_OFFSET))
            if before.end_offset >= span.end:
                # A transaction of this span that is open at a later hole was also open at this one.
                break
        return lost

    def _open_at_end(self, history: Sequence[SegmentPiece], at: int) -> dict[ProducerId, Offset]:
        """The first offsets of the transactions that are open where the piece at this index ends,
        by producer. Empty if the producers there are unknown."""
        producers = producers_at_end(history, at)
        if producers is None:
            return {}
        with _named(history[at].segment):
            return open_transactions(producer_states(producers, self._storage))

    def _aborted_in(self, piece: SegmentPiece) -> list[AbortedTransaction]:
        """Transactions whose abort marker is a record of this piece."""
        segment = piece.segment
        # A wrong flag hides no abort: the tasks and `_prove_end` compare ABORT markers with the
        # entries (docs/decisions/0072).
        if segment.txn_index_empty:
            return []
        with _named(segment):
            try:
                index = self._storage.fetch_index(segment, IndexType.TRANSACTION)
            except RemoteResourceNotFoundError:
                # Metadata from before KIP-1023 does not say that a segment has no transaction
                # index. Every segment has an offset index: if that is missing too, the segment is
                # deleted.
                self._storage.fetch_index(segment, IndexType.OFFSET)
                return []
            entries = read_transaction_index(index, segment.start_offset)
            _check_within(entries, segment)
        # Markers outside of the piece are in another piece, or of a deposed leader.
        return [e for e in entries if piece.start_offset <= e.last_offset < piece.end_offset]


def _check_within(entries: Sequence[AbortedTransaction], segment: RemoteLogSegmentMetadata) -> None:
    """Raise CorruptIndexError if a marker lies beyond the segment's end. Index or metadata is
    wrong, and without the entry earlier aborted records would look committed."""
    beyond = [e.last_offset for e in entries if e.last_offset > segment.end_offset_inclusive]
    if beyond:
        raise CorruptIndexError(
            "transaction index has an entry beyond its segment"
            f" last_offset={beyond[0]} end_offset={segment.end_offset_inclusive}"
        )


def _spans(reads: Iterable[Read]) -> dict[TopicPartition, OffsetRange]:
    """The range from the first to the last offset that is read from segments, by partition. One
    search for the span is cheaper than one for each read."""
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
    borders = before is not None and before.end_offset == piece.start_offset
    return Beside(
        piece.start_offset,
        piece.end_offset,
        producers_at_end(history, at - 1) if borders else None,
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
    except (SegmentReadError, KeyPairNotConfiguredError):
        raise
    except UnreadableDataError as error:
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
