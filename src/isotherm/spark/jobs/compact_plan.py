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

from isotherm.remote.rewriting.pieces import Piece, located
from isotherm.remote.segment_metadata import IndexType
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.segment.producer_snapshot import LastRecord, read_producer_snapshot
from isotherm.spark.plan.planning import SegmentPiece, SegmentRead
from isotherm.spark.reading.committed_history import CommittedHistory
from isotherm.spark.reading.read_errors import SegmentReadError
from isotherm.types import Offset, ProducerId, TopicIdPartition, TopicPartition


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
    reads = transactions.with_aborted(
        [
            [SegmentRead(each.segment, each.start_offset, each.end_offset) for each in pieces]
            for pieces in histories.values()
        ]
    )
    planned: list[Piece] = []
    for partition, marked in zip(histories, reads, strict=True):
        decided = stable[partition]
        is_cleaned = decided and partition not in (unproven or {})
        end = decided[-1].end_offset if is_cleaned else marked[0].start_offset
        pieces = [
            Piece(
                len(planned) + index,
                read.segment,
                read.start_offset,
                read.end_offset,
                read.aborted or (),
            )
            for index, read in enumerate(marked)
            if isinstance(read, SegmentRead)
        ]
        planned += _with_last_records(storage, _cleanable(pieces, end, in_place=in_place))
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


def _with_last_records(storage: RemoteStorageManager, pieces: list[Piece]) -> list[Piece]:
    # The producers that are active at the end of the bucket, as Kafka's cleaner takes those that
    # are active at the end of the log.
    last = pieces[-1]
    with located(last):
        entries = read_producer_snapshot(
            storage.fetch_index(last.segment, IndexType.PRODUCER_SNAPSHOT)
        )
    last_records = {
        entry.producer_id: LastRecord(
            entry.last_offset if entry.last_offset >= 0 else None, entry.producer_epoch
        )
        for entry in entries
    }
    return [replace(piece, last_records=_within(last_records, piece)) for piece in pieces]


def _within(
    last_records: Mapping[ProducerId, LastRecord], piece: Piece
) -> dict[ProducerId, LastRecord]:
    return {
        producer_id: last
        for producer_id, last in last_records.items()
        if last.data_offset is None or piece.start_offset <= last.data_offset < piece.end_offset
    }
