"""Delayed operations that wait for changes of partitions (Kafka: DelayedOperationPurgatory).

An operation is watched under one or more keys. The code that changes the object of a key calls
`notify(key)`, from any thread. The operations of that key are then tried on the event loop, once
for all notifications of one loop iteration. Nothing polls: an operation ends by a notification, by
its timer, or because its request was cancelled.
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
    """A waiting operation. `future` is done once the operation has ended, in whatever way."""

    @property
    def future(self) -> asyncio.Future[object]: ...

    def try_complete(self, key: Key_contra | None) -> bool:
        """Set the future's result if the change under `key`, or under any key, suffices; returns
        whether it did."""

    def expire(self) -> None:
        """Set the future's result from what is available: the timeout has passed."""


class Purgatory(Generic[Key]):
    """Holds delayed operations until they end.

    At most `operations_max` of them: an operation that does not fit expires at once, so its client
    gets what is available and retries. All methods except `notify` are for the event loop thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, operations_max: int) -> None:
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._operations_max = operations_max
        self.watched: dict[Key, dict[DelayedOperation[Key], None]] = {}
        """By key. Nobody need be notified of another key; any thread may look."""
        self._operation_count = 0
        self._lock = threading.Lock()
        self._notified: set[Key] = set()

    def __len__(self) -> int:
        return self._operation_count

    def watch(
        self, operation: DelayedOperation[Key], keys: Iterable[Key], timeout_s: float
    ) -> None:
        """Hold `operation` until one of `keys` completes it or `timeout_s` has passed.

        The caller has found it incomplete in the same loop iteration. It is tried once more here: what
        another thread has changed since then was not notified, as nothing was watched.
        """
        if self._operation_count >= self._operations_max:
            operation.expire()
            return
        watched_keys = tuple(keys)
        for key in watched_keys:
            self.watched.setdefault(key, {})[operation] = None
        self._operation_count += 1
        timer = self._loop.call_later(timeout_s, self._expire, operation)

        def forget(_: asyncio.Future[object]) -> None:
            timer.cancel()
            self._forget(operation, watched_keys)

        operation.future.add_done_callback(forget)
        operation.try_complete(None)

    def expire_all(self) -> None:
        """Expire every operation: the broker is about to stop."""
        for operations in tuple(self.watched.values()):
            for operation in tuple(operations):
                self._expire(operation)

    def notify(self, key: Key) -> None:
        """Try the operations of `key`, whose object has changed. Any thread."""
        if key not in self.watched:
            # `watch` tries its operation after it has made it visible here, so none is missed. A
            # follower's appends need not wake the loop when no request waits.
            return
        with self._lock:
            # One callback serves all notifications of a loop iteration.
            is_first = not self._notified
            self._notified.add(key)
        if not is_first:
            return
        if threading.get_ident() == self._loop_thread:
            self._loop.call_soon(self._try_notified)
        else:
            self._loop.call_soon_threadsafe(self._try_notified)

    def _try_notified(self) -> None:
        with self._lock:
            notified, self._notified = self._notified, set()
        for key in notified:
            for operation in tuple(self.watched.get(key, ())):
                if not operation.future.done():
                    operation.try_complete(key)

    def _expire(self, operation: DelayedOperation[Key]) -> None:
        # The future may have completed in this iteration, before its callback cancels the timer.
        if not operation.future.done():
            operation.expire()

    def _forget(self, operation: DelayedOperation[Key], keys: tuple[Key, ...]) -> None:
        self._operation_count -= 1
        for key in keys:
            operations = self.watched[key]
            del operations[operation]
            if not operations:
                del self.watched[key]
