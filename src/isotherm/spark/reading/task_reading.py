"""Turns the reads of a Spark task into rows, even if the bucket has changed since planning.

A segment's objects may be deleted between planning and reading: by retention, a newer copy, a
compaction, or with the topic. The rest of the read is then planned again from the current metadata.
The bucket counts as damaged only if the metadata still names the segment.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import pyarrow as pa

from isotherm.errors import CorruptDataError, CorruptObjectError
from isotherm.record.columns import RecordColumns
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.spark.arrow_rows import decoded_columns, record_batch
from isotherm.spark.plan.listed_segments import ListedSegment, ReadAgain, settle
from isotherm.spark.plan.planning import BrokerRead, Read, ReadTask, SegmentRead
from isotherm.spark.reading.read_errors import (
    SegmentGoneError,
    SegmentLacksOffsetsError,
    WrongRowsError,
)
from isotherm.spark.reading.readers import ReadSettings, read_segments
from isotherm.types import Offset

_logger = logging.getLogger(__name__)

# A task fails if its segments are replaced more often than this.
REREADS_MAX = 10

TailReader: TypeAlias = Callable[[BrokerRead], Iterator[pa.RecordBatch]]
Decoded: TypeAlias = tuple[SegmentRead, RecordColumns]


class TierStorage(RemoteStorageManager, Protocol):
    def fetch_segment_metadata(
        self, metadata: RemoteLogSegmentMetadata
    ) -> RemoteLogSegmentMetadata:
        """The metadata in a segment's manifest. Raises RemoteResourceNotFoundError if it is
        deleted."""


@dataclass(frozen=True, slots=True)
class WhenMissing:
    """How to replace a segment that is deleted, or lacks its offsets.

    `read_again` plans the rest of a read again. `read_elsewhere` returns reads of other segments
    that have the missing offsets. `cause_when_gone` ends the message about a segment that has
    metadata and no objects.
    """

    read_again: ReadAgain
    read_elsewhere: ReadAgain = lambda _: None
    fail_on_data_loss: bool = True
    cause_when_gone: str = ""


def read_task(
    task: ReadTask,
    storage: TierStorage,
    schema: pa.Schema,
    *,
    settings: ReadSettings,
    read_tail: TailReader,
    when_missing: WhenMissing,
) -> Iterator[pa.RecordBatch]:
    """The rows of a task, in the order of its reads. Closing the iterator ends its fetches."""
    decoded = _decode(task.reads, storage, decoded_columns(schema), settings, when_missing)
    with closing(decoded):
        for item in decoded:
            if isinstance(item, BrokerRead):
                yield from read_tail(item)
            elif item[1].count:
                yield record_batch(item[1], item[0].topic_partition, schema)


def _decode(
    reads: Sequence[Read],
    storage: TierStorage,
    columns: frozenset[str],
    settings: ReadSettings,
    when_missing: WhenMissing,
) -> Generator[Decoded | BrokerRead, None, None]:
    """Yield the decoded records of segments, and the reads of the broker, in order.

    Raises CorruptDataError as `read_segments` does, and what `read_again` raises. Without
    fail_on_data_loss the error becomes a warning, and the rest of the read is left out.
    WrongRowsError is always raised, because rows that Spark has already cannot be taken back.
    """
    fail_on_data_loss = when_missing.fail_on_data_loss
    waiting = deque(reads)
    rereads_left = REREADS_MAX
    while waiting:
        first = waiting.popleft()
        if isinstance(first, BrokerRead):
            yield first
            continue
        # `unread` and `_around` may leave reads without offsets.
        if first.start_offset >= first.end_offset:
            continue
        reads_of_run = _take_run(first, waiting, alone=not fail_on_data_loss)
        # Planned from object names alone (docs/decisions/0042): manifests are read here, and reads
        # that they contradict are planned again.
        if any(isinstance(read.segment, ListedSegment) for read in reads_of_run):
            settled = settle(reads_of_run, storage.fetch_segment_metadata, when_missing.read_again)
            waiting.extendleft(reversed(settled))
            continue
        run = _Run(reads_of_run)
        try:
            decoded = read_segments(run.reads, storage, columns, settings=settings)
            with closing(decoded):
                yield from run.followed(decoded)
        except SegmentGoneError as error:
            before, gone, after = run.unread(error.read)
            instead = _read_instead(gone, when_missing) if rereads_left > 0 else None
            rereads_left -= 1
            if instead is None:
                reported = CorruptObjectError(f"{error} {when_missing.cause_when_gone}".rstrip())
                reported.__cause__ = error
                _report(reported, fail_on_data_loss=fail_on_data_loss)
            waiting.extendleft(reversed([*before, *(instead or ()), *after]))
        except SegmentLacksOffsetsError as error:
            before, lacking, after = run.unread(error.read)
            around = _read_around(
                lacking, error, when_missing.read_elsewhere if rereads_left > 0 else None
            )
            rereads_left -= 1
            if around is None:
                _report(error, fail_on_data_loss=fail_on_data_loss)
                # The rest of the read is still good: only the missing offsets are left out.
                around = _around(lacking, error.missing, ())
            waiting.extendleft(reversed([*before, *around, *after]))
        except CorruptDataError as error:
            is_fatal = isinstance(error, WrongRowsError)
            # Without fail_on_data_loss the run has one read, so only the rest of that read is left
            # out.
            _report(error, fail_on_data_loss=fail_on_data_loss or is_fatal)


def _read_instead(gone: SegmentRead, when_missing: WhenMissing) -> Sequence[Read] | None:
    """The reads that replace `gone`, or None if the metadata still names its segment, and no other
    segments have its offsets."""
    instead = when_missing.read_again(gone)
    return when_missing.read_elsewhere(gone) if instead is None else instead


def _read_around(
    lacking: SegmentRead, error: SegmentLacksOffsetsError, read_elsewhere: ReadAgain | None
) -> list[Read] | None:
    """The reads that replace `lacking`, or None if no other segment has its missing offsets."""
    first, end = error.missing
    missing = lacking.of(max(first, lacking.start_offset), min(end, lacking.end_offset))
    if read_elsewhere is None or missing.start_offset >= missing.end_offset:
        return None
    held = read_elsewhere(missing)
    return None if held is None else _around(lacking, error.missing, held)


def _around(
    lacking: SegmentRead, missing: tuple[Offset, Offset], held: Sequence[Read]
) -> list[Read]:
    """`lacking` with the reads `held` in place of the offsets `missing`.

    If `missing` lies outside the read there is nothing to replace. Below it, the read's own offsets
    were not reached. Above it, they are complete, and only markers of their transactions were
    looked for.
    """
    first, end = missing
    if end <= lacking.start_offset or lacking.end_offset <= first:
        return []
    before = lacking.of(lacking.start_offset, max(first, lacking.start_offset))
    return [before, *held, lacking.of(min(end, lacking.end_offset), lacking.end_offset)]


def _take_run(first: SegmentRead, waiting: deque[Read], *, alone: bool) -> list[SegmentRead]:
    """Take the reads up to the next BrokerRead, to fetch ahead across them. With `alone` take only
    `first`, so that damage affects one read only."""
    run = [first]
    while not alone and waiting and isinstance(following := waiting[0], SegmentRead):
        run.append(following)
        waiting.popleft()
    return run


class _Run:
    """Reads that are fetched ahead together, and their progress."""

    def __init__(self, reads: Sequence[SegmentRead]) -> None:
        self.reads = reads
        self._at = 0
        self._reached = reads[0].start_offset

    def followed(self, decoded: Iterator[Decoded]) -> Iterator[Decoded]:
        for read, columns in decoded:
            while self.reads[self._at] is not read:
                self._at += 1
            yield read, columns
            self._reached = max(read.start_offset, columns.next_offset)

    def unread(self, gone: SegmentRead) -> tuple[list[SegmentRead], SegmentRead, list[SegmentRead]]:
        """The reads before the failed one, the rest of the failed one, and the reads after it.

        A read fails when it is fetched, so earlier reads may not be decoded yet.
        """
        index = [read is gone for read in self.reads].index(True)
        current = self.reads[self._at]
        reached = min(max(self._reached, current.start_offset), current.end_offset)
        left = [current.of(reached, current.end_offset), *self.reads[self._at + 1 :]]
        index -= self._at
        return left[:index], left[index], left[index + 1 :]


def _report(error: CorruptDataError, *, fail_on_data_loss: bool) -> None:
    if fail_on_data_loss:
        raise error
    _logger.warning("records are left out, failOnDataLoss=false: %s", error)
