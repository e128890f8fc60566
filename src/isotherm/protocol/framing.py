"""Frames, and the headers of requests and responses.

    frame     size int32 | payload of that many bytes
    request   api_key int16 | api_version int16 | correlation_id int32 | client_id legacy nullable
              string | tagged fields, in flexible versions (header v2) | body
    response  correlation_id int32 | tagged fields, in flexible versions (header v1) | body

The client id keeps its legacy form in header v2. The response to ApiVersions always has header v0:
its client does not know yet which versions the broker supports (KIP-511).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from isotherm.protocol import fetch, produce
from isotherm.protocol.api_versions import ApiKey, is_served, request_class, response_class
from isotherm.protocol.codec import decoder, encoder, guarded
from isotherm.protocol.errors import FrameTooLargeError, ProtocolError
from isotherm.protocol.primitives import (
    Buffer,
    ElementBound,
    read_legacy_nullable_string,
    skip_tagged_fields,
)

# Only Produce requests carry data. Others have names and numbers: the largest real ones, fetches of
# thousands of partitions, are about 100 KB. Decoding takes a small object for every few bytes, so
# this limit is far below socket.request.max.bytes.
CONTROL_REQUEST_SIZE_MAX = 16 * 1024 * 1024

# Limit of array items and tagged fields in one request. The time to process a request grows with
# them, up to tens of microseconds each. A consumer of ten thousand partitions stays below it.
REQUEST_ELEMENTS_MAX = 20_000
# Lower for Produce requests, since the event loop decodes them itself.
PRODUCE_ELEMENTS_MAX = 10_000
HEADER_TAGS_MAX = 100

FRAME_SIZE_BYTES = 4
FIRST_FLEXIBLE_API_VERSIONS = 3

_HEADER_BOUND = ElementBound(HEADER_TAGS_MAX)
_PRODUCE_BOUND = ElementBound(PRODUCE_ELEMENTS_MAX)
_REQUEST_BOUND = ElementBound(REQUEST_ELEMENTS_MAX)

_FRAME_SIZE = struct.Struct(">i")
_REQUEST_HEADER_START = struct.Struct(">hhi")
_RESPONSE_START = struct.Struct(">ii")

ResponseBuffers: TypeAlias = Sequence[bytes | bytearray | memoryview]


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


class RequestFrame(NamedTuple):
    header: RequestHeader
    body: memoryview


def frame_size(buffer: Buffer, position: int, *, size_max: int) -> int | None:
    """Payload size of the frame at `position`; None if fewer than four bytes have arrived.

    Raises FrameTooLargeError for a size below 0 or above `size_max`: close the connection.
    """
    if len(buffer) - position < FRAME_SIZE_BYTES:
        return None
    (size,) = _FRAME_SIZE.unpack_from(buffer, position)
    if not 0 <= size <= size_max:
        raise FrameTooLargeError(f"a frame has an illegal size size={size} size_max={size_max}")
    return int(size)


def split_frames(buffer: memoryview, *, size_max: int) -> tuple[list[memoryview], int]:
    """Payloads of the complete frames in `buffer`, as views, and the position after the last.

    Raises FrameTooLargeError like `frame_size`, even after complete frames.
    """
    payloads = []
    position = 0
    while (size := frame_size(buffer, position, size_max=size_max)) is not None:
        end = position + FRAME_SIZE_BYTES + size
        if end > len(buffer):
            break
        payloads.append(buffer[position + FRAME_SIZE_BYTES : end])
        position = end
    return payloads, position


def _decode_request_header(payload: Buffer, position: int) -> tuple[RequestHeader, int]:
    api_key, api_version, correlation_id = _REQUEST_HEADER_START.unpack_from(payload, position)
    client_id, position = read_legacy_nullable_string(payload, position + 8)
    if _has_flexible_header(api_key, api_version):
        position = skip_tagged_fields(payload, position)
    return RequestHeader(api_key, api_version, correlation_id, client_id), position


def _has_flexible_header(api_key: int, api_version: int) -> bool:
    if is_served(api_key, api_version):
        return bool(request_class(api_key, api_version).__flexible__)
    # ApiVersions is the only request that is answered in an unserved version (KIP-511).
    return api_key == ApiKey.API_VERSIONS and api_version >= FIRST_FLEXIBLE_API_VERSIONS


_guarded_request_header = guarded(_decode_request_header, "RequestHeader")


def read_request_frame(payload: memoryview) -> RequestFrame:
    """The header of a request, and its body as a view. Raises ProtocolError without a valid header.

    The body of an unserved version is not decoded: ApiVersions is answered without it, and any
    other request closes its connection.
    """
    with _HEADER_BOUND:
        header, position = _guarded_request_header(payload, 0)
    return RequestFrame(header, payload[position:])


def read_request(header: RequestHeader, body: memoryview) -> Any:
    """The request in a body: kio's class of its version, or ours for Produce and Fetch.

    The version must be served. Raises ProtocolError. Callable from any thread. Trailing bytes are
    ignored, as in Kafka: librdkafka 2.16 writes the null array of Metadata 13 ("all topics") in
    four bytes instead of one, and the request is right only if the last three are ignored.
    """
    with _PRODUCE_BOUND if header.api_key == ApiKey.PRODUCE else _REQUEST_BOUND:
        return _read_request(header.api_key, header.api_version, body)


def _read_request(api_key: int, version: int, body: memoryview) -> Any:
    request: Any
    if api_key == ApiKey.PRODUCE:
        request, _ = produce.read_produce_request(body, version)
    elif len(body) > CONTROL_REQUEST_SIZE_MAX:
        raise ProtocolError(
            f"a request is too large api_key={api_key} size={len(body)} "
            f"size_max={CONTROL_REQUEST_SIZE_MAX}"
        )
    elif api_key == ApiKey.FETCH:
        request, _ = fetch.read_fetch_request(body, version)
    else:
        request, _ = decoder(request_class(api_key, version))(body, 0)
    return request


def _append_response_header(out: bytearray, api_key: int, version: int, correlation: int) -> None:
    out += _RESPONSE_START.pack(0, correlation)
    if api_key != ApiKey.API_VERSIONS and response_class(api_key, version).__flexible__:
        out.append(0)


def write_response(
    api_key: int, version: int, correlation_id: int, response: Any
) -> list[bytes | bytearray | memoryview]:
    """The whole response frame, including its size, as buffers to be written in order.

    Records of a fetch response are the caller's buffers, not copies: they must not change until
    they are written.
    """
    out = bytearray()
    _append_response_header(out, api_key, version, correlation_id)
    if api_key == ApiKey.FETCH:
        buffers = fetch.write_fetch_response(response, version, out)
    elif api_key == ApiKey.PRODUCE:
        produce.write_produce_response(response, version, out)
        buffers = [out]
    else:
        encoder(type(response))(response, out)
        buffers = [out]
    _FRAME_SIZE.pack_into(out, 0, sum(map(len, buffers)) - FRAME_SIZE_BYTES)
    return buffers
