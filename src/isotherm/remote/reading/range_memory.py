"""Memory for ranges of segments, used again and again.

New memory is given by the kernel page by page and zeroed, which takes as long as filling it. So a
block that nobody looks at any more is kept for the next range of its size. A block is lent as a
memoryview and comes back by itself when the last view of it is gone, be it one that a slow client
has not taken yet.
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
    """Only the first `touched_size` bytes were ever written to: the kernel has given no others."""

    pages: npt.NDArray[np.uint8]
    touched_size: int


class RangeMemory:
    """Thread-safe. Lends what it is asked for; blocks are kept while all together, lent and kept,
    are at most `size_max` bytes, counting those that were written to."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        # A block may come back while this very thread holds the lock: collecting garbage does it.
        self._lock = threading.RLock()
        self._kept: list[_Block] = []
        self._kept_size = 0
        self._lent_size = 0

    @property
    def lent_size(self) -> int:
        """Bytes lent and not back yet."""
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
            block.touched_size = max(block.touched_size, size)
            self._lent_size += block.touched_size
            self._drop_surplus()
        lease = block.pages[:size]
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
            self._kept_size -= self._kept.pop(0).touched_size


def _capacity(size: int) -> int:
    """Few different ones, so that blocks fit again. What is not written to takes no memory."""
    return max(_CAPACITY_MIN, 1 << (size - 1).bit_length())
