"""Single requests on a blocking stream, without a client: for probes and single calls."""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
from collections.abc import Iterator
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.protocol.api_keys import ApiKey, response_class
from isotherm.protocol.codec import decoder, encoder
from isotherm.protocol.errors import ProtocolError
from isotherm.protocol.framing import RequestHeader, read_response_frame, write_request_header
from isotherm.protocol.node_security import NodeSecurity
from isotherm.protocol.sasl_client import log_in
from isotherm.protocol.tls_stream import Stream, TlsStream, receive

_SIZE = struct.Struct(">i")
_RESPONSE_SIZE_MAX = 16 * 1024 * 1024
_CORRELATION_ID = 1
_CLIENT_ID = "isotherm"
_UNSUPPORTED_VERSION = struct.pack(">h", ErrorCode.unsupported_version)


class UnsupportedApiVersionError(ProtocolError):
    """The broker has the API, or its features, in other versions."""


@contextlib.contextmanager
def connected(
    address: tuple[str, int], security: NodeSecurity, timeout_s: float
) -> Iterator[Stream]:
    """A connection that is encrypted and logged in. Raises OSError, ProtocolError and
    SaslAuthenticationError. `timeout_s` bounds each wait."""
    with socket.create_connection(address, timeout_s) as connection:
        stream: Stream = connection
        if security.tls is not None:
            stream = TlsStream(connection, security.tls, address[0])
            stream.handshake()
        if security.login is not None:
            log_in(security.login, lambda each: ask(stream, each), secrets.token_hex)
        yield stream


def ask(stream: Stream, request: Any) -> Any:
    """Send an entity of kio and return the response. Raises OSError, ProtocolError for malformed
    bytes, and UnsupportedApiVersionError if the answer to ApiVersions is UNSUPPORTED_VERSION."""
    request_type = type(request)
    key, version = int(request_type.__api_key__), int(request_type.__version__)
    is_flexible = bool(request_type.__flexible__)
    header = RequestHeader(key, version, _CORRELATION_ID, _CLIENT_ID)
    frame = write_request_header(header, is_flexible=is_flexible)
    encoder(request_type)(request, frame)
    payload = memoryview(exchange_frame(stream, bytes(frame)))
    _, body = read_response_frame(payload, has_tags=is_flexible and key != ApiKey.API_VERSIONS)
    if key == ApiKey.API_VERSIONS and body[:2] == _UNSUPPORTED_VERSION:
        # Such an answer has version 0, whatever the version of the request.
        raise UnsupportedApiVersionError(f"no such version api_key={key} api_version={version}")
    response, _ = decoder(response_class(key, version))(body, 0)
    return response


def exchange_frame(stream: Stream, request: bytes) -> bytes:
    """Send a request and return the response, both without their sizes. Raises OSError."""
    stream.sendall(_SIZE.pack(len(request)) + request)
    head = receive(stream, _SIZE.size)
    if len(head) < _SIZE.size:
        raise ConnectionError("the connection was closed")
    (size,) = _SIZE.unpack(head)
    if not _SIZE.size <= size <= _RESPONSE_SIZE_MAX:
        raise ConnectionError(f"the response has an invalid size size={size}")
    payload = receive(stream, size)
    if len(payload) < size:
        raise ConnectionError("the connection was closed")
    return payload
