"""Limits the bytes per second to or from the remote tier (KIP-956; Kafka RLMQuotaManager).

Moved bytes are a debt that is paid off at the limit's rate; the next piece may begin when no debt
is left. So every byte counts, for pieces of any size. Over the quota's windows (`window_count` of
`window_ms`) at most the limit is moved, plus the unused rest of one earlier window, plus the last
piece. decisions/0032 compares Kafka's rule.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Self

from isotherm.clock import Clock
from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.metrics.sampled_rate import SampledRate, SampledValues

_WAIT_S_MAX = 1.0
"""Longest wait until a thread checks whether the limit has changed; Kafka's value."""
_TURN_S = 0.01
"""Shortest wait of a thread that is not the first in the queue."""


@dataclass(frozen=True, slots=True)
class QuotaWindows:
    """`count` windows of `window_ms`, over which a rate is measured."""

    window_ms: int
    count: int

    @classmethod
    def of_copying(cls, config: RemoteLogManagerConfig) -> Self:
        return cls(
            config.remote_log_manager_copy_quota_window_size_seconds * 1000,
            config.remote_log_manager_copy_quota_window_num,
        )

    @classmethod
    def of_fetching(cls, config: RemoteLogManagerConfig) -> Self:
        return cls(
            config.remote_log_manager_fetch_quota_window_size_seconds * 1000,
            config.remote_log_manager_fetch_quota_window_num,
        )


class RemoteQuota:
    """Thread-safe. Limits are in bytes per second."""

    def __init__(self, limit: int, windows: QuotaWindows, clock: Clock) -> None:
        self._limit = limit
        self._window_s = windows.window_ms / 1000
        self._clock = clock
        self._lock = threading.Lock()
        self._rate = SampledRate(windows.window_ms, windows.count)
        self._throttle_times_ms = SampledValues()
        self._debt = -self._unused_max
        self._debt_at_s = clock.monotonic_s()
        self._queue: deque[object] = deque()

    @property
    def limit(self) -> int:
        with self._lock:
            return self._limit

    def update_limit(self, limit: int) -> None:
        """Change the limit at once, also for waiting threads. The debt in bytes stays."""
        with self._lock:
            # Up to now the debt was paid off at the old limit.
            self._melt()
            self._limit = limit
            self._debt = max(self._debt, -self._unused_max)

    def throttle_s(self) -> float:
        """Seconds until the next piece may begin; 0 means now."""
        with self._lock:
            return self._throttle_s()

    def note_throttled(self, throttle_s: float) -> None:
        """Record a throttle of this length for the throttle-time metrics."""
        with self._lock:
            self._throttle_times_ms.record(throttle_s * 1000, self._now_ms())

    def record(self, size: int) -> None:
        """Count `size` bytes that were moved, or are about to be."""
        with self._lock:
            self._record(size)

    def admit(self, size: int, cancelled: threading.Event) -> bool:
        """Wait until `size` bytes may be moved, and count them. Returns False if `cancelled` is set
        first.

        Waiting threads are admitted in the order in which they called.
        """
        ticket = object()
        with self._lock:
            self._queue.append(ticket)
        began_s = self._clock.monotonic_s()
        try:
            while not cancelled.is_set():
                with self._lock:
                    is_first = self._queue[0] is ticket
                    wait_s = self._throttle_s()
                    if is_first and wait_s == 0:
                        self._record(size)
                        waited_ms = (self._clock.monotonic_s() - began_s) * 1000
                        if waited_ms > 0:
                            self._throttle_times_ms.record(waited_ms, self._now_ms())
                        return True
                self._clock.wait(cancelled, min(max(wait_s, _TURN_S), _WAIT_S_MAX))
            return False
        finally:
            with self._lock:
                self._queue.remove(ticket)

    def byte_rate(self) -> float:
        """Bytes per second over the windows."""
        with self._lock:
            return self._rate.measure(self._now_ms())

    def throttle_ms_average(self) -> float:
        with self._lock:
            return self._throttle_times_ms.average(self._now_ms())

    def throttle_ms_max(self) -> float:
        with self._lock:
            return self._throttle_times_ms.largest(self._now_ms())

    # The lock is held below here.

    @property
    def _unused_max(self) -> float:
        """Most unused bytes of the past that may still be moved: the limit of one window."""
        return self._limit * self._window_s

    def _now_ms(self) -> float:
        return self._clock.monotonic_s() * 1000

    def _melt(self) -> None:
        now_s = self._clock.monotonic_s()
        melted = (now_s - self._debt_at_s) * self._limit
        self._debt = max(self._debt - melted, -self._unused_max)
        self._debt_at_s = now_s

    def _throttle_s(self) -> float:
        self._melt()
        return max(0.0, self._debt) / self._limit

    def _record(self, size: int) -> None:
        self._melt()
        self._debt += size
        self._rate.record(size, self._now_ms())
