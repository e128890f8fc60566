"""What a probe finds at an address where no client can connect.

The interop tests cover Kafka's own answer to ApiVersions: every command there probes first.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import select
import socket
import ssl
import struct
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isotherm.client import broker_probe
from isotherm.client.broker_probe import check_brokers
from isotherm.client.node_address import NodeAddress, bootstrap_addresses
from isotherm.config.client_security import librdkafka_properties
from isotherm.errors import BrokerUnreachableError, ConfigError, SaslAuthenticationError
from isotherm.testing.local_servers import free_ports
from tests.support.certificates import issue

Answer = Callable[[socket.socket], None]


@contextlib.contextmanager
def server(answer: Answer) -> Iterator[int]:
    """Serve each connection in a thread with `answer`, until the block ends. Yields the port."""
    listening = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def serve() -> None:
        with contextlib.suppress(OSError):
            while not ended.is_set():
                connection, _ = listening.accept()
                with connection, contextlib.suppress(OSError):
                    answer(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        ended.set()
        # Closing a socket does not wake a thread in accept; a connection does.
        with contextlib.suppress(OSError):
            socket.create_connection(listening.getsockname(), 1).close()
        thread.join(300)
        listening.close()


def kafka(connection: socket.socket) -> None:
    head = connection.recv(4)
    if not head:
        # The connection that ends the server sends nothing.
        return
    request = connection.recv(struct.unpack(">i", head)[0])
    api_key, version, correlation_id = struct.unpack_from(">hhi", request)
    assert (api_key, version) == (18, 0)
    body = struct.pack(">ihi", correlation_id, 0, 0)
    connection.sendall(struct.pack(">i", len(body)) + body)


def web(connection: socket.socket) -> None:
    connection.recv(100)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def closing(connection: socket.socket) -> None:
    connection.recv(100)


def test_connection_that_is_reset_before_tls_begins_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect, connected = socket.create_connection, threading.Event()

    def connect_and_await_reset(*arguments: Any) -> socket.socket:
        connection = connect(*arguments)
        connected.set()
        select.select([connection], [], [], 120)
        return connection

    def reset(connection: socket.socket) -> None:
        connected.wait(300)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with server(reset) as port, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        monkeypatch.setattr(socket, "create_connection", connect_and_await_reset)
        properties = {"bootstrap.servers": f"127.0.0.1:{port}", "security.protocol": "ssl"}
        assert "not TLS: it closes the connection" in refusal(properties)
        monkeypatch.undo()
        # A socket left open warns when it is collected.
        gc.collect()
    assert [str(each.message) for each in warned] == []


def refusal(properties: dict[str, object], timeout_s: float = 120) -> str:
    with pytest.raises(BrokerUnreachableError) as refused:
        check_brokers(properties, timeout_s=timeout_s)
    return str(refused.value)


def test_broker_is_found_in_plain() -> None:
    with server(kafka) as port:
        check_brokers({"bootstrap.servers": f"127.0.0.1:{port}"})


def test_one_broker_of_several_is_enough() -> None:
    (dead,) = free_ports(1)
    with server(kafka) as port:
        check_brokers({"bootstrap.servers": f"127.0.0.1:{dead},127.0.0.1:{port}"})


def test_each_address_is_reported_with_its_cause() -> None:
    (dead,) = free_ports(1)
    with server(web) as port:
        text = refusal({"bootstrap.servers": f"127.0.0.1:{dead},127.0.0.1:{port},nowhere.invalid"})
    assert f"127.0.0.1:{dead}: connection refused" in text
    assert f"127.0.0.1:{port}: not Kafka: it answers b'HTTP/1.1'" in text
    assert "nowhere.invalid:9092: no such host" in text


def test_what_closes_the_connection_is_not_kafka() -> None:
    with server(closing) as port:
        text = refusal({"bootstrap.servers": f"127.0.0.1:{port}"})
    assert text.endswith("not Kafka: it closes the connection")


def test_silence_is_given_up() -> None:
    ended = threading.Event()
    with server(lambda _: ended.wait(300) and None) as port:
        text = refusal({"bootstrap.servers": f"127.0.0.1:{port}"}, timeout_s=0.2)
        ended.set()
    assert text.endswith(f"127.0.0.1:{port}: no answer in 0.2 s")


class Notices(logging.Handler):
    """The probe's lines. `has_come` is set by the first."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.has_come = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.has_come.set()


@pytest.fixture
def notices() -> Iterator[Notices]:
    handler = Notices()
    broker_probe.logger.addHandler(handler)
    yield handler
    broker_probe.logger.removeHandler(handler)


def after_the_notice(notices: Notices, answer: Answer) -> Answer:
    def late(connection: socket.socket) -> None:
        assert notices.has_come.wait(GUARD_S)
        answer(connection)

    return late


GUARD_S = 120


def test_slow_broker_is_no_dead_broker(notices: Notices, tmp_path: Path) -> None:
    """A busy machine: the broker answers only after the line that says what is waited for."""
    for answer, properties in (
        (kafka, lambda port: {"bootstrap.servers": f"127.0.0.1:{port}"}),
        (tls_server(kafka, tmp_path), with_tls),
    ):
        notices.has_come.clear()
        with server(after_the_notice(notices, answer)) as port:
            check_brokers(properties(port), timeout_s=GUARD_S, notice_s=0.05)
        assert f":{port} waited_s=0.05 timeout_s={GUARD_S}" in notices.lines[-1]
        assert "key=socket.connection.setup.timeout.ms" in notices.lines[-1]
    assert len(notices.lines) == 2


def test_slow_broker_is_waited_for_when_others_are_not_there(notices: Notices) -> None:
    (dead,) = free_ports(1)
    with server(after_the_notice(notices, kafka)) as port, server(web) as other:
        servers = f"127.0.0.1:{dead},nowhere.invalid,127.0.0.1:{other},127.0.0.1:{port}"
        check_brokers({"bootstrap.servers": servers}, timeout_s=GUARD_S, notice_s=0.05)
    (line,) = notices.lines
    assert f"127.0.0.1:{port}" in line


def test_what_answers_wrongly_is_refused_without_a_notice(notices: Notices, tmp_path: Path) -> None:
    """Each is decided by its answer: no time-out of the test or of the probe passes."""
    (dead,) = free_ports(1)
    with server(web) as port, server(tls_server(kafka, tmp_path)) as tls, server(kafka) as plain:
        for properties in (
            {"bootstrap.servers": f"127.0.0.1:{dead}"},
            {"bootstrap.servers": f"127.0.0.1:{port}"},
            {"bootstrap.servers": f"127.0.0.1:{tls}"},
            with_tls(port),
        ):
            with pytest.raises(BrokerUnreachableError):
                check_brokers(properties, timeout_s=3600, notice_s=3599)
        with pytest.raises(SaslAuthenticationError):
            check_brokers(with_login(plain), timeout_s=3600, notice_s=3599)
    assert notices.lines == []


def test_refused_login_does_not_wait_for_silent_brokers(notices: Notices) -> None:
    ended = threading.Event()
    with server(lambda _: ended.wait(GUARD_S) and None) as silent, server(kafka) as port:
        login = with_login(port) | {"bootstrap.servers": f"127.0.0.1:{silent},127.0.0.1:{port}"}
        with pytest.raises(SaslAuthenticationError, match=f":{silent}: no answer in 1 s"):
            check_brokers(login, timeout_s=3600, notice_s=1)
        ended.set()


@pytest.mark.parametrize(("value", "timeout_s"), [(None, 30.0), ("40000", 40.0), (45_000, 45.0)])
def test_patience_is_a_property_of_the_client(
    monkeypatch: pytest.MonkeyPatch, value: object, timeout_s: float
) -> None:
    given: list[float] = []

    def refuse(_: object, timeout: float) -> None:
        given.append(timeout)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refuse)
    properties: dict[str, object] = {"bootstrap.servers": "127.0.0.1:9"}
    if value is not None:
        properties["socket.connection.setup.timeout.ms"] = value
    with pytest.raises(BrokerUnreachableError):
        check_brokers(librdkafka_properties(properties))
    assert given == [timeout_s]


def test_patience_that_is_no_number_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"socket\.connection\.setup\.timeout\.ms value='soon'"):
        check_brokers({"bootstrap.servers": "a", "socket.connection.setup.timeout.ms": "soon"})


AUTHORITY = issue("authority")


def tls_server(answer: Answer, folder: Path, host: str = "localhost") -> Answer:
    """An answer behind TLS, with a certificate of AUTHORITY for `host`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issue("broker", AUTHORITY, host=host).write_pem(folder / "broker.pem"))

    def tls(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as wrapped:
            answer(wrapped)

    return tls


def with_tls(port: int, **others: str) -> dict[str, object]:
    trust = {"ssl.ca.pem": AUTHORITY.certificate_pem.decode()}
    return {"bootstrap.servers": f"localhost:{port}", "security.protocol": "ssl"} | trust | others


def test_listener_of_the_other_protocol_is_reported(tmp_path: Path) -> None:
    with server(tls_server(kafka, tmp_path)) as port:
        plain: dict[str, object] = {"bootstrap.servers": f"127.0.0.1:{port}"}
        assert "TLS expected: set security.protocol=SSL" in refusal(plain)
    with server(web) as port:
        assert "not TLS: plain text is expected" in refusal(with_tls(port))


def test_certificate_that_is_not_trusted_is_reported(tmp_path: Path) -> None:
    other = issue("other authority").certificate_pem.decode()
    with server(tls_server(kafka, tmp_path)) as port:
        check_brokers(with_tls(port))
        text = refusal(with_tls(port, **{"ssl.ca.pem": other}))
        assert f"localhost:{port}: its certificate is not trusted: " in text
    with server(tls_server(kafka, tmp_path, host="example.org")) as port:
        assert "Hostname mismatch" in refusal(with_tls(port))
        check_brokers(with_tls(port, **{"ssl.endpoint.identification.algorithm": ""}))


def test_what_closes_after_tls_and_what_is_not_kafka_is_reported(tmp_path: Path) -> None:
    with server(tls_server(closing, tmp_path)) as port:
        assert "closes the connection after the TLS handshake" in refusal(with_tls(port))
    with server(tls_server(web, tmp_path)) as port:
        assert "not Kafka: it answers b'HTTP/1.1'" in refusal(with_tls(port))


def with_login(port: int) -> dict[str, object]:
    return {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": "hunter2",
    }


def test_broker_without_the_login_is_reported() -> None:
    with (
        server(kafka) as port,
        pytest.raises(SaslAuthenticationError, match="it is not SASL_PLAINTEXT") as refused,
    ):
        check_brokers(with_login(port), timeout_s=120)
    assert f"127.0.0.1:{port}" in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a", [("a", 9092)]),
        ("a:1, b:2", [("a", 1), ("b", 2)]),
        ("PLAINTEXT://a:1", [("a", 1)]),
        ("[::1]:9093", [("::1", 9093)]),
    ],
)
def test_addresses_are_read_as_the_client_reads_them(
    text: str, addresses: list[tuple[str, int]]
) -> None:
    assert bootstrap_addresses(text) == [NodeAddress(*address) for address in addresses]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a:80000", "a port is 1 to 65535.*port=80000"),
        ("a:b", "not an address"),
        ("", "no broker is named"),
    ],
)
def test_what_is_no_address_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check_brokers({"bootstrap.servers": text})
