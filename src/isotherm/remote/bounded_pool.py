"""A thread pool with a bounded queue: it refuses further work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import TypeVar

from isotherm.errors import NotEnoughMemoryError
from isotherm.remote.threads import SYSTEM_THREADS, Threads

ResultT = TypeVar("ResultT")


class BoundedPool:
    """Runs `thread_count` pieces of work at once; at most `pending_max` wait. Thread-safe."""

    def __init__(
        self,
        name: str,
        thread_count: int,
        pending_max: int | None,
        threads: Threads = SYSTEM_THREADS,
    ) -> None:
        """Without `pending_max` the callers of `submit` must bound the waiting work."""
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
        """The pieces of work that wait for a thread."""
        with self._lock:
            return max(0, self._count - self._thread_count)

    @property
    def idle_share(self) -> float:
        """The share of idle threads, 0 to 1."""
        with self._lock:
            return max(0.0, 1 - self._count / self._thread_count)

    def resize(self, thread_count: int) -> None:
        """Run the work that is submitted from now on in `thread_count` threads. Earlier work keeps
        the old threads until it is done."""
        with self._lock:
            self._retired.append(self._pool)
            self._pool.shutdown(wait=False)
            self._thread_count = thread_count
            self._pool = self._threads.pool(self._name, thread_count)

    def submit(self, work: Callable[[], ResultT]) -> Future[ResultT]:
        """Submit work, not after `close`. Raises NotEnoughMemoryError if too much waits already."""
        with self._lock:
            if (
                self._pending_max is not None
                and self._count >= self._thread_count + self._pending_max
            ):
                raise NotEnoughMemoryError(
                    f"too much work is waiting pool={self._name} count={self._count}"
                )
            self._count += 1
            # Under the lock, because `resize` may shut this pool down.
            future = self._pool.submit(work)
        # Outside the lock: `_end` takes it, and runs in this thread if the work is done already.
        future.add_done_callback(self._end)
        return future

    def close(self) -> None:
        """Cancel the work that has not begun, and wait for the rest. Idempotent."""
        for pool in (*self._retired, self._pool):
            pool.shutdown(wait=True, cancel_futures=True)

    def _end(self, future: Future[ResultT]) -> None:
        with self._lock:
            self._count -= 1
