"""A Spark task from its reads to rows, though the bucket has changed since it was planned.

A segment's objects may be gone: retention took it, a copy or a compaction put another in its
place, the topic was deleted. What is still to be read of it is then planned anew, by its offsets,
from what the metadata says now. Only when the metadata still names the very segment is something
wrong with the bucket.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import Protocol, TypeAlias

import pyarrow as pa

from isotherm.errors import CorruptDataError, CorruptObjectError
from isotherm.record.columns import RecordColumns
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.spark.arrow_rows import decoded_columns, record_batch
from isotherm.spark.plan.listed_segments import ListedSegment, ReadAgain, settle
from isotherm.spark.plan.planning import BrokerRead, Read, ReadTask, SegmentRead
from isotherm.spark.reading.readers import (
    ReadSettings,
    SegmentGoneError,
    SegmentLacksOffsetsError,
    WrongTransactionsError,
    read_segments,
)
from isotherm.types import Offset

_logger = logging.getLogger(__name__)

# A task gives up when segments are replaced under it more often than this.
REREADS_MAX = 10

TailReader: TypeAlias = Callable[[BrokerRead], Iterator[pa.RecordBatch]]
Decoded: TypeAlias = tuple[SegmentRead, RecordColumns]


class TierStorage(RemoteStorageManager, Protocol):
    def fetch_segment_metadata(
        self, metadata: RemoteLogSegmentMetadata
    ) -> RemoteLogSegmentMetadata:
        """What the manifest of a segment says; RemoteResourceNotFoundError when it is gone."""


def read_task(
    task: ReadTask,
    storage: TierStorage,
    schema: pa.Schema,
    *,
    settings: ReadSettings,
    read_tail: TailReader,
    read_again: ReadAgain,
    fail_on_data_loss: bool,
    read_elsewhere: ReadAgain = lambda _: None,
    cause_when_gone: str = "",
) -> Iterator[pa.RecordBatch]:
    """The rows of a task, in the order of its reads; closing the iterator ends its fetches.

    `read_elsewhere` gives other segments that hold the offsets which a read's segment lacks.
    `cause_when_gone` ends the message about a segment that the metadata has and the bucket not.
    """
    decoded = _decode(
        task.reads,
        storage,
        decoded_columns(schema),
        read_again,
        read_elsewhere,
        settings=settings,
        fail_on_data_loss=fail_on_data_loss,
        cause_when_gone=cause_when_gone,
    )
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
    read_again: ReadAgain,
    read_elsewhere: ReadAgain,
    *,
    settings: ReadSettings,
    fail_on_data_loss: bool,
    cause_when_gone: str,
) -> Generator[Decoded | BrokerRead, None, None]:
    """The decoded records of segments, and what is the broker's to read, in order.

    CorruptDataError as `read_segments` and `settle` say; without fail_on_data_loss it is a warning,
    and the rest of that read is left out. WrongTransactionsError in any case.
    """
    waiting = deque(reads)
    rereads_left = REREADS_MAX
    while waiting:
        first = waiting.popleft()
        if isinstance(first, BrokerRead):
            yield first
            continue
        if first.start_offset >= first.end_offset:
            continue
        reads_of_run = _take_run(first, waiting, alone=not fail_on_data_loss)
        try:
            if any(isinstance(read.segment, ListedSegment) for read in reads_of_run):
                settled = settle(reads_of_run, storage.fetch_segment_metadata, read_again)
                waiting.extendleft(reversed(settled))
                continue
            run = _Run(reads_of_run)
            decoded = read_segments(run.reads, storage, columns, settings=settings)
            with closing(decoded):
                yield from run.followed(decoded)
        except SegmentGoneError as error:
            before, gone, after = run.unread(error.read)
            instead = read_again(gone) if rereads_left > 0 else None
            rereads_left -= 1
            if instead is None:
                reported = CorruptObjectError(f"{error} {cause_when_gone}".rstrip())
                reported.__cause__ = error
                _report(reported, fail_on_data_loss=fail_on_data_loss)
            waiting.extendleft(reversed([*before, *(instead or ()), *after]))
        except SegmentLacksOffsetsError as error:
            before, lacking, after = run.unread(error.read)
            around = _read_around(lacking, error, read_elsewhere if rereads_left > 0 else None)
            rereads_left -= 1
            if around is None:
                _report(error, fail_on_data_loss=fail_on_data_loss)
                around = _around(lacking, error.missing, ())
            waiting.extendleft(reversed([*before, *around, *after]))
        except CorruptDataError as error:
            is_fatal = isinstance(error, WrongTransactionsError)
            _report(error, fail_on_data_loss=fail_on_data_loss or is_fatal)


def _read_around(
    lacking: SegmentRead, error: SegmentLacksOffsetsError, read_elsewhere: ReadAgain | None
) -> list[Read] | None:
    """What to read where a segment lacks offsets; None when no other segment has them."""
    first, end = error.missing
    missing = lacking.of(max(first, lacking.start_offset), min(end, lacking.end_offset))
    if read_elsewhere is None or missing.start_offset >= missing.end_offset:
        return None
    held = read_elsewhere(missing)
    return None if held is None else _around(lacking, error.missing, held)


def _around(
    lacking: SegmentRead, missing: tuple[Offset, Offset], held: Sequence[Read]
) -> list[Read]:
    """`lacking` with what is read instead of its part `missing`. Nothing of it where that lies below,
    so that its own are not reached; nor where it lies above: its own have all been read, and only
    the markers of their transactions were looked for there."""
    first, end = missing
    if end <= lacking.start_offset or lacking.end_offset <= first:
        return []
    before = lacking.of(lacking.start_offset, max(first, lacking.start_offset))
    return [before, *held, lacking.of(min(end, lacking.end_offset), lacking.end_offset)]


def _take_run(first: SegmentRead, waiting: deque[Read], *, alone: bool) -> list[SegmentRead]:
    """Reads to fetch ahead together; `alone`, what is damaged takes no other with it."""
    run = [first]
    while not alone and waiting and isinstance(following := waiting[0], SegmentRead):
        run.append(following)
        waiting.popleft()
    return run


class _Run:
    """Reads that are fetched ahead together, and how far they have come."""

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
        """What is left: before the read that failed, of it, and after it.

        Its failure shows when its turn to be fetched comes, which is ahead of its turn to be read.
        """
        index = next(i for i, read in enumerate(self.reads) if read is gone)
        current = self.reads[self._at]
        reached = min(max(self._reached, current.start_offset), current.end_offset)
        left = [current.of(reached, current.end_offset), *self.reads[self._at + 1 :]]
        index -= self._at
        return left[:index], left[index], left[index + 1 :]


def _report(error: CorruptDataError, *, fail_on_data_loss: bool) -> None:
    if fail_on_data_loss:
        raise error
    _logger.warning("records are left out, failOnDataLoss=false: %s", error)
