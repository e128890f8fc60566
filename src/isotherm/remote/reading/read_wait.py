"""The wait of a request for bytes of the remote tier: until they have arrived, or until `stop`.

`NO_WAIT` reads only bytes in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from isotherm.errors import RequestTimedOutError, RetriableError


class NotInMemoryError(RetriableError):
    """The bytes are not in memory, and the read must not wait."""


class ReadWait:
    """The wait of one request, which may read in several threads. Thread-safe; `stop` may be called
    more than once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wakes: list[Callable[[], None]] = []
        self._is_over = False
        self._has_left = False

    @property
    def may_wait(self) -> bool:
        return True

    @property
    def is_over(self) -> bool:
        return self._is_over

    @property
    def has_left(self) -> bool:
        """Whether the client has left, so that a fetch for this read alone is useless."""
        return self._has_left

    def stop(self, *, has_left: bool) -> None:
        """End all waiting reads, now and later, with RequestTimedOutError."""
        # Under the lock that `waiting` takes: a read that registers too late to be woken sees
        # `_is_over`.
        with self._lock:
            self._is_over = True
            self._has_left = self._has_left or has_left
            wakes = tuple(self._wakes)
        # Without the lock: `wake` takes the lock of a range.
        for wake in wakes:
            wake()

    def check(self) -> None:
        if self._is_over:
            raise RequestTimedOutError("the read of the remote tier was aborted")

    @contextmanager
    def waiting(self, wake: Callable[[], None]) -> Iterator[None]:
        """While a read waits in this context, `stop` calls `wake`."""
        with self._lock:
            self._wakes.append(wake)
        try:
            yield
        finally:
            with self._lock:
                self._wakes.remove(wake)


class _NoWait(ReadWait):
    @property
    def may_wait(self) -> bool:
        return False


NO_WAIT = _NoWait()
