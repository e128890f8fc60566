"""Time as a parameter. All code that reads the time or waits takes a `Clock`.

`SystemClock` is the only place in the package that reads the machine's clocks. Tests pass
`isotherm.testing.sim_clock.SimClock`, whose time moves only when the test advances it.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

from isotherm.types import TimestampMs


class Clock(Protocol):
    def now_ms(self) -> TimestampMs:
        """Wall-clock time. It may jump: never use it to measure a duration."""

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start. Never goes back."""

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait until `event` is set or the timeout has passed; True if it is set."""


class SystemClock:
    def now_ms(self) -> TimestampMs:
        return time.time_ns() // 1_000_000

    # Called twice for each request: the C function itself, without a Python call around it.
    monotonic_s = staticmethod(time.monotonic)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s)
