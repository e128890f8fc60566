"""Network faults for tests: toxiproxy between a client and a server on this machine.

`scripts/toxiproxy.sh install` builds it from the Go module proxy. Tests skip without it.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from isotherm.testing.local_servers import find_binary, free_ports

_PROXY = "upstream"
_START_POLLS = 1200
_POLL_S = 0.05


def find_toxiproxy() -> Path | None:
    return find_binary("toxiproxy-server", "TOXIPROXY")


class Toxiproxy:
    """Passes connections to `port` on to `upstream_port` while the `with` block runs.

    With more `names` than one there is a proxy of each name, at `ports`; all lead there.
    """

    def __init__(self, binary: Path, upstream_port: int, names: Sequence[str] = (_PROXY,)) -> None:
        self._api_port, *ports = free_ports(1 + len(names))
        self.port = ports[0]
        self.ports = dict(zip(names, ports, strict=True))
        self.url = f"http://127.0.0.1:{self._api_port}"
        self._upstream_port = upstream_port
        self._command = [str(binary), "-host", "127.0.0.1", "-port", str(self._api_port)]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        proxies = [
            {
                "name": name,
                "listen": f"127.0.0.1:{port}",
                "upstream": f"127.0.0.1:{self._upstream_port}",
                "enabled": True,
            }
            for name, port in self.ports.items()
        ]
        for _ in range(_START_POLLS):
            with contextlib.suppress(OSError):
                self._call("POST", "/populate", proxies)
                return self
            threading.Event().wait(_POLL_S)
        raise TimeoutError(f"toxiproxy did not start port={self._api_port}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    @contextlib.contextmanager
    def toxic(self, kind: str, stream: str = "downstream", **attributes: int) -> Iterator[None]:
        """Apply a toxic of toxiproxy during a `with` block; `down` refuses connections."""
        if kind == "down":
            self._call("POST", f"/proxies/{_PROXY}", {"enabled": False})
            yield
            self._call("POST", f"/proxies/{_PROXY}", {"enabled": True})
            return
        toxic = {"name": kind, "type": kind, "stream": stream, "attributes": attributes}
        self._call("POST", f"/proxies/{_PROXY}/toxics", toxic)
        yield
        self._call("DELETE", f"/proxies/{_PROXY}/toxics/{kind}", None)

    def _call(self, method: str, path: str, body: Any) -> None:
        request = urllib.request.Request(
            f"{self.url}{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            answer.read()
