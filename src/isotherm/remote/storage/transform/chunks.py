"""Cuts segments into chunks and transforms each alone, and restores them.

For a copy a chunk passes the steps in order (compress, encrypt), for a read in reverse. A range of
the original file needs only the chunks that contain it, which are adjacent in the object.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from isotherm.errors import CorruptObjectError
from isotherm.remote.storage.manifest.chunk_index import (
    ChunkIndex,
    FixedChunkIndex,
    VariableChunkIndex,
    stored_range,
)
from isotherm.remote.storage.segment_sources import Source
from isotherm.types import Position


class ChunkStep(Protocol):
    """One transformation of a chunk. Thread-safe."""

    @property
    def overhead(self) -> int | None:
        """The bytes that the step adds to every chunk; None if they depend on the content."""

    def apply(self, chunk: bytes) -> bytes: ...

    def undo(self, chunk: bytes | memoryview, original_size: int) -> bytes:
        """Inverse of `apply`. Raises CorruptObjectError for a damaged chunk. Never takes more
        memory than `original_size`, which is the size before *all* steps."""


class ChunkWriter:
    """Transforms a source while it is uploaded. Afterwards the chunk index is known."""

    def __init__(self, source: Source, chunk_size: int, steps: Sequence[ChunkStep]) -> None:
        self._source = source
        self._chunk_size = chunk_size
        self._steps = steps
        self._sizes: list[int] = []

    def chunks(self) -> Iterator[bytes]:
        """The transformed chunks. Iterate over them once."""
        for original in self._source.blocks(self._chunk_size):
            chunk = original
            for step in self._steps:
                chunk = step.apply(chunk)
            self._sizes.append(len(chunk))
            yield chunk

    def chunk_index(self) -> ChunkIndex:
        overheads = [step.overhead for step in self._steps]
        if None in overheads:
            return VariableChunkIndex(self._chunk_size, self._source.size, tuple(self._sizes))
        stored_chunk_size = self._chunk_size + sum(filter(None, overheads))
        final_size = self._sizes[-1] if self._sizes else 0
        return FixedChunkIndex(self._chunk_size, self._source.size, stored_chunk_size, final_size)


class ChunkReader:
    """Restores a range of the original file into existing memory while the bytes arrive.

    The caller fetches `stored_range` in one piece into `stored`. Each chunk is restored once its
    last byte has arrived. Not thread-safe.
    """

    def __init__(
        self, index: ChunkIndex, start: Position, buffer: memoryview, steps: Sequence[ChunkStep]
    ) -> None:
        """`buffer` is filled from the original position `start` on, and lies within the file."""
        self.stored_range = stored_range(index, start, start + len(buffer))
        # np.empty, unlike a bytearray, does not write zeros first.
        self.stored = memoryview(
            np.empty(self.stored_range.end - self.stored_range.start, np.uint8).data
        )
        self._index = index
        self._start = start
        self._buffer = buffer
        self._steps = steps
        self._next_chunk = self.stored_range.first_chunk

    @property
    def is_done(self) -> bool:
        return self._next_chunk == self.stored_range.chunk_end

    def restore(self, stored_count: int) -> int:
        """Restore the chunks within the first `stored_count` bytes of `stored`, which have arrived.
        Returns the number of restored bytes of the buffer. Raises CorruptObjectError with the
        number of a damaged chunk."""
        while not self.is_done and self._stored_end(self._next_chunk) <= stored_count:
            self._restore(self._next_chunk)
            self._next_chunk += 1
        filled_end = self._next_chunk * self._index.original_chunk_size
        return min(max(0, filled_end - self._start), len(self._buffer))

    def _stored_end(self, chunk: int) -> int:
        return self._index.stored_position(chunk + 1) - self.stored_range.start

    def _restore(self, chunk: int) -> None:
        low = self._index.stored_position(chunk) - self.stored_range.start
        position = chunk * self._index.original_chunk_size
        size = min(self._index.original_chunk_size, self._index.original_file_size - position)
        try:
            original = _undo_all(self.stored[low : self._stored_end(chunk)], size, self._steps)
        except CorruptObjectError as error:
            raise CorruptObjectError(f"{error} chunk={chunk}") from error
        at = max(position, self._start) - self._start
        part = memoryview(original)[self._start + at - position :][: len(self._buffer) - at]
        self._buffer[at : at + len(part)] = part


def _undo_all(
    stored: memoryview, original_size: int, steps: Sequence[ChunkStep]
) -> bytes | memoryview:
    chunk: bytes | memoryview = stored
    for step in reversed(steps):
        chunk = step.undo(chunk, original_size)
    if len(chunk) != original_size:
        raise CorruptObjectError(
            f"chunk has another size than its index says size={len(chunk)} expected={original_size}"
        )
    return chunk
