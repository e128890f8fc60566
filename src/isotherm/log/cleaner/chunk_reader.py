"""Reads a segment in chunks of whole batches, for both passes of the cleaner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from isotherm.errors import CorruptRecordError
from isotherm.log.log_segment import LogSegment
from isotherm.record.batch import HEADER_SIZE, read_batch_header
from isotherm.segment.cleaning.chunk import Chunk, read_chunk
from isotherm.types import Position

if TYPE_CHECKING:
    from isotherm.segment.cleaning.chunk import DecideBatches

Throttle: TypeAlias = Callable[[int], None]
"""Called with the bytes read or written. May block, and may raise LogCleaningAbortedError."""
CheckAbort: TypeAlias = Callable[[], None]
"""Called between two steps of a round. Raises LogCleaningAbortedError if the round must end."""


class ChunkReader:
    def __init__(self, read_size: int, throttle: Throttle, check_abort: CheckAbort) -> None:
        """`read_size` is the size of one read. A larger batch is read as a whole."""
        self._read_size = max(read_size, HEADER_SIZE)
        self._throttle = throttle
        self._check_abort = check_abort

    def chunks(
        self,
        segment: LogSegment,
        position: Position,
        decide: DecideBatches | None = None,
    ) -> Iterator[Chunk]:
        """All batches from the one at `position` on. Those that `decide` decides are not
        decompressed.

        Raises CorruptRecordError at a batch that is malformed or cut off by the end.
        """
        next_offset = segment.base_offset
        while position < segment.size_in_bytes:
            self._check_abort()
            chunk = self._read_chunk(segment, position, decide)
            self._throttle(len(chunk.data))
            chunk.check_order(next_offset)
            next_offset = int(chunk.last_offsets[-1]) + 1
            position += chunk.size
            yield chunk

    def _read_chunk(
        self, segment: LogSegment, position: Position, decide: DecideBatches | None
    ) -> Chunk:
        size_left = segment.size_in_bytes - position
        data = segment.read_bytes(position, min(self._read_size, size_left))
        chunk = read_chunk(data, decide)
        if chunk is not None:
            return chunk
        header = read_batch_header(data) if len(data) >= HEADER_SIZE else None
        if header is not None and header.size_in_bytes <= size_left:
            chunk = read_chunk(segment.read_bytes(position, header.size_in_bytes), decide)
        if chunk is None:
            raise CorruptRecordError(
                f"batch is cut off path={segment.log_path} position={position}"
                f" size_left={size_left}"
            )
        return chunk
