"""The metrics endpoint: bounds on what a client that stops reading or sending can hold, the hosts
that it answers for, and failed logins. Socket timeouts are only guards."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from isotherm.broker.server.net import metrics_endpoint
from isotherm.broker.server.net.metrics_endpoint import MetricsEndpoint
from isotherm.config.broker import BrokerConfig
from isotherm.config.http_credentials import FAILURES_FREE
from isotherm.testing.sim_clock import SimClock

GUARD_S = 300
TEXT = bytes(32 * 1024 * 1024)
"""More than the buffers of both sockets hold."""


def test_response_that_is_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_endpoint, "REQUEST_TIMEOUT_S", 0.5)
    monkeypatch.setattr(metrics_endpoint, "generate_latest", lambda _: TEXT)
    assert asyncio.run(received_of_endpoint()) < len(TEXT)


async def received_of_endpoint() -> int:
    config = BrokerConfig(prometheus_listener="127.0.0.1:0")
    endpoint = MetricsEndpoint(CollectorRegistry(), config, SimClock())
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


def statuses(
    config: BrokerConfig, requests: Sequence[bytes], clock: SimClock | None = None
) -> list[bytes]:
    """The status of the answer to each request, in order."""

    async def scenario() -> list[bytes]:
        endpoint = MetricsEndpoint(CollectorRegistry(), config, clock or SimClock())
        await endpoint.start()
        try:
            return [(await answer(endpoint.port, request))[9:12] for request in requests]
        finally:
            await endpoint.stop()

    return asyncio.run(scenario())


async def answer(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await asyncio.wait_for(reader.read(), GUARD_S)
    finally:
        writer.close()


def host_request(host: str) -> bytes:
    return f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1")


OWN_HOSTS = (
    "localhost", "LOCALHOST:9404", "localhost.", "127.0.0.1", "127.0.0.1:9404", "10.1.2.3:80",
    "[::1]", "[::1]:9404", "broker-1.example", "Broker-1.Example:1", socket.gethostname(),
    "metrics.example:9404",
)  # fmt: skip
OTHER_HOSTS = (
    "evil.example", "evil.example:9404", "localhost.evil.example", "127.0.0.1.evil.example",
    "evil.example:80:80", "evil.example#localhost", "localhost@evil.example",
    "evil.example/localhost", "", ":9404", "[evil.example]", "[::1].evil.example",
    "xn--lcalhost-5ge", "127.0.0.1 evil.example", "evil.example, localhost", "*",
)  # fmt: skip
HOSTS_CONFIG = BrokerConfig(
    prometheus_listener="127.0.0.1:0",
    listeners=("PLAINTEXT://0.0.0.0:9092",),
    advertised_listeners=("PLAINTEXT://broker-1.example:9092",),
    prometheus_allowed_hosts=("Metrics.example",),
)


def test_metrics_are_for_own_hosts_alone() -> None:
    """Another one is that of a website whose name points here (DNS rebinding)."""
    assert statuses(HOSTS_CONFIG, [host_request(each) for each in OWN_HOSTS]) == [b"200"] * 12
    assert statuses(HOSTS_CONFIG, [host_request(each) for each in OTHER_HOSTS]) == [b"421"] * 16


def test_one_host_alone_is_named() -> None:
    twice = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nhost: evil.example\r\n\r\n"
    spaced = b"GET /metrics HTTP/1.1\r\nAccept: */*\r\nHOST :\tevil.example\r\nX: 1\r\n\r\n"
    without = b"GET /metrics HTTP/1.0\r\n\r\n"
    assert statuses(HOSTS_CONFIG, [twice, spaced, without]) == [b"421", b"421", b"200"]


def test_any_host_may_be_allowed() -> None:
    config = BrokerConfig(prometheus_listener="127.0.0.1:0", prometheus_allowed_hosts=("*",))
    assert statuses(config, [host_request("evil.example")]) == [b"200"]


def test_hosts_are_read_again() -> None:
    async def scenario() -> list[bytes]:
        config = BrokerConfig(prometheus_listener="127.0.0.1:0")
        endpoint = MetricsEndpoint(CollectorRegistry(), config, SimClock())
        await endpoint.start()
        try:
            before = await answer(endpoint.port, host_request("metrics.example"))
            await endpoint.renew(replace(config, prometheus_allowed_hosts=("metrics.example",)))
            return [before, await answer(endpoint.port, host_request("metrics.example"))]
        finally:
            await endpoint.stop()

    assert [each[9:12] for each in asyncio.run(scenario())] == [b"421", b"200"]


def test_failed_logins_of_metrics_are_followed_by_a_delay(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.touch(0o600)
    file.write_text("reader:right\n")
    config = BrokerConfig(prometheus_listener="127.0.0.1:0", prometheus_credentials_file=str(file))

    def login(password: str) -> bytes:
        token = base64.b64encode(f"reader:{password}".encode())
        return b"GET /metrics HTTP/1.1\r\nAuthorization: Basic " + token + b"\r\n\r\n"

    wrong = [login(f"{number}") for number in range(FAILURES_FREE + 3)]
    found = statuses(config, [*wrong, login("right")])
    assert found == [b"401"] * (FAILURES_FREE + 1) + [b"429"] * 3
    assert statuses(config, [login("right"), host_request("localhost")]) == [b"200", b"401"]


def test_health_and_metrics_have_a_page_each() -> None:
    paths = (b"/healthz", b"/metrics", b"/health")
    requests = [b"GET " + path + b" HTTP/1.1\r\n\r\n" for path in paths]
    config = BrokerConfig(prometheus_listener="127.0.0.1:0")
    assert statuses(config, requests) == [b"200", b"200", b"404"]
