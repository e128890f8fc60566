"""Rates, averages and maximums over the last windows of time. Pure.

- A window begins with the first event after the end of the window before. It counts until its last
  event is too old: a window that began before the measured time and reaches into it counts whole.
- A rate over a short first window would be far too high. So the measured time is at least that of
  all windows but one.

Times are in milliseconds and never go back. Source: Kafka SampledStat, Rate, Avg, Max, QuotaUtils.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass


@dataclass(slots=True)
class _Window:
    start_ms: float
    last_event_ms: float
    total: float = 0.0
    count: int = 0
    largest: float = 0.0


class _Windows:
    def __init__(self, window_ms: int, window_count: int) -> None:
        self._window_ms = window_ms
        self._window_count = window_count
        # One more than counts: the oldest may overlap with the measured time.
        self._windows: deque[_Window] = deque(maxlen=window_count + 1)

    def _current(self, now_ms: float) -> _Window:
        """The window of an event now."""
        windows = self._windows
        if not windows or now_ms - windows[-1].start_ms >= self._window_ms:
            windows.append(_Window(now_ms, now_ms))
        window = windows[-1]
        window.last_event_ms = now_ms
        return window

    def _live(self, now_ms: float) -> deque[_Window]:
        """The windows within the measured time, at least one."""
        windows = self._windows
        oldest_age_ms = self._window_ms * self._window_count
        while windows and now_ms - windows[0].last_event_ms >= oldest_age_ms:
            windows.popleft()
        if not windows:
            windows.append(_Window(now_ms, now_ms))
        return windows


class SampledRate(_Windows):
    """A rate per second over the last windows. Not thread-safe."""

    def record(self, value: float, now_ms: float) -> None:
        self._current(now_ms).total += value

    def measure(self, now_ms: float) -> float:
        """The recorded values per second."""
        total = sum(window.total for window in self._live(now_ms))
        return total * 1000 / self._span_ms(now_ms)

    def _span_ms(self, now_ms: float) -> float:
        elapsed_ms = now_ms - self._live(now_ms)[0].start_ms
        missing = max(0, self._window_count - 1 - int(elapsed_ms / self._window_ms))
        return max(elapsed_ms + missing * self._window_ms, 1)

    def throttle_ms(self, limit: float, now_ms: float) -> int:
        """Milliseconds to pause until the rate falls to `limit`; 0 if it is below."""
        excess = self.measure(now_ms) - limit
        return max(0, math.floor(excess / limit * self._span_ms(now_ms) + 0.5))


class SampledValues(_Windows):
    """Average and maximum of the values in the last windows; both 0 without any. Not thread-safe.

    The defaults are those of Kafka's metrics.num.samples and metrics.sample.window.ms.
    """

    def __init__(self, window_ms: int = 30_000, window_count: int = 2) -> None:
        super().__init__(window_ms, window_count)

    def record(self, value: float, now_ms: float) -> None:
        window = self._current(now_ms)
        window.total += value
        window.count += 1
        window.largest = max(window.largest, value)

    def average(self, now_ms: float) -> float:
        live = self._live(now_ms)
        count = sum(window.count for window in live)
        return sum(window.total for window in live) / count if count else 0.0

    def largest(self, now_ms: float) -> float:
        return max(window.largest for window in self._live(now_ms))
