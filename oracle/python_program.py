"""A Python program on packages of its own, which may need others than the tests have."""

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
    """The interpreter of an environment with these requirements, made the first time.

    OracleUnavailableError when they cannot be installed.
    """
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    directory = CACHE_DIRECTORY / f"python-{requirements.stem}-{digest}"
    python = directory / "bin" / "python"
    if not (directory / "installed").exists():
        # An environment knows its own path, so it is made in place, and marked when it is whole.
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
    """Ends when its clients give up a broker that is away; a supervisor starts it again."""

    def __init__(self, python: Path, source: Path, *arguments: str, log_path: Path) -> None:
        super().__init__([str(python), str(source), *arguments], log_path)
        self.starts = 1

    def start_again_if_ended(self) -> None:
        """AssertionError with the end of its log when that has happened too often."""
        if self._process.poll() is not None:
            self.starts += 1
            assert self.starts <= STARTS_MAX, self.log_end()
            self._close_input()
            self.start()
