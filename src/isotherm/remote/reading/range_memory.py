"""Reused memory for ranges of segments.

The operating system provides new memory page by page and zeroes it, which takes as long as filling
it. So a block without readers is kept for the next range of its size. A block is lent as a
memoryview. It returns when its last view is garbage-collected; that may be a response that a slow
client has not received yet.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_CAPACITY_MIN = 4096


@dataclass(slots=True, eq=False)
class _Block:
    """Only the first `touched_size` bytes were ever written: the others have no physical pages."""

    pages: npt.NDArray[np.uint8]
    touched_size: int


class RangeMemory:
    """Thread-safe. Lends any size. Keeps returned blocks while lent and kept blocks together take
    at most `size_max` bytes. Only written bytes count."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        # Reentrant: garbage collection may return a block while this thread holds the lock.
        self._lock = threading.RLock()
        self._kept: list[_Block] = []
        self._kept_size = 0
        self._lent_size = 0

    @property
    def size_in_bytes(self) -> int:
        """Bytes lent and kept."""
        with self._lock:
            return self._lent_size + self._kept_size

    @property
    def lent_size(self) -> int:
        """Bytes lent and not returned yet."""
        with self._lock:
            return self._lent_size

    @property
    def kept_size(self) -> int:
        with self._lock:
            return self._kept_size

    def lend(self, size: int) -> memoryview:
        """`size` bytes of any content, writable."""
        with self._lock:
            block = self._take(size) or _Block(np.empty(_capacity(size), np.uint8), 0)
            # A reused block may have had more bytes written than this lease will write.
            block.touched_size = max(block.touched_size, size)
            self._lent_size += block.touched_size
            self._drop_surplus()
        lease = block.pages[:size]
        # Views of the memoryview keep `lease` alive: it is collected with the last of them. At exit
        # the memory goes anyway.
        weakref.finalize(lease, self._take_back, block).atexit = False
        return lease.data

    def _take(self, size: int) -> _Block | None:
        capacity = _capacity(size)
        for index, block in enumerate(self._kept):
            if len(block.pages) == capacity:
                self._kept_size -= block.touched_size
                return self._kept.pop(index)
        return None

    def _take_back(self, block: _Block) -> None:
        with self._lock:
            self._lent_size -= block.touched_size
            self._kept.append(block)
            self._kept_size += block.touched_size
            self._drop_surplus()

    def _drop_surplus(self) -> None:
        while self._kept and self._kept_size + self._lent_size > self._size_max:
            # The oldest first: blocks of sizes in use return to the end of the list.
            self._kept_size -= self._kept.pop(0).touched_size


def _capacity(size: int) -> int:
    """A power of two: few sizes, so that blocks fit again. Unwritten pages take no memory."""
    return max(_CAPACITY_MIN, 1 << (size - 1).bit_length())
