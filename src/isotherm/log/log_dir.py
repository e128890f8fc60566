"""A log directory: online until the first I/O error, then offline until the process restarts. It
has a directory for each partition."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from isotherm.errors import LogDirFailedError
from isotherm.types import TopicPartition

logger = logging.getLogger(__name__)


class Volume(NamedTuple):
    """The file system of a directory."""

    total_bytes: int
    usable_bytes: int


class PartitionDirectory(NamedTuple):
    """A directory with the log of a partition, or with a copy of one or its remains."""

    log_dir: LogDir
    path: Path
    topic_partition: TopicPartition


class _FailingDir(AbstractContextManager[None]):
    """A class, not a generator: every append and read uses it, and a class is faster."""

    __slots__ = ("_action", "_log_dir")

    def __init__(self, log_dir: LogDir, action: str) -> None:
        self._log_dir = log_dir
        self._action = action

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, OSError):
            raise self._log_dir.failed_by(error, self._action) from error


class LogDir:
    """Thread-safe: it changes once, from online to offline."""

    def __init__(
        self, path: Path, on_failure: Callable[[LogDir], None] = lambda log_dir: None
    ) -> None:
        self.path = path
        self.failure: Exception | None = None
        self._on_failure = on_failure
        # A disk fails for many threads at once. One of them reports it.
        self._lock = threading.Lock()

    @property
    def is_online(self) -> bool:
        return self.failure is None

    def check_online(self) -> None:
        if self.failure is not None:
            raise LogDirFailedError(f"log directory is offline dir={self.path}") from self.failure

    def volume(self) -> Volume:
        """The volume's sizes. Raises LogDirFailedError if the directory is offline or goes
        offline."""
        with self.errors_fail_it("look at the volume"):
            usage = shutil.disk_usage(self.path)
        return Volume(usage.total, usage.free)

    def errors_fail_it(self, action: str) -> AbstractContextManager[None]:
        """An OSError within the context takes the directory offline, and becomes
        LogDirFailedError."""
        self.check_online()
        return _FailingDir(self, action)

    def try_to(self, action: str, do: Callable[[], None]) -> None:
        """Call `do`. A failure takes the directory offline, and is logged and not raised."""
        try:
            with self.errors_fail_it(action):
                do()
        except LogDirFailedError:
            logger.exception("log directory is skipped action=%s dir=%s", action, self.path)

    def failed_by(self, error: OSError, action: str) -> LogDirFailedError:
        """Take the directory offline; returns the error to raise from `error`. For paths that are
        too hot for `errors_fail_it`; they call `check_online` first."""
        self.fail(error, action)
        return LogDirFailedError(f"log directory failed dir={self.path} action={action}")

    def fail(self, error: Exception, action: str) -> None:
        with self._lock:
            if self.failure is not None:
                return
            # Before the callback: whatever that stops must find the directory offline.
            self.failure = error
        logger.error(
            "log directory goes offline dir=%s action=%s error=%s", self.path, action, error
        )
        self._on_failure(self)
