"""Holds the bytes that all cleaner threads read and write below a rate.

Each transfer is paid for in time after it was made: a debt that all threads share, so the rate
holds over any stretch that is longer than a few buffers. Source of the key: Kafka Throttler.
"""

from __future__ import annotations

import threading

from isotherm.clock import Clock

_WAIT_S_MIN = 0.01
"""Shorter waits are put off: they would cost more in wake-ups than they hold back."""


class IoThrottle:
    """Thread-safe."""

    def __init__(self, clock: Clock, bytes_per_second: float) -> None:
        self._clock = clock
        self._bytes_per_second = bytes_per_second
        self._paid_at_s = clock.monotonic_s()
        self._lock = threading.Lock()

    def update_rate(self, bytes_per_second: float) -> None:
        """From now on; what was transferred before is forgiven."""
        with self._lock:
            self._bytes_per_second = bytes_per_second
            self._paid_at_s = self._clock.monotonic_s()

    def pay(self, size: int, aborted: threading.Event) -> None:
        """Wait until `size` bytes more may have been transferred, or `aborted` is set."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            self._paid_at_s = max(self._paid_at_s, now_s) + size / self._bytes_per_second
            wait_s = self._paid_at_s - now_s
        if wait_s >= _WAIT_S_MIN:
            self._clock.wait(aborted, min(wait_s, threading.TIMEOUT_MAX))
