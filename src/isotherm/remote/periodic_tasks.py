"""Runs a tick per key at intervals, on a bounded number of threads.

One dispatcher waits for the next due tick and hands it to a pool. A key's ticks never overlap. A
tick returns the seconds until its next run, or None when it is done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

from isotherm.clock import Clock
from isotherm.remote.futures import done_future
from isotherm.remote.threads import SYSTEM_THREADS, Threads

Tick = Callable[[], float | None]

_IDLE_WAIT_S = 3600.0
"""Sleep of the dispatcher when nothing is scheduled; `schedule` wakes it."""


@dataclass(slots=True, eq=False)
class _Scheduled:
    tick: Tick
    due_s: float
    is_running: bool = False
    is_cancelled: bool = False
    stopped: Future[None] = field(default_factory=Future)


class PeriodicTasks:
    """Thread-safe. Starts its threads at the first `schedule`."""

    def __init__(
        self, name: str, thread_count: int, clock: Clock, threads: Threads = SYSTEM_THREADS
    ) -> None:
        self._name = name
        self._clock = clock
        self._threads = threads
        self._thread_count = thread_count
        self._pool = threads.pool(name, thread_count)
        self._retired: list[Executor] = []
        self._lock = threading.Lock()
        self._scheduled: dict[Hashable, _Scheduled] = {}
        self._wakeup = threading.Event()
        self._closed = False
        self._await_dispatcher: Callable[[], None] | None = None

    def schedule(self, key: Hashable, tick: Tick, delay_s: float = 0.0) -> None:
        """Run `tick` after `delay_s`, then after the delays that it returns. No effect if the key
        is scheduled already."""
        with self._lock:
            if self._closed or key in self._scheduled:
                return
            self._scheduled[key] = _Scheduled(tick, self._clock.monotonic_s() + delay_s)
            if self._await_dispatcher is None:
                self._await_dispatcher = self._threads.repeat(
                    f"{self._name}-schedule", self._dispatch, self._wakeup, self._clock
                )
        self._wakeup.set()

    @property
    def idle_share(self) -> float:
        """The share of idle threads, 0 to 1."""
        with self._lock:
            running = sum(each.is_running for each in self._scheduled.values())
            return max(0.0, 1 - running / self._thread_count)

    def resize(self, thread_count: int) -> None:
        """Run the ticks that begin from now on in `thread_count` threads. Running ticks
        continue."""
        with self._lock:
            self._thread_count = thread_count
            self._retired.append(self._pool)
            self._pool.shutdown(wait=False)
            self._pool = self._threads.pool(self._name, thread_count)

    def cancel(self, key: Hashable) -> Future[None]:
        """Run no further tick of `key`; the future is done when the last one has ended."""
        with self._lock:
            scheduled = self._scheduled.pop(key, None)
            if scheduled is None or not scheduled.is_running:
                return done_future()
            scheduled.is_cancelled = True
            return scheduled.stopped

    def close(self) -> None:
        """Start no further tick, and wait for those that run. Idempotent."""
        with self._lock:
            self._closed = True
            self._scheduled.clear()
        self._wakeup.set()
        if self._await_dispatcher is not None:
            self._await_dispatcher()
        # Outside the lock, which each running tick takes when it ends.
        for pool in (*self._retired, self._pool):
            pool.shutdown(wait=True)

    def _dispatch(self) -> float | None:
        """Hand the due ticks to the pool; returns the seconds until the next one is due."""
        with self._lock:
            if self._closed:
                return None
            now_s = self._clock.monotonic_s()
            idle = [each for each in self._scheduled.values() if not each.is_running]
            for each in idle:
                if each.due_s <= now_s:
                    each.is_running = True
                    # Under the lock, because `resize` may shut this pool down.
                    self._pool.submit(self._run, each)
            waits_s = [each.due_s - now_s for each in idle if not each.is_running]
            return min(waits_s, default=_IDLE_WAIT_S)

    def _run(self, scheduled: _Scheduled) -> None:
        delay_s = scheduled.tick()
        with self._lock:
            scheduled.is_running = False
            is_over = delay_s is None or scheduled.is_cancelled
            if delay_s is not None:
                scheduled.due_s = self._clock.monotonic_s() + delay_s
            if is_over:
                # By identity: after `cancel` the key may be scheduled anew.
                self._scheduled = {
                    key: each for key, each in self._scheduled.items() if each is not scheduled
                }
        if is_over:
            scheduled.stopped.set_result(None)
        self._wakeup.set()
