"""Runs a tick per key at intervals, on a bounded number of threads.

One dispatcher waits for the next due tick and hands it to a pool. A key's ticks never overlap. A
tick returns the seconds until its next run, UNTIL_WOKEN_S, or None when it is done. The dispatcher
looks at the keys that are due, in the order of their times, and at no others.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

from isotherm.clock import Clock
from isotherm.remote.futures import done_future
from isotherm.remote.threads import SYSTEM_THREADS, Threads

Tick = Callable[[], float | None]

UNTIL_WOKEN_S = math.inf
"""The delay of a tick that only a `wake` begins."""

_IDLE_WAIT_S = 3600.0
"""Longest sleep of the dispatcher. `schedule` and `wake` end it."""

_STALE_ENTRIES_MIN = 64
"""Entries of the queue that may be out of date, besides as many as there are keys."""


@dataclass(slots=True, eq=False)
class _Scheduled:
    """`due_s` is infinite while the tick waits for a `wake`, and while it runs: then the last wake
    has set `woken_s`, the time by which the next run is due."""

    key: Hashable
    tick: Tick
    due_s: float = math.inf
    woken_s: float = math.inf
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
        # By time, with a number that keeps the order of equal times. An entry whose time is not
        # the `due_s` of its tick is out of date, and skipped.
        self._queue: list[tuple[float, int, _Scheduled]] = []
        self._numbers = itertools.count()
        self._running_count = 0
        self._wakeup = threading.Event()
        self._closed = False
        self._await_dispatcher: Callable[[], None] | None = None

    def schedule(self, key: Hashable, tick: Tick, delay_s: float = 0.0) -> None:
        """Run `tick` after `delay_s`, then after the delays that it returns. No effect if the key
        is scheduled already."""
        with self._lock:
            if self._closed or key in self._scheduled:
                return
            scheduled = self._scheduled[key] = _Scheduled(key, tick)
            self._queue_at(scheduled, self._clock.monotonic_s() + delay_s)
            if self._await_dispatcher is None:
                self._await_dispatcher = self._threads.repeat(
                    f"{self._name}-schedule", self._dispatch, self._wakeup, self._clock
                )
        self._wakeup.set()

    def wake(self, key: Hashable, delay_s: float) -> None:
        """Run the tick of `key` in `delay_s` at the latest. During a tick: the next one. No effect
        if the key is not scheduled."""
        with self._lock:
            scheduled = self._scheduled.get(key)
            if scheduled is None:
                return
            due_s = self._clock.monotonic_s() + delay_s
            if scheduled.is_running:
                scheduled.woken_s = min(scheduled.woken_s, due_s)
                return
            if scheduled.due_s <= due_s:
                return
            self._queue_at(scheduled, due_s)
            is_next = self._queue[0][2] is scheduled
        if is_next:
            self._wakeup.set()

    @property
    def idle_share(self) -> float:
        """The share of idle threads, 0 to 1."""
        with self._lock:
            return max(0.0, 1 - self._running_count / self._thread_count)

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
                if scheduled is not None:
                    scheduled.due_s = math.inf
                return done_future()
            scheduled.is_cancelled = True
            return scheduled.stopped

    def close(self) -> None:
        """Start no further tick, and wait for those that run. Idempotent."""
        with self._lock:
            self._closed = True
            self._scheduled.clear()
            self._queue.clear()
        self._wakeup.set()
        if self._await_dispatcher is not None:
            self._await_dispatcher()
        # Outside the lock, which each running tick takes when it ends.
        for pool in (*self._retired, self._pool):
            pool.shutdown(wait=True)

    def _queue_at(self, scheduled: _Scheduled, due_s: float) -> None:
        """Make the tick due at this time, and its earlier entry out of date."""
        scheduled.due_s = due_s
        if due_s == math.inf:
            return
        heapq.heappush(self._queue, (due_s, next(self._numbers), scheduled))
        if len(self._queue) > 2 * len(self._scheduled) + _STALE_ENTRIES_MIN:
            self._queue = [entry for entry in self._queue if entry[0] == entry[2].due_s]
            heapq.heapify(self._queue)

    def _dispatch(self) -> float | None:
        """Hand the due ticks to the pool; returns the seconds until the next one is due."""
        with self._lock:
            if self._closed:
                return None
            now_s = self._clock.monotonic_s()
            while self._queue:
                due_s, _, scheduled = self._queue[0]
                if due_s == scheduled.due_s:
                    if due_s > now_s:
                        return min(due_s - now_s, _IDLE_WAIT_S)
                    scheduled.due_s, scheduled.is_running = math.inf, True
                    self._running_count += 1
                    # Under the lock, because `resize` may shut this pool down.
                    self._pool.submit(self._run, scheduled)
                heapq.heappop(self._queue)
            return _IDLE_WAIT_S

    def _run(self, scheduled: _Scheduled) -> None:
        with self._lock:
            scheduled.woken_s = math.inf  # this run looks at what those wakes told of
        delay_s = scheduled.tick()
        with self._lock:
            scheduled.is_running = False
            self._running_count -= 1
            is_over = delay_s is None or scheduled.is_cancelled
            if is_over:
                # By identity: after `cancel` the key may be scheduled anew.
                if self._scheduled.get(scheduled.key) is scheduled:
                    del self._scheduled[scheduled.key]
            elif not self._closed and delay_s is not None:
                due_s = min(self._clock.monotonic_s() + delay_s, scheduled.woken_s)
                scheduled.woken_s = math.inf
                self._queue_at(scheduled, due_s)
            is_next = bool(self._queue) and self._queue[0][2] is scheduled
        if is_over:
            scheduled.stopped.set_result(None)
        if is_next:
            self._wakeup.set()
