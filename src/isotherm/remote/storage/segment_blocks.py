"""Reads the bytes of a remote segment in adjacent ranged GETs, and finds the batches in them.

For work that reads a segment once and keeps nothing: jobs, queries, compaction, rebuilt indexes.
Consumers read through read_ahead.py, where ranges are shared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import closing
from typing import TypeVar

from isotherm.errors import CorruptRecordError
from isotherm.record.batch_header import LOG_OVERHEAD
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.types import Offset, Position

_Wanted = TypeVar("_Wanted")
_Fetched = TypeVar("_Fetched")

_LENGTH_POSITION = 8


def segment_blocks(
    storage: RemoteStorageManager,
    segment: RemoteLogSegmentMetadata,
    fetch_bytes: int,
    *,
    start: Position = 0,
) -> Iterator[memoryview]:
    """Fetch a segment from `start` on, in blocks of `fetch_bytes`. Raises what the storage manager
    raises."""
    for position, end in block_ranges(start, segment.segment_size_in_bytes, fetch_bytes):
        yield storage.fetch_log_segment(segment, position, end - 1)


def segment_blocks_ahead(
    storage: RemoteStorageManager,
    segment: RemoteLogSegmentMetadata,
    fetch_bytes: int,
    fetching: Executor,
    *,
    ahead: int = 1,
) -> Generator[memoryview, None, None]:
    """Same as `segment_blocks` of the whole segment, but `ahead` blocks are fetched while the
    caller works on the one before them."""

    def fetch(positions: tuple[Position, Position]) -> memoryview:
        return storage.fetch_log_segment(segment, positions[0], positions[1] - 1)

    ranges = block_ranges(0, segment.segment_size_in_bytes, fetch_bytes)
    with closing(fetch_ahead(ranges, fetch, fetching, ahead)) as fetched:
        for _, block in fetched:
            yield block.result()


def fetch_ahead(
    ranges: Iterable[_Wanted],
    fetch: Callable[[_Wanted], _Fetched],
    fetching: Executor,
    ahead: int,
) -> Generator[tuple[_Wanted, Future[_Fetched]], None, None]:
    """Yield each of `ranges` with the future of its fetch, in order; up to `ahead` later ones are
    fetched meanwhile. An error of a fetch is raised by its `result`. Closing the generator cancels
    the fetches that have not begun."""
    under_way: deque[tuple[_Wanted, Future[_Fetched]]] = deque()
    try:
        for range_ in ranges:
            under_way.append((range_, fetching.submit(fetch, range_)))
            if len(under_way) > ahead:
                yield under_way.popleft()
        while under_way:
            yield under_way.popleft()
    finally:
        for _, fetched in under_way:
            fetched.cancel()


def block_ranges(
    start: Position, end: Position, fetch_bytes: int
) -> Iterator[tuple[Position, Position]]:
    """Cut [start, end) into ranges of `fetch_bytes`; the last one may be shorter."""
    for position in range(start, end, fetch_bytes):
        yield position, min(position + fetch_bytes, end)


class BatchJoiner:
    """Joins the batches that cross the borders of blocks. Only those batches are copied.

    for block in blocks:
        for part in joiner.parts(block):
            ...  # a batch begins at the start of the part
            joiner.took(part, size of the whole batches at the start of the part)
    joiner.end()
    """

    def __init__(self, log_size: int, position: Position = 0) -> None:
        """The first block begins at `position`, where a batch begins."""
        self._log_size = log_size
        self._begun = bytearray()
        self.position = position
        """Position of the first byte that is not taken yet."""

    def parts(self, block: memoryview) -> Iterator[memoryview]:
        """Yield the batch that began in an earlier block, once it is whole, then the rest of the
        block.

        Raises CorruptRecordError for a batch that would end beyond the log.
        """
        # `took` replaces `_begun`: the loop ends when the caller has taken the whole batch.
        while self._begun:
            missing = self._missing(block)
            self._begun += block[:missing]
            if missing > len(block):
                return
            block = block[missing:]
            yield memoryview(self._begun)
        if len(block):
            yield block

    def took(self, part: memoryview, size: int) -> None:
        """Note that the caller used the first `size` bytes of `part`; the rest begins a batch."""
        self.position += size
        # A new one: a bytearray of which the caller keeps views cannot be resized.
        self._begun = bytearray(part[size:])

    def end(self) -> None:
        """Raise CorruptRecordError if the last block ends within a batch."""
        if self._begun:
            raise self._cut_off()

    def _missing(self, block: memoryview) -> int:
        """The number of bytes that the begun batch lacks. For a damaged size it is enough for the
        caller to see the damage."""
        head = self._begun[:LOG_OVERHEAD] + block[:LOG_OVERHEAD]
        if len(head) < LOG_OVERHEAD:
            return LOG_OVERHEAD
        size = int.from_bytes(head[_LENGTH_POSITION:LOG_OVERHEAD], signed=True) + LOG_OVERHEAD
        # Before the bytes are collected: a damaged size would gather the rest of the segment.
        if self.position + size > self._log_size:
            raise self._cut_off()
        return size - len(self._begun) if size > len(self._begun) else LOG_OVERHEAD

    def _cut_off(self) -> CorruptRecordError:
        return CorruptRecordError(
            f"bytes end inside a record batch position={self.position} size_left={len(self._begun)}"
        )


def unreadable_records(
    segment: RemoteLogSegmentMetadata,
    start_offset: Offset,
    end_offset: Offset,
    error: Exception,
) -> str:
    """The message for records that are lost or damaged."""
    partition = segment.topic_id_partition
    return (
        f"records cannot be read from the tier topic={partition.topic}"
        f" partition={partition.partition} start_offset={start_offset}"
        f" end_offset={end_offset} segment={segment.segment_id} reason={str(error)!r}"
    )
