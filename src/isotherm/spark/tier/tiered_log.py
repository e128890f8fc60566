"""The offsets of a query's topics that can be read now, from either tier, and the tasks that read
them.

The order of the requests joins the tiers without a gap: first the segments, then the brokers'
offsets. Records of a segment that is finished in between are read from the brokers, which serve
them from either tier.
"""

from __future__ import annotations

import difflib
import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from isotherm.errors import (
    CorruptObjectError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.spark.options import SourceOptions
from isotherm.spark.plan.epoch_claims import contested_epochs
from isotherm.spark.plan.listed_segments import ListedSegment
from isotherm.spark.plan.offsets import (
    OffsetBounds,
    OffsetLimit,
    OffsetRange,
    timestamps_to_find,
)
from isotherm.spark.plan.planning import (
    Beside,
    BlankSegment,
    BrokerRead,
    Read,
    ReadTask,
    SegmentPiece,
    SegmentRead,
    blanks_of,
    limit_range_sizes,
    lineage_pieces,
    lost_offsets,
    plan_reads,
    plan_tasks,
    split_ranges,
)
from isotherm.spark.reading.brokers import KafkaBrokers
from isotherm.spark.reading.committed_history import CommittedHistory
from isotherm.spark.reading.epoch_proof import prove_epochs
from isotherm.spark.reading.read_errors import SegmentGoneError
from isotherm.spark.reading.time_lookup import first_offset_not_before
from isotherm.spark.tier.segment_list_sources import SegmentSource
from isotherm.types import LeaderEpoch, Offset, TimestampMs, TopicIdPartition, TopicPartition

_logger = logging.getLogger(__name__)

# A look-up of a time takes a few small GETs per partition: its threads mostly wait.
_LOOKUP_THREADS = 16
# Planning fails if segments are deleted during it more often than this.
REPLANS_MAX = 5


@dataclass(frozen=True, slots=True)
class PartitionView:
    """The readable part of a partition: the pieces of its history, and its offsets. `blanks` are
    the segments whose manifest cannot be read, ascending by start offset."""

    pieces: Sequence[SegmentPiece]
    bounds: OffsetBounds
    blanks: Sequence[BlankSegment] = ()


Views: TypeAlias = Mapping[TopicPartition, PartitionView]
_Planned = TypeVar("_Planned")


class TieredLog:
    """The topics of one query. `brokers` is None if the query names no brokers. Not thread-safe."""

    def __init__(
        self,
        options: SourceOptions,
        storage: RemoteStorageManager,
        segment_source: SegmentSource,
        brokers: KafkaBrokers | None,
    ) -> None:
        self._options = options
        self._storage = storage
        self._segment_source = segment_source
        self._brokers = brokers
        self._transactions: CommittedHistory | None = None
        self._proven_ends: set[uuid.UUID] = set()
        self._proven_claims: frozenset[tuple[uuid.UUID, Offset, LeaderEpoch]] = frozenset()

    def views(self, *, may_lack_topics: bool = False) -> dict[TopicPartition, PartitionView]:
        """The current view of each partition of the query, from new requests.

        Raises UnknownTopicOrPartitionError if a topic or partition that the options name does not
        exist, unless `may_lack_topics`.
        """
        options = self._options
        partitions = self._partitions_from_brokers(may_lack_topics=may_lack_topics)
        seen: set[str] = set()

        def selects_topic(name: str) -> bool:
            seen.add(name)
            return options.selects_topic(name)

        # List the segments before the brokers' offsets are read below. In the other order, a
        # segment that is uploaded in between could end beyond the end offset.
        segments = self._segment_source.visible_segments(selects_topic, partitions)
        histories = newest_histories(segments)
        chosen = choose_partitions(
            options,
            [p.topic_partition for p in partitions] if partitions is not None else histories,
            known_topics=seen,
            may_lack_topics=may_lack_topics,
        )
        self._prove_claims([histories.get(partition, ()) for partition in chosen])
        pieces = {partition: lineage_pieces(histories.get(partition, ())) for partition in chosen}
        if options.reads_committed:
            self._transactions = self._committed(pieces)
            pieces = self._transactions.stable_pieces()
        if self._brokers is None:
            return {
                p: PartitionView(
                    pieces[p], _bucket_bounds(pieces[p], 0), blanks_of(histories.get(p, ()))
                )
                for p in chosen
            }
        broker_bounds = self._brokers.bounds(chosen)
        if options.reads_tail:
            return {p: PartitionView(pieces[p], broker_bounds[p]) for p in chosen}
        return {
            p: PartitionView(pieces[p], _bucket_bounds(pieces[p], broker_bounds[p].start))
            for p in chosen
        }

    def _prove_claims(self, histories: Iterable[Sequence[RemoteLogSegmentMetadata]]) -> None:
        """Before records are left out because of a leader epoch in the metadata, compare that epoch
        with the batches. Costs no request unless segments overlap; a later call compares only what
        is new.

        Raises WrongEpochsError, and SegmentReadError for a segment that supersedes others, or is
        superseded, and cannot be read. With failOnDataLoss=false that is a warning.
        """
        claims = {
            (epoch.segment.segment_id.id, epoch.offset, epoch.epoch): epoch
            for segments in histories
            for epoch in contested_epochs(segments)
        }
        fresh = [claim for key, claim in claims.items() if key not in self._proven_claims]
        is_lenient = not self._options.fail_on_data_loss
        prove_epochs(fresh, self._storage, may_be_unreadable=is_lenient)
        self._proven_claims = frozenset(claims)

    def _committed(
        self, pieces: Mapping[TopicPartition, Sequence[SegmentPiece]]
    ) -> CommittedHistory:
        hides = not self._options.fail_on_data_loss
        # Without the tail the log just ends at the last stable offset, so a wrong one would go
        # unnoticed.
        is_short_in_silence = self._options.fail_on_data_loss and not self._options.reads_tail
        return CommittedHistory(
            self._storage,
            pieces,
            hides_undecided=hides,
            proven_ends=self._proven_ends if is_short_in_silence else None,
        )

    def planned(
        self, plan: Callable[[Views], _Planned], *, may_lack_topics: bool = False
    ) -> _Planned:
        """The result of `plan` for the current views. If a segment that is read meanwhile was
        deleted, views and plan are made again.

        Raises CorruptObjectError if the metadata still names the deleted segment.
        """
        return self._replanned(lambda: plan(self.views(may_lack_topics=may_lack_topics)))

    def _replanned(self, plan: Callable[[], _Planned]) -> _Planned:
        replans_left = REPLANS_MAX
        while True:
            try:
                return plan()
            except SegmentGoneError as error:
                if not replans_left or self._is_named(error.read):
                    raise CorruptObjectError(f"{error} {cause_when_gone(self._options)}") from error
                replans_left -= 1
                _logger.info("planned again: a segment was deleted meanwhile: %s", error)

    def _is_named(self, read: SegmentRead) -> bool:
        """Whether the current metadata has the segment."""
        return any(e.segment_id == read.segment.segment_id for e in self._segments_now(read))

    def _segments_now(self, read: SegmentRead) -> list[RemoteLogSegmentMetadata]:
        owner = read.segment.topic_id_partition
        return self._segment_source.visible_segments(lambda name: name == owner.topic, [owner])

    @property
    def is_bounded_by_brokers(self) -> bool:
        """Whether `bounds` asks only the brokers. It does if the tail is read, since they know its
        end."""
        return self._tail_brokers is not None

    def bounds(self, *, may_lack_topics: bool) -> dict[TopicPartition, OffsetBounds]:
        """The bounds of `views`. Lists no segments if the brokers alone decide the bounds."""
        brokers = self._tail_brokers
        if brokers is None:
            return self.planned(
                lambda views: {partition: view.bounds for partition, view in views.items()},
                may_lack_topics=may_lack_topics,
            )
        partitions = self._partitions_from_brokers(may_lack_topics=may_lack_topics) or []
        existing = [partition.topic_partition for partition in partitions]
        return brokers.bounds(
            choose_partitions(self._options, existing, may_lack_topics=may_lack_topics)
        )

    @property
    def _tail_brokers(self) -> KafkaBrokers | None:
        return self._brokers if self._options.reads_tail else None

    def _partitions_from_brokers(self, *, may_lack_topics: bool) -> list[TopicIdPartition] | None:
        if self._brokers is None:
            return None
        options = self._options
        topics: Iterable[str] = options.named_topics
        if options.subscribe_pattern is not None:
            topics = [name for name in self._brokers.topic_names() if options.selects_topic(name)]
        try:
            partitions = self._brokers.partitions(topics)
        except UnknownTopicOrPartitionError:
            if not may_lack_topics:
                met = self._brokers.topic_names()
                missing = ",".join(sorted(set(topics) - set(met)))
                raise UnknownTopicOrPartitionError(
                    f"nothing to read: the brokers have no such topic missing={missing}"
                    f"{_nearest(topics, met)}"
                ) from None
            partitions = self._brokers.partitions(set(topics) & set(self._brokers.topic_names()))
        assigned = options.assigned
        return [p for p in partitions if p.topic_partition in assigned] if assigned else partitions

    def tasks(
        self, ranges: Sequence[OffsetRange], views: Mapping[TopicPartition, PartitionView]
    ) -> list[ReadTask]:
        """The tasks that together read every record of `ranges` once. The ranges must lie inside
        the `views`."""
        options = self._options
        if options.max_records_per_partition is not None:
            ranges = limit_range_sizes(ranges, options.max_records_per_partition)
        tasks = self._tasks(ranges, views, merge_ranges=options.max_records_per_partition is None)
        # As in the Kafka source: after maxRecordsPerPartition, and only if there are too few tasks.
        if options.min_partitions is not None and len(tasks) < options.min_partitions:
            ranges = split_ranges(ranges, options.min_partitions)
            tasks = self._tasks(ranges, views, merge_ranges=False)
        return tasks

    def _tasks(
        self,
        ranges: Iterable[OffsetRange],
        views: Mapping[TopicPartition, PartitionView],
        *,
        merge_ranges: bool,
    ) -> list[ReadTask]:
        reads = []
        for span in ranges:
            view = views[span.topic_partition]
            reads.append(self._reads(view.pieces, span, view.blanks))
        if self._transactions is not None:
            reads = self._transactions.with_aborted(reads)
        return plan_tasks(reads, self._options.target_bytes_per_task, merge_ranges=merge_ranges)

    def _reads(
        self, pieces: Sequence[SegmentPiece], span: OffsetRange, blanks: Sequence[BlankSegment]
    ) -> list[Read]:
        reads = plan_reads(pieces, span)
        if self._options.reads_tail:
            return reads
        for read in reads:
            if isinstance(read, BrokerRead):
                for cause, lost in lost_offsets(read.offsets, blanks):
                    self.report_data_loss(
                        f"{cause} partition={lost.topic_partition}"
                        f" start_offset={lost.start} end_offset={lost.end}"
                    )
        return [read for read in reads if not isinstance(read, BrokerRead)]

    def find_times(
        self,
        limit: OffsetLimit,
        views: Mapping[TopicPartition, PartitionView],
        *,
        is_end: bool = False,
    ) -> dict[TopicPartition, Offset | None]:
        """The offsets for the times of `limit`: from the bucket, else from the brokers' tail.

        With `is_end` a range ends before the first segment whose manifest cannot be read, since
        that segment may contain the first record of the time.
        """
        times = {p: time for p, time in timestamps_to_find(limit, views).items() if p in views}

        def find(partition: TopicPartition) -> Offset | None:
            view = views[partition]
            kept = clip_pieces(view.pieces, view.bounds)
            offsets = first_offset_not_before(
                kept, self._storage, times[partition], gaps=self._options.gaps
            )
            blank = min((segment.start_offset for segment in view.blanks), default=None)
            if is_end and blank is not None and (offsets is None or blank < offsets):
                return max(blank, view.bounds.start)
            return offsets

        with ThreadPoolExecutor(_LOOKUP_THREADS, thread_name_prefix="isotherm-lookup") as pool:
            offsets = dict(zip(times, pool.map(find, times), strict=True))
        missing = {p: times[p] for p, offset in offsets.items() if offset is None}
        # Only the rest: the bucket has the older records, so what is found there is the first.
        if missing and self._tail_brokers is not None:
            offsets |= self._tail_brokers.offsets_for_times(missing)
        return offsets

    def read_again(self, read: SegmentRead) -> list[Read] | None:
        """The reads that replace a read whose segment is deleted, from the current metadata.

        None if the metadata still names the segment: it is then not deleted but damaged. Only the
        name of a `ListedSegment` was known, so it is always planned again, from the manifests.
        Offsets without a segment are read from the brokers, or are lost (see `report_data_loss`).
        Raises as `planned`.
        """
        return self._replanned(lambda: self._read_again(read))

    def _read_again(self, read: SegmentRead) -> list[Read] | None:
        partition = read.topic_partition
        segments = self._segments_now(read)
        is_listed = isinstance(read.segment, ListedSegment)
        if not is_listed and any(
            segment.segment_id == read.segment.segment_id for segment in segments
        ):
            return None
        self._prove_claims([segments])
        pieces = lineage_pieces(segments)
        if self._options.reads_committed:
            self._transactions = self._committed({partition: pieces})
        span = OffsetRange(partition, read.start_offset, read.end_offset)
        reads = self._reads(pieces, span, blanks_of(segments))
        return reads if self._transactions is None else self._transactions.with_aborted([reads])[0]

    def read_elsewhere(self, read: SegmentRead) -> list[Read] | None:
        """The reads that replace a read whose segment lacks its offsets. They are of other segments
        of the lineage; None unless these have all of the offsets."""
        unreadable = {read.segment.segment_id.id}
        pieces = lineage_pieces(self._segments_now(read), unreadable)
        span = OffsetRange(read.topic_partition, read.start_offset, read.end_offset)
        reads: list[Read] = []
        for planned in plan_reads(pieces, span):
            if not isinstance(planned, SegmentRead):
                return None
            reads.append(replace(planned, aborted=read.aborted, beside=_alone(read, planned)))
        return reads

    def report_data_loss(self, problem: str) -> None:
        """Raise OffsetOutOfRangeError, or log a warning with failOnDataLoss=false."""
        if self._options.fail_on_data_loss:
            raise OffsetOutOfRangeError(
                f"{problem} hint='failOnDataLoss=false reads the existing records'"
            )
        _logger.warning("read without them, failOnDataLoss=false: %s", problem)


def cause_when_gone(options: SourceOptions) -> str:
    """Possible reasons for missing objects of a segment with metadata, and a hint."""
    if options.metadata_source == "table":
        return (
            "cause='metadataTable is older than the bucket, or the object was lost: refresh the"
            " table with `isotherm pipeline project` and read again'"
        )
    if options.storage_manager is not None:
        return (
            "cause='the metadata still has this segment, and the storage manager has not"
            f" class={options.storage_manager}'"
        )
    return (
        "cause='the metadata still has this segment: its objects were taken away by other means"
        " than retention, `isotherm pipeline sweep` tells which are missing'"
    )


def _alone(read: SegmentRead, instead: SegmentRead) -> Beside | None:
    """The `beside` of a replacement: its own offsets, with unknown producers before them."""
    return None if read.beside is None else Beside(instead.start_offset, instead.end_offset, None)


def clip_pieces(pieces: Iterable[SegmentPiece], bounds: OffsetBounds) -> list[SegmentPiece]:
    """The pieces cut to `bounds`: offsets below the log start are no longer in the log."""
    return [
        SegmentPiece(piece.segment, start, end)
        for piece in pieces
        if (start := max(piece.start_offset, bounds.start))
        < (end := min(piece.end_offset, bounds.end))
    ]


def newest_histories(
    segments: Iterable[RemoteLogSegmentMetadata],
) -> dict[TopicPartition, list[RemoteLogSegmentMetadata]]:
    """Segments by partition, of one incarnation of each topic. If a topic was deleted and created
    again, its segments have several topic ids: only those of the id with the newest event are
    taken."""
    by_incarnation: dict[TopicIdPartition, list[RemoteLogSegmentMetadata]] = defaultdict(list)
    newest: dict[str, tuple[TimestampMs, uuid.UUID]] = {}
    for segment in segments:
        owner = segment.topic_id_partition
        by_incarnation[owner].append(segment)
        rank = (segment.event_timestamp_ms, owner.topic_id)
        newest[owner.topic] = max(newest.get(owner.topic, rank), rank)
    return {
        owner.topic_partition: owned
        for owner, owned in by_incarnation.items()
        if owner.topic_id == newest[owner.topic][1]
    }


def choose_partitions(
    options: SourceOptions,
    existing: Collection[TopicPartition],
    *,
    known_topics: Collection[str] = (),
    may_lack_topics: bool = False,
) -> list[TopicPartition]:
    """The partitions of `existing` that a query reads. `known_topics` has further names, for the
    error message.

    Raises UnknownTopicOrPartitionError if a topic or partition that the options name does not
    exist, or a pattern matches no topic, unless `may_lack_topics`.
    """
    if options.assigned:
        missing = sorted(map(str, options.assigned - set(existing)))
        chosen = sorted(options.assigned & set(existing))
    else:
        chosen = sorted(p for p in existing if options.selects_topic(p.topic))
        missing = sorted(options.named_topics - {p.topic for p in chosen})
    if (missing or not chosen) and not may_lack_topics:
        # A folder with the topic's name but without a segment does not make the topic exist.
        met = sorted({p.topic for p in existing} | set(known_topics) - options.named_topics)
        raise UnknownTopicOrPartitionError(
            f"nothing to read: no such topic or partition"
            f" missing={','.join(missing) or options.subscribe_pattern}"
            f" path={options.path or options.storage_manager}{_found_topics(options, met)}"
        )
    return chosen


def _found_topics(options: SourceOptions, met: Sequence[str]) -> str:
    """Names of existing topics, and the most similar one, for the error message."""
    if not met:
        return f" found=none{_NOTHING_FOUND}"
    return f" found={','.join(met[:10])}{_nearest(options.named_topics, met)}"


def _nearest(names: Iterable[str], met: Collection[str]) -> str:
    nearest = {
        name
        for topic in names
        if topic not in met
        for name in difflib.get_close_matches(topic, list(met), n=1)
    }
    return f" nearest={','.join(sorted(nearest))}" if nearest else ""


_NOTHING_FOUND = (
    " hint='no segment lies under path in this layout: check path, key.prefix and layout'"
)


def _bucket_bounds(pieces: Sequence[SegmentPiece], log_start: Offset) -> OffsetBounds:
    if not pieces:
        return OffsetBounds(log_start, log_start)
    end = pieces[-1].end_offset
    return OffsetBounds(min(max(pieces[0].start_offset, log_start), end), end)
