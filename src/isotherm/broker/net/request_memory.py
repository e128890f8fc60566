"""Limits the request bytes of all connections to `queued.max.request.bytes`.

Like Kafka's SimpleMemoryPool it accepts a request while any memory is free. So requests exceed the limit
by at most one request, and no request is too large to be accepted at all. A frame counts from the
moment its size is known until its answer is handed over for sending. Event loop thread only.
"""

from __future__ import annotations

import math
from collections.abc import Callable


class RequestMemory:
    """`on_change` is called when `is_exhausted` changes, to pause or resume reading.

    A `limit` of -1 means no limit.
    """

    def __init__(self, limit: int, on_change: Callable[[], None]) -> None:
        self._limit = limit if limit >= 0 else math.inf
        self._on_change = on_change
        self._used = 0
        self.is_exhausted = self._limit <= 0

    @property
    def used(self) -> int:
        return self._used

    def reserve(self, size: int) -> None:
        self._used += size
        if self._used >= self._limit and not self.is_exhausted:
            self._turn(is_exhausted=True)

    def release(self, size: int) -> None:
        assert size <= self._used
        self._used -= size
        if self.is_exhausted and self._used < self._limit:
            self._turn(is_exhausted=False)

    def _turn(self, *, is_exhausted: bool) -> None:
        self.is_exhausted = is_exhausted
        self._on_change()
