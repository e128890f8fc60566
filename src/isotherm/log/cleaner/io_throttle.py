"""Limits the rate of bytes that all cleaner threads read and write.

A thread waits after each transfer. The debt is shared by all threads, so the rate holds over any
period longer than a few buffers. Source of the configuration key: Kafka Throttler.
"""

from __future__ import annotations

import threading

from isotherm.clock import Clock

_WAIT_S_MIN = 0.01
"""Shorter waits are added to later ones: waking up would cost more than the wait."""


class IoThrottle:
    """Thread-safe."""

    def __init__(self, clock: Clock, bytes_per_second: float) -> None:
        self._clock = clock
        self._bytes_per_second = bytes_per_second
        self._paid_at_s = clock.monotonic_s()
        self._lock = threading.Lock()

    def update_rate(self, bytes_per_second: float) -> None:
        """Apply a new rate from now on. The debt of earlier transfers is dropped."""
        with self._lock:
            self._bytes_per_second = bytes_per_second
            self._paid_at_s = self._clock.monotonic_s()

    def pay(self, size: int, aborted: threading.Event) -> None:
        """Wait until `size` more bytes conform to the rate, or `aborted` is set."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            self._paid_at_s = max(self._paid_at_s, now_s) + size / self._bytes_per_second
            wait_s = self._paid_at_s - now_s
        # Waits without the lock, so that other threads can add to the debt.
        if wait_s >= _WAIT_S_MIN:
            self._clock.wait(aborted, min(wait_s, threading.TIMEOUT_MAX))
