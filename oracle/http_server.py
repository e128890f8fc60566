"""Runs a server of another project until it answers by HTTP."""

from __future__ import annotations

import contextlib
import os
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from oracle.topics import wait_until


@contextlib.contextmanager
def http_server(
    command: Sequence[str],
    directory: Path,
    probe_url: str,
    name: str,
    start_timeout_s: float,
    environment: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Run a server while the `with` block runs, from the moment when `probe_url` answers. Its log
    is in `directory`. `environment` adds to this process's own."""
    log_path = directory / "server.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env={**os.environ, **(environment or {})},
            stdout=log,
            stderr=subprocess.STDOUT,
        )

        def is_up() -> bool:
            if process.poll() is not None:
                raise AssertionError(log_path.read_text()[-2000:])
            with contextlib.suppress(OSError), urllib.request.urlopen(probe_url, timeout=10):
                return True
            return False

        try:
            wait_until(is_up, name, start_timeout_s)
            yield
        finally:
            process.kill()
            process.wait()
