"""Checks the batches of a segment against its metadata, in the order of the log. Pure.

The CRC covers the bytes that the producer sent. It does not cover a batch's offset and leader
epoch, and does not show that a batch is missing. Here each batch must begin where the one before it
ends, lie within its segment, have the leader epoch that the segment's metadata give its offsets,
hold a record for each of its offsets, and not contradict itself. The work is by columns, with a few
operations per run of batches.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from isotherm.record.batch_header import DELETE_HORIZON_FLAG, HEADER_SIZE
from isotherm.record.batch_table import leader_epochs
from isotherm.record.header_contradictions import header_contradictions
from isotherm.remote.history.epoch_columns import ExpectedEpochs
from isotherm.remote.history.holes import Gaps
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.types import Offset

if TYPE_CHECKING:
    from isotherm.record.batch_table import BatchTable, BoolArray
    from isotherm.record.varint import ReadBuffer


_OTHER_EPOCH = "batch has another leader epoch than its segment"


class ChainFault(NamedTuple):
    """The fault of a batch, `row` of the table, as a fact without its place. `missing` are the
    offsets [first, end) that are missing there, if nothing else is wrong. With `is_other_epoch` the
    batch is sound, and the segment's metadata give its offset another leader epoch."""

    row: int
    fact: str
    missing: tuple[Offset, Offset] | None = None
    is_other_epoch: bool = False


class BatchChain:
    """The rules for the batches of one segment, from its metadata."""

    def __init__(self, segment: RemoteLogSegmentMetadata, gaps: Gaps) -> None:
        self._segment = segment
        self._gaps = gaps
        self._epochs = ExpectedEpochs(segment.segment_leader_epochs)

    def first_fault(
        self, buffer: ReadBuffer, table: BatchTable, next_offset: Offset, *, is_start: bool
    ) -> ChainFault | None:
        """The first fault in a run of batches; None if there is none.

        The run follows the offsets below `next_offset`. With `is_start` it is the first run, and
        its first batch may begin below `next_offset`.
        """
        if len(table) == 0:
            return None
        base = np.ascontiguousarray(table["base_offset"])
        sizes = table["last_offset_delta"] + 1
        nexts = base + sizes
        expected = np.empty(len(table), dtype=np.int64)
        expected[0] = self._segment.start_offset if is_start else next_offset
        expected[1:] = nexts[:-1]
        epochs = leader_epochs(buffer, table)
        contradictions = header_contradictions(buffer, table)
        counts = np.ascontiguousarray(table["records_count"])
        begins_well = base[0] == next_offset or (is_start and expected[0] <= base[0] <= next_offset)
        end = self._segment.end_offset_inclusive + 1
        is_other_epoch = self._epochs.wrong(epochs, base)
        # The usual run, without a gap, has none of the faults below: they are not looked for.
        if (
            begins_well
            and nexts[-1] <= end
            and (base[1:] == nexts[:-1]).all()
            and (counts == sizes).all()
            and not is_other_epoch.any()
            and not contradictions
        ):
            return None
        row, fact = _first_fact(
            [
                ("batch has other offsets than its segment", (base < expected) | (nexts > end)),
                (_OTHER_EPOCH, is_other_epoch),
                ("batch has more records than offsets", counts > sizes),
                *contradictions,
                (
                    "batch has bytes of records, but no count",
                    (counts == 0) & (table["size"] > HEADER_SIZE),
                ),
            ],
            len(table),
        )
        missing = self._missing(table, next_offset)
        if missing is not None and missing.row < row:
            return missing
        if row == len(table):
            return None
        at = int(base[row])
        return ChainFault(
            row,
            f"{fact} base_offset={at} next_offset={int(nexts[row])}"
            f" records_count={int(counts[row])} expected_from={int(expected[row])}"
            f" expected_to={end} epoch={int(epochs[row])}"
            f" expected_epoch={int(self._epochs.at(base[row : row + 1])[0])}",
            is_other_epoch=fact == _OTHER_EPOCH,
        )

    def _missing(self, table: BatchTable, next_offset: Offset) -> ChainFault | None:
        """The first offsets without a record, if the segment may not have such offsets."""
        if self._gaps is Gaps.PERMITTED:
            return None
        base, sizes = table["base_offset"], table["last_offset_delta"] + 1
        nexts = base + sizes
        is_short = table["records_count"] < sizes
        is_gap = base > np.concatenate(([next_offset], nexts[:-1]))
        # Only compaction leaves these marks: a leader appends a record for each offset.
        is_cleaned = is_short.any() or (table["attributes"] & DELETE_HORIZON_FLAG).any()
        row = int((is_gap | is_short).argmax())
        if not (is_gap | is_short)[row] or (self._gaps is Gaps.WHERE_CLEANED and is_cleaned):
            return None
        if is_gap[row]:
            first, end = (int(nexts[row - 1]) if row else next_offset), int(base[row])
            what = "offsets are missing before a batch"
        else:
            first, end = int(base[row]), int(nexts[row])
            what = "batch lacks records"
        return ChainFault(row, f"{what} first={first} last={end - 1}", (first, end))


def _first_fact(facts: Iterable[tuple[str, BoolArray]], count: int) -> tuple[int, str]:
    """The first wrong row, and the first fact about it; `count` if none is wrong."""
    facts_by_row = [(int(is_wrong.argmax()), fact) for fact, is_wrong in facts if is_wrong.any()]
    return min(facts_by_row, key=lambda fact: fact[0], default=(count, ""))
