"""Checks the batches of a segment against its metadata, in the order of the log. Pure.

The CRC covers what the producer sent. It does not cover a batch's offset and leader epoch, and does
not show that a batch is missing. Here each batch has to begin where the one before it ends, lie
within its segment, carry the leader epoch that the segment's metadata give its offsets, hold a
record for each of its offsets, and not contradict itself. Work is by columns, some
operations per run of batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from isotherm.record.batch_header import DELETE_HORIZON_FLAG, HEADER_SIZE, BatchHeader
from isotherm.record.batch_table import leader_epochs
from isotherm.record.header_contradictions import header_contradictions
from isotherm.remote.history.gaps import Gaps
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.types import NO_LEADER_EPOCH, LeaderEpoch, Offset

if TYPE_CHECKING:
    from isotherm.record.batch_table import BatchTable, BoolArray, Int64Array
    from isotherm.record.varint import ReadBuffer


class ChainFault(NamedTuple):
    """What is wrong with a batch, `row` of the table: a fact without its place. `missing` are the
    offsets [first, end) that should come there, where nothing else is wrong."""

    row: int
    fact: str
    missing: tuple[Offset, Offset] | None = None


class EpochSpans:
    """Which leader epoch the batches of a segment carry, by their offsets."""

    def __init__(self, segment: RemoteLogSegmentMetadata) -> None:
        epochs = segment.segment_leader_epochs
        self._epochs = np.fromiter(epochs.keys(), np.int64, len(epochs))
        self._starts = np.fromiter(epochs.values(), np.int64, len(epochs))

    def expected(self, base_offsets: Int64Array) -> Int64Array:
        """Below the first start, where the log start lay in the segment when it was copied, the
        metadata have no epoch: the first one stands there."""
        places = self._starts.searchsorted(base_offsets, side="right") - 1
        expected: Int64Array = self._epochs[np.maximum(places, 0)]
        return expected

    def wrong(self, epochs: Int64Array, base_offsets: Int64Array) -> BoolArray:
        """Which batches contradict the metadata. A batch without an epoch (-1) contradicts nothing."""
        if len(self._epochs) == 1 and (epochs == self._epochs[0]).all():
            return np.zeros(len(epochs), np.bool_)
        is_told = (epochs != NO_LEADER_EPOCH) & (base_offsets >= self._starts[0])
        wrong: BoolArray = is_told & (epochs != self.expected(base_offsets))
        return wrong

    def contradicted_by(self, header: BatchHeader) -> LeaderEpoch | None:
        """The epoch that a batch should carry instead; None when its own is right."""
        base = np.array([header.base_offset])
        is_wrong = self.wrong(np.array([header.partition_leader_epoch]), base)[0]
        return int(self.expected(base)[0]) if is_wrong else None


def first_fault(
    segment: RemoteLogSegmentMetadata,
    spans: EpochSpans,
    buffer: ReadBuffer,
    table: BatchTable,
    next_offset: Offset,
    *,
    gaps: Gaps,
    is_start: bool,
) -> ChainFault | None:
    """The first batch of a run that is not as the segment says, None when all are.

    The run follows the offsets below `next_offset`. With `is_start` none of its batches has been
    seen yet, and the first may begin below `next_offset`.
    """
    if len(table) == 0:
        return None
    base = np.ascontiguousarray(table["base_offset"])
    sizes = table["last_offset_delta"] + 1
    nexts = base + sizes
    expected = np.empty(len(table), dtype=np.int64)
    expected[0] = segment.start_offset if is_start else next_offset
    expected[1:] = nexts[:-1]
    epochs = leader_epochs(buffer, table)
    contradictions = header_contradictions(buffer, table)
    counts = np.ascontiguousarray(table["records_count"])
    begins_well = base[0] == next_offset or (is_start and expected[0] <= base[0] <= next_offset)
    end = segment.end_offset_inclusive + 1
    if (
        begins_well
        and nexts[-1] <= end
        and (base[1:] == nexts[:-1]).all()
        and (counts == sizes).all()
        and not spans.wrong(epochs, base).any()
        and not contradictions
    ):
        return None
    is_short = counts < sizes
    before_first = next_offset if is_start else expected[0]
    faults: list[tuple[int, str]] = []

    def found(is_wrong: BoolArray, fact: str) -> None:
        row = int(is_wrong.argmax())
        if is_wrong[row]:
            faults.append((row, fact))

    found((base < expected) | (nexts > end), "batch has other offsets than its segment")
    found(spans.wrong(epochs, base), "batch has another leader epoch than its segment")
    found(counts > sizes, "batch has more records than offsets")
    for contradiction in contradictions:
        found(contradiction.is_wrong, contradiction.fact)
    found((counts == 0) & (table["size"] > HEADER_SIZE), "batch has bytes of records, but no count")
    row, fact = min(faults, default=(len(table), ""))
    if gaps is not Gaps.PERMITTED:
        expected[0] = before_first
        is_gap = base > expected
        is_cleaned = gaps is Gaps.WHERE_CLEANED and (
            is_short.any() or (table["attributes"] & DELETE_HORIZON_FLAG).any()
        )
        is_missing = np.zeros(len(table), np.bool_) if is_cleaned else is_gap | is_short
        gap = int(is_missing.argmax())
        if is_missing[gap] and gap < row:
            first = int(expected[gap] if is_gap[gap] else base[gap])
            missing = (first, int(base[gap] if is_gap[gap] else nexts[gap]))
            what = "offsets are missing before a batch" if is_gap[gap] else "batch lacks records"
            return ChainFault(gap, f"{what} first={missing[0]} last={missing[1] - 1}", missing)
    if row == len(table):
        return None
    at = int(base[row])
    return ChainFault(
        row,
        f"{fact} base_offset={at} next_offset={int(nexts[row])} records_count={int(counts[row])}"
        f" expected_from={int(expected[row])} expected_to={end} epoch={int(epochs[row])}"
        f" expected_epoch={int(spans.expected(base[row : row + 1])[0])}",
    )
