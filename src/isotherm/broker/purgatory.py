"""Where operations wait for something to happen to a partition (Kafka: DelayedOperationPurgatory).

An operation is watched under one or more keys. Whoever changes the thing behind a key calls
`notify(key)`, from any thread; the operations under that key are tried on the event loop, once for
all notifications of one loop iteration. Nothing polls: an operation ends by a notification, by its
timer, or because its request was given up.

Invariant: an operation whose future is done leaves the purgatory in the loop's next iteration.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Hashable, Iterable
from typing import Generic, Protocol, TypeVar

Key = TypeVar("Key", bound=Hashable)
Key_contra = TypeVar("Key_contra", bound=Hashable, contravariant=True)


class DelayedOperation(Protocol[Key_contra]):
    """What waits. `future` is done once the operation is over, however it ended."""

    @property
    def future(self) -> asyncio.Future[object]: ...

    def try_complete(self, key: Key_contra) -> bool:
        """Set the future's result if what happened under `key` is enough; True if it was."""

    def expire(self) -> None:
        """Set the future's result with what there is: the time is up."""


class Purgatory(Generic[Key]):
    """Keeps delayed operations until they end.

    `operations_max` bounds it: an operation that does not fit expires at once, so its client gets
    what there is and asks again. All methods but `notify` belong to the event loop's thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, operations_max: int) -> None:
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._operations_max = operations_max
        self._watched: dict[Key, dict[DelayedOperation[Key], None]] = {}
        self._operation_count = 0
        self._lock = threading.Lock()
        self._notified: set[Key] = set()

    def __len__(self) -> int:
        return self._operation_count

    def watch(
        self, operation: DelayedOperation[Key], keys: Iterable[Key], timeout_s: float
    ) -> None:
        """Keep `operation` until one of `keys` completes it or `timeout_s` has passed.

        The caller has found it incomplete in this same loop iteration; it is not tried here.
        """
        if self._operation_count >= self._operations_max:
            operation.expire()
            return
        watched_keys = tuple(keys)
        for key in watched_keys:
            self._watched.setdefault(key, {})[operation] = None
        self._operation_count += 1
        timer = self._loop.call_later(timeout_s, self._expire, operation)

        def forget(_: asyncio.Future[object]) -> None:
            timer.cancel()
            self._forget(operation, watched_keys)

        operation.future.add_done_callback(forget)

    def expire_all(self) -> None:
        """End every operation with what there is: the broker is about to stop."""
        for operations in tuple(self._watched.values()):
            for operation in tuple(operations):
                self._expire(operation)

    def notify(self, key: Key) -> None:
        """Something happened to what `key` names. Any thread."""
        is_loop_thread = threading.get_ident() == self._loop_thread
        if is_loop_thread and key not in self._watched:
            # Nobody can have found it incomplete and not watch it yet. On another thread it is not
            # known who is about to.
            return
        with self._lock:
            is_first = not self._notified
            self._notified.add(key)
        if not is_first:
            return
        if is_loop_thread:
            self._loop.call_soon(self._try_notified)
        else:
            self._loop.call_soon_threadsafe(self._try_notified)

    def _try_notified(self) -> None:
        with self._lock:
            notified, self._notified = self._notified, set()
        for key in notified:
            for operation in tuple(self._watched.get(key, ())):
                if not operation.future.done():
                    operation.try_complete(key)

    def _expire(self, operation: DelayedOperation[Key]) -> None:
        # Its future may have been done earlier in this iteration, before the timer was cancelled.
        if not operation.future.done():
            operation.expire()

    def _forget(self, operation: DelayedOperation[Key], keys: tuple[Key, ...]) -> None:
        self._operation_count -= 1
        for key in keys:
            operations = self._watched[key]
            del operations[operation]
            if not operations:
                del self._watched[key]
