"""One bound on the memory of large decompressed batches, over all threads of the process.

A thread holds its share while it decompresses a batch and works on the records. Others wait, and
have their turn in the order in which they came. What is decompressed on the event loop, or in
chunks of a bounded size (the log cleaner), holds nothing.
"""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from isotherm.errors import IsothermError
from isotherm.record.batch_header import CODEC_MASK, CODECS, BatchHeader
from isotherm.record.compression import COMPRESSION_TYPE_MAX, decompressed_size_bound

DECOMPRESSION_MEMORY_MAX = 256 * 1024 * 1024

# A decoder has its output twice for a moment: in pieces, and joined.
DECODER_COPIES = 2


class DecompressionMemory:
    """Bytes that threads hold together. Thread-safe; never called on an event loop, because it
    blocks.
    """

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._held = 0
        self._turns: deque[object] = deque()
        self._changed = threading.Condition()

    @property
    def held(self) -> int:
        return self._held

    @property
    def waiting(self) -> int:
        """How many threads wait for their turn."""
        return len(self._turns)

    @contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Wait until `size` bytes fit, and hold them. A size above the bound waits until nothing
        else is held, and one of 0 does not wait.

        May not be nested. If the body raises an IsothermError, the frames that it has left are
        cleared: the error may be kept, and its traceback would keep the records.
        """
        turn = object()
        if not size:
            yield
            return
        with self._changed:
            self._turns.append(turn)
            try:
                self._changed.wait_for(lambda: self._turns[0] is turn and self._fits(size))
                self._held += size
            finally:
                self._turns.remove(turn)
                # The next one may fit too.
                self._changed.notify_all()
        try:
            yield
        except IsothermError as error:
            traceback.clear_frames(error.__traceback__)
            raise
        finally:
            with self._changed:
                self._held -= size
                self._changed.notify_all()

    def _fits(self, size: int) -> bool:
        return self._held == 0 or self._held + size <= self._size_max


DECOMPRESSION_MEMORY = DecompressionMemory(DECOMPRESSION_MEMORY_MAX)
"""Of the process, as its memory is."""


def decompression_size(
    header: BatchHeader, payload: memoryview, size_max: int, copies: int = 0
) -> int:
    """How many bytes to hold for a batch whose records are refused above `size_max` bytes, and so
    many copies of them. 0 if it is not compressed.
    """
    codec = header.attributes & CODEC_MASK
    if not codec or codec > COMPRESSION_TYPE_MAX or not payload:
        return 0
    bound = min(decompressed_size_bound(CODECS[codec], payload, size_max), size_max)
    return bound * (DECODER_COPIES + copies)
