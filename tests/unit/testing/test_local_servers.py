"""Free ports for servers of tests."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from isotherm.testing import local_servers
from isotherm.testing.local_servers import free_ports

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_ports_can_be_bound_all_at_once() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    with contextlib.ExitStack() as stack:
        for port in ports:
            stack.enter_context(socket.create_server(("127.0.0.1", port)))


@pytest.mark.skipif(not EPHEMERAL.exists(), reason="Linux tells the range")
def test_no_outgoing_connection_gets_such_a_port() -> None:
    first, last = map(int, EPHEMERAL.read_text(encoding="ascii").split())
    assert not set(free_ports(20)) & set(range(first, last + 1))


def test_taken_ports_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    (free,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(local_servers, "_PORTS", [taken.getsockname()[1], free])
        assert {free_ports(1)[0] for _ in range(20)} == {free}
        with pytest.raises(OSError, match="too few ports are free count=2"):
            free_ports(2)
