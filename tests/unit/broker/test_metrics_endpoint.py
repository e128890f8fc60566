"""Bounds on what a client that stops reading or sending can hold of the metrics endpoint. Socket
timeouts are only guards."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest
from prometheus_client import CollectorRegistry

from isotherm.broker.net import metrics_endpoint
from isotherm.broker.net.metrics_endpoint import MetricsEndpoint
from isotherm.config.broker import BrokerConfig

GUARD_S = 300
TEXT = bytes(32 * 1024 * 1024)
"""More than the buffers of both sockets hold."""


def test_response_that_is_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_endpoint, "REQUEST_TIMEOUT_S", 0.5)
    monkeypatch.setattr(metrics_endpoint, "generate_latest", lambda _: TEXT)
    assert asyncio.run(received_of_endpoint()) < len(TEXT)


async def received_of_endpoint() -> int:
    config = BrokerConfig(prometheus_listener="127.0.0.1:0")
    endpoint = MetricsEndpoint(CollectorRegistry(), config)
    await endpoint.start()
    try:
        return await asyncio.to_thread(received_late, endpoint.port)
    finally:
        await endpoint.stop()


def received_late(port: int) -> int:
    """The number of bytes of a client that reads on only after its request's timeout."""
    address = ("127.0.0.1", port)
    size = 0
    with (
        socket.create_connection(address, GUARD_S) as client,
        contextlib.suppress(ConnectionError),
    ):
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        size += len(client.recv(1))
        # A connection that sends nothing is closed at its own timeout. It connected later, so the
        # first one's timeout has passed by then.
        with socket.create_connection(address, GUARD_S) as silent:
            assert silent.recv(1) == b""
        while piece := client.recv(1024 * 1024):
            size += len(piece)
    return size
