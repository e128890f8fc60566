"""Runs the remote log manager's work one piece at a time, in an order that a seed determines."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

from isotherm.clock import Clock
from isotherm.remote.reading.reader_pool import READ_AHEAD_POOL
from isotherm.testing.sim_clock import SimClock
from tests.support.tiered_partition import InlineExecutor


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    future: Future[Any]
    run: Callable[[], Any]

    def __call__(self) -> None:
        if self.future.set_running_or_notify_cancel():
            try:
                self.future.set_result(self.run())
            except Exception as error:
                self.future.set_exception(error)


@dataclass(slots=True, eq=False)
class _Repeated:
    """A periodic step. `due_s` is None once the step has ended itself."""

    name: str
    step: Callable[[], float | None]
    wakeup: threading.Event
    due_s: float | None


class SimThreads:
    """`isotherm.remote.threads.Threads` without a thread.

    `run_one` does the next step of one thread: it runs one of the first `thread_count` pieces of
    work that wait in some pool, or a dispatcher's step. The seed chooses. A piece of work runs to
    its end. If nothing can run, time moves to the next step. Fetches of the read-ahead run where
    they are submitted: a read waits for them, and no other thread could run them then.
    """

    def __init__(self, clock: SimClock, rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._pools: list[_SimExecutor] = []
        self._repeated: list[_Repeated] = []
        self.trace: list[tuple[float, str]] = []
        """The steps so far, with their times in seconds of the clock."""

    def pool(self, name: str, thread_count: int) -> Executor:
        if name == READ_AHEAD_POOL:
            return InlineExecutor()
        pool = _SimExecutor(name, thread_count)
        self._pools.append(pool)
        return pool

    def repeat(
        self, name: str, step: Callable[[], float | None], wakeup: threading.Event, clock: Clock
    ) -> Callable[[], None]:
        self._repeated.append(_Repeated(name, step, wakeup, clock.monotonic_s()))
        return lambda: None

    def run_one(self) -> None:
        runnable = self._runnable()
        while not runnable:
            self._pass_time()
            runnable = self._runnable()
        name, run = self._rng.choice(runnable)
        self.trace.append((self._clock.monotonic_s(), name))
        run()

    def _runnable(self) -> list[tuple[str, Callable[[], None]]]:
        now_s = self._clock.monotonic_s()
        works = [
            (pool.name, pool.take(each)) for pool in self._pools for each in pool.next_to_begin()
        ]
        steps = [
            (each.name, self._step(each))
            for each in self._repeated
            if each.due_s is not None and (each.due_s <= now_s or each.wakeup.is_set())
        ]
        return works + steps

    def _step(self, repeated: _Repeated) -> Callable[[], None]:
        def run() -> None:
            repeated.wakeup.clear()
            wait_s = repeated.step()
            repeated.due_s = None if wait_s is None else self._clock.monotonic_s() + wait_s

        return run

    def _pass_time(self) -> None:
        due_s = min(each.due_s for each in self._repeated if each.due_s is not None)
        self._clock.advance(max(1, round((due_s - self._clock.monotonic_s()) * 1000)))


class _SimExecutor(Executor):
    def __init__(self, name: str, thread_count: int) -> None:
        self.name = name
        self._thread_count = thread_count
        self._waiting: list[_Work] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._waiting.append(_Work(future, lambda: fn(*args, **kwargs)))
        return future

    def next_to_begin(self) -> list[_Work]:
        return self._waiting[: self._thread_count]

    def take(self, work: _Work) -> Callable[[], None]:
        def run() -> None:
            self._waiting.remove(work)
            work()

        return run

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut down as a thread pool does.

        Without `wait` the schedule runs the rest of the work later.
        """
        while cancel_futures and self._waiting:
            self._waiting.pop().future.cancel()
        while wait and self._waiting:
            self._waiting.pop(0)()
