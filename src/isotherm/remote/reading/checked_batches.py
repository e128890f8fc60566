"""Batches of a range of a remote segment that passed all checks.

Each batch is checked once for all consumers: its header, its place (its offsets are within the
segment and rise), its leader epoch, its CRC, and whether its fields contradict one another. Python
works per run of batches, not per batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from isotherm.errors import CorruptRecordError
from isotherm.record.batch import BatchHeader, read_batch_header, verify_batch_crc
from isotherm.record.batch_header import CONTROL_FLAG
from isotherm.record.batch_table import leader_epochs, read_batch_table, verify_crcs
from isotherm.record.header_contradictions import header_contradictions
from isotherm.remote.history.epoch_columns import ExpectedEpochs
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.types import Offset, Position

if TYPE_CHECKING:
    from isotherm.record.batch_table import BatchTable, Int64Array


class BatchPlace(NamedTuple):
    position: Position
    size: int
    base_offset: Offset


class CheckedBatches(NamedTuple):
    """Whole valid adjacent batches, at least one.

    `data` holds the segment's bytes from `data_start` on. The arrays have an item per batch.
    `has_markers` is true if there are control batches among them.
    """

    data: memoryview
    data_start: Position
    positions: Int64Array
    ends: Int64Array
    base_offsets: Int64Array
    next_offsets: Int64Array
    has_markers: bool

    @property
    def start(self) -> Position:
        return int(self.positions[0])

    @property
    def end(self) -> Position:
        return int(self.ends[-1])

    @property
    def next_offset(self) -> Offset:
        return int(self.next_offsets[-1])

    def bytes_between(self, index: int, index_end: int) -> memoryview:
        """The bytes of the batches in [index, index_end), at least one."""
        start, end = int(self.positions[index]), int(self.ends[index_end - 1])
        return self.data[start - self.data_start : end - self.data_start].toreadonly()

    def end_of(self, index: int) -> tuple[Position, Offset]:
        """The position and the offset that follow a batch."""
        return int(self.ends[index]), int(self.next_offsets[index])

    def index_of(self, position: Position) -> int:
        """The index of the batch at `position`. Raises CorruptRecordError if none begins there."""
        index = int(self.positions.searchsorted(position))
        if index == len(self.positions) or self.positions[index] != position:
            raise CorruptRecordError(f"no batch begins there position={position}")
        return index

    def find(self, position: Position, offset: Offset) -> BatchPlace | None:
        """The first batch from the one at `position` on that ends at `offset` or above."""
        index = max(
            self.index_of(position),
            int(self.next_offsets.searchsorted(offset, side="right")),
        )
        if index == len(self.positions):
            return None
        start = int(self.positions[index])
        return BatchPlace(start, int(self.ends[index]) - start, int(self.base_offsets[index]))

    def count_fitting(self, index: int, end: Position, end_offset: Offset) -> int:
        """The number of batches from `index` on that end at `end` or below and begin below
        `end_offset`."""
        fitting = int(self.ends.searchsorted(end, side="right"))
        below = int(self.base_offsets.searchsorted(end_offset))
        return max(0, min(fitting, below) - index)


def check_batches(
    metadata: RemoteLogSegmentMetadata,
    data: memoryview,
    data_start: Position,
    start: Position,
    end: Position,
    next_offset: Offset,
) -> CheckedBatches | None:
    """Check the batches in [start, end). Returns the complete batches before the first wrong one;
    None if the first batch is not complete.

    The first batch begins at `start`. Its base offset may not be below `next_offset`. Raises
    CorruptRecordError if it is wrong.
    """
    window = data[start - data_start : end - data_start]
    table = _right_headers(window)
    count = _count_in_place(metadata, window, table, next_offset)
    if count < len(table) and count == 0:
        check_place(metadata, start, read_batch_header(window), next_offset)
        raise _contradiction(window, table[:1], start)
    table = table[:count]
    try:
        verify_crcs(window, table)
    except CorruptRecordError:
        # Keep the batches before the wrong one: only a reader that reaches it gets the error.
        table = table[: _count_with_right_crc(window, table)]
    if len(table) == 0:
        return None
    positions = table["position"] + start
    return CheckedBatches(
        data,
        data_start,
        positions,
        positions + table["size"],
        np.ascontiguousarray(table["base_offset"]),
        table["base_offset"] + table["last_offset_delta"] + 1,
        bool((table["attributes"] & CONTROL_FLAG).any()),
    )


def check_batch(
    metadata: RemoteLogSegmentMetadata, batch: memoryview, position: Position, next_offset: Offset
) -> CheckedBatches:
    """Check one whole batch, which begins at `position`. Raises CorruptRecordError if it is
    wrong."""
    checked = check_batches(metadata, batch, position, position, position + len(batch), next_offset)
    if checked is None:
        raise CorruptRecordError(f"batch is cut off position={position} size={len(batch)}")
    return checked


def check_place(
    metadata: RemoteLogSegmentMetadata,
    position: Position,
    header: BatchHeader,
    next_offset: Offset,
) -> None:
    """Check the fields that the CRC does not cover, and those needed to compute it."""
    if position + header.size_in_bytes > metadata.segment_size_in_bytes:
        raise CorruptRecordError(
            f"batch reaches beyond its segment position={position} size={header.size_in_bytes}"
        )
    if (
        not metadata.start_offset
        <= header.base_offset
        <= header.last_offset
        <= metadata.end_offset_inclusive
    ):
        raise CorruptRecordError(
            f"batch has offsets outside its segment position={position}"
            f" base_offset={header.base_offset} last_offset={header.last_offset}"
        )
    expected, base = ExpectedEpochs(metadata.segment_leader_epochs), np.array([header.base_offset])
    if expected.wrong(np.array([header.partition_leader_epoch]), base)[0]:
        raise CorruptRecordError(
            f"batch has another leader epoch than its segment position={position}"
            f" base_offset={header.base_offset} epoch={header.partition_leader_epoch}"
            f" expected_epoch={expected.at(base)[0]}"
        )
    # Not `!=`: a compacted tier has gaps between batches (docs/decisions/0066).
    if header.base_offset < next_offset:
        raise CorruptRecordError(
            f"batch offsets go back position={position} base_offset={header.base_offset}"
            f" expected_from={next_offset}"
        )


def _right_headers(window: memoryview) -> BatchTable:
    """The complete batches before a header that no writer produces. Raises CorruptRecordError if
    that is the first header."""
    try:
        return read_batch_table(window)[0]
    except CorruptRecordError:
        # Rare: bisect for the first wrong batch instead of checking each batch in Python.
        # A prefix that ends within a batch is no error. So prefixes are right up to a place in the
        # wrong header, and wrong from there on.
        good, bad = 0, len(window)
        while bad - good > 1:
            middle = (good + bad) // 2
            try:
                read_batch_table(window[:middle])
                good = middle
            except CorruptRecordError:
                bad = middle
        table = read_batch_table(window[:good])[0]
        if len(table) == 0:
            raise
        return table


def _count_in_place(
    metadata: RemoteLogSegmentMetadata,
    window: memoryview,
    table: BatchTable,
    next_offset: Offset,
) -> int:
    """The number of batches from the first on that pass `check_place` without contradictions."""
    base_offsets = table["base_offset"]
    last_offsets = base_offsets + table["last_offset_delta"]
    is_wrong = (base_offsets < metadata.start_offset) | (
        last_offsets > metadata.end_offset_inclusive
    )
    overlaps = base_offsets[1:] <= last_offsets[:-1]
    if overlaps.any():
        # The CRC does not cover the base offset. Of two batches that overlap, the earlier may be
        # the wrong one: it is trusted only if it begins where the one before it ends.
        starts = (next_offset, metadata.start_offset)
        follows = base_offsets == np.append(base_offsets[0], last_offsets[:-1] + 1)
        # The batches before the first one end at `next_offset`. If none is known, the batch may
        # begin its segment.
        follows[0] = base_offsets[0] in starts
        is_wrong[1:] |= overlaps
        is_wrong[:-1] |= overlaps & ~follows[:-1]
    # A slice: the table may be empty.
    is_wrong[:1] |= base_offsets[:1] < next_offset
    expected = ExpectedEpochs(metadata.segment_leader_epochs)
    is_wrong |= expected.wrong(leader_epochs(window, table), base_offsets)
    for contradiction in header_contradictions(window, table):
        is_wrong |= contradiction.is_wrong
    wrong = np.flatnonzero(is_wrong)
    return int(wrong[0]) if len(wrong) else len(table)


def _contradiction(window: memoryview, batch: BatchTable, position: Position) -> CorruptRecordError:
    """The error for a wrong first batch that passes `check_place`."""
    contradictions = header_contradictions(window, batch)
    fact = contradictions[0].fact if contradictions else "batch overlaps the next one"
    return CorruptRecordError(
        f"{fact} position={position} base_offset={batch['base_offset'][0]}"
        f" producer_id={batch['producer_id'][0]}"
    )


def _count_with_right_crc(window: memoryview, table: BatchTable) -> int:
    """The number of batches before the first wrong CRC. Raises CorruptRecordError if it is 0."""
    for index, position in enumerate(table["position"].tolist()):
        try:
            verify_batch_crc(window, position, read_batch_header(window, position))
        except CorruptRecordError:
            if index == 0:
                raise
            return index
    return len(table)
