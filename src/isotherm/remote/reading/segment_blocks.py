"""The bytes of a remote segment from one position on, in ranged GETs that follow one another, and the
batches in them.

For work that reads a segment once and keeps nothing: jobs, queries, compaction, what makes an index
again. Consumers read through read_ahead.py, where ranges are shared.
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
    """Raises what the storage manager raises."""
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
    """As `segment_blocks` of the whole segment; `ahead` blocks are fetched while the one before them is
    worked on."""

    def fetch(wanted: tuple[Position, Position]) -> memoryview:
        return storage.fetch_log_segment(segment, wanted[0], wanted[1] - 1)

    ranges = block_ranges(0, segment.segment_size_in_bytes, fetch_bytes)
    with closing(fetch_ahead(ranges, fetch, fetching, ahead)) as fetched:
        for _, block in fetched:
            yield block.result()


def fetch_ahead(
    wanted: Iterable[_Wanted],
    fetch: Callable[[_Wanted], _Fetched],
    fetching: Executor,
    ahead: int,
) -> Generator[tuple[_Wanted, Future[_Fetched]], None, None]:
    """Each of `wanted` with its fetch, in order, while up to `ahead` more are fetched. An error of a fetch is
    raised by its `result`. Closing the generator cancels what has not begun."""
    under_way: deque[tuple[_Wanted, Future[_Fetched]]] = deque()
    try:
        for each in wanted:
            under_way.append((each, fetching.submit(fetch, each)))
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
    """[start, end) in ranges of `fetch_bytes`; the last one may be shorter."""
    for position in range(start, end, fetch_bytes):
        yield position, min(position + fetch_bytes, end)


class BatchJoiner:
    """Joins the batches that lie across the blocks of a log. Only those are copied.

    for block in blocks:
        for part in joiner.parts(block):
            ...  # a batch begins at the start of the part
            joiner.took(part, size of the whole batches at the start of the part)
    joiner.end()
    """

    def __init__(self, log_size: int, position: Position = 0) -> None:
        """The first block begins at `position`, as does a batch."""
        self._log_size = log_size
        self._begun = bytearray()
        self.position = position
        """Where the bytes begin that are not taken yet."""

    def parts(self, block: memoryview) -> Iterator[memoryview]:
        """The batch that was begun before, once it is whole, and the rest of the block.

        CorruptRecordError for a batch that would end beyond the log.
        """
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
        self.position += size
        self._begun = bytearray(part[size:])

    def end(self) -> None:
        """CorruptRecordError when the last block ends in mid-batch."""
        if self._begun:
            raise self._cut_off()

    def _missing(self, block: memoryview) -> int:
        """The number of bytes that the begun batch lacks; of a damaged one as many as show the damage."""
        head = self._begun[:LOG_OVERHEAD] + block[:LOG_OVERHEAD]
        if len(head) < LOG_OVERHEAD:
            return LOG_OVERHEAD
        size = int.from_bytes(head[_LENGTH_POSITION:LOG_OVERHEAD], signed=True) + LOG_OVERHEAD
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
    """What to tell of records that are lost or damaged."""
    partition = segment.topic_id_partition
    return (
        f"records cannot be read from the tier topic={partition.topic}"
        f" partition={partition.partition} start_offset={start_offset}"
        f" end_offset={end_offset} segment={segment.segment_id} reason={str(error)!r}"
    )
