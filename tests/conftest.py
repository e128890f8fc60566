"""What tests of several folders share: brokers, and the one Spark session of a run."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from isotherm.testing.embedded_broker import TEST_SETTINGS, EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SERVES = re.compile(rb"broker serves .*listeners=PLAINTEXT://(\S+)")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """One broker for a module's tests, which use topics of their own."""
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as started:
        yield started


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., EmbeddedBroker]]:
    """Starts brokers with settings of their own, in the same folder unless told otherwise."""
    with contextlib.ExitStack() as started:

        def start(
            settings: Mapping[str, str] | None = None, directory: Path = tmp_path / "broker"
        ) -> EmbeddedBroker:
            return started.enter_context(EmbeddedBroker(directory, settings))

        yield start


class BrokerProcess:
    """`isotherm serve` in a process of its own, to be killed."""

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        texts = {**TEST_SETTINGS, **settings}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "isotherm.cli.main", "serve", "--data-dir", str(directory)]
            + [item for key, value in texts.items() for item in ("--override", f"{key}={value}")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self.log_lines: list[bytes] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        self._ready.wait()
        if self.process.poll() is not None:
            raise AssertionError(f"the broker did not start:\n{self.log_text}")

    @property
    def log_text(self) -> str:
        return b"".join(self.log_lines).decode()

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Its exit status."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        status = self.process.wait()
        self._reader.join()
        return status

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stderr:
            for line in stderr:
                self.log_lines.append(line)
                found = _SERVES.search(line)
                if found:
                    self.bootstrap_servers = found[1].decode()
                    self._ready.set()
        self.process.wait()
        self._ready.set()


@pytest.fixture
def broker_process(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Starts `isotherm serve` in a folder that stays the same from start to start."""
    started: list[BrokerProcess] = []

    def start(settings: Mapping[str, str] | None = None) -> BrokerProcess:
        process = BrokerProcess(tmp_path / "broker", settings or {})
        started.append(process)
        return process

    yield start
    for process in started:
        if process.process.poll() is None:
            process.kill()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Small and quick to start. A process has room for one session, so there is no other."""
    import isotherm.spark

    session = isotherm.spark.session(
        "isotherm-tests",
        master="local[2]",
        config={
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        },
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
