"""A standalone Spark cluster of processes on this machine: one master, some workers.

Everything comes from the pip install of PySpark. Workers start an executor each for an application
that asks for one core per executor; killing a worker takes its executor along.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import pyspark

from isotherm.clock import Clock, SystemClock
from isotherm.testing.local_servers import free_ports
from tests.support.spark_classes import java_options

START_TIMEOUT_S = 300
_POLL_S = 0.1
_PACKAGE = "org.apache.spark.deploy"
_MASTER = "master"
# Spark requires the port: any free one, to which no client connects.
_NO_WEB_PAGE = ("--webui-port", "0")


class SparkCluster:
    """Runs within the `with` block. `directory` gets logs and work files."""

    def __init__(self, directory: Path, *, workers: int = 2, clock: Clock | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._starting_workers = workers
        self._worker_count = 0
        self._clock = clock or SystemClock()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        (port,) = free_ports(1)
        self._port = port
        self.url = f"spark://127.0.0.1:{port}"

    def __enter__(self) -> Self:
        port = str(self._port)
        self._start(_MASTER, "master.Master", "--host", "127.0.0.1", "--port", port, *_NO_WEB_PAGE)
        started = [self.add_worker() for _ in range(self._starting_workers)]
        for number in started:
            self._await_log(f"worker-{number}", "Successfully registered with master")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for name in list(self._processes):
            self._stop(name)

    def add_worker(self) -> int:
        """Starts one more worker and returns its number without waiting for it."""
        number = self._worker_count
        self._worker_count += 1
        name = f"worker-{number}"
        work = str(self._directory / name)
        options = ("--host", "127.0.0.1", "-c", "1", "-m", "1g", "-d", work, *_NO_WEB_PAGE)
        self._start(name, "worker.Worker", *options, self.url)
        return number

    def replace_worker(self) -> None:
        """Kill the oldest worker and its executors with SIGKILL; start another, without waiting
        for it.
        """
        oldest = next(name for name in self._processes if name != _MASTER)
        self._stop(oldest)
        self.add_worker()

    def executors(self) -> list[int]:
        """Process ids of the executors: their Java and their Python."""
        inside = f"{self._directory}/"
        running = psutil.process_iter(["pid", "cwd"])
        return [each.pid for each in running if (each.info["cwd"] or "").startswith(inside)]

    def _start(self, name: str, spark_class: str, *options: str) -> None:
        home = Path(pyspark.__file__).parent
        environment = os.environ | {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_JAVA_OPTS": java_options(),
            "SPARK_DAEMON_MEMORY": "256m",
        }
        with self._log_path(name).open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [str(home / "bin" / "spark-class"), f"{_PACKAGE}.{spark_class}", *options],
                env=environment,
                stdout=log,
                stderr=log,
                # A process group of its own, so that a kill of the worker includes its executors.
                start_new_session=True,
            )

    def _stop(self, name: str) -> None:
        process = self._processes.pop(name)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _await_log(self, name: str, words: str) -> None:
        deadline_s = self._clock.monotonic_s() + START_TIMEOUT_S
        while words not in self._log(name):
            process = self._processes[name]
            if process.poll() is not None or self._clock.monotonic_s() > deadline_s:
                raise RuntimeError(f"{name} did not start log={self._log(name)[-2000:]!r}")
            self._clock.wait(threading.Event(), _POLL_S)

    def _log(self, name: str) -> str:
        return self._log_path(name).read_text(errors="replace")

    def _log_path(self, name: str) -> Path:
        return self._directory / f"{name}.log"
