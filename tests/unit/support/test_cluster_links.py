"""The proxies of the correctness run over a cluster: splits in one direction."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from isotherm.testing.local_servers import free_ports
from tests.support.cluster.links import Links

CLIENT, SERVER = 1, 2
# Ends a test that hangs. No assertion depends on it.
TIMEOUT_S = 300


class Ends(NamedTuple):
    """The two ends of one connection through a proxy."""

    links: Links
    client: socket.socket
    server: socket.socket


@pytest.fixture
def ends() -> Iterator[Ends]:
    (port,) = free_ports(1)
    with (
        Links() as links,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        links.proxy(port, SERVER, listener.getsockname()[1])
        # The pid is set after the connection, as for a broker that is starting.
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as client:
            server, _ = listener.accept()
            links.set_pid(CLIENT, os.getpid())
            server.settimeout(TIMEOUT_S)
            with server:
                yield Ends(links, client, server)


def test_what_is_held_passes_once_the_link_is_mended_and_the_other_way_all_the_time(
    ends: Ends,
) -> None:
    links, client, server = ends
    links.cut((CLIENT, SERVER))
    client.sendall(b"held")
    for _ in range(3):
        server.sendall(b"passes")
        assert client.recv(100) == b"passes"
    server.setblocking(False)
    with pytest.raises(BlockingIOError):
        server.recv(100)
    server.settimeout(TIMEOUT_S)
    links.mend((CLIENT, SERVER), reset=False)
    assert server.recv(100) == b"held"


def test_what_is_held_is_lost_with_its_connection(ends: Ends) -> None:
    links, client, server = ends
    links.cut((SERVER, CLIENT))
    server.sendall(b"held")
    client.sendall(b"passes")
    assert server.recv(100) == b"passes"
    links.mend((SERVER, CLIENT), reset=True)
    assert received(client) == b""
    assert received(server) == b""


def received(end: socket.socket) -> bytes:
    """The next bytes. Empty if the connection was closed or reset."""
    try:
        return end.recv(100)
    except ConnectionResetError:
        return b""


def test_other_links_are_not_cut(ends: Ends) -> None:
    links, client, server = ends
    links.cut((CLIENT, 3), (3, SERVER), (SERVER, 3))
    client.sendall(b"one way")
    assert server.recv(100) == b"one way"
    server.sendall(b"the other")
    assert client.recv(100) == b"the other"
