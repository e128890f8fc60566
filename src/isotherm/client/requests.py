"""One request on an open stream, and its response: frames, correlation ids and codecs.

Functions raise OSError, and ProtocolError for malformed bytes. The stream is of no more use then:
the position in it is lost.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from isotherm.client.tls_stream import Stream
from isotherm.protocol.api_keys import ApiKey, response_class
from isotherm.protocol.codec import decoder, encoder
from isotherm.protocol.framing import RequestHeader, read_response_frame, write_request_header

_SIZE = struct.Struct(">i")
_CORRELATION_ID_SIZE = 4
# Of a login: what is answered before it is small.
_ANSWER_BYTES_MAX = 16 * 1024 * 1024
_CORRELATION_ID = 1
_CLIENT_ID = "isotherm"


class EncodedRequest(NamedTuple):
    api_key: int
    api_version: int
    body: bytes | bytearray
    is_flexible: bool


class ReceiveBuffer:
    """Reused memory for responses, as large as the largest response so far. For one thread."""

    def __init__(self) -> None:
        self._data = bytearray()

    def take(self, size: int) -> memoryview:
        """`size` bytes of the buffer. The caller overwrites what earlier calls returned."""
        if size > len(self._data):
            self._data = bytearray(size)
        return memoryview(self._data)[:size]


def encode_request(request: Any) -> EncodedRequest:
    """Encode a kio entity, whose class determines the API and version."""
    request_type = type(request)
    body = bytearray()
    encoder(request_type)(request, body)
    key, version = int(request_type.__api_key__), int(request_type.__version__)
    return EncodedRequest(key, version, body, bool(request_type.__flexible__))


def decode_response(api_key: int, api_version: int, body: memoryview) -> Any:
    """The kio entity of a response."""
    response, _ = decoder(response_class(api_key, api_version))(body, 0)
    return response


def send_request(
    stream: Stream, request: EncodedRequest, correlation_id: int, client_id: str
) -> None:
    key, version, body, is_flexible = request
    header = RequestHeader(key, version, correlation_id, client_id)
    frame = write_request_header(header, is_flexible=is_flexible)
    stream.sendall(_SIZE.pack(len(frame) + len(body)) + frame + body)


def receive_response(
    stream: Stream,
    request: EncodedRequest,
    correlation_id: int,
    buffer: ReceiveBuffer,
    bytes_max: int,
) -> memoryview:
    """The body of the response, in `buffer`. A response above `bytes_max` bytes is an error."""
    (size,) = _SIZE.unpack(_filled(stream, memoryview(bytearray(_SIZE.size))))
    if not _CORRELATION_ID_SIZE <= size <= bytes_max:
        raise ConnectionError(f"its response has an invalid size size={size} max={bytes_max}")
    frame = _filled(stream, buffer.take(size))
    # An ApiVersions response has header version 0, so that clients of any version can read it.
    has_tags = request.is_flexible and request.api_key != ApiKey.API_VERSIONS
    answered_id, body = read_response_frame(frame, has_tags=has_tags)
    if answered_id != correlation_id:
        raise ConnectionError(f"it answers request {answered_id}, not {correlation_id}")
    return body


def ask(stream: Stream, request: Any) -> Any:
    """Send a kio entity and return the response: for a stream that is not a connection's yet, as
    during a login."""
    encoded = encode_request(request)
    send_request(stream, encoded, _CORRELATION_ID, _CLIENT_ID)
    body = receive_response(stream, encoded, _CORRELATION_ID, ReceiveBuffer(), _ANSWER_BYTES_MAX)
    return decode_response(encoded.api_key, encoded.api_version, body)


def _filled(stream: Stream, data: memoryview) -> memoryview:
    received = 0
    while received < len(data):
        count = stream.recv_into(data[received:])
        if not count:
            raise ConnectionError("it was closed")
        received += count
    return data
