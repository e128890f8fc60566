"""A request and its response on a blocking stream, outside of any client: for probes and single calls."""

from __future__ import annotations

import struct
from typing import Any

from isotherm.protocol.api_keys import ApiKey, response_class
from isotherm.protocol.codec import decoder, encoder
from isotherm.protocol.framing import RequestHeader, read_response_frame, write_request_header
from isotherm.protocol.tls_stream import Stream

_SIZE = struct.Struct(">i")
_RESPONSE_SIZE_MAX = 16 * 1024 * 1024
_CORRELATION_ID = 1
_CLIENT_ID = "isotherm"


def ask(stream: Stream, request: Any) -> Any:
    """The response to an entity of kio. Raises OSError, and ProtocolError for malformed bytes."""
    request_type = type(request)
    key, version = int(request_type.__api_key__), int(request_type.__version__)
    is_flexible = bool(request_type.__flexible__)
    header = RequestHeader(key, version, _CORRELATION_ID, _CLIENT_ID)
    frame = write_request_header(header, is_flexible=is_flexible)
    encoder(request_type)(request, frame)
    payload = memoryview(exchange_frame(stream, bytes(frame)))
    _, body = read_response_frame(payload, has_tags=is_flexible and key != ApiKey.API_VERSIONS)
    response, _ = decoder(response_class(key, version))(body, 0)
    return response


def exchange_frame(stream: Stream, request: bytes) -> bytes:
    """Both without their sizes. Raises OSError."""
    stream.sendall(_SIZE.pack(len(request)) + request)
    head = receive(stream, _SIZE.size)
    if len(head) < _SIZE.size:
        raise ConnectionError("the connection was closed")
    (size,) = _SIZE.unpack(head)
    if not _SIZE.size <= size <= _RESPONSE_SIZE_MAX:
        raise ConnectionError(f"the response has an impossible size size={size}")
    payload = receive(stream, size)
    if len(payload) < size:
        raise ConnectionError("the connection was closed")
    return payload


def receive(stream: Stream, size: int) -> bytes:
    """Fewer bytes if the peer closes the connection."""
    data, received = bytearray(size), 0
    with memoryview(data) as view:
        while received < size and (count := stream.recv_into(view[received:])):
            received += count
    return bytes(data[:received])
