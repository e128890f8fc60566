"""Connections of a listener with TLS count in each limit from when they are accepted, before their
handshake."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import itertools
import logging
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from cryptography.hazmat.primitives.serialization import Encoding

from isotherm.broker.server.net import acceptor
from isotherm.broker.server.net.connection import Connection
from isotherm.broker.server.net.server import Server
from isotherm.clock import SystemClock
from isotherm.config.broker import BrokerConfig
from isotherm.config.listener_tls import listener_tls
from isotherm.config.server_properties import parse_broker_config
from tests.support.certificates import issue
from tests.support.conditions import until
from tests.support.tls_records import APPLICATION_DATA, HANDSHAKE, RecordingClient

# Ends a test that hangs. No assertion depends on it.
TIMEOUT_S = 300
# The beginning of a ClientHello.
BEGUN = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
SIZE_MAX = 65_536
# Of the loop, for what it does after a connection's end.
TURNS = 100
Run = Callable[[Callable[[], Awaitable[None]]], None]
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def run_scenario(scenario: Callable[[], Awaitable[None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(TIMEOUT_S):
                await scenario()

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(bounded())
        # A socket left open raises a ResourceWarning here, which fails the test.
        gc.collect()

    return run_scenario


@pytest.fixture(scope="module")
def keystore(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return issue("localhost").write_pem(tmp_path_factory.mktemp("keys") / "server.pem")


class Echo:
    def handle_frame(self, frame: memoryview, connection: Connection) -> list[bytes]:
        return [struct.pack(">i", len(frame)) + bytes(frame)]


def settings_of(keystore: Path, **settings: str) -> BrokerConfig:
    texts = {
        "listeners": "CLIENTS://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENTS:SSL",
        "inter.broker.listener.name": "CLIENTS",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        **{name.replace("_", "."): text for name, text in settings.items()},
    }
    return parse_broker_config(texts)


@contextlib.asynccontextmanager
async def serving(keystore: Path, **settings: str) -> AsyncIterator[tuple[Server, int]]:
    config = settings_of(keystore, **settings)
    server = Server(config, asyncio.get_running_loop(), SystemClock())
    (endpoint,) = await server.bind()
    await server.serve(Echo())
    try:
        yield server, endpoint.port
    finally:
        await server.stop(5)
        assert server.connection_count == 0


@contextlib.asynccontextmanager
async def connected(port: int, *, with_tls: bool = True) -> AsyncIterator[Stream]:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context if with_tls else None
    )
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


async def is_served(stream: Stream) -> bool:
    reader, writer = stream
    writer.write(struct.pack(">i", 5) + b"hello")
    try:
        return await reader.readexactly(9) == struct.pack(">i", 5) + b"hello"
    except (asyncio.IncompleteReadError, ConnectionError):
        return False


async def is_refused(port: int) -> bool:
    """Whether the broker closes a new connection before its handshake."""
    try:
        async with connected(port) as stream:
            return not await is_served(stream)
    except (ConnectionError, ssl.SSLError):
        return True


def test_unfinished_handshakes_count_in_the_limit_of_an_address(run: Run, keystore: Path) -> None:
    async def scenario() -> None:
        async with serving(keystore, max_connections_per_ip="2") as (server, port):
            async with connected(port) as served, connected(port, with_tls=False) as begun:
                begun[1].write(BEGUN)
                await until(lambda: server.connection_count == 2)
                assert await is_refused(port)
                assert await is_served(served)
            await until(lambda: server.connection_count == 0)
            async with connected(port) as room_again:
                assert await is_served(room_again)

    run(scenario)


@pytest.mark.parametrize("key", ["max.connections", "listener.name.clients.max.connections"])
def test_connection_waits_until_another_one_ends(run: Run, keystore: Path, key: str) -> None:
    async def scenario() -> None:
        async with serving(keystore, **{key: "2"}) as (server, port):
            async with (
                connected(port) as served,
                connected(port, with_tls=False) as begun,
                asyncio.TaskGroup() as group,
            ):
                begun[1].write(BEGUN)
                await until(lambda: server.connection_count == 2)
                waiting = [group.create_task(is_refused(port)) for _ in range(3)]
                for _ in range(20):
                    assert await is_served(served)
                assert server.connection_count == 2
                assert not any(task.done() for task in waiting)
                begun[1].close()
            assert not any([await task for task in waiting])
            await until(lambda: server.connection_count == 0)

    run(scenario)


def test_handshake_that_does_not_end_is_cut_and_no_longer_counted(
    run: Run, keystore: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(acceptor, "HANDSHAKE_TIMEOUT_S", 0.2)
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with serving(keystore) as (server, port), connected(port, with_tls=False) as stuck:
            stuck[1].write(BEGUN)
            await until(lambda: server.connection_count == 1)
            assert await stuck[0].read() == b""
            await until(lambda: server.connection_count == 0)

    run(scenario)
    assert (
        "connection failed while it was accepted client=127.0.0.1 listener=CLIENTS" in caplog.text
    )


def test_what_is_no_handshake_is_closed_and_no_longer_counted(run: Run, keystore: Path) -> None:
    async def scenario() -> None:
        async with serving(keystore) as (server, port):
            async with connected(port, with_tls=False) as plain:
                plain[1].write(b"GET / HTTP/1.1\r\n\r\n")
                await plain[0].read()
            async with connected(port, with_tls=False):
                await until(lambda: server.connection_count == 1)
            await until(lambda: server.connection_count == 0)

    run(scenario)


@pytest.mark.slow
def test_quota_of_new_connections_counts_handshakes(run: Run, keystore: Path) -> None:
    async def scenario() -> None:
        async with serving(keystore) as (server, port):
            quota = {(("ip", "127.0.0.1"),): {"connection_creation_rate": 1.0}}
            server.connection_quota.update({frozenset(each): v for each, v in quota.items()})
            # The rate is measured over 11 windows of one second.
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(12):
                    stream = await stack.enter_async_context(connected(port, with_tls=False))
                    stream[1].write(BEGUN)
                assert await is_refused(port)
                assert 0 < server.connection_count < 12

    run(scenario)


@pytest.mark.slow
def test_connection_above_the_rate_waits_for_its_turn(run: Run, keystore: Path) -> None:
    async def scenario() -> None:
        settings = {"max_connection_creation_rate": "20", "quota_window_num": "2"}
        async with (
            serving(keystore, **settings) as (server, port),
            contextlib.AsyncExitStack() as stack,
        ):
            for _ in range(20):
                stream = await stack.enter_async_context(connected(port, with_tls=False))
                stream[1].write(BEGUN)
            await until(lambda: server.connection_count == 20)
            async with connected(port) as late:
                assert server.connection_count == 21
                assert await is_served(late)

    run(scenario)


@pytest.mark.parametrize("limit", [{"max_connection_creation_rate": "0"}, {"max_connections": "0"}])
def test_stop_closes_those_that_wait_to_enter(
    run: Run, keystore: Path, limit: dict[str, str]
) -> None:
    async def scenario() -> None:
        async with serving(keystore, quota_window_size_seconds="36000", **limit) as (server, port):  # noqa: SIM117
            async with connected(port, with_tls=False) as first, connected(port, with_tls=False):
                first[1].write(b"no handshake, which would be closed as soon as it is read")
                # A renewed key does not replace the sockets: connections in the accept backlog stay
                # there.
                issue("localhost").write_pem(keystore)
                await server.renew_keys()
                for _ in range(20):
                    await asyncio.sleep(0)
                assert server.connection_count == 0
                await server.stop(5)
                with contextlib.suppress(ConnectionError):
                    assert await first[0].read() == b""

    run(scenario)


def test_higher_limit_lets_in_those_that_wait(run: Run, keystore: Path) -> None:
    async def scenario() -> None:
        async with (
            serving(keystore, max_connections="1") as (server, port),
            connected(port) as served,
            asyncio.TaskGroup() as group,
        ):
            waiting = group.create_task(is_refused(port))
            for _ in range(20):
                assert await is_served(served)
            assert not waiting.done()
            server.update_config(settings_of(keystore, max_connections="2"))
            assert not await waiting
            assert await is_served(served)

    run(scenario)


def test_stop_ends_handshakes(run: Run, keystore: Path) -> None:
    async def scenario() -> None:
        async with serving(keystore) as (server, port), connected(port, with_tls=False) as begun:
            begun[1].write(BEGUN)
            await until(lambda: server.connection_count == 1)
            await server.stop(5)
            with contextlib.suppress(ConnectionError):
                assert await begun[0].read() == b""

    run(scenario)


def test_renewed_key_is_for_new_connections_and_begun_handshakes_go_on(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "server.pem"
    first, second = issue("localhost"), issue("localhost")

    async def scenario() -> None:
        first.write_pem(path)
        async with serving(path) as (server, port):
            async with connected(port) as before, connected(port, with_tls=False) as begun:
                begun[1].write(BEGUN)
                await until(lambda: server.connection_count == 2)
                path.write_bytes(second.key_pem + second.certificate_pem)
                await server.renew_keys()
                for stream, issued in ((before, first), (None, second), (None, second)):
                    async with contextlib.AsyncExitStack() as stack:
                        used = stream or await stack.enter_async_context(connected(port))
                        shown = used[1].get_extra_info("ssl_object").getpeercert(binary_form=True)
                        assert shown == issued.certificate.public_bytes(Encoding.DER)
                        assert await is_served(used)
                await until(lambda: server.connection_count == 2)
            await until(lambda: server.connection_count == 0)

    run(scenario)


def test_listener_that_never_served_is_closed(run: Run, keystore: Path) -> None:
    async def scenario() -> None:
        server = Server(settings_of(keystore), asyncio.get_running_loop(), SystemClock())
        (endpoint,) = await server.bind()
        await server.stop(5)
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", endpoint.port)

    run(scenario)


def test_connections_wait_while_there_is_no_room_for_another(
    run: Run, keystore: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(acceptor, "_NO_ROOM_PAUSE_S", 0.1)
    accept = socket.socket.accept
    failures = 3

    def accept_later(self: socket.socket) -> tuple[socket.socket, object]:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(self)

    async def scenario() -> None:
        async with serving(keystore) as (_, port):
            monkeypatch.setattr(socket.socket, "accept", accept_later)
            async with connected(port) as stream:
                assert await is_served(stream)

    run(scenario)
    assert caplog.text.count("connections wait to be accepted listener=CLIENTS") == 3


def test_ended_connection_is_freed_without_the_collector(run: Run, keystore: Path) -> None:
    """The collector never visits what was in use during a full run of it (broker/garbage.py)."""

    def connections() -> int:
        return sum(type(each) is Connection for each in gc.get_objects())

    async def scenario() -> None:
        async with serving(keystore) as (server, port):
            async with connected(port) as stream:
                assert await is_served(stream)
                assert connections() == 1
            await until(lambda: server.connection_count == 0)
            for _ in range(TURNS):
                await asyncio.sleep(0)
            assert connections() == 0

    gc.collect()
    gc.disable()
    try:
        run(scenario)
    finally:
        gc.enable()


def test_second_handshake_ends_its_connection(run: Run, keystore: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            serving(keystore) as (server, port),
            connected(port, with_tls=False) as (reader, writer),
        ):
            client = RecordingClient(ssl.TLSVersion.TLSv1_2, tmp_path / "secrets")
            sent, has_ended = client.shake_hands(b"")
            while not has_ended:
                writer.write(sent)
                sent, has_ended = client.shake_hands(await reader.read(SIZE_MAX))
            records = client.records()
            writer.write(records.record(APPLICATION_DATA, struct.pack(">i", 5) + b"hello"))
            assert await reader.read(SIZE_MAX)
            writer.write(records.record(HANDSHAKE, client.hello))
            await until(lambda: server.connection_count == 0)

    run(scenario)


def test_second_handshake_is_refused_whatever_openssl_does_by_default(keystore: Path) -> None:
    config = settings_of(keystore)
    tls = listener_tls(config, config.listener_layout.brokers[0])
    assert tls is not None
    assert tls.context.options & ssl.OP_NO_RENEGOTIATION


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_several_clients_that_wait_are_accepted_in_one_turn_of_the_loop(
    run: Run, keystore: Path, protocol: str
) -> None:
    clients = 50

    async def scenario() -> None:
        settings = {"listener_security_protocol_map": f"CLIENTS:{protocol}"}
        if protocol == "PLAINTEXT":
            settings |= {"ssl_keystore_type": "JKS", "ssl_keystore_location": ""}
        async with serving(keystore, **settings) as (server, port):
            with contextlib.ExitStack() as stack:
                # The event loop does not run meanwhile, so all connections are in the accept
                # backlog.
                for _ in range(clients):
                    stack.enter_context(socket.create_connection(("127.0.0.1", port), TIMEOUT_S))
                counts = [0]
                while counts[-1] < clients:
                    await asyncio.sleep(0)
                    counts.append(server.connection_count)
                accepted = {after - before for before, after in itertools.pairwise(counts)}
                most = acceptor.HANDSHAKES_MAX if protocol == "SSL" else acceptor.ACCEPTS_MAX
                assert max(accepted) == most
            await until(lambda: server.connection_count == 0)

    run(scenario)


@pytest.mark.parametrize(
    ("protocol", "sent", "served"),
    [
        ("PLAINTEXT", b"", 0),
        # With acks=0 a client needs no answer.
        ("PLAINTEXT", struct.pack(">i", 5) + b"hello", 50),
        ("SASL_PLAINTEXT", b"", 0),
        # Until it is known that more come than are accepted.
        ("SASL_PLAINTEXT", struct.pack(">i", 5) + b"hello", acceptor.ACCEPTS_MAX),
        ("SSL", BEGUN, 0),
    ],
)
def test_clients_that_have_gone_are_let_go_before_they_cost_anything(
    run: Run, keystore: Path, protocol: str, sent: bytes, served: int
) -> None:
    gone = 50

    async def scenario() -> None:
        settings = {"listener_security_protocol_map": f"CLIENTS:{protocol}"}
        if not protocol.endswith("SSL"):
            settings |= {"ssl_keystore_type": "JKS", "ssl_keystore_location": ""}
        async with serving(keystore, **settings) as (server, port):
            entered = 0
            accepted = server.accepted

            def counted(*arguments: Any) -> None:
                nonlocal entered
                entered += 1
                accepted(*arguments)

            server.accepted = counted  # type: ignore[method-assign]
            # The event loop does not run meanwhile, so all connections are in the accept backlog.
            for _ in range(gone):
                with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as client:
                    client.sendall(sent)
            with socket.create_connection(("127.0.0.1", port), TIMEOUT_S):
                await until(lambda: server.connection_count == 1 and entered > 0)
            await until(lambda: server.connection_count == 0)
            assert entered == served + 1

    run(scenario)
