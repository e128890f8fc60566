"""Measures how long one callback blocks a broker's event loop, independent of the machine's
load."""

from __future__ import annotations

import asyncio
import time

BEAT_S = 0.001


class LoopWatchdog:
    """Runs in a loop once a millisecond.

    The most CPU time of the loop's thread between two runs is that of the longest callback. Waits
    for a core or for the interpreter lock do not count.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._longest_s = 0.0
        self._last_s: float | None = None
        self._is_stopped = False
        loop.call_soon_threadsafe(self._beat)

    def take_longest_ms(self) -> float:
        """The maximum since the last call. Any thread."""
        longest_s, self._longest_s = self._longest_s, 0.0
        return longest_s * 1000

    def stop(self) -> None:
        self._is_stopped = True

    def _beat(self) -> None:
        now_s = time.thread_time()
        if self._last_s is not None:
            self._longest_s = max(self._longest_s, now_s - self._last_s)
        self._last_s = now_s
        if not self._is_stopped:
            self._loop.call_later(BEAT_S, self._beat)
