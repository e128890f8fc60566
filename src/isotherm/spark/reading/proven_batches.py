"""Turns bytes of a segment into runs of whole batches, and proves that they are the wanted ones.

An index is only a hint about where batches start; the read verifies it. The first batch must have a
correct CRC and a base offset at or below the first wanted offset. The next batches must form a
chain (see isotherm.remote.history.batch_chain) to the last wanted offset. If the first batch fails,
the segment is read from its start. If the chain ends early, the segment is read to its end. Offsets
that are missing after that are missing in the object.

A log does not contain the name of its topic. To detect the log of another partition with the same
offsets, epochs and size, its largest timestamp is compared with that of the metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from isotherm.errors import CorruptDataError, CorruptObjectError, CorruptRecordError
from isotherm.record.batch_table import read_sound_batches, verify_crcs
from isotherm.remote.history.batch_chain import BatchChain, ChainFault
from isotherm.remote.history.holes import Gaps
from isotherm.remote.storage.segment_blocks import BatchJoiner
from isotherm.spark.plan.planning import SegmentRead
from isotherm.types import NO_TIMESTAMP, Offset, Position, TimestampMs

if TYPE_CHECKING:
    from isotherm.record.batch_table import BatchTable

# Consecutive blocks from a position to the segment's end, fetched lazily.
FetchOn: TypeAlias = Callable[[Position], Iterator[memoryview]]


@dataclass(frozen=True, slots=True)
class PositionRange:
    """Bytes [start, end) of a segment's `.log` file.

    `start_offset_max` is the offset of the index entry that leads to `start`: the last offset of
    the batch there, or a later one if Kafka before 4.1 wrote the index.
    """

    start: Position
    end: Position
    start_offset_max: Offset | None = None


class ProvenRun(NamedTuple):
    """Whole batches at `position` of the segment's `.log`, and one row of `table` for each. Headers
    are checked, CRCs are not."""

    data: memoryview
    table: BatchTable
    position: Position


class MissingOffsetsError(CorruptObjectError):
    """An undamaged object lacks offsets of its segment: `missing` [first, end)."""

    def __init__(self, message: str, missing: tuple[Offset, Offset]) -> None:
        super().__init__(message)
        self.missing = missing


class OtherEpochError(CorruptRecordError):
    """A batch has another leader epoch than its segment's metadata give its offset."""


class OtherRecordsError(CorruptObjectError):
    """The batches are sound, but not those that the metadata describes. Earlier rows may be of the
    wrong log."""


def proven_runs(
    read: SegmentRead,
    located: PositionRange,
    blocks: Iterable[memoryview],
    fetch_on: FetchOn,
    gaps: Gaps,
) -> Iterator[ProvenRun]:
    """Yield the batches of a read from `blocks`, the bytes of `located`. Batches outside the read
    may come at both ends.

    Raises CorruptRecordError at a damaged or foreign batch, once the batches before it are yielded,
    MissingOffsetsError and OtherRecordsError.
    """
    chain = _Chain(read, located.start, gaps, located.start_offset_max)
    try:
        yield from chain.runs(_more(chain, located, blocks, fetch_on))
    except CorruptDataError:
        if chain.is_begun or located.start == 0:
            raise
    else:
        return
    # The index led to no batch, and nothing was yielded yet: read without it.
    chain = _Chain(read, 0, gaps)
    yield from chain.runs(_more(chain, PositionRange(0, 0), (), fetch_on))


def _more(
    chain: _Chain, located: PositionRange, blocks: Iterable[memoryview], fetch_on: FetchOn
) -> Iterator[memoryview]:
    yield from blocks
    has_more = located.end < chain.read.segment.segment_size_in_bytes
    after = fetch_on(located.end) if has_more else iter(())
    # Asked before each block, since to take one is to fetch it.
    while not chain.is_complete and (block := next(after, None)) is not None:
        yield block


class _Chain:
    """The progress of one read through its batches."""

    def __init__(
        self,
        read: SegmentRead,
        position: Position,
        gaps: Gaps,
        start_offset_max: Offset | None = None,
    ) -> None:
        self.read = read
        self.is_begun = False
        self._batches = BatchChain(read.segment, gaps)
        self._gaps = gaps
        self._start = position
        self._start_offset_max = start_offset_max
        self._position = position
        # From the segment's start its own first offset is due, also if the read begins later.
        self._next_offset = read.start_offset if position else read.segment.start_offset
        self._is_to_end = read.end_offset > read.segment.end_offset_inclusive
        self._largest_timestamp_ms = NO_TIMESTAMP

    @property
    def is_complete(self) -> bool:
        """Whether no more bytes are needed. A read to its segment's end needs all of them, because
        the end is checked too."""
        return self._has_all and not self._is_to_end

    @property
    def _has_all(self) -> bool:
        return self.is_begun and self._next_offset >= self.read.end_offset

    def runs(self, blocks: Iterable[memoryview]) -> Iterator[ProvenRun]:
        """Yield runs of whole batches. Only a batch that lies across two blocks is copied."""
        joiner = BatchJoiner(self.read.segment.segment_size_in_bytes, self._position)
        for block in blocks:
            for part in joiner.parts(block):
                if self.is_complete:
                    return
                size = 0
                for run in self._linked(part):
                    yield run
                    size = len(run.data)
                joiner.took(part, size)
        if not self.is_complete:
            joiner.end()
        self._check_end()

    def _linked(self, data: memoryview) -> Iterator[ProvenRun]:
        """Yield the complete batches of `data`. Raise at a damaged one, after those before it."""
        # Without CRCs: the decoder verifies those of the batches that it decodes, and a proof
        # those that it reads.
        table, end, damage = read_sound_batches(data, verify_crc=False)
        fault = None
        if len(table):
            # A read from position 0 relied on no index entry.
            if not self.is_begun and self._start:
                self._check_landing(data, table)
            fault = self._batches.first_fault(
                data, table, self._next_offset, is_start=not self.is_begun
            )
            if fault is not None:
                sound = self._sound_count(table, fault)
                end = int(table["position"][sound])
                table = table[:sound]
        if len(table):
            self._check_timestamps(data, table)
            last = table[-1]
            self.is_begun = True
            self._next_offset = int(last["base_offset"]) + int(last["last_offset_delta"]) + 1
            position, self._position = self._position, self._position + end
            yield ProvenRun(data[:end], table, position)
        # Before the faults: one after the last wanted offset is not of this read.
        if self.is_complete:
            return
        if fault is not None:
            raise self._error(fault)
        if damage is not None:
            raise CorruptRecordError(f"{damage} run_position={self._position}") from damage

    def _sound_count(self, table: BatchTable, fault: ChainFault) -> int:
        """The number of proven batches before a fault.

        If gaps are permitted and two batches overlap, the wrong offset may be that of the earlier
        batch, so that one is not proven either. Raises OtherRecordsError if its rows are out.
        """
        row = fault.row
        previous = self._next_offset
        if row:
            previous = int(table["base_offset"][row - 1] + table["last_offset_delta"][row - 1]) + 1
        is_known = self._gaps is Gaps.REFUSED or (row == 0 and not self.is_begun)
        if is_known or table["base_offset"][row] >= previous:
            return row
        if row == 0:
            raise OtherRecordsError(f"{fault.fact} position={self._position}")
        return row - 1

    def _check_landing(self, data: memoryview, table: BatchTable) -> None:
        """Check that the index led to the start of a batch, and not beyond the first wanted
        offset."""
        verify_crcs(data, table[:1])
        if table["base_offset"][0] > self.read.start_offset:
            raise CorruptRecordError(f"index leads too far position={self._position}")
        last_offset = int(table["base_offset"][0] + table["last_offset_delta"][0])
        named = self._start_offset_max
        # A cleaned segment has a new index. No rule binds the offsets of its entries to batches.
        if named is not None and last_offset > named and self._gaps is Gaps.REFUSED:
            # The CRC does not cover the base offset. Only the index entry shows that it is wrong.
            raise CorruptRecordError(
                f"index leads to another batch position={self._position}"
                f" last_offset={last_offset} entry_offset={named}"
            )

    def _error(self, fault: ChainFault) -> CorruptDataError:
        message = f"{fault.fact} position={self._position}"
        if fault.is_other_epoch:
            return OtherEpochError(message)
        if fault.missing is None:
            return CorruptRecordError(message)
        return MissingOffsetsError(message, fault.missing)

    def _check_timestamps(self, data: memoryview, table: BatchTable) -> None:
        """Check that no batch is newer than the largest timestamp in the metadata."""
        if self._expected_timestamp_ms is None:
            return
        row = int(table["max_timestamp"].argmax())
        largest = int(table["max_timestamp"][row])
        if largest > self._expected_timestamp_ms:
            # A wrong CRC first: a damaged header is damage, and not another log.
            verify_crcs(data, table[row : row + 1])
            raise self._other_records(largest)
        self._largest_timestamp_ms = max(self._largest_timestamp_ms, largest)

    @property
    def _expected_timestamp_ms(self) -> TimestampMs | None:
        """The largest timestamp in the metadata. None if it is unknown, or if a cleaner may have
        removed its record. For a segment without timestamps it is the time of the file."""
        expected = self.read.segment.max_timestamp_ms
        return None if expected < 0 or self._gaps is not Gaps.REFUSED else expected

    def _other_records(self, time_ms: TimestampMs) -> OtherRecordsError:
        return OtherRecordsError(
            "log has another largest timestamp than its metadata"
            f" log={time_ms} metadata={self._expected_timestamp_ms}"
        )

    def _check_end(self) -> None:
        """Raise MissingOffsetsError if the batches end before the read does. A segment that was
        read from start to end must also contain the metadata's largest timestamp."""
        reached = self._next_offset
        # Some batch is left of what was cleaned, unless the whole segment is empty.
        is_cleaned = self.is_begun or not self.read.segment.segment_size_in_bytes
        if self._has_all or (self._gaps is Gaps.PERMITTED and is_cleaned):
            largest, expected = self._largest_timestamp_ms, self._expected_timestamp_ms
            is_whole = self._start == 0 and self._is_to_end
            # With -1 no batch has a timestamp, and the metadata have the time of the file.
            if is_whole and expected is not None and 0 <= largest < expected:
                raise self._other_records(largest)
            return
        end = self.read.end_offset
        raise MissingOffsetsError(
            f"object ends before its segment does first={reached} last={end - 1}"
            f" size={self.read.segment.segment_size_in_bytes}",
            (max(reached, self.read.start_offset), end),
        )
