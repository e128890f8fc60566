"""Buffers of large frames, used again once nothing refers to their bytes.

The allocator returns the memory of a large frame to the system, so that up to a third of the pages
of the next one are new (docs/decisions/0318). The pool keeps the first buffers that it makes.
Whether one is free is known from its references: every view of a frame, and every view of a part of
it, holds one, in whichever thread it is. How many a free one has depends on the interpreter: from
Python 3.14 on a call's argument is no reference of its own. So they are counted.

Event loop thread only.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

# From here on frames come from the pool: the allocator has the memory of smaller ones ready.
POOLED_SIZE_MIN = 256 * 1024
# So many buffers are kept. A producer has five requests under way.
BUFFERS_MAX = 8


def _references(buffers: Sequence[object], index: int) -> int:
    return sys.getrefcount(buffers[index])


class FramePool:
    """All buffers have `size_max` bytes, of which only those that frames have reached take memory:
    at most BUFFERS_MAX times `size_max`."""

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self._buffers: list[np.ndarray[tuple[int], np.dtype[np.uint8]]] = []
        self._references_of_a_free_one = _references([np.empty(1, np.uint8)], 0)

    def take(self, size: int) -> memoryview:
        """A buffer of `size` bytes, which are of an earlier frame. `size` is at most `size_max`."""
        for index in range(len(self._buffers)):
            if _references(self._buffers, index) == self._references_of_a_free_one:
                return self._buffers[index].data[:size]
        if len(self._buffers) >= BUFFERS_MAX:
            return np.empty(size, np.uint8).data
        buffer = np.empty(self.size_max, np.uint8)
        self._buffers.append(buffer)
        return buffer.data[:size]
