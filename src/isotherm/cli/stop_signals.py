"""Handles SIGINT and SIGTERM for a command that ends in order: after its current step, or between
two calls of a library.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import ParamSpec, TypeVar

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_EXIT_SIGINT = 130
_EXIT_SIGTERM = 143
_EXIT_CODES = {signal.SIGINT: _EXIT_SIGINT, signal.SIGTERM: _EXIT_SIGTERM}
_P = ParamSpec("_P")
_T = TypeVar("_T")


@contextmanager
def stop_signals(stop: threading.Event) -> Iterator[None]:
    """Handle signals: the first one sets `stop`, the next one raises KeyboardInterrupt. Call it in
    the main thread only."""

    def handle(number: int, frame: FrameType | None) -> None:
        del number, frame
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    with _handled(handle):
        yield


class HeldSignals:
    """Signals that interrupt the calls made with `released`, and are only counted elsewhere."""

    def __init__(self) -> None:
        self._is_released = False
        self.count = 0
        self.exit_code = 0
        """That of the first signal, as shells count it: 128 and the signal's number."""

    def released(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """The result of the call.

        Raises KeyboardInterrupt if a signal comes within it, or came before it.
        """
        self._is_released = True
        try:
            if self.count:
                raise KeyboardInterrupt
            return call(*args, **kwargs)
        finally:
            self._is_released = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.count += 1
        self.exit_code = self.exit_code or _EXIT_CODES[signal.Signals(number)]
        if self._is_released:
            raise KeyboardInterrupt


@contextmanager
def held_signals() -> Iterator[HeldSignals]:
    """Hold signals. Call it in the main thread only.

    An exception that a signal's handler raises within a callback of the client library is lost, or
    becomes a SystemError. So the library is called while signals are held.
    """
    held = HeldSignals()
    with _handled(held.handle):
        yield held


@contextmanager
def _handled(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {signum: signal.signal(signum, handle) for signum in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
