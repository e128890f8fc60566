"""Locks, events and threads of Python's `threading` that wait in a Scheduler, and the clock.

`cooperative_threading` replaces `threading` by them within the modules of the remote tier and of
the log, which make their own locks and threads. Locks of all other modules are never held at a
point. Acquiring a lock of a module in POINTS is a point. The remaining locks only wait: they guard
counters and caches, and more points would make schedules longer without new ones.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import lru_cache
from types import ModuleType, TracebackType
from typing import Any

from isotherm.remote.threads import SystemThreads
from isotherm.types import TimestampMs
from tests.support.schedules.scheduler import Scheduler

PATCHED = ("isotherm.remote.", "isotherm.log.", "isotherm.broker.", "concurrent.futures._base")
POINTS = {
    "isotherm.remote.metadata.topic_based": "manager",
    "isotherm.remote.metadata.topic.event_writer": "metadata partition",
    "isotherm.remote.metadata.topic.metadata_partition_reader": "reader",
    "isotherm.remote.metadata.state.partition_store": "store",
    "isotherm.remote.metadata.state.cache": "cache",
    "isotherm.remote.tasks.cancellation": "cancellation",
    "isotherm.remote.tasks.copies_in_progress": "copies",
    "isotherm.remote.periodic_tasks": "periodic tasks",
    "isotherm.remote.partition_roles": "partition roles",
    "isotherm.log.partition_log": "log",
    "isotherm.log.deletion_queue": "log deletions",
}


class Running:
    """The scheduler of all simulated locks. A process has one at a time."""

    scheduler: Scheduler | None = None


def scheduler() -> Scheduler:
    assert Running.scheduler is not None, "a simulated lock is used outside of a run"
    return Running.scheduler


class Lock:
    """`threading.Lock`; with `is_recursive` an RLock. Without a `label` it is no point."""

    def __init__(self, label: str = "", *, is_recursive: bool = False) -> None:
        self._label = f"lock {label}" if label else ""
        self._is_recursive = is_recursive
        self._owner: object = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        schedule = Running.scheduler
        if schedule is None:
            return True  # the run is over; its leftovers may still lock
        if self._is_recursive and self._owner is schedule.current:
            self._count += 1
            return True
        if self._label:
            schedule.point(self._label)
        if self._owner is not None:
            if not blocking:
                return False
            wait_s = timeout if timeout >= 0 else None
            label = self._label or "lock"
            if not schedule.block(lambda: self._owner is None, label, wait_s):
                return False
        self._owner, self._count = schedule.current, 1
        return True

    def release(self) -> None:
        if Running.scheduler is None:
            return
        if self._owner is not scheduler().current:
            assert scheduler().is_crashed, "a lock is released that is not held"
            return  # a crash met the thread while it waited for a condition
        self._count -= 1
        if self._count == 0:
            self._owner = None

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


class Condition:
    """`threading.Condition`. A notified thread is ready at once."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or Lock(is_recursive=True)
        self.acquire, self.release = self._lock.acquire, self._lock.release
        self._waiting: list[list[bool]] = []

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *raised: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        notified: list[bool] = []
        self._waiting.append(notified)
        self._lock.release()
        try:
            return scheduler().block(lambda: bool(notified), "wait", timeout)
        finally:
            self._waiting = [each for each in self._waiting if each is not notified]
            # No other thread has it: it is released before every point.
            self._lock.acquire()

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        while not predicate():
            if not self.wait(timeout):
                return predicate()
        return True

    def notify(self, n: int = 1) -> None:
        for each in self._waiting[:n]:
            each.append(True)
        self._waiting = self._waiting[n:]

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Event:
    def __init__(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        return scheduler().block(self.is_set, "event", timeout)


class Thread:
    def __init__(
        self,
        target: Callable[[], object],
        name: str = "thread",
        daemon: bool | None = None,
    ) -> None:
        self._target = target
        self._thread: Any = None
        self.name = name.removeprefix("isotherm-")
        self.daemon = daemon

    def start(self) -> None:
        self._thread = scheduler().spawn(self.name, lambda: void(self._target()))

    def is_alive(self) -> bool:
        return self._thread is not None and not self._thread.has_ended

    def join(self, timeout: float | None = None) -> None:
        scheduler().block(lambda: not self.is_alive(), "join", timeout)


def void(_: object) -> None:
    """A thread's target may return anything."""


class ThreadingNames:
    """The replacement of `threading` in one module."""

    TIMEOUT_MAX = threading.TIMEOUT_MAX

    def __init__(self, module: str) -> None:
        self._label = POINTS.get(module, "")

    def Lock(self) -> Any:
        return Lock(self._label) if Running.scheduler else threading.Lock()

    def RLock(self) -> Any:
        is_running = Running.scheduler is not None
        return Lock(self._label, is_recursive=True) if is_running else threading.RLock()

    def Condition(self, lock: Any = None) -> Any:
        return Condition(lock) if Running.scheduler else threading.Condition(lock)

    def Event(self) -> Any:
        return Event() if Running.scheduler else threading.Event()

    def Thread(self, *args: Any, **kwargs: Any) -> Any:
        kind: Any = Thread if Running.scheduler else threading.Thread
        return kind(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


@lru_cache(maxsize=1)
def _modules(imported: int) -> Mapping[str, ModuleType]:
    """The patched modules that use `threading`.

    `imported`, the number of imported modules, is the cache's key.
    """
    return {
        name: module
        for name, module in sys.modules.items()
        if name.startswith(PATCHED) and getattr(module, "threading", None) is threading
    }


@contextmanager
def cooperative_threading(run: Scheduler) -> Iterator[None]:
    """Within the block, new locks and threads of the tier wait in `run`.

    Its modules must be imported before.
    """
    modules = _modules(len(sys.modules))
    for name, module in modules.items():
        vars(module)["threading"] = ThreadingNames(name)
    Running.scheduler = run
    try:
        yield
    finally:
        Running.scheduler = None
        for module in modules.values():
            vars(module)["threading"] = threading


class ScheduledClock:
    """`isotherm.clock.Clock` in the scheduler's time."""

    def __init__(self, run: Scheduler) -> None:
        self._run = run

    def now_ms(self) -> TimestampMs:
        return self._run.start_ms + int(self._run.now_ms)

    def monotonic_s(self) -> float:
        return self._run.now_ms / 1000

    def wait(self, event: Any, timeout_s: float) -> bool:
        self._run.point("sleep")
        return self._run.block(event.is_set, "sleep", timeout_s)


class ScheduledThreads(SystemThreads):
    """`isotherm.remote.threads.Threads` in a scheduler."""

    def pool(self, name: str, thread_count: int) -> Executor:
        return _Pool(name, thread_count)


class _Pool(Executor):
    """A thread for each piece of work, `thread_count` at a time."""

    def __init__(self, name: str, thread_count: int) -> None:
        self._name = name
        self._thread_count = thread_count
        self._running = 0
        self._waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._waiting.append((future, lambda: fn(*args, **kwargs)))
        if self._running < self._thread_count:
            self._running += 1
            scheduler().spawn(self._name, self._work)
        return future

    def _work(self) -> None:
        while self._waiting:
            future, run = self._waiting.pop(0)
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(run())
                except Exception as error:
                    future.set_exception(error)
        self._running -= 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        while cancel_futures and self._waiting:
            self._waiting.pop()[0].cancel()
        if wait:
            scheduler().block(lambda: self._running == 0, "pool")
