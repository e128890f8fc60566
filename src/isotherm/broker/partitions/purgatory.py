"""Holds delayed operations until a partition changes (Kafka: DelayedOperationPurgatory).

An operation is watched under one or more keys. Code that changes the object of a key calls
`notify(key)`, from any thread. The event loop then tries the operations of that key, once for all
notifications of one loop iteration. Nothing polls: an operation ends by a notification, by its
timer, or because its request was cancelled. Invariant: an operation whose future is done leaves the
purgatory in the next loop iteration.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Hashable, Iterable
from typing import Generic, Protocol, TypeVar

Key = TypeVar("Key", bound=Hashable)
Key_contra = TypeVar("Key_contra", bound=Hashable, contravariant=True)


class DelayedOperation(Protocol[Key_contra]):
    """A waiting operation. `future` is done once the operation has ended, for whatever reason."""

    @property
    def future(self) -> asyncio.Future[object]: ...

    def try_complete(self, key: Key_contra | None) -> bool:
        """Set the future's result if the changes suffice; returns whether `future` is done.

        `key` names the changed object; None means that any object may have changed.
        """

    def expire(self) -> None:
        """Set the future's result from what is available, because the timeout has passed."""


class Purgatory(Generic[Key]):
    """Holds delayed operations until they end.

    It holds at most `operations_max`. An operation above the limit expires at once; its client gets
    what is available and retries. Event loop thread only, except `notify`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, operations_max: int) -> None:
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._operations_max = operations_max
        self.watched: dict[Key, dict[DelayedOperation[Key], None]] = {}
        """The operations by key.

        A key that is not in it need not be notified; any thread may look.
        """
        self._operation_count = 0
        self._lock = threading.Lock()
        self._notified: set[Key] = set()

    def __len__(self) -> int:
        return self._operation_count

    def watch(
        self, operation: DelayedOperation[Key], keys: Iterable[Key], timeout_s: float
    ) -> None:
        """Hold `operation` until one of `keys` completes it or `timeout_s` has passed.

        The caller has found the operation incomplete in the same loop iteration. It is tried once
        more here, because a change by another thread since then was not notified: the key was not
        watched.
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
            # No change is missed: `watch` tries its operation after it has added the key. Without
            # this check each append of a follower would wake the loop, even when no request waits.
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
            # Emptied before the operations are tried: a change that comes meanwhile schedules
            # another call.
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
