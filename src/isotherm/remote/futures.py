"""Futures that are done already, or when others are."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future


def done_future() -> Future[None]:
    done: Future[None] = Future()
    done.set_result(None)
    return done


def all_done(futures: Sequence[Future[None]]) -> Future[None]:
    """A future that is done when all of these are, with the error of the first one that failed."""
    together: Future[None] = Future()
    lock = threading.Lock()
    remaining = len(futures)

    def count_down(_: Future[None]) -> None:
        nonlocal remaining
        with lock:
            remaining -= 1
            is_last = remaining == 0
        if is_last:
            settle()

    def settle() -> None:
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            together.set_exception(errors[0])
        else:
            together.set_result(None)

    for future in futures:
        future.add_done_callback(count_down)
    if not futures:
        settle()
    return together
