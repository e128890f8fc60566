"""Bounds the lines that a process logs, since strangers and clients cause some of them: each failed
login, closed connection and denied request has a line.

Each place in the code that logs may write LINES_BURST lines at once, and so many a second over
time. Further ones are counted, and a line every REPORT_INTERVAL_S tells how many there were and
shows the last. So a flood of one kind neither fills the disk nor hides the lines of another kind.
Lines at DEBUG are not bounded: nobody writes them unless an operator sets a logger to it.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from isotherm.clock import Clock

LINES_BURST = 1000
"""Lines of one place that are written at once. A start with thousands of partitions needs many."""
LINES_PER_S = 10.0
REPORT_INTERVAL_S = 10.0

# The attribute of a record that tells of lines left out. It is written in any case.
_REPORT = "isotherm_lines_left_out"


@dataclass(slots=True)
class _Place:
    """A place in the code. Their number is bounded by the code."""

    room: float
    filled_s: float
    left_out: int = 0
    last: logging.LogRecord | None = None


class LineLimit(logging.Filter):
    """The filter of one handler, to which it adds itself. Thread-safe.

    `per_s` of 0 is no bound. Whoever ends the process calls `report` before.
    """

    def __init__(
        self, handler: logging.Handler, clock: Clock, *, per_s: float = LINES_PER_S
    ) -> None:
        super().__init__()
        self._handler = handler
        self._clock = clock
        self._per_s = per_s
        self._lock = threading.Lock()
        self._places: dict[tuple[str, int], _Place] = {}
        handler.addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        if not self._per_s or record.levelno <= logging.DEBUG or hasattr(record, _REPORT):
            return True
        now_s = self._clock.monotonic_s()
        with self._lock:
            key = (record.pathname, record.lineno)
            place = self._places.setdefault(key, _Place(LINES_BURST, now_s))
            filled = place.room + (now_s - place.filled_s) * self._per_s
            place.room, place.filled_s = min(filled, LINES_BURST), now_s
            if place.room >= 1:
                place.room -= 1
                return True
            place.left_out += 1
            place.last = record
            return False

    def start(self) -> None:
        """Report every REPORT_INTERVAL_S, in a thread that does not hold up the process's end."""
        threading.Thread(target=self._report_always, name="log-lines", daemon=True).start()

    def report(self) -> None:
        """Write a line for each place that has left out lines since the last report."""
        with self._lock:
            reported = []
            for place in self._places.values():
                if place.last is not None:
                    reported.append((place.left_out, place.last))
                    place.left_out, place.last = 0, None
        for left_out, last in reported:
            self._handler.handle(_report_of(left_out, last))

    def _report_always(self) -> None:
        never = threading.Event()
        while True:
            self._clock.wait(never, REPORT_INTERVAL_S)
            self.report()


def _report_of(left_out: int, last: logging.LogRecord) -> logging.LogRecord:
    """The record that tells of lines left out, in the logger and at the level of the last."""
    record = logging.LogRecord(
        last.name,
        last.levelno,
        last.pathname,
        last.lineno,
        "similar lines are left out count=%d option=--log-lines-per-s last='%s'",
        (left_out, last.getMessage()),
        None,
    )
    setattr(record, _REPORT, True)
    return record
