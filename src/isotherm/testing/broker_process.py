"""`isotherm serve` in a process of its own, to be killed, paused and started again."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from isotherm.testing.embedded_broker import TEST_SETTINGS

_SERVES = re.compile(rb"broker serves .*listeners=PLAINTEXT://(\S+)")


class BrokerProcess:
    """Runs from construction, which waits until clients can connect, to `kill` or `stop`."""

    bootstrap_servers: str

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        """`settings` go over TEST_SETTINGS. AssertionError with the log when it does not start."""
        texts = {**TEST_SETTINGS, **settings}
        self.process = subprocess.Popen(  # noqa: S603 - this interpreter, our own module
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

    def pause(self) -> None:
        """The process stands still, its sockets stay open; `resume` ends that."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

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


def free_port() -> int:
    """A port that nobody listens on at the moment, for a broker that keeps it across restarts."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
