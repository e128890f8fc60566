"""A Python program in its own environment: its packages may conflict with those of the tests."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import venv
from pathlib import Path

from oracle.jars import CACHE_DIRECTORY, OracleUnavailableError
from oracle.program import Program

INSTALL_TIMEOUT_S = 600
STARTS_MAX = 100


def environment(requirements: Path) -> Path:
    """The interpreter of an environment with these requirements. The first call makes the
    environment.

    OracleUnavailableError if they cannot be installed.
    """
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    directory = CACHE_DIRECTORY / f"python-{requirements.stem}-{digest}"
    python = directory / "bin" / "python"
    if not (directory / "installed").exists():
        # An environment contains its own path, so it is made in place, and marked when it is
        # complete.
        shutil.rmtree(directory, ignore_errors=True)
        venv.create(directory, with_pip=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run(
            [*command, "-r", str(requirements)],
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_TIMEOUT_S,
        )
        if done.returncode != 0:
            raise OracleUnavailableError(f"{requirements.name} cannot be installed: {done.stderr}")
        (directory / "installed").touch()
    return python


class SupervisedPython(Program):
    """A program that ends when its clients give up an unreachable broker, and that a supervisor
    restarts.
    """

    def __init__(self, python: Path, source: Path, *arguments: str, log_path: Path) -> None:
        super().__init__([str(python), str(source), *arguments], log_path)
        self.starts = 1

    def start_again_if_ended(self) -> None:
        """Restart the program if it has ended.

        AssertionError with the end of its log after too many restarts.
        """
        if self._process.poll() is not None:
            self.starts += 1
            assert self.starts <= STARTS_MAX, self.log_end()
            self._close_input()
            self.start()
