"""Plans an erasure: the pieces of each partition's log, and what a run cannot reach.

Every record of the log in the bucket can be erased, also those of open and of aborted transactions:
offsets, markers and producers stay (docs/decisions/0262). Not reached are

- records that are on brokers only,
- in place, segments that are only partly in the log, because another one overlaps them: such a
  segment cannot be replaced,
- segments outside of the log (of a deposed leader, below the log start): the brokers delete them,
- a partition whose leader epochs are not proven.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from isotherm.errors import UnknownTopicOrPartitionError
from isotherm.remote.erasure.certificate import Unreachable
from isotherm.remote.rewriting.pieces import Piece
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.spark.jobs.erase_selection import Selector
from isotherm.spark.jobs.erase_tail import read_log_bounds
from isotherm.spark.jobs.rewrite_plan import (
    TieredHistories,
    marked_pieces,
    read_histories,
    with_last_records,
)
from isotherm.spark.jobs.rewrite_run import RewriteSettings
from isotherm.spark.options import SourceOptions
from isotherm.spark.reading.committed_history import CommittedHistory
from isotherm.spark.reading.read_errors import SegmentReadError
from isotherm.spark.tier.open_log import open_brokers
from isotherm.spark.tier.storage import storage_of_job
from isotherm.types import Offset, TopicIdPartition, TopicPartition

_ON_BROKERS = (
    "on brokers only; the next record rolls the active segment after segment.ms or at"
    " segment.bytes, and local.retention.ms without one"
)


@dataclass(frozen=True, slots=True)
class ErasurePlan:
    """`pieces` are numbered by their index. Those of a partition are adjacent and ascending, and
    those that a run may replace are `is_cleaned`. `unreachable` has all partitions, also those of
    which the bucket has nothing. As far as there are brokers to ask, `compacted` are the topics
    that are compacted, and `log_ends` is where each partition ends on them. `visible` has the ids
    of all segments that readers may get, also of those that are not in the log."""

    pieces: Sequence[Piece]
    unreachable: Mapping[TopicIdPartition, Sequence[Unreachable]]
    compacted: frozenset[str] = frozenset()
    log_ends: Mapping[TopicIdPartition, Offset] = field(default_factory=dict)
    visible: frozenset[uuid.UUID] = frozenset()

    @property
    def partitions(self) -> list[TopicIdPartition]:
        return list(dict.fromkeys(piece.segment.topic_id_partition for piece in self.pieces))

    def pieces_of(self, partition: TopicIdPartition) -> list[Piece]:
        return [piece for piece in self.pieces if piece.segment.topic_id_partition == partition]

    def above(self, starts: Mapping[TopicIdPartition, Offset]) -> ErasurePlan:
        """The plan for the pieces of these partitions that end above these offsets."""
        above = [
            piece
            for piece in self.pieces
            if (owner := piece.segment.topic_id_partition) in starts
            and piece.end_offset > starts[owner]
        ]
        return replace(self, pieces=above)

    def selected(self, selector: Selector) -> list[Piece]:
        """The pieces that may have matching records."""
        return [piece for piece in self.pieces if selector.may_match(piece)]


def read_erasure_plan(
    options: SourceOptions, settings: RewriteSettings, selector: Selector
) -> ErasurePlan:
    """Read the histories and their indexes. Raises the errors of `read_histories`, and
    UnknownTopicOrPartitionError for a selected partition that no topic has."""
    histories = read_histories(options, settings)
    pieces_of = {
        partition: pieces
        for partition, pieces in histories.pieces.items()
        # A copy has all partitions.
        if pieces
        and (
            not settings.in_place
            or selector.partitions is None
            or partition.partition in selector.partitions
        )
    }
    storage = storage_of_job(settings.source)
    planned: list[Piece] = []
    unreachable: dict[TopicIdPartition, list[Unreachable]] = {}
    for partition, pieces in marked_pieces(CommittedHistory(storage, pieces_of), pieces_of).items():
        error = histories.unproven.get(partition)
        reachable = [
            replace(
                piece,
                is_cleaned=error is None and (piece.is_whole_segment or not settings.in_place),
            )
            for piece in pieces
        ]
        planned += with_last_records(storage, reachable)
        owner = pieces[0].segment.topic_id_partition
        unreachable[owner] = _unreachable(histories, partition, reachable, error)
    bounds = read_log_bounds(options, selector.partitions if settings.in_place else None)
    if selector.partitions is not None:
        tiered = {partition.partition for partition in histories.pieces}
        unknown = sorted(selector.partitions - tiered - {owner.partition for owner in bounds})
        if unknown:
            raise UnknownTopicOrPartitionError(
                f"no topic has the partitions that are selected partitions={unknown}"
            )
    for owner, of_brokers in bounds.items():
        end = (
            pieces_of[owner.topic_partition][-1].end_offset
            if owner in unreachable
            else of_brokers.start
        )
        if of_brokers.end > end:
            unreachable.setdefault(owner, []).append(
                Unreachable(start_offset=end, end_offset=of_brokers.end, reason=_ON_BROKERS)
            )
    log_ends = {
        owner: of_brokers.end
        if selector.end_offset is None
        else min(of_brokers.end, selector.end_offset)
        for owner, of_brokers in bounds.items()
    }
    visible = frozenset(
        segment.segment_id.id for segments in histories.segments.values() for segment in segments
    )
    return ErasurePlan(planned, unreachable, _compacted(options, planned), log_ends, visible)


def _compacted(options: SourceOptions, pieces: Sequence[Piece]) -> frozenset[str]:
    brokers = open_brokers(options)
    if brokers is None:
        return frozenset()
    topics = {piece.segment.topic_id_partition.topic for piece in pieces}
    policies = brokers.cleanup_policies(topics)
    return frozenset(topic for topic, words in policies.items() if "compact" in words)


def _unreachable(
    histories: TieredHistories,
    partition: TopicPartition,
    pieces: Sequence[Piece],
    error: SegmentReadError | None,
) -> list[Unreachable]:
    start, end = pieces[0].start_offset, pieces[-1].end_offset
    if error is not None:
        first = f"the leader epochs of the partition are not proven: {error}"
        unreachable = [Unreachable(start_offset=start, end_offset=end, reason=first)]
    else:
        unreachable = [
            _of_segment(
                piece.segment,
                piece.start_offset,
                piece.end_offset,
                "another segment overlaps this one, which cannot be replaced",
            )
            for piece in pieces
            if not piece.is_cleaned
        ]
    ours = {piece.segment.segment_id for piece in pieces}
    for segment in histories.segments.get(partition, ()):
        if segment.segment_id not in ours:
            segment_end = segment.end_offset_inclusive + 1
            reason = "the segment is not in the log, brokers delete it"
            unreachable.append(_of_segment(segment, segment.start_offset, segment_end, reason))
    return unreachable


def _of_segment(
    segment: RemoteLogSegmentMetadata, start: Offset, end: Offset, reason: str
) -> Unreachable:
    return Unreachable(
        start_offset=start, end_offset=end, reason=f"{reason} segment={segment.segment_id.id}"
    )
