"""Work that comes round by the clock: retention, flushing, checkpoints, deleting files."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from isotherm.clock import Clock

logger = logging.getLogger(__name__)


class PeriodicTask:
    """Runs `tick` in a thread of its own, `interval_s` after the end of the run before.

    A tick that raises is logged, and the next one comes as if nothing had happened: each starts
    from the state of the logs, not from what the one before left over.
    """

    def __init__(
        self,
        name: str,
        tick: Callable[[], object],
        clock: Clock,
        *,
        initial_delay_s: float,
        interval_s: float,
    ) -> None:
        self._name = name
        self._tick = tick
        self._clock = clock
        self._initial_delay_s = initial_delay_s
        # What a lock can wait for at most; flush intervals of 2^63 ms mean never.
        self._interval_s = min(interval_s, threading.TIMEOUT_MAX)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Wait for the tick being run, if any; no other follows."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        delay_s = self._initial_delay_s
        while not self._clock.wait(self._stopping, delay_s):
            try:
                self._tick()
            except Exception:
                logger.exception("background task failed task=%s", self._name)
            delay_s = self._interval_s
