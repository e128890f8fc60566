"""Bytes of a segment as runs of whole batches that were proved to be the ones a read asked for.

An index is a hint: it says where batches begin. The read proves it. The batch that it leads to has
a right CRC and begins at or below the first offset wanted; the ones that follow form a chain (see
isotherm.remote.history.batch_chain) which reaches the last one. Where the first does not, the segment is
read from its start instead; where the chain ends early, on to the segment's end. What is missing
then is missing in the object.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from isotherm.errors import CorruptDataError, CorruptObjectError, CorruptRecordError
from isotherm.record.batch_header import LOG_OVERHEAD, read_batch_header
from isotherm.record.batch_table import read_batch_table, verify_crcs
from isotherm.remote.history.batch_chain import ChainFault, EpochSpans, first_fault
from isotherm.remote.history.gaps import Gaps
from isotherm.spark.plan.planning import SegmentRead
from isotherm.types import Offset, Position

if TYPE_CHECKING:
    from isotherm.record.batch_table import BatchTable

# Blocks that follow one another from a position on to the segment's end, fetched when asked for.
FetchOn: TypeAlias = Callable[[Position], Iterator[memoryview]]


@dataclass(frozen=True, slots=True)
class PositionRange:
    """Bytes [start, end) of a segment's `.log` file."""

    start: Position
    end: Position


class ProvenRun(NamedTuple):
    """Whole batches, and their rows in the table, at `position` of the segment's `.log`. Headers
    are checked, CRCs are not."""

    data: memoryview
    table: BatchTable
    position: Position


class MissingOffsetsError(CorruptObjectError):
    """A sound object lacks offsets that its segment claims to hold: `missing` [first, end)."""

    def __init__(self, message: str, missing: tuple[Offset, Offset]) -> None:
        super().__init__(message)
        self.missing = missing


def proven_runs(
    read: SegmentRead,
    located: PositionRange,
    blocks: Iterable[memoryview],
    fetch_on: FetchOn,
    gaps: Gaps,
) -> Iterator[ProvenRun]:
    """The batches of a read, from `blocks`, the bytes of `located`; some more at both ends.

    Raises CorruptRecordError at a batch that is damaged or not the segment's, after what lies before
    it, and MissingOffsetsError.
    """
    chain = _Chain(read, located.start, gaps)
    try:
        yield from chain.runs(_more(chain, located, blocks, fetch_on))
    except CorruptDataError:
        if chain.is_begun or located.start == 0:
            raise
    else:
        return
    chain = _Chain(read, 0, gaps)
    yield from chain.runs(_more(chain, PositionRange(0, 0), (), fetch_on))


def _more(
    chain: _Chain, located: PositionRange, blocks: Iterable[memoryview], fetch_on: FetchOn
) -> Iterator[memoryview]:
    yield from blocks
    if located.end < chain.read.segment.segment_size_in_bytes and not chain.is_complete:
        yield from itertools.takewhile(lambda _: not chain.is_complete, fetch_on(located.end))


class _Chain:
    """How far the batches of one read have come."""

    def __init__(self, read: SegmentRead, position: Position, gaps: Gaps) -> None:
        self.read = read
        self.is_begun = False
        self._spans = EpochSpans(read.segment)
        self._gaps = gaps
        self._start = position
        self._position = position
        self._next_offset = read.start_offset if position else read.segment.start_offset
        self._is_to_end = read.end_offset > read.segment.end_offset_inclusive

    @property
    def is_complete(self) -> bool:
        """Whether no more bytes are wanted: those of a read to its segment's end are, to the last."""
        return self._has_all and not self._is_to_end

    @property
    def _has_all(self) -> bool:
        return self.is_begun and self._next_offset >= self.read.end_offset

    def runs(self, blocks: Iterable[memoryview]) -> Iterator[ProvenRun]:
        """Runs cut where batches end. Only a batch that straddles a border of blocks is copied."""
        straddling = bytearray()
        for block in blocks:
            begun = block
            if straddling:
                missing = self._size_missing(straddling + block[:LOG_OVERHEAD], len(straddling))
                straddling += block[:missing]
                if missing > len(block):
                    continue
                yield from self._linked(memoryview(straddling))
                begun = block[missing:]
                straddling = bytearray()
            if self.is_complete:
                return
            end = 0
            for run in self._linked(begun):
                yield run
                end = len(run.data)
            straddling = bytearray(begun[end:])
        if straddling and not self.is_complete:
            raise CorruptRecordError(
                f"bytes end inside a record batch position={self._position}"
                f" size_left={len(straddling)}"
            )
        self._check_end()

    def _linked(self, data: memoryview) -> Iterator[ProvenRun]:
        """The complete batches of `data`, up to one that is wrong: that is raised."""
        table, end, damage = _sound_table(data)
        fault = None
        if len(table):
            if not self.is_begun and self._start:
                self._check_landing(data, table)
            fault = first_fault(
                self.read.segment,
                self._spans,
                data,
                table,
                self._next_offset,
                gaps=self._gaps,
                is_start=not self.is_begun,
            )
            end = int(table["position"][fault.row]) if fault is not None else end
            table = table[: fault.row] if fault is not None else table
        if len(table):
            last = table[-1]
            self.is_begun = True
            self._next_offset = int(last["base_offset"]) + int(last["last_offset_delta"]) + 1
            position, self._position = self._position, self._position + end
            yield ProvenRun(data[:end], table, position)
        if self.is_complete:
            return
        if fault is not None:
            raise self._error(fault)
        if damage is not None:
            raise CorruptRecordError(f"{damage} run_position={self._position}") from damage

    def _check_landing(self, data: memoryview, table: BatchTable) -> None:
        """That an index led to a batch, and to none that is too late."""
        verify_crcs(data, table[:1])
        if table["base_offset"][0] > self.read.start_offset:
            raise CorruptRecordError(f"index leads too far position={self._position}")

    def _error(self, fault: ChainFault) -> CorruptDataError:
        message = f"{fault.fact} position={self._position}"
        if fault.missing is None:
            return CorruptRecordError(message)
        return MissingOffsetsError(message, fault.missing)

    def _check_end(self) -> None:
        """What ends below the read's end, in a segment without gaps, has lost batches."""
        reached = self._next_offset
        if self._has_all or (self._gaps is Gaps.PERMITTED and self.is_begun):
            return
        end = self.read.end_offset
        raise MissingOffsetsError(
            f"object ends before its segment does first={reached} last={end - 1}"
            f" size={self.read.segment.segment_size_in_bytes}",
            (max(reached, self.read.start_offset), end),
        )

    def _size_missing(self, head: bytes | bytearray, size: int) -> int:
        """Bytes that a batch lacks of which there are `size`; as many as tell, when it is damaged.
        A batch that would reach beyond its segment is none: it raises CorruptRecordError."""
        if len(head) < LOG_OVERHEAD:
            return LOG_OVERHEAD
        batch_size = int.from_bytes(head[8:LOG_OVERHEAD], signed=True) + LOG_OVERHEAD
        if self._position + batch_size > self.read.segment.segment_size_in_bytes:
            raise CorruptRecordError(
                f"bytes end inside a record batch position={self._position} size_left={size}"
            )
        return batch_size - size if batch_size > size else LOG_OVERHEAD


def _sound_table(data: memoryview) -> tuple[BatchTable, Position, CorruptRecordError | None]:
    """The complete batches before a header that no writer produces, their end, and that header."""
    try:
        return *read_batch_table(data), None
    except CorruptRecordError as error:
        position = 0
        while True:
            # Rare: a header at a time up to the one that is damaged.
            try:
                position += read_batch_header(data, position).size_in_bytes
            except CorruptRecordError:
                return *read_batch_table(data[:position]), error
