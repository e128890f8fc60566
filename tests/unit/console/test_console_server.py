"""Bounds on what a client that stops reading or sending can hold of the console's server.

Deadlines are short here. Socket timeouts are only guards.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from isotherm.console.server import ConsoleProtocol
from isotherm.storage_view.cluster_storage import ClusterStorage
from tests.support.console_server import running_console
from tests.support.scripted_cluster import ScriptedCluster

# Ends a test that hangs. The server's own deadlines are those of `Impatient`.
GUARD_S = 300
HEAD = b"GET /api/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n"


class Impatient(ConsoleProtocol):
    """The console's protocol with short deadlines."""

    request_timeout_s = 0.2
    read_timeout_s = 0.2


class SlowCluster(ScriptedCluster):
    """A cluster whose state is read only when the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked = threading.Event()
        self.may_answer = threading.Event()

    def read(self) -> ClusterStorage:
        self.is_asked.set()
        assert self.may_answer.wait(GUARD_S)
        return super().read()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    cluster = ScriptedCluster()
    with running_console(lambda: cluster, protocol=Impatient) as running:
        yield running


@contextmanager
def connected(address: str, *, receive_bytes: int | None = None) -> Iterator[socket.socket]:
    place = urlsplit(address)
    assert place.hostname is not None
    with socket.socket() as connection:
        connection.settimeout(GUARD_S)
        if receive_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.connect((place.hostname, place.port))
        yield connection


def received(connection: socket.socket) -> bytes:
    """The next bytes. Empty if the server closed or reset the connection."""
    try:
        return connection.recv(65536)
    except ConnectionResetError:
        return b""


def is_cut(connection: socket.socket) -> bool:
    """Wait until the server closes the connection. False if it sends an answer."""
    return received(connection) == b""


@pytest.mark.parametrize("sent", [b"", b"G", HEAD], ids=["nothing", "a letter", "half a head"])
def test_connection_without_a_request_is_cut(address: str, sent: bytes) -> None:
    with connected(address) as connection:
        connection.sendall(sent)
        assert is_cut(connection)


def test_trickled_request_is_cut(address: str) -> None:
    """Each piece comes before the idle deadline, but the request never ends."""
    with connected(address) as connection:
        connection.settimeout(0.05)
        connection.sendall(HEAD)
        for number in range(GUARD_S * 20):
            try:
                connection.sendall(b"X-%d: 1\r\n" % number)
                if connection.recv(1) == b"":
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
        pytest.fail("it was never cut")


def test_body_that_never_ends_is_cut(address: str) -> None:
    with connected(address) as connection:
        connection.sendall(HEAD + b"Content-Length: 1000000\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 200"
        connection.sendall(b"x")  # the client keeps sending, so the connection is not idle
        while piece := received(connection):
            assert piece


def test_client_that_does_not_read_is_cut(address: str) -> None:
    """The client sends requests until the buffers of both sides are full."""
    with connected(address, receive_bytes=4096) as connection, pytest.raises(ConnectionError):
        connection.sendall((HEAD + b"\r\n") * 100_000)


def test_answer_may_take_longer_than_a_request() -> None:
    cluster = SlowCluster()
    with running_console(lambda: cluster, protocol=Impatient) as address:
        client = http.client.HTTPConnection(urlsplit(address).netloc, timeout=GUARD_S)
        client.request("GET", "/api/overview")
        assert cluster.is_asked.wait(GUARD_S)
        # Another connection's deadline, which starts now, passes while the first request waits.
        with connected(address) as other:
            assert is_cut(other)
        cluster.may_answer.set()
        assert client.getresponse().status == 200
        client.close()
