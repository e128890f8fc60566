"""Rates, averages and maximums over the last windows of time. Pure.

Times are in milliseconds and never go back. Source: Kafka SampledStat, Rate, Avg, Max.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


class SampledRate:
    """A rate per second over the last windows. Not thread-safe."""

    def __init__(self, window_ms: int, window_count: int) -> None:
        self._window_ms = window_ms
        self._window_count = window_count
        self._windows: deque[list[float]] = deque()  # [start, sum]

    def record(self, value: float, now_ms: float) -> None:
        windows = self._windows
        if not windows or now_ms - windows[-1][0] >= self._window_ms:
            windows.append([now_ms, 0.0])
        windows[-1][1] += value

    def measure(self, now_ms: float) -> float:
        """The recorded values per second."""
        oldest_age_ms = self._window_ms * self._window_count
        while self._windows and now_ms - self._windows[0][0] >= oldest_age_ms:
            self._windows.popleft()
        return sum(window[1] for window in self._windows) * 1000 / self._span_ms(now_ms)

    def _span_ms(self, now_ms: float) -> float:
        """The time span of the rate: the present windows, plus missing ones up to all but one.

        As in Kafka: a rate over a short first window would be far too high.
        """
        elapsed_ms = now_ms - self._windows[0][0] if self._windows else 0.0
        missing = max(0, self._window_count - 1 - int(elapsed_ms / self._window_ms))
        return elapsed_ms + missing * self._window_ms or self._window_ms

    def throttle_ms(self, limit: float, now_ms: float) -> int:
        """How long to pause until the rate falls to `limit`; 0 if it is below."""
        excess = self.measure(now_ms) - limit
        return max(0, round(excess / limit * self._span_ms(now_ms)))


@dataclass(slots=True)
class _Window:
    start_ms: float
    total: float = 0.0
    count: int = 0
    largest: float = 0.0


class SampledValues:
    """Average and maximum of the values in the last windows; both 0 without any. Not thread-safe.

    The defaults are those of Kafka's metrics.num.samples and metrics.sample.window.ms.
    """

    def __init__(self, window_ms: int = 30_000, window_count: int = 2) -> None:
        self._window_ms = window_ms
        self._window_count = window_count
        self._windows: deque[_Window] = deque()

    def record(self, value: float, now_ms: float) -> None:
        windows = self._windows
        if not windows or now_ms - windows[-1].start_ms >= self._window_ms:
            windows.append(_Window(now_ms))
            if len(windows) > self._window_count:
                windows.popleft()
        window = windows[-1]
        window.total += value
        window.count += 1
        window.largest = max(window.largest, value)

    def average(self, now_ms: float) -> float:
        live = self._live(now_ms)
        count = sum(window.count for window in live)
        return sum(window.total for window in live) / count if count else 0.0

    def largest(self, now_ms: float) -> float:
        return max((window.largest for window in self._live(now_ms)), default=0.0)

    def _live(self, now_ms: float) -> list[_Window]:
        oldest_age_ms = self._window_ms * self._window_count
        return [window for window in self._windows if now_ms - window.start_ms < oldest_age_ms]
