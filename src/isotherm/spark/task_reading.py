"""A Spark task from its reads to batches of rows, though the bucket has changed since it was planned.

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
from typing import TypeAlias

import pyarrow as pa

from isotherm.errors import CorruptObjectError
from isotherm.record.columns import RecordColumns
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.spark.arrow_rows import decoded_columns, record_batch
from isotherm.spark.planning import BrokerRead, Read, ReadTask, SegmentRead
from isotherm.spark.readers import ReadSettings, SegmentGoneError, read_segments

_logger = logging.getLogger(__name__)

# A task gives up when segments are replaced under it more often than this.
REREADS_MAX = 10

# What to read instead of one whose segment is gone; None when the metadata still names that
# segment. Raises OffsetOutOfRangeError when nothing holds the offsets any more, or leaves them out.
ReadAgain: TypeAlias = Callable[[SegmentRead], "Sequence[Read] | None"]

TailReader: TypeAlias = Callable[[BrokerRead], Iterator[pa.RecordBatch]]
Decoded: TypeAlias = tuple[SegmentRead, RecordColumns]


def read_task(
    task: ReadTask,
    storage: RemoteStorageManager,
    schema: pa.Schema,
    *,
    settings: ReadSettings,
    read_tail: TailReader,
    read_again: ReadAgain,
    fail_on_data_loss: bool,
) -> Iterator[pa.RecordBatch]:
    """The rows of a task, in the order of its reads; closing the iterator ends its fetches."""
    decoded = _decode(
        task.reads,
        storage,
        decoded_columns(schema),
        read_again,
        settings=settings,
        fail_on_data_loss=fail_on_data_loss,
    )
    with closing(decoded):
        for item in decoded:
            if isinstance(item, BrokerRead):
                yield from read_tail(item)
            elif item[1].count:
                yield record_batch(item[1], item[0].topic_partition, schema)


def _decode(
    reads: Sequence[Read],
    storage: RemoteStorageManager,
    columns: frozenset[str],
    read_again: ReadAgain,
    *,
    settings: ReadSettings,
    fail_on_data_loss: bool,
) -> Generator[Decoded | BrokerRead, None, None]:
    """The decoded records of segments, and what is the broker's to read, in order.

    CorruptObjectError as `read_segments` says; without fail_on_data_loss it is a warning, and the
    rest of that read is left out.
    """
    waiting = deque(reads)
    rereads_left = REREADS_MAX
    while waiting:
        first = waiting.popleft()
        if isinstance(first, BrokerRead):
            yield first
            continue
        run = _Run(first)
        # What is damaged must not take with it what was fetched ahead.
        while fail_on_data_loss and waiting and isinstance(waiting[0], SegmentRead):
            run.reads.append(waiting.popleft())
        decoded = read_segments(run.reads, storage, columns, settings=settings)
        try:
            with closing(decoded):
                yield from run.followed(decoded)
        except SegmentGoneError as error:
            before, gone, after = run.unread(error.read)
            instead = read_again(gone) if rereads_left else None
            rereads_left -= 1
            if instead is None:
                _report(error, fail_on_data_loss=fail_on_data_loss)
            waiting.extendleft(reversed([*before, *(instead or ()), *after]))
        except CorruptObjectError as error:
            _report(error, fail_on_data_loss=fail_on_data_loss)


class _Run:
    """Reads that are fetched ahead together, and how far they have come."""

    def __init__(self, first: SegmentRead) -> None:
        self.reads: list[SegmentRead] = [first]
        self._at = 0
        self._reached = first.start_offset

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


def _report(error: CorruptObjectError, *, fail_on_data_loss: bool) -> None:
    if fail_on_data_loss:
        raise error
    _logger.warning("records are left out, failOnDataLoss=false: %s", error)
