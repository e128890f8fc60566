"""A log directory: online until the first I/O error, then offline until the process restarts."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from isotherm.errors import LogDirFailedError

logger = logging.getLogger(__name__)


class Volume(NamedTuple):
    """The file system that a directory lies on."""

    total_bytes: int
    usable_bytes: int


class LogDir:
    """Thread-safe: it only ever goes from online to offline."""

    def __init__(
        self, path: Path, on_failure: Callable[[LogDir], None] = lambda log_dir: None
    ) -> None:
        self.path = path
        self.failure: Exception | None = None
        self._on_failure = on_failure

    @property
    def is_online(self) -> bool:
        return self.failure is None

    def check_online(self) -> None:
        if self.failure is not None:
            raise LogDirFailedError(f"log directory is offline dir={self.path}") from self.failure

    def volume(self) -> Volume:
        """LogDirFailedError when the directory is offline, or goes offline over it."""
        with self.errors_fail_it("look at the volume"):
            usage = shutil.disk_usage(self.path)
        return Volume(usage.total, usage.free)

    @contextmanager
    def errors_fail_it(self, action: str) -> Iterator[None]:
        """An OSError inside takes this directory offline and is raised as LogDirFailedError."""
        self.check_online()
        try:
            yield
        except OSError as error:
            self.fail(error, action)
            raise LogDirFailedError(
                f"log directory failed dir={self.path} action={action}"
            ) from error

    def fail(self, error: Exception, action: str) -> None:
        if self.failure is None:
            self.failure = error
            logger.error(
                "log directory goes offline dir=%s action=%s error=%s", self.path, action, error
            )
            self._on_failure(self)
