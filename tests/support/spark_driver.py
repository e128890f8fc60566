"""A Spark driver in its own process: a test's process can have only one Spark session."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from isotherm.clock import SystemClock
from tests.support.spark_classes import java_options

TIMEOUT_S = 600
_POLL_S = 0.01
_LOG_SIZE_SHOWN = 3000
# The first lines of every driver; `begin` makes its session.
_HEAD = """
import json, sys, threading, time
from pathlib import Path

folder, given = Path(sys.argv[1]), json.loads(sys.argv[2])
short_lived = {
    "spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.cores.max": "2",
    "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2",
    "spark.executor.extraJavaOptions": sys.argv[3],
    "spark.driver.extraJavaOptions": sys.argv[3],
}

def digests(frame):
    rows = frame.selectExpr("partition", "offset", "md5(value) AS digest").collect()
    return sorted([row.partition, row.offset, row.digest] for row in rows)

def answer(name, rows):
    (folder / f"{name}.partial").write_text(json.dumps(rows))
    (folder / f"{name}.partial").rename(folder / name)
"""


class SparkDriver:
    """Runs `code`, which writes its answers to `folder` by `answer(name, rows)`, with lists of
    rows.

    The code can use `given`, the `short_lived` settings of a session, and `digests(frame)`. The
    process is killed at the end of a `with` block, if it has not ended.
    """

    def __init__(
        self, folder: Path, code: str, given: Mapping[str, Any], python: str = sys.executable
    ) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self._log = folder / "log"
        self._clock = SystemClock()
        environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
        environment.pop("PYTHONPATH", None)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [python, "-c", _HEAD + code, str(folder), json.dumps(given), java_options()],
                cwd=folder,
                stdout=log,
                stderr=log,
                env=environment,
                # A group of its own, so that Java goes with it.
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    def has_answered(self, name: str) -> bool:
        return (self.folder / name).exists()

    def answer(self, name: str) -> list[tuple[Any, ...]]:
        """Wait for an answer of the driver and return it."""
        self.wait_until(lambda: self.has_answered(name), f"the answer {name}")
        return [tuple(row) for row in json.loads((self.folder / name).read_text())]

    def wait_until(self, condition: Callable[[], bool], subject: str) -> None:
        """RuntimeError with the end of the log when the driver ends before, or it takes too
        long.
        """
        deadline_s = self._clock.monotonic_s() + TIMEOUT_S
        while not condition():
            if self._process.poll() is not None and not condition():
                raise RuntimeError(f"the driver ended before {subject} log={self._log_end()}")
            if self._clock.monotonic_s() > deadline_s:
                raise RuntimeError(f"waited in vain for {subject} log={self._log_end()}")
            self._clock.wait(threading.Event(), _POLL_S)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def finish(self) -> None:
        """Wait until the driver ends; it must succeed."""
        if self._process.wait(TIMEOUT_S) != 0:
            raise RuntimeError(f"the driver has failed log={self._log_end()}")

    def kill(self) -> None:
        """Send SIGKILL to driver and Java if they run."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _log_end(self) -> str:
        return self._log.read_text()[-_LOG_SIZE_SHOWN:]
