"""A clock that moves only when a test moves it."""

from __future__ import annotations

import math
import threading

from isotherm.types import TimestampMs

_POLL_REAL_S = 0.001
"""The real seconds after which a waiting thread notices a moved clock or a set event.

Threads poll because a thread cannot wait for a `threading.Event` and another condition at once. The
value affects the speed of a test, never its result.
"""


class SimClock:
    """`isotherm.clock.Clock` in simulated time. Thread-safe.

    `advance` moves wall clock and monotonic clock together. `jump_wall_clock` moves only the wall
    clock, as an operator or NTP does.

    With `auto_advance`, a `wait` whose event is not set moves the clock to its deadline and returns
    at once. That is for single-threaded code that waits between retries.
    """

    def __init__(
        self, now_ms: TimestampMs = 1_700_000_000_000, *, auto_advance: bool = False
    ) -> None:
        self._auto_advance = auto_advance
        self._condition = threading.Condition()
        self._elapsed_ms = 0
        self._wall_start_ms = now_ms
        self._deadlines_ms: list[float] = []

    def now_ms(self) -> TimestampMs:
        with self._condition:
            return self._wall_start_ms + self._elapsed_ms

    def monotonic_s(self) -> float:
        with self._condition:
            return self._elapsed_ms / 1000

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        with self._condition:
            deadline_ms = self._elapsed_ms + timeout_s * 1000
            if self._auto_advance and not event.is_set():
                self._elapsed_ms = max(self._elapsed_ms, round(deadline_ms))
                return False
            self._deadlines_ms.append(deadline_ms)
            self._condition.notify_all()
        try:
            while not event.wait(_POLL_REAL_S):
                with self._condition:
                    if self._elapsed_ms >= deadline_ms:
                        return event.is_set()
            return True
        finally:
            with self._condition:
                self._deadlines_ms.remove(deadline_ms)
                self._condition.notify_all()

    def advance(self, ms: int) -> None:
        """Move both clocks forward. Threads whose deadline is reached wake up."""
        if ms < 0:
            raise ValueError(f"simulated time does not go back ms={ms}")
        with self._condition:
            self._elapsed_ms += ms

    def jump_wall_clock(self, ms: int) -> None:
        """Move only `now_ms`, forward or back."""
        with self._condition:
            self._wall_start_ms += ms

    def await_waiters(
        self, count: int, *, within_s: float = math.inf, real_timeout_s: float = 10
    ) -> None:
        """Block until at least `count` threads are inside `wait` with a deadline ahead.

        With it a test can advance time only after a background thread has gone to sleep. Only
        threads that sleep for at most `within_s` count, so that an idle thread is not mistaken for
        one that waits for its next run. Raises TimeoutError after `real_timeout_s` seconds of real
        time, so that a wrong test ends.
        """
        with self._condition:
            if not self._condition.wait_for(
                lambda: self._sleeping(within_s) >= count, real_timeout_s
            ):
                raise TimeoutError(f"threads waiting={self._sleeping(within_s)} wanted={count}")

    def _sleeping(self, within_s: float) -> int:
        left_ms = (deadline_ms - self._elapsed_ms for deadline_ms in self._deadlines_ms)
        return sum(0 < left <= within_s * 1000 for left in left_ms)
