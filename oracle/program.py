"""A process beside a broker that a test may kill and start again."""

from __future__ import annotations

import subprocess
from pathlib import Path

LINES_SHOWN = 60


class Program:
    """A process that runs from construction to its end or `kill`. Its output goes to `log_path`."""

    def __init__(self, command: list[str], log_path: Path) -> None:
        self.log_path = log_path
        self._command = command
        self.start()

    def start(self) -> None:
        """Start the process again after its end; the log is continued."""
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT
            )

    def require_running(self) -> None:
        """AssertionError with the end of the log if the process has ended by itself."""
        status = self._process.poll()
        assert status is None, f"the program has ended: exit={status}\n{self.log_end()}"

    @property
    def has_succeeded(self) -> bool:
        """Whether the process has ended with status 0."""
        return self._process.poll() == 0

    def end_input(self, timeout_s: float) -> None:
        """Close its standard input and wait for its end; TimeoutExpired if it keeps running."""
        self._close_input()
        self._process.wait(timeout_s)

    def terminate(self, timeout_s: float) -> None:
        """Send SIGTERM and wait for its end; TimeoutExpired if it keeps running."""
        self._process.terminate()
        self._process.wait(timeout_s)

    def kill(self) -> None:
        """Send SIGKILL; harmless if it has ended."""
        self._process.kill()
        self._process.wait()
        self._close_input()

    def _close_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def log_end(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()
        return "\n".join(lines[-LINES_SHOWN:])
