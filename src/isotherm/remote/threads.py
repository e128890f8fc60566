"""Threads and pools of the remote log manager; a simulation replaces them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Protocol

from isotherm.clock import Clock


class Threads(Protocol):
    """Makes every thread and pool of the remote tier, so that a simulation can replace it and
    decide the whole schedule (tests/support/sim_threads.py)."""

    def pool(self, name: str, thread_count: int) -> Executor:
        """A pool that runs submitted work in order, at most `thread_count` pieces at a time."""

    def repeat(
        self, name: str, step: Callable[[], float | None], wakeup: threading.Event, clock: Clock
    ) -> Callable[[], None]:
        """Run `step` repeatedly: again after the seconds that it returned, or once `wakeup` is set.
        None ends the repetition. The returned function waits for that end."""


class SystemThreads:
    def pool(self, name: str, thread_count: int) -> Executor:
        return ThreadPoolExecutor(thread_count, thread_name_prefix=f"isotherm-{name}")

    def repeat(
        self, name: str, step: Callable[[], float | None], wakeup: threading.Event, clock: Clock
    ) -> Callable[[], None]:
        def run() -> None:
            while (wait_s := step()) is not None:
                clock.wait(wakeup, wait_s)
                # Before the step, not after it: a wakeup during the step must end the next wait.
                wakeup.clear()

        thread = threading.Thread(target=run, name=f"isotherm-{name}", daemon=True)
        thread.start()
        return thread.join


SYSTEM_THREADS = SystemThreads()
