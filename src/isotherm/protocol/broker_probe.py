"""Checks whether a Kafka broker answers at an address, on a plain socket, before creating a client.

librdkafka retries forever and logs every attempt. A probe finds the cause within seconds: the name,
the port, TLS, or another service at that port. It needs only a socket, so Spark's executors can use
it as well.
"""

from __future__ import annotations

import contextlib
import queue
import re
import socket
import ssl
import struct
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from isotherm.clock import SystemClock
from isotherm.errors import BrokerUnreachableError, ConfigError

PROBE_TIMEOUT_S = 4.0
"""Timeout for all addresses together. They are tried at the same time."""

QUIET_CLIENT: dict[str, Any] = {"log_level": 2}
"""Client properties that suppress the log line of each connection attempt. Errors still arrive."""

_DEFAULT_PORT = 9092
_ADDRESS = re.compile(
    r"(?:\w+://)?(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\[\]:/,\s]+)(?::(?P<port>\d+))?"
)
_SERVERS_KEYS = ("bootstrap.servers", "metadata.broker.list")
_CORRELATION_ID = 0x150
# ApiVersions, version 0: brokers answer it before anything else, in any version.
_REQUEST = struct.pack(">hhih", 18, 0, _CORRELATION_ID, -1)
_SIZE = struct.Struct(">i")
_ANSWER_SIZE_MAX = 1024 * 1024
# First byte of a TLS record that is an alert (0x15) or a handshake (0x16).
_TLS_FIRST_BYTES = (0x15, 0x16)


class BrokerAddress(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def bootstrap_addresses(text: str) -> list[BrokerAddress]:
    """Parse `host:port,host` as librdkafka does. Raises ConfigError for an invalid address."""
    found = [_address(part.strip()) for part in text.split(",") if part.strip()]
    if not found:
        raise ConfigError("no broker is named key=bootstrap.servers")
    return found


def _address(text: str) -> BrokerAddress:
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"not an address of a broker key=bootstrap.servers value={text!r} hint='host:9092'"
        )
    port = int(match["port"] or _DEFAULT_PORT)
    if not 1 <= port <= 65535:
        raise ConfigError(f"a port is 1 to 65535 key=bootstrap.servers value={text!r} port={port}")
    return BrokerAddress(match["host"].strip("[]"), port)


def check_brokers(properties: Mapping[str, Any], *, timeout_s: float = PROBE_TIMEOUT_S) -> None:
    """Return once one of the addresses in a client's properties answers like Kafka.

    Raises BrokerUnreachableError with each address and its cause, and ConfigError for an invalid
    address. Does not check credentials and certificates: the client does.
    """
    text = next((str(properties[key]) for key in _SERVERS_KEYS if key in properties), None)
    if text is None:
        # The client may find its brokers by a callback instead.
        return
    addresses = bootstrap_addresses(text)
    with_tls = str(properties.get("security.protocol", "plaintext")).lower().endswith("ssl")
    clock = SystemClock()
    deadline_s = clock.monotonic_s() + timeout_s
    answers: queue.Queue[tuple[BrokerAddress, str | None]] = queue.Queue()

    def ask(address: BrokerAddress) -> None:
        answers.put((address, _cause(address, timeout_s, with_tls=with_tls)))

    for address in addresses:
        # A daemon: a silent name server blocks the thread for longer than the timeout.
        threading.Thread(target=ask, args=(address,), daemon=True, name="broker-probe").start()
    causes = dict.fromkeys(addresses, f"no answer in {timeout_s:g} s")
    for _ in addresses:
        try:
            address, cause = answers.get(timeout=max(0.0, deadline_s - clock.monotonic_s()))
        except queue.Empty:
            break
        if cause is None:
            return
        causes[address] = cause
    summary = "; ".join(f"{address}: {cause}" for address, cause in causes.items())
    raise BrokerUnreachableError(f"no broker is reachable at {summary}")


def _cause(address: BrokerAddress, timeout_s: float, *, with_tls: bool) -> str | None:
    """Why no broker answers at an address; None if one does."""
    try:
        with socket.create_connection(address, timeout_s) as connection:
            return _cause_with_tls(connection) if with_tls else _cause_in_plain(connection, address)
    except socket.gaierror as error:
        return f"no such host ({error.strerror})"
    except ConnectionRefusedError:
        return "connection refused: nothing listens there"
    except TimeoutError:
        return f"no answer in {timeout_s:g} s"
    except OSError as error:
        return error.strerror or type(error).__name__


def _cause_in_plain(connection: socket.socket, address: BrokerAddress) -> str | None:
    try:
        connection.sendall(_SIZE.pack(len(_REQUEST)) + _REQUEST)
        head = _received(connection, _SIZE.size + 4)
    except ConnectionError:
        head = b""
    if len(head) == _SIZE.size + 4:
        size, correlation_id = struct.unpack(">ii", head)
        if 6 <= size <= _ANSWER_SIZE_MAX and correlation_id == _CORRELATION_ID:
            return None
    if head[:1] and head[0] in _TLS_FIRST_BYTES:
        return _TLS_EXPECTED
    if not head and _speaks_tls(address, connection.gettimeout()):
        return _TLS_EXPECTED
    return f"not Kafka: it answers {head!r}" if head else "not Kafka: it closes the connection"


_TLS_EXPECTED = "TLS expected: set security.protocol=SSL (or SASL_SSL)"


def _speaks_tls(address: BrokerAddress, timeout_s: float | None) -> bool:
    try:
        with socket.create_connection(address, timeout_s) as connection:
            _handshake(connection)
    except ssl.SSLError as error:
        # The server has answered in TLS, even if it refuses the handshake.
        return error.reason not in _NOT_TLS
    except OSError:
        return False
    return True


_NOT_TLS = ("WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "RECORD_LAYER_FAILURE")


_TLS_READ_SIZE = 16384


def _cause_with_tls(connection: socket.socket) -> str | None:
    try:
        _handshake(connection)
    except ssl.SSLError as error:
        if error.reason in _NOT_TLS:
            return "not TLS: plain text is expected there, set security.protocol accordingly"
    except ConnectionError:
        return "not TLS: it closes the connection"
    return None


def _handshake(connection: socket.socket) -> None:
    """Handshake without verifying the certificate: that is left to the client.

    Not by `wrap_socket`, which takes the connection away from its owner and leaves it open when it
    is reset before the handshake.
    """
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(received, to_send)
    has_ended = False
    while not has_ended:
        with contextlib.suppress(ssl.SSLWantReadError):
            session.do_handshake()
            has_ended = True
        connection.sendall(to_send.read())
        if not has_ended:
            data = connection.recv(_TLS_READ_SIZE)
            received.write(data) if data else received.write_eof()


def _received(connection: socket.socket, size: int) -> bytes:
    """Receive `size` bytes; fewer if the peer closes the connection."""
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            break
        data += piece
    return data
