"""Compression of chunks: each becomes one zstd frame with its content size."""

from __future__ import annotations

import threading

import zstandard

from isotherm.errors import CorruptObjectError
from isotherm.record.batch_header import HEADER_SIZE, read_codec
from isotherm.remote.storage.segment_sources import Source


class ZstdStep:
    """Thread-safe: zstd contexts are kept per thread."""

    overhead = None

    def __init__(self) -> None:
        self._contexts = threading.local()

    def apply(self, chunk: bytes) -> bytes:
        if not hasattr(self._contexts, "compressor"):
            self._contexts.compressor = zstandard.ZstdCompressor(write_content_size=True)
        compressed: bytes = self._contexts.compressor.compress(chunk)
        return compressed

    def undo(self, chunk: bytes | memoryview, original_size: int) -> bytes:
        if not hasattr(self._contexts, "decompressor"):
            self._contexts.decompressor = zstandard.ZstdDecompressor()
        try:
            # Checked first: a damaged frame could demand any amount of memory.
            announced = zstandard.frame_content_size(chunk)
            if announced != original_size:
                raise CorruptObjectError(
                    "compressed chunk has another size than its index says"
                    f" size={announced} expected={original_size}"
                )
            original: bytes = self._contexts.decompressor.decompress(chunk, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise CorruptObjectError("compressed chunk is no zstd frame") from error
        return original


def starts_compressed(log: Source) -> bool:
    """Whether the first batch of a segment is compressed: then compressing the segment again gains
    little. The plugin's heuristic also checks only the first batch."""
    first_block = next(log.blocks(HEADER_SIZE), b"")
    return len(first_block) == HEADER_SIZE and read_codec(first_block) != 0
