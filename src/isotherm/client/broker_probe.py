"""Checks whether a Kafka broker answers at an address and lets the client in, before creating one.

librdkafka retries forever and logs every attempt. A probe names the cause at once if something
answers: the name, the port, TLS, a certificate, the login, or another service at that port. Silence
is no cause: a broker may be busy and a network slow, so it is waited for (docs/decisions/0201). The
probe needs only a socket, so Spark's executors can use it as well.
"""

from __future__ import annotations

import logging
import queue
import secrets
import socket
import ssl
import struct
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from isotherm.client.node_address import NodeAddress, bootstrap_addresses
from isotherm.client.node_security import NodeSecurity, probe_security
from isotherm.client.tls_contexts import unverified_context
from isotherm.client.tls_stream import Stream, TlsStream, receive
from isotherm.clock import SystemClock
from isotherm.config.client_security import SECURITY_PROTOCOL
from isotherm.errors import BrokerUnreachableError, ConfigError, SaslAuthenticationError

logger = logging.getLogger(__name__)

PATIENCE = "socket.connection.setup.timeout.ms"
"""The client property, of Kafka and of librdkafka, that says how long a silent broker is waited
for.
"""
PATIENCE_S = 30.0
"""librdkafka's default for it. For all addresses together: they are tried at the same time."""
NOTICE_S = 5.0
"""After this time a line says what is waited for. Once a broker has refused the login, the others,
which have the same logins, are waited for no longer."""

QUIET_CLIENT: dict[str, Any] = {"log_level": 2}
"""Client properties that suppress the log line of each connection attempt. Errors still arrive."""

_SERVERS_KEYS = ("bootstrap.servers", "metadata.broker.list")
_CORRELATION_ID = 0x150
# ApiVersions, version 0: brokers answer it before anything else, in any version.
_REQUEST = struct.pack(">hhih", 18, 0, _CORRELATION_ID, -1)
# Metadata of no topic, version 1.
_METADATA_KEY = 3
_METADATA_REQUEST = struct.pack(">hhihi", _METADATA_KEY, 1, _CORRELATION_ID, -1, 0)
_SIZE = struct.Struct(">i")
# The answer has size, correlation id, error code and count; then key and versions of each API.
_API_VERSIONS_START = 14
_API = struct.Struct(">hhh")
_ANSWER_SIZE_MAX = 1024 * 1024
# First byte of a TLS record that is an alert (0x15) or a handshake (0x16).
_TLS_FIRST_BYTES = (0x15, 0x16)


def check_brokers(
    properties: Mapping[str, Any],
    *,
    timeout_s: float | None = None,
    notice_s: float = NOTICE_S,
) -> None:
    """Return once a broker at one of the addresses in a client's properties lets the client in.

    `timeout_s` is PATIENCE of the properties unless given. Raises BrokerUnreachableError with each
    address and its cause, SaslAuthenticationError if the cause is the login, and ConfigError for an
    invalid address or contradictory properties.
    """
    text = next((str(properties[key]) for key in _SERVERS_KEYS if key in properties), None)
    if text is None:
        # The client may find its brokers by a callback instead.
        return
    addresses = bootstrap_addresses(text)
    security = probe_security(properties)
    # With a mechanism that only librdkafka has, the login is not probed.
    with_sasl = str(properties.get(SECURITY_PROTOCOL, "")).upper().startswith("SASL")
    if timeout_s is None:
        timeout_s = _patience_s(properties)
    answers: queue.Queue[tuple[NodeAddress, _Cause | None]] = queue.Queue()

    def ask(address: NodeAddress) -> None:
        answers.put((address, _cause(address, timeout_s, security, with_sasl=with_sasl)))

    for address in addresses:
        # A daemon: a silent name server blocks the thread for longer than the timeout.
        threading.Thread(target=ask, args=(address,), daemon=True, name="broker-probe").start()
    causes = _causes(addresses, answers, timeout_s, notice_s)
    if causes is None:
        return
    summary = "; ".join(f"{address}: {cause.text}" for address, cause in causes.items())
    if any(cause.is_login for cause in causes.values()):
        raise SaslAuthenticationError(f"no broker accepts the client at {summary}")
    raise BrokerUnreachableError(f"no broker is reachable at {summary}")


def _patience_s(properties: Mapping[str, Any]) -> float:
    text = properties.get(PATIENCE)
    if text is None:
        return PATIENCE_S
    try:
        return int(text) / 1000
    except ValueError:
        raise ConfigError(f"not a whole number key={PATIENCE} value={text!r}") from None


class _Cause(NamedTuple):
    text: str
    is_login: bool = False


def _causes(
    addresses: Sequence[NodeAddress],
    answers: queue.Queue[tuple[NodeAddress, _Cause | None]],
    timeout_s: float,
    notice_s: float,
) -> dict[NodeAddress, _Cause] | None:
    """The cause at each address; None once a broker lets the client in."""
    clock = SystemClock()
    start_s = clock.monotonic_s()
    causes: dict[NodeAddress, _Cause] = {}
    notice_s = min(notice_s, timeout_s)
    is_noticed = notice_s == timeout_s
    end_s = start_s + timeout_s
    while len(causes) < len(set(addresses)):
        is_refused = any(cause.is_login for cause in causes.values())
        end_s = start_s + (timeout_s if is_noticed and not is_refused else notice_s)
        try:
            address, cause = answers.get(timeout=max(0.0, end_s - clock.monotonic_s()))
        except queue.Empty:
            if is_noticed or is_refused:
                break
            is_noticed = True
            silent = ",".join(
                str(node_address) for node_address in addresses if node_address not in causes
            )
            logger.warning(
                "no broker has answered yet, still waiting addresses=%s waited_s=%g timeout_s=%g"
                " key=%s",
                *(silent, notice_s, timeout_s, PATIENCE),
            )
            continue
        if cause is None:
            return None
        causes[address] = cause
    silence = _Cause(f"no answer in {end_s - start_s:g} s")
    return {node_address: causes.get(node_address, silence) for node_address in addresses}


def _cause(
    address: NodeAddress, timeout_s: float, security: NodeSecurity, *, with_sasl: bool
) -> _Cause | None:
    """Why no broker at an address lets the client in; None if one does."""
    try:
        with socket.create_connection(address, timeout_s) as connection:
            stream: Stream = connection
            if security.tls is None:
                answer = _answer_in_plain(connection, address)
            else:
                stream = secured = TlsStream(connection, security.tls, address.host)
                answer = _answer_with_tls(secured)
            if isinstance(answer, str):
                return _Cause(answer)
            if not with_sasl:
                return _cause_of_no_login(stream, answer, security)
            return _cause_of_login(stream, security)
    except socket.gaierror as error:
        return _Cause(f"no such host ({error.strerror})")
    except ConnectionRefusedError:
        return _Cause("connection refused: nothing listens there")
    except TimeoutError:
        return _Cause(f"no answer in {timeout_s:g} s")
    except OSError as error:
        return _Cause(error.strerror or type(error).__name__)


def _cause_of_login(stream: Stream, security: NodeSecurity) -> _Cause | None:
    if security.login is None:
        return None
    # The codecs of requests are loaded only for logins: most executors do not need them.
    from isotherm.client.requests import ask
    from isotherm.client.sasl_login import log_in
    from isotherm.protocol.errors import ProtocolError

    try:
        log_in(security.login, lambda frame: ask(stream, frame), secrets.token_hex)
    except SaslAuthenticationError as error:
        return _Cause(str(error), is_login=True)
    except TimeoutError:
        raise
    except (OSError, ProtocolError):
        # A broker without SASL at this port answers like this.
        protocol = "SASL_PLAINTEXT" if security.tls is None else "SASL_SSL"
        return _Cause(f"no login there: it is not {protocol}", is_login=True)
    return None


def _cause_of_no_login(stream: Stream, versions: bytes, security: NodeSecurity) -> _Cause | None:
    """The cause if the broker expects a login. Such a broker answers ApiVersions before it, and
    closes the connection at any other request."""
    apis = versions[_API_VERSIONS_START:]
    served = _API.iter_unpack(apis[: len(apis) // _API.size * _API.size])
    if not any(key == _METADATA_KEY and low <= 1 <= high for key, low, high in served):
        return None
    try:
        stream.sendall(_SIZE.pack(len(_METADATA_REQUEST)) + _METADATA_REQUEST)
        if receive(stream, _SIZE.size):
            return None
    except ConnectionError:
        pass
    protocol = "SASL_PLAINTEXT" if security.tls is None else "SASL_SSL"
    text = f"a login is expected there: set security.protocol={protocol}"
    return _Cause(text, is_login=True)


def _answer_in_plain(connection: socket.socket, address: NodeAddress) -> bytes | str:
    """The broker's answer as bytes, or the reason as text why there is none."""
    try:
        head = _api_versions_answer(connection)
    except ConnectionError:
        head = b""
    if _is_kafka(head):
        return head
    if head[:1] and head[0] in _TLS_FIRST_BYTES:
        return _TLS_EXPECTED
    if not head and _speaks_tls(address, connection.gettimeout()):
        return _TLS_EXPECTED
    return f"not Kafka: it answers {head!r}" if head else "not Kafka: it closes the connection"


def _api_versions_answer(stream: Stream) -> bytes:
    """The answer to ApiVersions: all of it if it is Kafka's, otherwise its first bytes."""
    stream.sendall(_SIZE.pack(len(_REQUEST)) + _REQUEST)
    head = receive(stream, _SIZE.size + 4)
    if _is_kafka(head):
        head += receive(stream, _SIZE.unpack_from(head)[0] - 4)
    return head


def _is_kafka(head: bytes) -> bool:
    if len(head) < _SIZE.size + 4:
        return False
    size, correlation_id = struct.unpack_from(">ii", head)
    return correlation_id == _CORRELATION_ID and bool(6 <= size <= _ANSWER_SIZE_MAX)


_TLS_EXPECTED = "TLS expected: set security.protocol=SSL (or SASL_SSL)"


def _speaks_tls(address: NodeAddress, timeout_s: float | None) -> bool:
    try:
        with socket.create_connection(address, timeout_s) as connection:
            TlsStream(connection, unverified_context(), address.host).handshake()
    except ssl.SSLError as error:
        # The server has answered in TLS, even if it refuses the handshake.
        return error.reason not in _NOT_TLS
    except OSError:
        return False
    return True


_NOT_TLS = ("WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "RECORD_LAYER_FAILURE")
_CERTIFICATE_EXPECTED = "CERTIFICATE_REQUIRED"
_CLIENTS_CERTIFICATE = "a certificate of the client: set ssl.keystore.location"
# The alert with the reason may be lost with the connection.
_CLOSED_AFTER_TLS = (
    "it closes the connection after the TLS handshake, perhaps because it requires"
    f" {_CLIENTS_CERTIFICATE}"
)


def _answer_with_tls(stream: TlsStream) -> bytes | str:
    """The broker's answer as bytes, or the reason as text why there is none."""
    try:
        stream.handshake()
    except ssl.SSLError as error:
        return _cause_of_tls(error)
    except ConnectionError:
        return "not TLS: it closes the connection"
    try:
        head = _api_versions_answer(stream)
    except ssl.SSLError as error:
        # With TLS 1.3 a client's certificate is refused after the handshake.
        return _cause_of_tls(error)
    except ConnectionError:
        head = b""
    if _is_kafka(head):
        return head
    if head:
        return f"not Kafka: it answers {head!r}"
    return _CLOSED_AFTER_TLS


def _cause_of_tls(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    reason = error.reason or type(error).__name__
    if reason in _NOT_TLS:
        return "not TLS: plain text is expected there, set security.protocol accordingly"
    if reason.endswith(_CERTIFICATE_EXPECTED):
        return f"it asks for {_CLIENTS_CERTIFICATE}"
    return f"TLS is refused: {reason.replace('_', ' ').lower()}"
