"""How long somebody waits for bytes of the remote tier: until they are there, or he is told to stop.

`NO_WAIT` takes what is in memory and asks nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from isotherm.errors import RequestTimedOutError, RetriableError


class NotInMemoryError(RetriableError):
    """What was to be read without waiting has to be waited for."""


class ReadPatience:
    """Of one request, which may read in several threads. `stop` may be called from any thread, at
    any time, more than once."""

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
        """Nobody will ask again: what is fetched for this read alone need not come."""
        return self._has_left

    def stop(self, *, has_left: bool) -> None:
        """Let reads end with RequestTimedOutError where they wait, now or later."""
        with self._lock:
            self._is_over = True
            self._has_left = self._has_left or has_left
            wakes = tuple(self._wakes)
        for wake in wakes:
            wake()

    def check(self) -> None:
        if self._is_over:
            raise RequestTimedOutError("the read of the remote tier was given up")

    @contextmanager
    def waiting(self, wake: Callable[[], None]) -> Iterator[None]:
        """While somebody waits, `stop` calls `wake`."""
        with self._lock:
            self._wakes.append(wake)
        try:
            yield
        finally:
            with self._lock:
                self._wakes.remove(wake)


class _NoWait(ReadPatience):
    @property
    def may_wait(self) -> bool:
        return False


NO_WAIT = _NoWait()
