"""Time as an argument. Everything that asks for the time or waits takes a `Clock`.

`SystemClock` is the only place in the package that reads the machine's clocks; tests pass
`isotherm.testing.sim_clock.SimClock`, under which time moves only when the test says so.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

from isotherm.types import TimestampMs


class Clock(Protocol):
    def now_ms(self) -> TimestampMs:
        """Wall-clock time. May jump; never use it to measure how long something took."""

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary start; never goes back."""

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait until `event` is set or the time has passed; True when it is set."""


class SystemClock:
    def now_ms(self) -> TimestampMs:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s)
