"""The limit of request bytes over all connections: `queued.max.request.bytes`.

Like Kafka's SimpleMemoryPool it accepts a request while any memory is free. So it is exceeded by at
most one request, and no request is too large to be accepted at all. A frame counts from the moment
when its size is known until its response is sent. Event loop thread only.
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

    @property
    def used(self) -> int:
        return self._used

    @property
    def is_exhausted(self) -> bool:
        return self._used >= self._limit

    def reserve(self, size: int) -> None:
        self._set_used(self._used + size)

    def release(self, size: int) -> None:
        assert size <= self._used
        self._set_used(self._used - size)

    def _set_used(self, used: int) -> None:
        has_changed = (used >= self._limit) != (self._used >= self._limit)
        self._used = used
        if has_changed:
            self._on_change()
