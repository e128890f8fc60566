"""Runs exactly one of several threads at a time, and may switch to another at certain points.

Real threads pass a baton: production code and its libraries run unchanged. A thread passes the
baton at a `point` (if the strategy decides so), when it waits (`block`), and at its end. So a run
depends on the strategy's choices alone, and can be repeated.

A crash is a choice, too: every point then raises SimulatedCrash in every thread of the process,
also while the thread unwinds. A point comes before its durable change, so nothing durable happens
after a crash.
"""

from __future__ import annotations

import _thread
import threading
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from tests.support.crash_fs import SimulatedCrash

POINTS_MAX = 100_000
"""A run with more points counts as endless."""

Ready = Callable[[], bool]


class ScheduleError(AssertionError):
    """Threads in a deadlock or an endless loop."""


class SimulatedThread:
    """`outside` the process: the driver of a run, which a crash does not end."""

    def __init__(self, name: str, run: Callable[[], None], *, outside: bool = False) -> None:
        self.name = name
        self.outside = outside
        self.run = run
        # A bare lock instead of an Event: runs switch threads very often.
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        self.waits_for: Ready | None = None
        self.waits_at = ""
        self.deadline_ms: float | None = None
        self.held_until_ms = 0.0
        """The simulated time until which the thread is suspended, as by the operating system or
        a disk.
        """
        self.has_ended = False
        self.error: BaseException | None = None

    def is_ready(self, now_ms: float) -> bool:
        if self.held_until_ms > now_ms:
            return False
        if self.waits_for is None:
            return True
        if self.deadline_ms is not None and self.deadline_ms <= now_ms:
            return True
        return self.waits_for()

    def due_ms(self) -> float | None:
        """The time at which its wait ends."""
        if self.waits_for is None or self.waits_for():
            return self.held_until_ms
        if self.deadline_ms is None:
            return None
        return max(self.deadline_ms, self.held_until_ms)


class Strategy(Protocol):
    def at_point(self, scheduler: Scheduler, me: SimulatedThread, label: str) -> Decision:
        """Decide at a point: None to continue the thread, another thread to run, or a crash."""

    def next_thread(
        self, scheduler: Scheduler, ready: list[SimulatedThread], label: str
    ) -> SimulatedThread:
        """Choose one of the ready threads (at least one) when the running one cannot continue."""


class Crash:
    """The decision that the process ends here."""


CRASH = Crash()
Decision = SimulatedThread | Crash | None


class Scheduler:
    """Created and `run` in the same thread: the driver's."""

    def __init__(self, strategy: Strategy, now_ms: int) -> None:
        self.strategy = strategy
        self.start_ms = now_ms
        self.now_ms: float = 0.0
        self.trace: list[tuple[str, str]] = []
        self.story: list[str] = []
        """Changes of durable state, to analyse a failed run."""
        self.crash_points: Counter[str] = Counter()
        self.points = 0
        self.began_at = 0
        """The index of the process's first point."""
        self.is_quiet = True
        """While True, points do not count: the preparation of a run is no part of its schedule."""
        self.is_crashed = False
        self.threads: list[SimulatedThread] = []
        self.driver = SimulatedThread("driver", lambda: None, outside=True)
        self.current = self.driver
        self.threads.append(self.driver)

    # ---- for the driver

    def spawn(
        self, name: str, run: Callable[[], None], *, outside: bool = False
    ) -> SimulatedThread:
        """Create a thread. It begins when it is chosen."""
        if self.is_crashed and not self.current.outside:
            raise SimulatedCrash
        thread = SimulatedThread(name, run, outside=outside)
        self.threads.append(thread)
        _workers.start(self, thread)
        return thread

    def kill(self) -> None:
        """End every thread of the process, as after a crash, so that the next process can begin."""
        self.is_crashed = True
        for thread in list(self.threads):
            if not thread.outside:
                # Each turn raises SimulatedCrash at the thread's next point, until it has unwound.
                while not thread.has_ended:
                    self._hand_to(thread)
        self.threads = [each for each in self.threads if each.outside]
        self.is_crashed = False
        self.began_at = self.points

    def raise_errors(self) -> None:
        """The error that ended a thread: only this reports it."""
        for thread in self.threads:
            if thread.error is not None:
                raise thread.error

    # ---- for the threads

    def point(self, label: str) -> None:
        """Call before an access to shared state."""
        me = self.current
        if self.is_crashed and not me.outside:
            raise SimulatedCrash
        if self.is_quiet:
            return
        self._count(me, label)
        decision = self.strategy.at_point(self, me, label)
        if decision is None:
            return
        if isinstance(decision, Crash):
            self.crash_points[label] += 1
            self.tell(f"CRASH before {label}")
            self.is_crashed = True
            if not me.outside:
                raise SimulatedCrash
            # A thread outside the process survives the crash. The driver must notice it and start
            # the next process.
            self._hand_to(self.driver)
            return
        self._hand_to(decision)
        # Another thread may have crashed the process before this one got the baton back.
        if self.is_crashed and not me.outside:
            raise SimulatedCrash

    def block(self, until: Ready, label: str, timeout_s: float | None = None) -> bool:
        """Wait for at most `timeout_s` of simulated time; returns whether the condition holds. The
        driver's wait also ends at a crash, and raises a thread's error."""
        me = self.current
        deadline_ms = None if timeout_s is None else self.now_ms + timeout_s * 1000
        while not until():
            if self.is_crashed and not me.outside:
                raise SimulatedCrash
            if me is self.driver:
                self.raise_errors()
                if self.is_crashed:
                    return False
            if deadline_ms is not None and self.now_ms >= deadline_ms:
                return False
            self._count(me, label)
            me.waits_for, me.deadline_ms, me.waits_at = until, deadline_ms, label
            chosen = self._next(label)
            if chosen is not me:
                self._hand_to(chosen)
            me.waits_for = me.deadline_ms = None
        if self.is_crashed and not me.outside:
            raise SimulatedCrash
        if me is self.driver:
            self.raise_errors()
        return not (self.is_crashed and me is self.driver)

    def ready(self) -> list[SimulatedThread]:
        """The ready threads, in the order of their start."""
        return [thread for thread in self.threads if thread.is_ready(self.now_ms)]

    def tell(self, what: str) -> None:
        """Add a line about the running thread to the story."""
        self.story.append(f"{self.now_ms / 1000:9.3f} {self.current.name:28} {what}")

    def _count(self, me: SimulatedThread, label: str) -> None:
        self.points += 1
        self.trace.append((me.name, label))
        if self.points > POINTS_MAX:
            raise ScheduleError(f"threads go round for ever points={self.points}")

    def _next(self, label: str) -> SimulatedThread:
        """The next thread, when the running one cannot continue; time passes while none can."""
        if self.is_crashed:
            return self.driver
        ready = self.ready()
        while not ready:
            dues = [due for thread in self.threads if (due := thread.due_ms()) is not None]
            # Time jumps to the next deadline; without one no thread can ever continue.
            later = [due for due in dues if due > self.now_ms]
            if not later:
                waiting = {thread.name: thread.waits_at for thread in self.threads}
                raise ScheduleError(f"threads wait for each other waiting={waiting}")
            self.now_ms = min(later)
            ready = self.ready()
        if len(ready) == 1:
            return ready[0]
        return self.strategy.next_thread(self, ready, label)

    def _hand_to(self, thread: SimulatedThread) -> None:
        me = self.current
        if thread is me:
            return
        self.trace.append((thread.name, "goes on"))
        # Set before the release: from then on the other thread runs and reads it.
        self.current = thread
        thread.baton.release()
        me.baton.acquire()

    def begin(self, thread: SimulatedThread) -> None:
        """Called by a worker: wait for the thread's baton, run the thread, and pass the baton
        on.
        """
        thread.baton.acquire()
        try:
            if not self.is_crashed:
                thread.run()
        except SimulatedCrash:
            pass
        except BaseException as error:
            thread.error = error
        thread.has_ended = True
        # A failed thread stays in the list, for `raise_errors`.
        if thread.error is None:
            self.threads.remove(thread)
        try:
            chosen = self.driver if self.is_crashed or thread.error else self._next("end")
        except BaseException as error:
            self.driver.error = error
            chosen = self.driver
        self.trace.append((chosen.name, "goes on"))
        self.current = chosen
        chosen.baton.release()


class _Workers:
    """Reused threads of the operating system: to make one takes longer than a short run."""

    def __init__(self) -> None:
        self._idle: list[_Worker] = []

    def start(self, scheduler: Scheduler, thread: SimulatedThread) -> None:
        worker = self._idle.pop() if self._idle else _Worker(self._idle)
        worker.begin(scheduler, thread)


class _Worker:
    def __init__(self, idle: list[_Worker]) -> None:
        self._idle = idle
        self._work: tuple[Scheduler, SimulatedThread] | None = None
        self._has_work = _thread.allocate_lock()
        self._has_work.acquire()
        threading.Thread(target=self._serve, name="simulated", daemon=True).start()

    def begin(self, scheduler: Scheduler, thread: SimulatedThread) -> None:
        self._work = (scheduler, thread)
        self._has_work.release()

    def _serve(self) -> None:
        while True:
            self._has_work.acquire()
            assert self._work is not None
            scheduler, thread = self._work
            self._work = None
            scheduler.begin(thread)
            self._idle.append(self)


_workers = _Workers()
