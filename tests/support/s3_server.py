"""Runs a real S3 server for tests: versitygw, which keeps its buckets in a folder.

`scripts/s3-server.sh install` builds it from the Go module proxy. Tests skip without it.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from isotherm.clock import SystemClock
from isotherm.testing.local_servers import find_binary, free_ports

BUCKET = "isotherm"
ACCESS_KEY = "isotherm"
SECRET_KEY = "isotherm-secret"
START_TIMEOUT_S = 300
_POLL_S = 0.05


def find_versitygw() -> Path | None:
    return find_binary("versitygw", "VERSITYGW")


class S3Server:
    """A server that runs within the `with` block, on a free port, over `folder` with one empty
    bucket.
    """

    def __init__(
        self,
        binary: Path,
        folder: Path,
        *,
        access_log: Path | None = None,
        certificate: Path | None = None,
        keep_alive: bool = True,
    ) -> None:
        """`access_log` gets a line for each request. With `certificate`, a file with key and chain,
        the server uses https only. Without `keep_alive` each request has its own connection.
        Arrow's client needs that: on a persistent connection this server sometimes refuses how it
        completes an upload."""
        self._scheme = "http" if certificate is None else "https"
        self.bucket_folder = folder / BUCKET
        self.bucket_folder.mkdir(parents=True)
        self._log_path = folder.parent / f"{folder.name}.log"
        (self.port,) = free_ports(1)
        self._command = [
            str(binary),
            *("--access", ACCESS_KEY, "--secret", SECRET_KEY),
            *("--port", f"127.0.0.1:{self.port}", "--quiet"),
            *(("--keep-alive",) if keep_alive else ()),
            *(
                ()
                if certificate is None
                else ("--cert", str(certificate), "--key", str(certificate))
            ),
            *(() if access_log is None else ("--access-log", str(access_log))),
            *("posix", str(folder)),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def config(self) -> dict[str, str]:
        """The `rsm.config.` keys for this server, without the prefix, and without a path in the
        URL.
        """
        return {
            "url": f"s3://{BUCKET}",
            "s3.endpoint.url": f"{self._scheme}://127.0.0.1:{self.port}",
            "s3.region": "us-east-1",
            "aws.access.key.id": ACCESS_KEY,
            "aws.secret.access.key": SECRET_KEY,
        }

    def __enter__(self) -> Self:
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        self._await_port(self._process)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(START_TIMEOUT_S)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Suspend the server: within the block no request is answered, after it all waiting
        requests are.
        """
        assert self._process is not None, "it runs while its with block does"
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def _await_port(self, process: subprocess.Popen[bytes]) -> None:
        clock = SystemClock()
        deadline_s = clock.monotonic_s() + START_TIMEOUT_S
        while not _answers(self.port):
            if process.poll() is not None or clock.monotonic_s() > deadline_s:
                process.kill()
                process.wait()
                raise TimeoutError(
                    f"s3 server did not start port={self.port} log={self._log_path.read_text()!r}"
                )
            clock.wait(threading.Event(), _POLL_S)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
