"""read_committed: which records of the bucket are decided, and which of them were aborted.

A segment does not tell by itself: the marker that ends a transaction may lie in a later segment,
or not in the bucket at all.

- The producer snapshot of the last segment names the transactions that are open where the bucket
  ends. The bucket is read up to the first record of the earliest of them, the bucket's last stable
  offset; from there on the brokers are asked, who know the outcome.
- The transaction indexes of a segment and of those after it name the aborted transactions that
  touch it. An entry's last stable offset says from where on no later index can matter.

Source: Kafka RemoteLogManager.addAbortedTransactions and ProducerStateManager.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice

from isotherm.errors import CorruptDataError, CorruptObjectError, RemoteResourceNotFoundError
from isotherm.remote.segment_metadata import IndexType, RemoteLogSegmentMetadata
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.segment.producer_snapshot import read_producer_snapshot
from isotherm.segment.transaction_index import (
    AbortedTransaction,
    collect_aborted_transactions,
    read_transaction_index,
)
from isotherm.spark.offsets import OffsetRange
from isotherm.spark.planning import Read, SegmentPiece, SegmentRead
from isotherm.spark.readers import SegmentGoneError
from isotherm.types import Offset, TopicPartition

# Indexes are small: nearly all of a fetch is waiting.
_FETCH_THREADS = 16


class CommittedHistory:
    """The transactions in the history of the partitions of one query.

    `histories` are the pieces of each partition from `lineage_pieces`, not cut. Both methods fetch
    indexes, several at a time, and raise CorruptObjectError naming the segment of one that is
    damaged, or SegmentGoneError when it is missing: without it no record of an aborted transaction
    can be told from others.
    """

    def __init__(
        self,
        storage: RemoteStorageManager,
        histories: Mapping[TopicPartition, Sequence[SegmentPiece]],
    ) -> None:
        self._storage = storage
        self._histories = histories

    def stable_pieces(self) -> dict[TopicPartition, list[SegmentPiece]]:
        """The histories up to the bucket's last stable offset of each; one GET a partition."""
        last = {partition: pieces[-1] for partition, pieces in self._histories.items() if pieces}
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
        return [[_marked(read, aborted) for read in reads] for reads in reads_of_ranges]

    def _last_stable_offset(self, piece: SegmentPiece) -> Offset:
        with _named(piece.segment):
            snapshot = self._storage.fetch_index(piece.segment, IndexType.PRODUCER_SNAPSHOT)
            producers = read_producer_snapshot(snapshot)
        first_offsets = [producer.current_transaction_first_offset for producer in producers]
        return min((first for first in first_offsets if first >= 0), default=piece.end_offset)

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
        return touching

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
        return [e for e in entries if piece.start_offset <= e.last_offset < piece.end_offset]


def cut_pieces(pieces: Iterable[SegmentPiece], end: Offset) -> list[SegmentPiece]:
    """What of `pieces` lies below `end`."""
    return [
        replace(piece, end_offset=min(piece.end_offset, end))
        for piece in pieces
        if piece.start_offset < end
    ]


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


def _marked(read: Read, aborted: Mapping[TopicPartition, list[AbortedTransaction]]) -> Read:
    if not isinstance(read, SegmentRead):
        return read
    entries = aborted[read.topic_partition]
    # Entries rise by last offset: the first that can touch the read is found by halving.
    first = bisect_left(entries, read.start_offset, key=lambda entry: entry.last_offset)
    touching, _ = collect_aborted_transactions(
        islice(entries, first, None), read.start_offset, read.end_offset
    )
    return replace(read, aborted=tuple(touching))


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
