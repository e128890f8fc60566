"""The bound on request bytes over all connections: `queued.max.request.bytes`.

Like Kafka's SimpleMemoryPool it lets a request in while anything is free, so it is overrun by at
most one request, and no request is too large ever to be let in. A frame is counted from the moment
its size is known until its answer is on its way. Event loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable


class RequestMemory:
    """`on_change` is called when `is_exhausted` changes, either way; it pauses or resumes reading.

    A `limit` of -1 is no bound.
    """

    def __init__(self, limit: int, on_change: Callable[[], None]) -> None:
        self._limit = limit
        self._on_change = on_change
        self._used = 0

    @property
    def used(self) -> int:
        return self._used

    @property
    def is_exhausted(self) -> bool:
        return 0 <= self._limit <= self._used

    def reserve(self, size: int) -> None:
        was_exhausted = self.is_exhausted
        self._used += size
        if self.is_exhausted != was_exhausted:
            self._on_change()

    def release(self, size: int) -> None:
        assert size <= self._used
        was_exhausted = self.is_exhausted
        self._used -= size
        if self.is_exhausted != was_exhausted:
            self._on_change()
