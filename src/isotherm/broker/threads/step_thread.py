"""A thread that repeats one step until it is stopped."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from isotherm.clock import Clock

UNTIL_WOKEN_S = math.inf
"""The delay of a step that only a `wake` begins."""


class StepThread:
    """Runs `step` again after the seconds that it returned, or sooner at a `wake`.

    The thread ends when a step returns None, and after a stop. `step` raises nothing: it is the
    boundary of the thread. Thread-safe; `start` once.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], float | None],
        clock: Clock,
        *,
        first_delay_s: float = 0.0,
    ) -> None:
        self._step = step
        self._clock = clock
        self._first_delay_s = first_delay_s
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Begin a step without the rest of the delay. During a step: begin the next one at once."""
        self._woken.set()

    def pause(self, delay_s: float) -> bool:
        """Wait, within a step, for a time that no `wake` shortens. Returns True at a stop."""
        return self._clock.wait(self._stopping, delay_s)

    def begin_stop(self) -> None:
        """Prevent further steps. Does not wait for the running one."""
        self._stopping.set()
        self._woken.set()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the thread. Returns whether it has ended, or was never started."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Prevent further steps, and wait for the running one."""
        self.begin_stop()
        self.join()

    def _run(self) -> None:
        delay_s: float | None = self._first_delay_s
        while delay_s is not None:
            self._wait(delay_s)
            # Before the step: a wake during it begins another one. Before the look at `_stopping`,
            # too: a stop after that look must end the next wait.
            self._woken.clear()
            if self._stopping.is_set():
                return
            delay_s = self._step()

    def _wait(self, delay_s: float) -> None:
        if delay_s == UNTIL_WOKEN_S:
            self._woken.wait()
        elif delay_s > 0:
            # A lock cannot wait longer. An interval of 2^63 ms means never.
            self._clock.wait(self._woken, min(delay_s, threading.TIMEOUT_MAX))
