"""The binaries and ports of servers that tests start."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from pathlib import Path


def find_binary(name: str, variable: str) -> Path | None:
    """The file that an environment variable names, on the PATH, or in `.tools/bin` of the current
    folder."""
    candidates = (
        os.environ.get(variable),
        shutil.which(name),
        str(Path(".tools/bin", name).absolute()),
    )
    return next((Path(path) for path in candidates if path and Path(path).is_file()), None)


def free_ports(count: int) -> list[int]:
    """Free ports of the loopback interface, for servers that keep the same port."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
