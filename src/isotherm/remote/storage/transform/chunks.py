"""Segments cut into chunks, each of which is transformed alone, and back.

Going up, a chunk passes the steps in order (compress, encrypt); coming down, in reverse. A range
of the original file needs only the chunks that hold it, which lie side by side in the object.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from isotherm.errors import CorruptObjectError
from isotherm.remote.storage.layout.chunk_index import (
    ChunkIndex,
    FixedChunkIndex,
    StoredRange,
    VariableChunkIndex,
)
from isotherm.remote.storage.segment_sources import Source
from isotherm.types import Position


class ChunkStep(Protocol):
    """One transformation of a chunk. Thread-safe."""

    @property
    def overhead(self) -> int | None:
        """Bytes it adds to every chunk; None when the size afterwards depends on the content."""

    def apply(self, chunk: bytes) -> bytes: ...

    def undo(self, chunk: bytes | memoryview, original_size: int) -> bytes:
        """CorruptObjectError when the chunk is damaged. Never takes more memory than
        `original_size`, which is the size before *all* steps."""


class ChunkWriter:
    """Transforms a source while it is uploaded; the chunk index is known when that is done."""

    def __init__(self, source: Source, chunk_size: int, steps: Sequence[ChunkStep]) -> None:
        self._source = source
        self._chunk_size = chunk_size
        self._steps = steps
        self._sizes: list[int] = []

    def chunks(self) -> Iterator[bytes]:
        """The transformed chunks; to be read once."""
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


def restore_range(
    stored: memoryview,
    index: ChunkIndex,
    chunks: StoredRange,
    start: Position,
    end: Position,
    steps: Sequence[ChunkStep],
) -> memoryview:
    """Original bytes from `start` to `end`, out of the stored bytes of `chunks`.

    CorruptObjectError naming the chunk that is damaged.
    """
    restored = bytearray()
    for number in range(chunks.first_chunk, chunks.chunk_end):
        low = index.stored_position(number) - chunks.start
        high = index.stored_position(number + 1) - chunks.start
        position = number * index.original_chunk_size
        size = min(index.original_chunk_size, index.original_file_size - position)
        try:
            restored += _undo_all(stored[low:high], size, steps)
        except CorruptObjectError as error:
            raise CorruptObjectError(f"{error} chunk={number}") from error
    skipped = chunks.first_chunk * index.original_chunk_size
    return memoryview(restored)[start - skipped : end - skipped].toreadonly()


def _undo_all(stored: memoryview, original_size: int, steps: Sequence[ChunkStep]) -> bytes:
    chunk: bytes | memoryview = stored
    for step in reversed(steps):
        chunk = step.undo(chunk, original_size)
    if len(chunk) != original_size:
        raise CorruptObjectError(
            f"chunk has another size than its index says size={len(chunk)} expected={original_size}"
        )
    return bytes(chunk)
