"""The log lines of work that fails and is tried again.

    begins     INFO      restarts and new leaders are the usual causes; the next attempt mends it
    lasts      WARNING   after LASTING_S, then once in REPEAT_S: an operator should look
    is over    INFO      what failed works again

Attempts in between have no line. An error that no attempt mends (not `is_passing`) is an ERROR at
once, and again when its text changes.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Hashable

from isotherm.clock import Clock
from isotherm.errors import (
    FencedError,
    IsothermError,
    RetriableError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)

LASTING_S = 60.0
"""Longer than the restart of a broker or the session of a killed one."""
REPEAT_S = 3600.0
_REMEMBERED_MAX = 1024
"""Most places whose outages are remembered. Those that began first are forgotten."""

_PASSING = (RetriableError, FencedError, UnknownTopicOrPartitionError, UnknownTopicIdError)


def is_passing(error: BaseException) -> bool:
    """Whether a change of leaders or a restart of another broker brings the error. A broker whose
    metadata is behind meets unknown topics and other epochs."""
    return isinstance(error, _PASSING)


def log_failure(logger: logging.Logger, error: Exception, fact: str) -> None:
    """Log that work failed which another attempt or another broker does.

    INFO if the error `is_passing`, else ERROR; with a traceback if it is no error of Isotherm's
    own.
    """
    logger.log(
        logging.INFO if is_passing(error) else logging.ERROR,
        "%s: %s",
        fact,
        _with_cause(error),
        exc_info=None if isinstance(error, IsothermError) else error,
    )


class Outage:
    """One thing that works or fails. Not thread-safe."""

    def __init__(self, logger: logging.Logger, clock: Clock, *, failing: str, working: str) -> None:
        """`failing` and `working` are the facts that are logged."""
        self._logger = logger
        self._clock = clock
        self._failing = failing
        self._working = working
        self._since_s: float | None = None
        self._next_warning_s = 0.0
        self._error = ""

    def failed(self, error: Exception | str) -> None:
        """An attempt failed. A text is a reason that another attempt mends."""
        now_s = self._clock.monotonic_s()
        if isinstance(error, Exception) and not is_passing(error):
            if str(error) != self._error or self._since_s is None:
                log_failure(self._logger, error, self._failing)
            self._error = str(error)
        reason = error if isinstance(error, str) else _with_cause(error)
        if self._since_s is None:
            self._since_s = now_s
            self._next_warning_s = now_s + LASTING_S
            if not self._error:
                self._logger.info("%s: %s", self._failing, reason)
        elif now_s >= self._next_warning_s:
            self._next_warning_s = now_s + REPEAT_S
            since_s = now_s - self._since_s
            self._logger.warning("%s since_s=%d: %s", self._failing, since_s, reason)

    def worked(self) -> None:
        if self._since_s is not None:
            self._logger.info("%s", self._working)
            self._since_s, self._error = None, ""


class Outages:
    """The outages of several places. Thread-safe."""

    def __init__(self, logger: logging.Logger, clock: Clock, *, failing: str, working: str) -> None:
        """`failing` and `working` have `{}` for the place."""
        self._logger = logger
        self._clock = clock
        self._failing = failing
        self._working = working
        self._lock = threading.Lock()
        self._outages: OrderedDict[Hashable, Outage] = OrderedDict()

    def failed(self, place: Hashable, error: Exception | str) -> None:
        with self._lock:
            outage = self._outages.get(place)
            if outage is None:
                outage = self._outages[place] = Outage(
                    self._logger,
                    self._clock,
                    failing=self._failing.format(place),
                    working=self._working.format(place),
                )
                if len(self._outages) > _REMEMBERED_MAX:
                    self._outages.popitem(last=False)
            outage.failed(error)

    def worked(self, place: Hashable) -> None:
        # Without the lock: almost always nothing fails, and callers may come once per record batch.
        if not self._outages:
            return
        with self._lock:
            outage = self._outages.pop(place, None)
            if outage is not None:
                outage.worked()

    def forget(self, place: Hashable) -> None:
        """The place is gone: what was tried there is not tried any more."""
        with self._lock:
            self._outages.pop(place, None)


def _with_cause(error: Exception) -> str:
    """One line with the error's cause, unless its text already has it."""
    text = str(error) or type(error).__name__
    if error.__cause__ is None or "reason=" in text or not isinstance(error, RetriableError):
        return text
    cause, _, _ = str(error.__cause__).partition("\n")
    return f"{text} reason={f'{type(error.__cause__).__name__}: {cause}'!r}"
