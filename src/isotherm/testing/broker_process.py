"""Runs `isotherm serve` in its own process, which a test can kill, pause and restart."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from isotherm.testing.embedded_broker import TEST_SETTINGS

ISOTHERM = ("-m", "isotherm.cli.main")
"""The arguments of the interpreter that come before those of `isotherm`."""

_SERVES = re.compile(rb"broker serves .*listeners=[A-Z_]+://([^,\s]+)")


class BrokerDiedError(AssertionError):
    """A broker ended before it served requests. `log_lines` is its whole log."""

    def __init__(self, log_lines: list[bytes]) -> None:
        super().__init__(f"the broker did not start:\n{b''.join(log_lines).decode()}")
        self.log_lines = log_lines


class BrokerProcess:
    """A broker in its own process, from construction until `kill` or `stop`. The constructor waits
    until clients can connect."""

    bootstrap_servers: str

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str],
        *,
        config: Path | None = None,
        program: Sequence[str] = ISOTHERM,
        presets: Mapping[str, str] = TEST_SETTINGS,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`settings` override `presets`. Both override the file `config` and the KAFKA_* variables
        of `environment`. Raises BrokerDiedError if it does not start."""
        texts = {**presets, **settings}
        self.process = subprocess.Popen(  # noqa: S603 - this interpreter, our own module
            [sys.executable, *program, "serve", "--data-dir", str(directory)]
            + (["--config", str(config)] if config else [])
            + [item for key, value in texts.items() for item in ("--override", f"{key}={value}")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, **(environment or {}), "PYTHONUNBUFFERED": "1"},
        )
        self.log_lines: list[bytes] = []
        self._logged = threading.Condition()
        self._has_ended = False
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        self._ready.wait()
        if self.process.poll() is not None:
            self._reader.join()
            raise BrokerDiedError(self.log_lines)

    @property
    def log_text(self) -> str:
        return b"".join(self.log_lines).decode()

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self, timeout_s: float | None = None) -> int:
        """Stop the broker in order, and return its exit status.

        Raises TimeoutExpired after the timeout.
        """
        return self._end(signal.SIGTERM, timeout_s)

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended by itself. Its log is then complete."""
        if self.process.poll() is None:
            return False
        self._reader.join()
        return True

    def reload(self) -> None:
        """Make the broker read its configuration again. A line of its log confirms that."""
        self.process.send_signal(signal.SIGHUP)

    def await_log(self, text: str) -> None:
        """Wait for a line of the log with `text`. Raises AssertionError if the broker ends
        first."""
        with self._logged:
            self._logged.wait_for(lambda: self._has_ended or text in self.log_text)
        assert text in self.log_text, self.log_text

    def pause(self) -> None:
        """Suspend the process until `resume`. Its sockets stay open."""
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
                match = _SERVES.search(line)
                if match:
                    self.bootstrap_servers = match[1].decode()
                    self._ready.set()
        self.process.wait()
        with self._logged:
            self._has_ended = True
            self._logged.notify_all()
        self._ready.set()
