"""A thread pool that refuses work instead of queueing it without end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import TypeVar

from isotherm.errors import NotEnoughMemoryError
from isotherm.remote.threads import SYSTEM_THREADS, Threads

ResultT = TypeVar("ResultT")


class BoundedPool:
    """`thread_count` pieces of work run at once, `pending_max` more wait. Thread-safe."""

    def __init__(
        self,
        name: str,
        thread_count: int,
        pending_max: int | None,
        threads: Threads = SYSTEM_THREADS,
    ) -> None:
        """Without `pending_max` the callers of `submit` must bound what waits."""
        self._name = name
        self._threads = threads
        self._pending_max = pending_max
        self._count = 0
        self._lock = threading.Lock()
        self._thread_count = thread_count
        self._pool = threads.pool(name, thread_count)
        self._retired: list[Executor] = []

    @property
    def pending_count(self) -> int:
        """What waits for a thread."""
        with self._lock:
            return max(0, self._count - self._thread_count)

    @property
    def idle_share(self) -> float:
        """The share of the threads that have nothing to do, 0 to 1."""
        with self._lock:
            return max(0.0, 1 - self._count / self._thread_count)

    def resize(self, thread_count: int) -> None:
        """Work that is submitted from now on shares `thread_count` threads."""
        with self._lock:
            self._retired.append(self._pool)
            self._pool.shutdown(wait=False)
            self._thread_count = thread_count
            self._pool = self._threads.pool(self._name, thread_count)

    def submit(self, work: Callable[[], ResultT]) -> Future[ResultT]:
        """NotEnoughMemoryError when too much waits already. Not after `close`."""
        with self._lock:
            if (
                self._pending_max is not None
                and self._count >= self._thread_count + self._pending_max
            ):
                raise NotEnoughMemoryError(
                    f"too much work is waiting pool={self._name} count={self._count}"
                )
            self._count += 1
            future = self._pool.submit(work)
        future.add_done_callback(self._end)
        return future

    def close(self) -> None:
        """Cancel what has not begun and wait for the rest. Idempotent."""
        for pool in (*self._retired, self._pool):
            pool.shutdown(wait=True, cancel_futures=True)

    def _end(self, future: Future[ResultT]) -> None:
        with self._lock:
            self._count -= 1
