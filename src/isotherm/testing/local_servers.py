"""Finds the binaries and ports of servers that tests start."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
from pathlib import Path
from typing import Final

# These ports lie below those that systems give to outgoing connections and to port 0 (Linux from
# 32768, others from 49152). Such a port may be taken again at once, even by a client of the server
# that should get it.
_PORTS: Final = range(12_000, 32_000)
_DRAWS_MORE_MAX: Final = 100


def find_binary(name: str, variable: str) -> Path | None:
    """The binary that an environment variable names, or the one on the PATH, or in `.tools/bin` of
    the current folder. None if there is none."""
    candidates = (
        os.environ.get(variable),
        shutil.which(name),
        str(Path(".tools/bin", name).absolute()),
    )
    return next((Path(path) for path in candidates if path and Path(path).is_file()), None)


def free_ports(count: int) -> list[int]:
    """Free ports of the loopback interface, for servers that keep the same port.

    They stay free until a server binds them, unless another process draws the same one of 20,000.
    Raises OSError if most are taken.
    """
    # A caller's generator would not do: processes with the same seed must not draw the same ports.
    rng = random.SystemRandom()
    ports: list[int] = []
    with contextlib.ExitStack() as stack:
        for _ in range(count + _DRAWS_MORE_MAX):
            if len(ports) == count:
                return ports
            probe = stack.enter_context(socket.socket())
            port = rng.choice(_PORTS)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                ports.append(port)
    raise OSError(f"too few ports are free count={count} ports={_PORTS}")
