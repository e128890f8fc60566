"""The two sides of every comparison, each in a process and a folder of its own.

Both run with the settings of `oracle.kafka.EAGER_SETTINGS`, a local folder as the remote tier, and
their defaults otherwise; Kafka has the 1 GiB heap of its own start script.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol, TypeAlias

import psutil

from isotherm.testing.local_servers import free_ports
from oracle.kafka import EAGER_SETTINGS, KafkaOracle, broker_answers

# On a busy machine ten thousand partitions take minutes on either side.
START_TIMEOUT_S = 300
STOP_TIMEOUT_S = 300
KAFKA_HEAP = "1g"


class Server(Protocol):
    """A running broker. `log_dir` and `remote_dir` are its two tiers, in Kafka's file layout;
    `listeners` has the address of each listener, of which `bootstrap_server` is the plain one's."""

    name: str
    bootstrap_server: str
    listeners: dict[str, str]
    directory: Path
    log_dir: Path
    remote_dir: Path

    @property
    def pid(self) -> int: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...


class KafkaServer(KafkaOracle):
    """Apache Kafka with LocalTieredStorage."""

    name = "kafka"
    start_timeout_s = START_TIMEOUT_S
    stop_timeout_s = STOP_TIMEOUT_S

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        listeners: Mapping[str, str] | None = None,
    ) -> None:
        """`settings` go over those it is started with;

        `listeners` are further ones, with addresses.
        """
        super().__init__(directory, {**EAGER_SETTINGS, **(settings or {})}, heap=KAFKA_HEAP)
        for key in ("listeners", "advertised.listeners"):
            self._properties[key] += "".join(
                f",{name}://{address}" for name, address in (listeners or {}).items()
            )
        self.listeners = {"PLAINTEXT": self.bootstrap_server, **(listeners or {})}

    def stop(self) -> None:
        """Kill it: a clean stop waits a minute when a tiered topic was deleted just before."""
        self.kill()


class IsothermServer:
    """`isotherm serve` with its embedded defaults: logs and bucket in folders."""

    name = "isotherm"
    start_timeout_s = START_TIMEOUT_S

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        listeners: Mapping[str, str] | None = None,
    ) -> None:
        """`settings` go over those it is started with;

        `listeners` are further ones, with addresses.
        """
        self._settings = settings or {}
        self.log_dir = directory / "log"
        self.remote_dir = directory / "bucket"
        self.directory = directory
        (port,) = free_ports(1)
        self.bootstrap_server = f"127.0.0.1:{port}"
        self.listeners = {"PLAINTEXT": self.bootstrap_server, **(listeners or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is started"
        return self._process.pid

    def start(self) -> None:
        """Return when it answers; RuntimeError with its last words when it does not."""
        settings = {
            "listeners": ",".join(f"{name}://{at}" for name, at in self.listeners.items()),
            "auto.create.topics.enable": "false",
            **{key: value for key, value in EAGER_SETTINGS.items() if not key.startswith("rlmm.")},
            **self._settings,
        }
        command = [sys.executable, "-m", "isotherm.cli.main", "serve", "--log-level=warning"]
        command.append(f"--data-dir={self.directory}")
        command += [f"--override={key}={value}" for key, value in settings.items()]
        log_path = self.directory / "server.log"
        with log_path.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + self.start_timeout_s
        while not broker_answers(self.bootstrap_server):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"isotherm did not start:\n{log_path.read_text()[-2000:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        if self._process is not None:
            end_process(self._process)
            self._process = None


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Ask it to stop, and kill it if it has not after STOP_TIMEOUT_S."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


NewServer: TypeAlias = Callable[[Path], Server]
"""Makes the server of a side in a folder."""

SERVERS: Mapping[str, NewServer] = {"isotherm": IsothermServer, "kafka": KafkaServer}


@contextlib.contextmanager
def running(
    names: list[str], directory: Path, new_servers: Mapping[str, NewServer] = SERVERS
) -> Iterator[list[Server]]:
    """Start the named servers; all are idle but the one that is being measured."""
    with contextlib.ExitStack() as stack:
        servers: list[Server] = []
        for name in names:
            (directory / name).mkdir(parents=True)
            server = new_servers[name](directory / name)
            stack.callback(server.stop)
            server.start()
            servers.append(server)
        yield servers


class HasPid(Protocol):
    @property
    def pid(self) -> int: ...


class ServerUsage:
    """Resources of a server's process and its children between two moments."""

    def __init__(self, server: HasPid) -> None:
        self._process = psutil.Process(server.pid)
        self._cpu_s_at_start = self._cpu_s()

    def cpu_s(self) -> float:
        """CPU-seconds, user and system, since this object was made."""
        return self._cpu_s() - self._cpu_s_at_start

    def resident_mb(self) -> float:
        """Resident memory now, in 10^6 bytes."""
        return sum(p.memory_info().rss for p in self._processes()) / 1e6

    def _cpu_s(self) -> float:
        times = [process.cpu_times() for process in self._processes()]
        return sum(t.user + t.system for t in times)

    def _processes(self) -> list[psutil.Process]:
        return [self._process, *self._process.children(recursive=True)]
