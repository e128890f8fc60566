"""Reads checked record batches of one remote segment through the read-ahead.

Damage becomes a CorruptObjectError that names the segment, its topic, partition and offsets. Then
the segment's ranges in memory are dropped, so that the next attempt fetches the object again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from isotherm.errors import CorruptObjectError, CorruptRecordError
from isotherm.record.batch import HEADER_SIZE, read_batch_header
from isotherm.remote.reading.checked_batches import (
    BatchPlace,
    CheckedBatches,
    check_batch,
    check_place,
)
from isotherm.remote.reading.read_ahead import ReadAhead
from isotherm.remote.reading.read_wait import NO_WAIT, NotInMemoryError, ReadWait
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.segment.offset_index import OffsetPosition
from isotherm.types import Offset, Position

_logger = logging.getLogger(__name__)

ANSWER_SIZE_MIN = 1024 * 1024
"""Bytes that a read waits for, if the log and its limit allow as many. Beyond them it takes only
bytes in memory, so that a slow store does not delay a long answer until its last byte."""


_BASE_OFFSET_SIZE = 8


class BatchRun(NamedTuple):
    """Whole adjacent batches, in pieces of memory. `next_offset` follows the last record. `is_last`
    is true if no batch below the requested end follows in this segment. `may_have_markers` is true
    if there is a control batch among them or near."""

    records: tuple[memoryview, ...]
    size: int
    next_offset: Offset
    is_last: bool
    may_have_markers: bool = False


class _LooseBatch(NamedTuple):
    """A batch after a gap. Records may be missing before it, or its base offset is wrong, which no
    CRC covers. With a wrong base offset it overlaps the batch after it. `offset` is the end of the
    batch before it."""

    position: Position
    offset: Offset


class RemoteSegmentReader:
    """Thread-safe."""

    def __init__(self, read_ahead: ReadAhead) -> None:
        self._read_ahead = read_ahead

    def batches_from(
        self, metadata: RemoteLogSegmentMetadata, position: Position
    ) -> Iterator[CheckedBatches]:
        """Yield all batches from the one at `position` on. In the first run others may precede
        it."""
        wait, floor = ReadWait(), 0
        while position < metadata.segment_size_in_bytes:
            with self.damage_named(metadata):
                checked = self._checked(metadata, position, HEADER_SIZE, wait)
                _check_order(checked, position, floor)
            yield checked
            position, floor = checked.end, checked.next_offset

    def proven(
        self, metadata: RemoteLogSegmentMetadata, hint: OffsetPosition, wait: ReadWait
    ) -> Position:
        """The position of a batch at or below the offset of an index entry: the entry's position if
        the entry is right, else the segment's start."""
        if not 0 < hint.position < metadata.segment_size_in_bytes:
            return 0
        try:
            checked = self._checked(metadata, hint.position, HEADER_SIZE, wait)
            # An entry names the last offset of its batch, or a later one if Kafka before 4.1 wrote
            # it.
            if checked.base_offsets[checked.index_of(hint.position)] <= hint.offset:
                return hint.position
            fact = "another batch begins there"
        except CorruptRecordError as error:
            self._read_ahead.forget(metadata.segment_id)
            fact = str(error)
        _logger.warning(
            "index entry does not match the batch at its position, segment is read from its start"
            " segment=%s offset=%d position=%d reason=%r",
            metadata.segment_id,
            hint.offset,
            hint.position,
            fact,
        )
        return 0

    def find(
        self,
        metadata: RemoteLogSegmentMetadata,
        position: Position,
        offset: Offset,
        wait: ReadWait,
        *,
        floor: Offset = 0,
    ) -> BatchPlace | None:
        """The first batch that ends at `offset` or above, from the one at `position` on, which may
        not begin below `floor`."""
        while position < metadata.segment_size_in_bytes:
            with self.damage_named(metadata):
                checked = self._checked(metadata, position, HEADER_SIZE, wait)
                _check_order(checked, position, floor)
                place = checked.find(position, offset)
            if place is not None:
                return place
            position, floor = checked.end, checked.next_offset
        return None

    def run(
        self,
        metadata: RemoteLogSegmentMetadata,
        position: Position,
        from_offset: Offset,
        size_max: int,
        end_offset: Offset,
        wait: ReadWait,
    ) -> BatchRun:
        """Whole batches from `position` on: at most `size_max` bytes, and only batches that begin
        below `end_offset`. The first one holds `from_offset` or the next offset that exists.

        Bytes beyond ANSWER_SIZE_MIN are left out if they are not in memory yet. The run ends before
        a damaged batch. CorruptObjectError is raised only if the first batch is damaged."""
        pieces: list[memoryview] = []
        start, next_offset, is_last, may_have_markers = position, from_offset, False, False
        loose: _LooseBatch | None = None
        end = min(position + size_max, metadata.segment_size_in_bytes)
        while position < end and not is_last:
            size_min = ANSWER_SIZE_MIN - (position - start)
            try:
                with self.damage_named(metadata):
                    checked = self._checked(
                        metadata,
                        position,
                        min(end - position, size_min),
                        wait if size_min > 0 else NO_WAIT,
                    )
                    index = checked.index_of(position)
                    count = checked.count_fitting(index, end, end_offset)
            except NotInMemoryError:
                # Too little for an answer is in memory: a reader thread repeats the read and
                # waits.
                if size_min > 0:
                    raise
                break
            except CorruptObjectError:
                # The batches before the damaged one are right. The next read begins at it.
                if not pieces:
                    raise
                break
            # `find` has compared the first piece with the batches before it. If this piece is in
            # order, the base offset of the batch before it is right too.
            if pieces:
                with self.damage_named(metadata):
                    _check_order(checked, position, next_offset)
                loose = None
            if count > 0:
                loose = _loose_end(checked, index, index + count - 1, next_offset)
                position, next_offset = checked.end_of(index + count - 1)
                pieces.append(checked.bytes_between(index, index + count))
                may_have_markers = may_have_markers or checked.has_markers
            if index + count < len(checked.positions):
                is_last = int(checked.base_offsets[index + count]) >= end_offset
                break
        is_last = is_last or position == metadata.segment_size_in_bytes
        run = BatchRun(tuple(pieces), position - start, next_offset, is_last, may_have_markers)
        # After the segment's last batch there is none to compare with.
        if loose is not None and position < metadata.segment_size_in_bytes:
            run = self._without_loose_end(metadata, run, start, loose, wait)
        self._read_ahead.note_read(metadata, start + run.size)
        return run

    def _without_loose_end(
        self,
        metadata: RemoteLogSegmentMetadata,
        run: BatchRun,
        start: Position,
        loose: _LooseBatch,
        wait: ReadWait,
    ) -> BatchRun:
        """`run`, which begins at `start`, without its last batch, since the next read also sees the
        batch after it. If it is the only batch of the run, the batch after it is checked here."""
        if loose.position == start:
            self._check_following(metadata, start + run.size, run.next_offset, wait)
            return run
        size = loose.position - start
        last = run.records[-1][: size - run.size]
        records = (*run.records[:-1], last) if len(last) else run.records[:-1]
        return run._replace(records=records, size=size, next_offset=loose.offset)

    def _check_following(
        self,
        metadata: RemoteLogSegmentMetadata,
        position: Position,
        next_offset: Offset,
        wait: ReadWait,
    ) -> None:
        """Raise CorruptObjectError if the batch at `position` begins below `next_offset`."""
        head = self._read_ahead.read(metadata, position, _BASE_OFFSET_SIZE, wait)
        base_offset = int.from_bytes(head)
        with self.damage_named(metadata):
            if base_offset < next_offset:
                raise _out_of_order(position, base_offset, next_offset)

    def _checked(
        self,
        metadata: RemoteLogSegmentMetadata,
        position: Position,
        size: int,
        wait: ReadWait,
    ) -> CheckedBatches:
        """Checked batches, one of which begins at `position`: all that have arrived once `size`
        bytes have. Raises CorruptRecordError."""
        segment_range = self._read_ahead.range_at(metadata, position, size, wait, is_batch=True)
        checked = segment_range.checked_at(position)
        wanted_end = min(position + max(size, HEADER_SIZE), segment_range.end)
        # `read_now` reads so on the event loop: the CRCs of a piece of some MiB would hold it up.
        if checked is None and not wait.may_wait:
            raise NotInMemoryError(f"batches are not checked yet position={position}")
        while checked is None:
            segment_range.wait_until_filled(wanted_end, wait)
            self._read_ahead.note_batch(segment_range, position)
            checked = segment_range.check(position)
            if checked is None:
                # The whole range has arrived, and the batch goes on in the next one.
                if wanted_end == segment_range.end:
                    return self._joined_batch(metadata, position, wait)
                header = read_batch_header(segment_range.read(position, wanted_end))
                # Before its size is used: a damaged one would make the reader wait for the rest of
                # the range. The callers compare the offset with the batches before.
                check_place(metadata, position, header, 0)
                wanted_end = min(position + header.size_in_bytes, segment_range.end)
        return checked

    def _joined_batch(
        self, metadata: RemoteLogSegmentMetadata, position: Position, wait: ReadWait
    ) -> CheckedBatches:
        """The batch at `position`, which lies in two ranges or more."""
        header = read_batch_header(self._read_ahead.read(metadata, position, HEADER_SIZE, wait))
        check_place(metadata, position, header, 0)
        data = self._read_ahead.read(metadata, position, header.size_in_bytes, wait)
        return check_batch(metadata, data, position, 0)

    @contextmanager
    def damage_named(self, metadata: RemoteLogSegmentMetadata) -> Iterator[None]:
        """Raise a damaged batch as CorruptObjectError, as the module docstring describes."""
        try:
            yield
        except CorruptRecordError as error:
            self._read_ahead.forget(metadata.segment_id)
            raise damaged_segment(metadata, str(error)) from error


def _check_order(checked: CheckedBatches, position: Position, next_offset: Offset) -> None:
    """Raise CorruptRecordError if the batch at `position` begins below `next_offset`, the end of
    the batches before it.

    Ranges are checked apart, and no CRC covers the base offset. Either batch may be the wrong
    one, so neither is returned."""
    base_offset = int(checked.base_offsets[checked.index_of(position)])
    if base_offset < next_offset:
        raise _out_of_order(position, base_offset, next_offset)


def _out_of_order(
    position: Position, base_offset: Offset, next_offset: Offset
) -> CorruptRecordError:
    return CorruptRecordError(
        f"batch offsets go back position={position} base_offset={base_offset}"
        f" expected_from={next_offset}"
    )


def _loose_end(
    checked: CheckedBatches, first: int, last: int, next_offset: Offset
) -> _LooseBatch | None:
    """The batch `last` if its base offset is not proven: it does not begin at the end of the batch
    before it, and the batch after it is not checked yet. `next_offset` is the end of the batch
    before `first`."""
    if last + 1 < len(checked.positions):
        return None
    before = int(checked.next_offsets[last - 1]) if last > first else next_offset
    if checked.base_offsets[last] <= before:
        return None
    return _LooseBatch(int(checked.positions[last]), before)


def damaged_segment(metadata: RemoteLogSegmentMetadata, reason: str) -> CorruptObjectError:
    partition = metadata.topic_id_partition
    return CorruptObjectError(
        f"remote segment is damaged object={metadata.segment_id}.log topic={partition.topic}"
        f" partition={partition.partition} start_offset={metadata.start_offset}"
        f" end_offset={metadata.end_offset_inclusive} reason={reason!r}"
    )
