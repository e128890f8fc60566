"""`isotherm serve` in a process of its own, to be killed, paused and started again."""

from __future__ import annotations

import os
import re
import signal
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

    def __init__(
        self, directory: Path, settings: Mapping[str, str], *, config: Path | None = None
    ) -> None:
        """`settings` go over TEST_SETTINGS, and over the file `config`. AssertionError with the
        log when it does not start."""
        texts = {**TEST_SETTINGS, **settings}
        self.process = subprocess.Popen(  # noqa: S603 - this interpreter, our own module
            [sys.executable, "-m", "isotherm.cli.main", "serve", "--data-dir", str(directory)]
            + (["--config", str(config)] if config else [])
            + [item for key, value in texts.items() for item in ("--override", f"{key}={value}")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self.log_lines: list[bytes] = []
        self._logged = threading.Condition()
        self._has_ended = False
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

    def stop(self, timeout_s: float | None = None) -> int:
        """Its exit status. TimeoutExpired when it has not ended by then."""
        return self._end(signal.SIGTERM, timeout_s)

    def reload(self) -> None:
        """Tell it to read its configuration again; the log says when it has."""
        self.process.send_signal(signal.SIGHUP)

    def await_log(self, text: str) -> None:
        """Return once a line of the log holds `text`; AssertionError when it ends before."""
        with self._logged:
            self._logged.wait_for(lambda: self._has_ended or text in self.log_text)
        assert text in self.log_text, self.log_text

    def pause(self) -> None:
        """The process stands still, its sockets stay open; `resume` ends that."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def _end(self, number: signal.Signals, timeout_s: float | None = None) -> int:
        self.process.send_signal(number)
        status = self.process.wait(timeout_s)
        self._reader.join()
        return status

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stderr:
            for line in stderr:
                with self._logged:
                    self.log_lines.append(line)
                    self._logged.notify_all()
                found = _SERVES.search(line)
                if found:
                    self.bootstrap_servers = found[1].decode()
                    self._ready.set()
        self.process.wait()
        with self._logged:
            self._has_ended = True
            self._logged.notify_all()
        self._ready.set()
