"""Turns segments and offset ranges into read tasks. Pure: reads no object.

1. `lineage_pieces` finds the part of each segment that belongs to the log. Segments overlap after a
   change of leader and after retried copies, and an unclean election leaves segments of a deposed
   leader. Every offset is read from exactly one segment.
2. `plan_reads` turns a range of offsets into reads of the bucket, and of the broker where the
   bucket has no segment (usually the tail).
3. `plan_tasks` turns reads into tasks of about the target size. A large segment is split by
   offsets, and small reads share a task.

Planning reads no index, since one GET per segment would make it slow. A task that reads a part of a
segment looks up its own positions (see `isotherm.spark.reading.readers`).
"""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from isotherm.remote.history.lineage import epoch_spans
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.segment.transaction_index import AbortedTransaction
from isotherm.spark.plan.offsets import OffsetRange
from isotherm.types import NO_TIMESTAMP, LeaderEpoch, Offset, TopicPartition

# Assumed size of a record in a partition without segments in the bucket.
ASSUMED_RECORD_SIZE = 1024
# Reads of different partitions share a task only while it is smaller than the target size divided
# by this: a small task costs little, and users of Kafka expect partitions to be read in parallel.
_SHARED_TASK_SHARE = 8
_NO_SEGMENT = "no segment in the bucket holds these offsets"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlankSegment(RemoteLogSegmentMetadata):
    """A segment whose manifest, with its end offset and leader epochs, cannot be read. It is not
    read, but may be the history of its offsets.

    With `is_described` its log shows both; else only its name is known.
    """

    is_described: bool = False

    @classmethod
    def named(cls, segment_id: RemoteLogSegmentId, start_offset: Offset) -> BlankSegment:
        return cls(
            segment_id=segment_id,
            start_offset=start_offset,
            end_offset_inclusive=start_offset,
            max_timestamp_ms=NO_TIMESTAMP,
            broker_id=-1,
            event_timestamp_ms=0,
            segment_size_in_bytes=0,
            segment_leader_epochs={0: start_offset},
            state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        )

    def described(
        self, end_offset_inclusive: Offset, epochs: Mapping[LeaderEpoch, Offset]
    ) -> BlankSegment:
        """This segment with what the batches of its log say."""
        return replace(
            self,
            end_offset_inclusive=end_offset_inclusive,
            segment_leader_epochs=epochs,
            is_described=True,
        )


@dataclass(frozen=True, slots=True)
class SegmentPiece:
    """Offsets [start_offset, end_offset) of the log are read from `segment`."""

    segment: RemoteLogSegmentMetadata
    start_offset: Offset
    end_offset: Offset


class ProducersAt(NamedTuple):
    """The sources of the producers' state at an offset: the snapshot of a segment that ends where
    `since` begins, and the batches of the pieces `since`, which end at the offset. Without a
    snapshot the pieces begin where the log begins."""

    snapshot_of: RemoteLogSegmentMetadata | None
    since: tuple[SegmentPiece, ...] = ()


class Beside(NamedTuple):
    """The part [piece_start, piece_end) of a read's segment that belongs to the log, and the
    producers where it begins. `before` is None if they are unknown, as after a hole."""

    piece_start: Offset
    piece_end: Offset
    before: ProducersAt | None


@dataclass(frozen=True, slots=True)
class SegmentRead:
    """Offsets [start_offset, end_offset) are read from `segment`, without records of the `aborted`
    transactions. Without read_committed `aborted` and `beside` are None."""

    segment: RemoteLogSegmentMetadata
    start_offset: Offset
    end_offset: Offset
    aborted: tuple[AbortedTransaction, ...] | None = None
    beside: Beside | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        return self.segment.topic_id_partition.topic_partition

    @property
    def is_whole_segment(self) -> bool:
        return (
            self.start_offset <= self.segment.start_offset
            and self.end_offset > self.segment.end_offset_inclusive
        )

    @property
    def size_in_bytes(self) -> int:
        """Estimate: bytes are assumed to be spread evenly over the segment's offsets."""
        segment = self.segment
        held = segment.end_offset_inclusive + 1 - segment.start_offset
        count = self.end_offset - self.start_offset
        return segment.segment_size_in_bytes * count // held

    def split(self, parts: int) -> list[SegmentRead]:
        return [
            self.of(start, end) for start, end in divide(self.start_offset, self.end_offset, parts)
        ]

    def of(self, start_offset: Offset, end_offset: Offset) -> SegmentRead:
        """The same read with other offsets."""
        return replace(self, start_offset=start_offset, end_offset=end_offset)


@dataclass(frozen=True, slots=True)
class BrokerRead:
    """Offsets [start_offset, end_offset) are read from the broker."""

    topic_partition: TopicPartition
    start_offset: Offset
    end_offset: Offset
    record_size: int = ASSUMED_RECORD_SIZE

    @property
    def offsets(self) -> OffsetRange:
        return OffsetRange(self.topic_partition, self.start_offset, self.end_offset)

    @property
    def size_in_bytes(self) -> int:
        return (self.end_offset - self.start_offset) * self.record_size

    def split(self, parts: int) -> list[BrokerRead]:
        return [
            BrokerRead(self.topic_partition, start, end, self.record_size)
            for start, end in divide(self.start_offset, self.end_offset, parts)
        ]


Read: TypeAlias = SegmentRead | BrokerRead


@dataclass(frozen=True, slots=True)
class ReadTask:
    """The reads of one Spark task, in order, with all metadata that the executor needs."""

    reads: tuple[Read, ...]

    @property
    def size_in_bytes(self) -> int:
        return sum(read.size_in_bytes for read in self.reads)


def lineage_pieces(
    segments: Iterable[RemoteLogSegmentMetadata], unreadable: Collection[uuid.UUID] = ()
) -> list[SegmentPiece]:
    """The log of one partition from these segments, as disjoint pieces, ascending.

    An epoch's records are valid from its first offset up to the first offset of any later epoch,
    because later records of the older leader were truncated. If several segments have the same
    offsets of an epoch, the one with the highest end is read, or of equal ones the newest. Offsets
    without a segment are a gap between two pieces.

    Segments with `unreadable` ids are not read, but belong to the lineage: records of an older
    leader do not replace them. The same goes for a described `BlankSegment`. Around one that is not
    described more is left out: see `_around_blank`.
    """
    spans, blanks = spans_by_epoch(segments)
    unreadable = {*unreadable, *(segment.segment_id.id for segment in blanks)}
    pieces: list[SegmentPiece] = []
    # From the newest epoch down, so that `epoch_end` is the lowest start of any later epoch.
    epoch_end: Offset | None = None
    for epoch in sorted(spans, reverse=True):
        # Of unreadable spans too: they belong to the lineage.
        epoch_start = min(span.start_offset for span in spans[epoch])
        readable = [span for span in spans[epoch] if span.segment.segment_id.id not in unreadable]
        if readable:
            pieces.extend(cover(readable, epoch_end))
        epoch_end = epoch_start if epoch_end is None else min(epoch_end, epoch_start)
    pieces.sort(key=lambda piece: piece.start_offset)
    for blank in blanks:
        if blank.is_described:
            continue
        pieces = _around_blank(pieces, blank.start_offset, spans)
    return _join_neighbours(pieces)


def spans_by_epoch(
    segments: Iterable[RemoteLogSegmentMetadata],
) -> tuple[dict[LeaderEpoch, list[SegmentPiece]], list[BlankSegment]]:
    """The part of each segment of each leader epoch, and the segments whose manifest cannot be
    read. Of these only the described ones have parts."""
    spans: dict[LeaderEpoch, list[SegmentPiece]] = defaultdict(list)
    blanks: list[BlankSegment] = []
    for segment in segments:
        if isinstance(segment, BlankSegment):
            blanks.append(segment)
            if not segment.is_described:
                continue
        for epoch, span in _pieces_by_epoch(segment):
            spans[epoch].append(span)
    return spans, blanks


def _around_blank(
    pieces: list[SegmentPiece],
    start: Offset,
    spans: Mapping[LeaderEpoch, Sequence[SegmentPiece]],
) -> list[SegmentPiece]:
    """`pieces` without the offsets that an unreadable segment with this `start` may have
    superseded.

    If no other segment has that offset, there is a hole and no conflict. Otherwise either segment
    may be the log, from `start` up to the first offset of a leader that is later than the other
    segment's.
    """
    rivals = [
        epoch
        for epoch, held in spans.items()
        if any(span.start_offset <= start < span.end_offset for span in held)
    ]
    if not rivals:
        return pieces
    later = [min(s.start_offset for s in spans[e]) for e in spans if e > max(rivals)]
    resumed = max((offset for offset in later if offset >= start), default=None)
    kept = cut_pieces(pieces, start)
    if resumed is not None:
        kept += [
            replace(piece, start_offset=max(piece.start_offset, resumed))
            for piece in pieces
            if piece.end_offset > resumed
        ]
    return kept


def blanks_of(segments: Iterable[RemoteLogSegmentMetadata]) -> list[BlankSegment]:
    """The segments whose manifest cannot be read, ascending by start offset."""
    blanks = (segment for segment in segments if isinstance(segment, BlankSegment))
    return sorted(blanks, key=lambda blank: blank.start_offset)


def lost_offsets(
    hole: OffsetRange, blanks: Sequence[BlankSegment]
) -> Iterator[tuple[str, OffsetRange]]:
    """Yield the parts of a hole between pieces, ascending, each with its cause as a fact. A segment
    that is not described may have all offsets of the hole from its start on."""
    reached = hole.start
    for blank in blanks:
        held_to = blank.end_offset_inclusive + 1 if blank.is_described else hole.end
        first, end = max(blank.start_offset, reached), min(held_to, hole.end)
        if first >= end:
            continue
        if reached < first:
            yield _NO_SEGMENT, OffsetRange(hole.topic_partition, reached, first)
        holds = "held" if blank.is_described else "perhaps held or superseded"
        fact = f"offsets are {holds} by a segment whose manifest cannot be read"
        yield f"{fact} segment={blank.segment_id}", OffsetRange(hole.topic_partition, first, end)
        reached = end
    if reached < hole.end:
        yield _NO_SEGMENT, OffsetRange(hole.topic_partition, reached, hole.end)


def cut_pieces(pieces: Iterable[SegmentPiece], end: Offset) -> list[SegmentPiece]:
    """The part of `pieces` below `end`."""
    return [
        replace(piece, end_offset=min(piece.end_offset, end))
        for piece in pieces
        if piece.start_offset < end
    ]


def producers_at_end(history: Sequence[SegmentPiece], at: int) -> ProducersAt | None:
    """The sources of the producers' state where the piece `history[at]` ends.

    A snapshot is taken at the end of a segment. So if the piece is cut, an earlier snapshot is
    taken, and the batches after it. None if there is a hole first, or no snapshot in a log that
    does not begin at 0.
    """
    since: list[SegmentPiece] = []
    for piece in reversed(history[: at + 1]):
        if since and piece.end_offset != since[-1].start_offset:
            return None
        if piece.end_offset > piece.segment.end_offset_inclusive:
            return ProducersAt(piece.segment, tuple(reversed(since)))
        since.append(piece)
    return ProducersAt(None, tuple(reversed(since))) if since[-1].start_offset == 0 else None


def _pieces_by_epoch(
    segment: RemoteLogSegmentMetadata,
) -> Iterator[tuple[LeaderEpoch, SegmentPiece]]:
    """Yield the part of the segment of each leader epoch. Offsets before the first epoch's start
    count as that epoch's."""
    first, *others = epoch_spans(segment)
    for epoch, start, end in (first._replace(start_offset=segment.start_offset), *others):
        if start <= end:
            yield epoch, SegmentPiece(segment, start, end + 1)


def cover(spans: list[SegmentPiece], limit: Offset | None) -> Iterator[SegmentPiece]:
    """Yield disjoint pieces that cover every offset of `spans` below `limit`. At each offset the
    span that reaches farthest is taken, so the pieces are few."""
    spans.sort(key=lambda span: span.start_offset)
    position = 0
    covered_to = spans[0].start_offset
    while position < len(spans):
        best: SegmentPiece | None = None
        while position < len(spans) and spans[position].start_offset <= covered_to:
            best = _farther(best, spans[position])
            position += 1
        if best is not None and best.end_offset > covered_to:
            end = best.end_offset if limit is None else min(best.end_offset, limit)
            if covered_to < end:
                yield SegmentPiece(best.segment, covered_to, end)
            # Not cut at `limit`: what lies above it is of a later epoch in any case.
            covered_to = best.end_offset
        elif position < len(spans):
            covered_to = spans[position].start_offset


def _farther(best: SegmentPiece | None, span: SegmentPiece) -> SegmentPiece:
    if best is None:
        return span

    def rank(piece: SegmentPiece) -> tuple[Offset, int, int]:
        # The id breaks ties, so that all readers choose the same segment.
        segment = piece.segment
        return piece.end_offset, segment.event_timestamp_ms, segment.segment_id.id.int

    return max(best, span, key=rank)


def _join_neighbours(pieces: list[SegmentPiece]) -> list[SegmentPiece]:
    joined: list[SegmentPiece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last and last.segment is piece.segment and last.end_offset == piece.start_offset:
            joined[-1] = replace(last, end_offset=piece.end_offset)
        else:
            joined.append(piece)
    return joined


def plan_reads(pieces: Sequence[SegmentPiece], offsets: OffsetRange) -> list[Read]:
    """`offsets` as reads in ascending order, without gap or overlap.

    Offsets without a piece become a BrokerRead: the tail after the last piece, and any hole before
    it. `pieces` are the result of `lineage_pieces` for the partition.
    """
    if offsets.size <= 0:
        return []
    record_size = _mean_record_size(pieces)
    reads: list[Read] = []
    reached = offsets.start
    # Ends are exclusive: a piece that ends at `wanted.start` has nothing of the range.
    first = bisect_right(pieces, offsets.start, key=lambda piece: piece.end_offset)
    for piece in pieces[first:]:
        if piece.start_offset >= offsets.end:
            break
        start = max(piece.start_offset, reached)
        end = min(piece.end_offset, offsets.end)
        if reached < start:
            reads.append(BrokerRead(offsets.topic_partition, reached, start, record_size))
        reads.append(SegmentRead(piece.segment, start, end))
        reached = end
    if reached < offsets.end:
        reads.append(BrokerRead(offsets.topic_partition, reached, offsets.end, record_size))
    return reads


def _mean_record_size(pieces: Sequence[SegmentPiece]) -> int:
    if not pieces:
        return ASSUMED_RECORD_SIZE
    # The estimate is mostly for the tail, whose records follow those of the last piece.
    last = SegmentRead(pieces[-1].segment, pieces[-1].start_offset, pieces[-1].end_offset)
    return max(1, last.size_in_bytes // (last.end_offset - last.start_offset))


def divide(start: Offset, end: Offset, parts: int) -> list[tuple[Offset, Offset]]:
    """[start, end) as `parts` ranges whose sizes differ by at most one. Empty ones are left out.

    The cuts are those of Spark's KafkaOffsetRangeCalculator: each part takes the remaining offsets
    divided by the remaining parts.
    """
    divided: list[tuple[Offset, Offset]] = []
    for part in range(parts):
        cut = start + (end - start) // (parts - part)
        if start < cut:
            divided.append((start, cut))
        start = cut
    return divided


def divide_range(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    return [
        OffsetRange(whole.topic_partition, start, end)
        for start, end in divide(whole.start, whole.end, parts)
    ]


def limit_range_sizes(ranges: Iterable[OffsetRange], records_max: int) -> list[OffsetRange]:
    """Cut every range into ranges of at most `records_max` offsets (option
    maxRecordsPerPartition)."""
    return [
        piece
        for whole in ranges
        if whole.size > 0
        for piece in divide_range(whole, -(-whole.size // records_max))
    ]


def split_ranges(ranges: Iterable[OffsetRange], partitions_min: int) -> list[OffsetRange]:
    """Cut ranges into about `partitions_min` ranges (option minPartitions), with the arithmetic of
    Spark's KafkaOffsetRangeCalculator.

    A range with at most one partition's share of all offsets stays whole. The others divide the
    remaining partitions in proportion to their sizes. Rounding makes the result differ from the
    option by a few.
    """
    kept = [whole for whole in ranges if whole.size > 0]
    if len(kept) >= partitions_min:
        return kept
    total = sum(whole.size for whole in kept)
    small = {whole for whole in kept if _share(whole, total, partitions_min) == 1}
    pool = total - sum(whole.size for whole in small)
    pool_partitions = max(partitions_min - len(small), 1)
    return [
        piece
        for whole in kept
        for piece in divide_range(
            whole, 1 if whole in small else _share(whole, pool, pool_partitions)
        )
    ]


def _share(whole: OffsetRange, total: int, partitions: int) -> int:
    # Java's Math.round rounds a half up; Python's round() would round it to even.
    return max(int(whole.size / total * partitions + 0.5), 1)


def plan_tasks(
    reads_of_ranges: Iterable[Sequence[Read]], target_size: int, *, merge_ranges: bool = True
) -> list[ReadTask]:
    """Tasks of 2/3 to 3/2 of `target_size` bytes where the reads allow it, in the order of the
    reads.

    Each sequence is one range of offsets, ascending. Reads of different ranges share a task only
    with `merge_ranges`, and reads of different partitions only while the task is small.
    """
    tasks: list[ReadTask] = []
    open_reads: list[Read] = []
    open_size = 0

    def close() -> None:
        nonlocal open_size
        if open_reads:
            tasks.append(ReadTask(tuple(open_reads)))
            open_reads.clear()
            open_size = 0

    for reads in reads_of_ranges:
        if not merge_ranges or open_size >= target_size // _SHARED_TASK_SHARE:
            close()
        for read in reads:
            pieces, size = _split_to_size(read, target_size)
            for piece in pieces:
                if open_size + size > target_size * 3 // 2:
                    close()
                open_reads.append(piece)
                open_size += size
    close()
    return tasks


def _split_to_size(read: Read, target_size: int) -> tuple[Sequence[Read], int]:
    """The read in parts of about the target size, and the size of one part."""
    size = read.size_in_bytes
    # The nearest number of parts: each has 3/4 to 3/2 of the target.
    parts = int(size / target_size + 0.5)
    return ([read], size) if parts <= 1 else (read.split(parts), size // parts)
