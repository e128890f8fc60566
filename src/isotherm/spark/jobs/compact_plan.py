"""Plans a compaction: the pieces of each partition's log, and which of them can be cleaned.

The cleanable part begins at the log start. It ends at the first of these offsets:

- The first offset of the earliest transaction that is open at the end of the bucket. Its outcome is
  not in the bucket, so no record from there on may supersede another. Kafka's log cleaner stops at
  the last stable offset for the same reason.
- In place, the start of a segment that is only partly in the log, because another one overlaps it.
  It cannot be replaced, and a tombstone above it must stay while older records of its key stay.

Records that are only on the brokers supersede nothing: docs/decisions/0050.

Of a partition whose leader epochs are not proven, nothing is cleaned. A deposed leader's records
would supersede those of the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from isotherm.remote.rewriting.pieces import Piece
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.spark.jobs.rewrite_plan import marked_pieces, with_last_records
from isotherm.spark.plan.planning import SegmentPiece
from isotherm.spark.reading.committed_history import CommittedHistory
from isotherm.spark.reading.read_errors import SegmentReadError
from isotherm.types import Offset, TopicIdPartition, TopicPartition


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """`pieces` are numbered by their index. Those of a partition are adjacent and ascending.
    `unproven` has the partitions of which nothing is cleaned, with the reason."""

    pieces: Sequence[Piece]
    unproven: Mapping[TopicPartition, SegmentReadError] = field(default_factory=dict)

    @property
    def cleaned(self) -> list[Piece]:
        return [piece for piece in self.pieces if piece.is_cleaned]

    @property
    def partitions(self) -> list[TopicIdPartition]:
        return list(dict.fromkeys(piece.segment.topic_id_partition for piece in self.pieces))

    @property
    def size_in_bytes(self) -> int:
        """Size of the logs of all segments."""
        return sum(piece.segment.segment_size_in_bytes for piece in self.pieces)


def plan_compaction(
    storage: RemoteStorageManager,
    histories: Mapping[TopicPartition, Sequence[SegmentPiece]],
    *,
    in_place: bool,
    unproven: Mapping[TopicPartition, SegmentReadError] | None = None,
) -> CompactionPlan:
    """Plan the compaction of `histories`, the pieces of each partition from `lineage_pieces`. Of
    the partitions in `unproven` (from `unproven_histories`) nothing is cleaned.

    Fetches indexes. Raises CorruptObjectError, which names the segment, for a missing or damaged
    index.
    """
    histories = {partition: pieces for partition, pieces in histories.items() if pieces}
    transactions = CommittedHistory(storage, histories)
    stable = transactions.stable_pieces()
    planned: list[Piece] = []
    for partition, pieces in marked_pieces(transactions, histories).items():
        decided = stable[partition]
        is_cleaned = decided and partition not in (unproven or {})
        end = decided[-1].end_offset if is_cleaned else pieces[0].start_offset
        planned += with_last_records(storage, _cleanable(pieces, end, in_place=in_place))
    return CompactionPlan(planned, unproven or {})


def _cleanable(pieces: list[Piece], stable_end: Offset, *, in_place: bool) -> list[Piece]:
    count = 0
    while (
        count < len(pieces)
        and pieces[count].end_offset <= stable_end
        and (pieces[count].is_whole_segment or not in_place)
    ):
        count += 1
    return [replace(piece, is_cleaned=index < count) for index, piece in enumerate(pieces)]
