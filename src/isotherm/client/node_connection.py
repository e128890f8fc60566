"""A connection to another node of the cluster: blocking, with one request in flight.

No ApiVersions request is sent: as for Kafka's replica fetchers, the cluster's metadata.version
determines the versions that every node serves. The first request, and the first after each failure,
opens the socket, so a connection survives restarts of the node. Before a SASL session ends
(`connections.max.reauth.ms` of the node) a new socket with a new session replaces it. Source: Kafka
NetworkClientUtils, BrokerBlockingSender.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import secrets
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from isotherm.client import node_exchange
from isotherm.client.access_tokens import TokenLogin
from isotherm.client.node_address import NodeAddress
from isotherm.client.node_security import PLAINTEXT, Login, NodeSecurity
from isotherm.client.sasl_login import log_in
from isotherm.client.tls_stream import Stream, TlsStream
from isotherm.clock import Clock, SystemClock
from isotherm.errors import PeerDisconnectedError, PeerTimeoutError, SaslAuthenticationError
from isotherm.protocol.api_keys import ApiKey, api_name, response_class
from isotherm.protocol.codec import decoder, encoder
from isotherm.protocol.errors import ProtocolError
from isotherm.protocol.framing import RequestHeader, read_response_frame, write_request_header

_SIZE = struct.Struct(">i")
_CORRELATION_ID_SIZE = 4
_CORRELATION_IDS = 2**31
# The share of a session's lifetime after which a new session begins, well before the end as in
# Kafka's clients.
_SESSION_PART = 0.85


class _Opened(NamedTuple):
    """A socket, and the stream for requests on it: the socket itself, or TLS."""

    socket: socket.socket
    stream: Stream
    session_end_s: float


class ReceiveBuffer:
    """Reused memory for responses, as large as the largest response so far. For one thread."""

    def __init__(self) -> None:
        self._data = bytearray()

    def take(self, size: int) -> memoryview:
        """`size` bytes of the buffer. The caller overwrites what earlier calls returned."""
        if size > len(self._data):
            self._data = bytearray(size)
        return memoryview(self._data)[:size]


class NodeConnection:
    """One thread at a time may call `send` or `exchange`; any thread may call `close` at any
    time.
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
        self._socket: socket.socket | None = None
        self._is_in_use = False
        self._is_closed = False
        self._guard = threading.Lock()  # guards the three fields above

    def send(self, request: Any) -> Any:
        """Send a kio entity and return the response. The entity's class determines the API and
        version.

        Raises PeerDisconnectedError or PeerTimeoutError. The socket is then closed, and the next
        call opens another one.
        """
        request_type = type(request)
        body = bytearray()
        encoder(request_type)(request, body)
        key, version = int(request_type.__api_key__), int(request_type.__version__)
        payload = self.exchange(key, version, body, is_flexible=bool(request_type.__flexible__))
        try:
            response, _ = decoder(response_class(key, version))(payload, 0)
        except ProtocolError as error:
            raise self._malformed(api_name(key)) from error
        return response

    def exchange(
        self,
        api_key: int,
        api_version: int,
        body: bytes | bytearray,
        *,
        is_flexible: bool,
        buffer: ReceiveBuffer | None = None,
    ) -> memoryview:
        """Send an encoded request body; returns the body of the response. Raises what `send`
        raises.

        The response lies in `buffer`, or without one in new memory, which the caller may keep.
        """
        correlation_id = next(self._correlation_ids) % _CORRELATION_IDS
        frame = self._frame(api_key, api_version, correlation_id, body, is_flexible=is_flexible)
        try:
            with self._in_use():
                connection = self._usable() or self._open()
                deadline_s = self._clock.monotonic_s() + self._request_timeout_s
                self._send_all(connection, frame, deadline_s)
                payload = self._receive_frame(connection, deadline_s, buffer or ReceiveBuffer())
                # An ApiVersions response has header version 0, so that clients of any version can
                # read it.
                has_tags = is_flexible and api_key != ApiKey.API_VERSIONS
                answered_id, answer = self._response(payload, has_tags=has_tags)
                if answered_id != correlation_id:
                    raise self._lost(f"it answers request {answered_id}, not {correlation_id}")
        except TimeoutError as error:
            raise PeerTimeoutError(
                f"a node does not answer in time peer={self.address} api={api_name(api_key)}"
            ) from error
        except OSError as error:
            raise self._lost(error.strerror or type(error).__name__) from error
        return answer

    def close(self) -> None:
        """Close for good: a `send` in progress and every later one raise PeerDisconnectedError. Any
        thread.

        The resolution of a host name cannot be interrupted; a `send` in it ends after it.
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
                if has_failed or self._is_closed:
                    self._drop_socket()

    def _frame(
        self,
        api_key: int,
        api_version: int,
        correlation_id: int,
        body: bytes | bytearray,
        *,
        is_flexible: bool,
    ) -> bytes:
        header = RequestHeader(api_key, api_version, correlation_id, self._client_id)
        frame = write_request_header(header, is_flexible=is_flexible)
        return _SIZE.pack(len(frame) + len(body)) + frame + body

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
            return log_in(login, lambda each: node_exchange.ask(stream, each), secrets.token_hex)
        except SaslAuthenticationError as error:
            raise self._lost(str(error)) from error
        except ProtocolError as error:
            raise self._malformed("login") from error

    def _connected(self) -> socket.socket:
        found = socket.getaddrinfo(*self.address, type=socket.SOCK_STREAM)
        failure: OSError | None = None
        # A host name may have several addresses, such as IPv6 and IPv4. The first that accepts is
        # used.
        for family, kind, protocol, _, address in found:
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

    def _send_all(self, connection: _Opened, frame: bytes, deadline_s: float) -> None:
        connection.socket.settimeout(self._left_s(deadline_s))
        connection.stream.sendall(frame)

    def _receive_frame(
        self, connection: _Opened, deadline_s: float, buffer: ReceiveBuffer
    ) -> memoryview:
        size_field = memoryview(bytearray(_SIZE.size))
        (size,) = _SIZE.unpack(self._receive(connection, size_field, deadline_s))
        if not _CORRELATION_ID_SIZE <= size <= self._response_bytes_max:
            raise self._lost(
                f"its response has an impossible size size={size} max={self._response_bytes_max}"
            )
        return self._receive(connection, buffer.take(size), deadline_s)

    def _receive(self, connection: _Opened, data: memoryview, deadline_s: float) -> memoryview:
        received = 0
        while received < len(data):
            connection.socket.settimeout(self._left_s(deadline_s))
            count = connection.stream.recv_into(data[received:])
            if not count:
                raise self._lost("it was closed")
            received += count
        return data

    def _left_s(self, deadline_s: float) -> float:
        left_s = deadline_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise TimeoutError
        return left_s

    def _response(self, payload: memoryview, *, has_tags: bool) -> tuple[int, memoryview]:
        try:
            return read_response_frame(payload, has_tags=has_tags)
        except ProtocolError as error:
            raise self._malformed("header") from error

    def _malformed(self, what: str) -> PeerDisconnectedError:
        with self._guard:
            self._drop_socket()
        return self._lost(f"its response is malformed: {what}")

    def _lost(self, reason: str) -> PeerDisconnectedError:
        return PeerDisconnectedError(f"no connection peer={self.address} reason='{reason}'")
