"""A connection to a broker or controller: blocking, with one request in flight.

No ApiVersions request is sent: the caller knows the versions that the node serves, from the
cluster's metadata.version as Kafka's replica fetchers do, or by asking first. The first request,
and the first after each failure, opens the socket, so a connection survives restarts of the node.
Before a SASL session ends (`connections.max.reauth.ms` of the node) a new socket with a new session
replaces it. Source: Kafka NetworkClientUtils, BrokerBlockingSender.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import secrets
import socket
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from isotherm.client.access_tokens import TokenLogin
from isotherm.client.node_address import NodeAddress
from isotherm.client.node_security import PLAINTEXT, Login, NodeSecurity
from isotherm.client.requests import (
    EncodedRequest,
    ReceiveBuffer,
    ask,
    decode_response,
    encode_request,
    receive_response,
    send_request,
)
from isotherm.client.sasl_login import log_in
from isotherm.client.tls_stream import Stream, TlsStream
from isotherm.clock import Clock, SystemClock
from isotherm.errors import PeerDisconnectedError, PeerTimeoutError, SaslAuthenticationError
from isotherm.protocol.api_keys import ApiKey, VersionRange, api_name, request_class
from isotherm.protocol.errors import ProtocolError

_CORRELATION_IDS = 2**31
# The share of a session's lifetime after which a new session begins, well before the end as in
# Kafka's clients.
_SESSION_PART = 0.85


class _Opened(NamedTuple):
    """A socket, and the stream for requests on it: the socket itself, or TLS."""

    socket: socket.socket
    stream: Stream
    session_end_s: float


class _UntilDeadline:
    """The stream of a connection, with a time for all of a request's waits together."""

    def __init__(self, opened: _Opened, clock: Clock, timeout_s: float) -> None:
        self._opened = opened
        self._clock = clock
        self._deadline_s = clock.monotonic_s() + timeout_s
        self.has_received = False

    def sendall(self, data: bytes, /) -> None:
        self._opened.socket.settimeout(self._left_s())
        self._opened.stream.sendall(data)

    def recv_into(self, buffer: memoryview, /) -> int:
        self._opened.socket.settimeout(self._left_s())
        size = self._opened.stream.recv_into(buffer)
        self.has_received = True
        return size

    def _left_s(self) -> float:
        left_s = self._deadline_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise TimeoutError
        return left_s


class _Sent(NamedTuple):
    request: EncodedRequest
    correlation_id: int


class NodeConnection:
    """One thread at a time may make requests; any thread may call `close` and `interrupt` at any
    time.

    Requests raise PeerDisconnectedError or PeerTimeoutError. The socket is then closed, and the
    next request opens another one.
    """

    def __init__(
        self,
        address: NodeAddress,
        *,
        client_id: str,
        connect_timeout_s: float,
        request_timeout_s: float,
        response_bytes_max: int,
        security: NodeSecurity = PLAINTEXT,
        clock: Clock | None = None,
    ) -> None:
        """Opens nothing yet. A response above `response_bytes_max` bytes ends the connection.
        Opening includes the TLS handshake and the login; `connect_timeout_s` bounds each wait of
        them."""
        self.address = address
        self._client_id = client_id
        self._connect_timeout_s = connect_timeout_s
        self._request_timeout_s = request_timeout_s
        self._response_bytes_max = response_bytes_max
        self._security = security
        self._clock = clock or SystemClock()
        self._correlation_ids = itertools.count()
        self._opened: _Opened | None = None
        self._sent: _Sent | None = None
        self._socket: socket.socket | None = None
        self._is_in_use = False
        self._is_closed = False
        # The stream of an exchange that is under way.
        self._exchanging: _UntilDeadline | None = None
        self._is_interrupted = False
        self._guard = threading.Lock()  # guards the five fields above

    def send(self, request: Any) -> Any:
        """Send a kio entity and return the response. The entity's class determines the API and
        version. `request_timeout_s` bounds the whole exchange.
        """
        encoded = encode_request(request)
        return self._decoded(encoded, self.exchange(encoded))

    def exchange(
        self, request: EncodedRequest, *, buffer: ReceiveBuffer | None = None
    ) -> memoryview:
        """Like `send`, for an encoded request; returns the body of the response.

        The response lies in `buffer`, or without one in new memory, which the caller may keep.
        """
        assert self._sent is None, "one request is in flight at a time"
        with self._request_errors(f"api={api_name(request.api_key)}"), self._in_use():
            opened = self._ready()
            stream = _UntilDeadline(opened, self._clock, self._request_timeout_s)
            with self._guard:
                self._exchanging = stream
            sent = self._write(stream, request)
            return self._read(stream, sent, buffer or ReceiveBuffer())

    def open(self) -> None:
        """Connect now. Raises SaslAuthenticationError for a refused login, where a request raises
        PeerDisconnectedError."""
        with self._request_errors("step=connect"), self._in_use():
            self._open()

    def start(self, request: Any) -> None:
        """Send a kio entity, and return before the response, which `finish` returns.

        No other request may be made between the two. `request_timeout_s` bounds each wait of them,
        because large responses may take long.
        """
        assert self._sent is None, "one request is in flight at a time"
        encoded = encode_request(request)
        with self._request_errors(f"api={api_name(encoded.api_key)}"), self._in_use():
            opened = self._ready()
            opened.socket.settimeout(self._request_timeout_s)
            self._sent = self._write(opened.stream, encoded)

    def finish(self) -> Any:
        """The response to the started request. Its records lie in memory of their own."""
        assert self._sent is not None, "nothing was started"
        sent, self._sent = self._sent, None
        with self._request_errors(f"api={api_name(sent.request.api_key)}"), self._in_use():
            assert self._opened is not None, "the request was sent on it"
            body = self._read(self._opened.stream, sent, ReceiveBuffer())
        return self._decoded(sent.request, body.toreadonly())

    def close(self) -> None:
        """Close for good: a request in progress and every later one raise PeerDisconnectedError.
        Any thread.

        The resolution of a host name cannot be interrupted; a request in it ends after it.
        """
        with self._guard:
            self._is_closed = True
            if not self._is_in_use:
                self._drop_socket()
            elif self._socket is not None:
                # Only the user's thread closes the socket. If it were closed here, its file
                # descriptor could belong to another socket before that thread wakes up.
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def interrupt(self) -> bool:
        """End the exchange under way, which raises PeerDisconnectedError, unless its response has
        begun to arrive. Returns whether it was ended. The next request opens another socket.

        The exchange may return its response all the same, if that arrives at this moment. Any
        thread.
        """
        with self._guard:
            stream = self._exchanging
            if stream is None or stream.has_received or self._socket is None:
                return False
            self._is_interrupted = True
            # As in `close`, only the user's thread closes the socket.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            return True

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        """Mark the socket as in use.

        A failure closes it, since the position in the stream of frames is lost.
        """
        with self._guard:
            if self._is_closed:
                raise self._lost("this side has closed it")
            self._is_in_use = True
        has_failed = True
        try:
            yield
            has_failed = False
        finally:
            with self._guard:
                self._is_in_use = False
                self._exchanging = None
                if self._is_interrupted or has_failed or self._is_closed:
                    self._drop_socket()
                self._is_interrupted = False

    @contextlib.contextmanager
    def _request_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            raise PeerTimeoutError(
                f"a node does not answer in time peer={self.address} {what}"
            ) from error
        except OSError as error:
            raise self._lost(error.strerror or str(error) or type(error).__name__) from error
        except ProtocolError as error:
            raise self._malformed("header") from error

    def _write(self, stream: Stream, request: EncodedRequest) -> _Sent:
        correlation_id = next(self._correlation_ids) % _CORRELATION_IDS
        send_request(stream, request, correlation_id, self._client_id)
        return _Sent(request, correlation_id)

    def _read(self, stream: Stream, sent: _Sent, buffer: ReceiveBuffer) -> memoryview:
        return receive_response(stream, *sent, buffer, self._response_bytes_max)

    def _decoded(self, request: EncodedRequest, body: memoryview) -> Any:
        try:
            return decode_response(request.api_key, request.api_version, body)
        except ProtocolError as error:
            raise self._malformed(api_name(request.api_key)) from error

    def _ready(self) -> _Opened:
        try:
            return self._usable() or self._open()
        except SaslAuthenticationError as error:
            raise self._lost(str(error)) from error

    def _usable(self) -> _Opened | None:
        """The open socket, unless its session ends soon."""
        opened = self._opened
        # A failure drops the socket and leaves `_opened`.
        if opened is None or self._socket is None:
            return None
        return opened if self._clock.monotonic_s() < opened.session_end_s else None

    def _open(self) -> _Opened:
        connection = self._connected()
        stream: Stream = connection
        session_s = 0.0
        if self._security.tls is not None:
            stream = TlsStream(connection, self._security.tls, self.address.host)
            stream.handshake()
        if self._security.login is not None:
            session_s = self._logged_in(stream, self._security.login)
        end_s = self._clock.monotonic_s() + session_s * _SESSION_PART if session_s else math.inf
        self._opened = _Opened(connection, stream, end_s)
        return self._opened

    def _logged_in(self, stream: Stream, login: Login | TokenLogin) -> float:
        """Log in; returns the lifetime of the session in seconds, 0 if it does not end."""
        try:
            return log_in(login, lambda frame: ask(stream, frame), secrets.token_hex)
        except ProtocolError as error:
            raise self._malformed("login") from error

    def _connected(self) -> socket.socket:
        addresses = socket.getaddrinfo(*self.address, type=socket.SOCK_STREAM)
        failure: OSError | None = None
        # A host name may have several addresses, such as IPv6 and IPv4. The first that accepts is
        # used.
        for family, kind, protocol, _, address in addresses:
            candidate = self._new_socket(family, kind, protocol)
            try:
                candidate.settimeout(self._connect_timeout_s)
                candidate.connect(address)
                # One request is in flight at a time, so delaying a small one would only add
                # latency.
                candidate.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                failure = error
            else:
                return candidate
        raise failure or OSError("the host has no address")

    def _new_socket(self, family: int, kind: int, protocol: int) -> socket.socket:
        """A socket that is stored before it connects, so that `close` can also end the wait for the
        connection."""
        with self._guard:
            self._drop_socket()
            if self._is_closed:
                raise self._lost("this side has closed it")
            self._socket = socket.socket(family, kind, protocol)
            return self._socket

    def _drop_socket(self) -> None:
        """Close the socket. The caller holds the guard."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _malformed(self, what: str) -> PeerDisconnectedError:
        with self._guard:
            self._drop_socket()
        return self._lost(f"its response is malformed: {what}")

    def _lost(self, reason: str) -> PeerDisconnectedError:
        return PeerDisconnectedError(f"no connection peer={self.address} reason='{reason}'")


def served_versions(connection: NodeConnection) -> dict[int, VersionRange]:
    """The API versions that the node serves, by API key. Raises what `NodeConnection.send` does."""
    # Each broker and controller serves version 0.
    response = connection.send(request_class(ApiKey.API_VERSIONS, 0)())
    return {
        int(key.api_key): VersionRange(int(key.min_version), int(key.max_version))
        for key in response.api_keys
    }
