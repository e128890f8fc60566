"""Requests and responses of an API in one version: their headers, and the codecs of their bodies.

    request   api_key int16 | api_version int16 | correlation_id int32 | client_id legacy nullable
              string | tagged fields, in flexible versions (header v2) | body
    response  size int32 of what follows | correlation_id int32 | tagged fields, in flexible
              versions (header v1) | body

The client id keeps its legacy form in header v2. The response to ApiVersions always has header v0:
its client does not know yet which versions the broker supports (KIP-511).
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from isotherm.protocol import fetch, produce, share_fetch
from isotherm.protocol.api_keys import ApiKey, request_class, response_class
from isotherm.protocol.codec import MALFORMED, decoder, encoder, malformed
from isotherm.protocol.errors import ProtocolError
from isotherm.protocol.primitives import (
    Buffer,
    element_budget,
    skip_tagged_fields,
    write_legacy_nullable_string,
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
# An acknowledgement may have a type for each record. The largest window of a partition has 10,000.
ACKNOWLEDGE_ELEMENTS_MAX = 200_000
HEADER_TAGS_MAX = 100

FRAME_SIZE_BYTES = 4
FIRST_FLEXIBLE_API_VERSIONS = 3

# The start of a request header: api_key, api_version.
REQUEST_KIND = struct.Struct(">hh")

_REQUEST_HEADER_START = struct.Struct(">hhih")
_RESPONSE_START = struct.Struct(">ii")
_CORRELATION_ID = struct.Struct(">i")

ResponseBuffers: TypeAlias = Sequence[bytes | bytearray | memoryview]


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


class VersionCodec(NamedTuple):
    """Reads the requests of an API in one version, and writes the responses.

    `read_request` decodes a body into kio's class of the version, or into our class for Produce,
    Fetch and ShareFetch. It raises ProtocolError, and any thread may call it. Trailing bytes are
    ignored, as in Kafka: librdkafka 2.16 writes the null array of Metadata 13 ("all topics") in
    four bytes instead of one, and the request is valid only without the last three.

    `write_response` encodes the whole frame, including its size, from a correlation id and a
    response, as buffers to be written in order. Records of a fetch response are the caller's
    buffers, not copies: they must not change until they are written.
    """

    is_flexible: bool
    read_request: Callable[[memoryview], Any]
    write_response: Callable[[int, Any], ResponseBuffers]


def read_request_frame(
    payload: memoryview, *, is_flexible: bool
) -> tuple[RequestHeader, memoryview]:
    """The header of a request, and the body as a view. Raises ProtocolError for a malformed header.

    The body of an unsupported version is not decoded: ApiVersions is answered without it, and any
    other request closes its connection.
    """
    try:
        api_key, api_version, correlation_id, size = _REQUEST_HEADER_START.unpack_from(payload)
        position, client_id = _REQUEST_HEADER_START.size, None
        if size != -1:
            end = position + size
            if size < 0 or end > len(payload):
                raise ProtocolError(f"a client id does not fit its request size={size}")
            client_id, position = str(payload[position:end], "utf-8"), end
        if is_flexible:
            # Clients send no tagged fields in the header, so the usual case skips the loop.
            position = position + 1 if payload[position] == 0 else _skip_tags(payload, position)
    except (IndexError, struct.error) as error:
        raise ProtocolError("the bytes end within a message message=RequestHeader") from error
    except (ValueError, OverflowError) as error:
        raise ProtocolError("a field has no legal value message=RequestHeader") from error
    return RequestHeader(api_key, api_version, correlation_id, client_id), payload[position:]


def write_request_header(header: RequestHeader, *, is_flexible: bool) -> bytearray:
    """The bytes of `header`, to be followed by a body."""
    api_key, api_version, correlation_id, client_id = header
    out = bytearray(REQUEST_KIND.pack(api_key, api_version))
    out += _CORRELATION_ID.pack(correlation_id)
    write_legacy_nullable_string(client_id, out)
    if is_flexible:
        out.append(0)
    return out


def read_response_frame(payload: memoryview, *, has_tags: bool) -> tuple[int, memoryview]:
    """The correlation id of a response without its size, and its body as a view.

    Raises ProtocolError if there is no header.
    """
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(payload)
        position = _skip_tags(payload, _CORRELATION_ID.size) if has_tags else _CORRELATION_ID.size
    except (IndexError, struct.error) as error:
        raise ProtocolError("the bytes end within a message message=ResponseHeader") from error
    return correlation_id, payload[position:]


def _skip_tags(payload: memoryview, position: int) -> int:
    element_budget.left = HEADER_TAGS_MAX
    try:
        return skip_tagged_fields(payload, position)
    finally:
        element_budget.left = math.inf


@functools.cache
def version_codec(api_key: int, api_version: int) -> VersionCodec:
    """The codec of a version that kio has; compiled at its first use."""
    request_type = request_class(api_key, api_version)
    response_type = response_class(api_key, api_version)
    has_tags = response_type.__flexible__ and api_key != ApiKey.API_VERSIONS
    head = _RESPONSE_START.pack(0, 0) + (b"\0" if has_tags else b"")
    size_max: float = CONTROL_REQUEST_SIZE_MAX
    elements_max = REQUEST_ELEMENTS_MAX
    read: Callable[[Buffer, int], tuple[Any, int]]
    if api_key == ApiKey.PRODUCE:
        read = produce.request_reader(api_version)
        write = _response_writer(head, produce.response_writer(api_version))
        size_max, elements_max = math.inf, PRODUCE_ELEMENTS_MAX
    elif api_key == ApiKey.FETCH:
        read = fetch.request_reader(api_version)
        write = _fetch_response_writer(head, fetch.response_writer(api_version))
    else:
        read = decoder(request_type)
        write = _response_writer(head, encoder(response_type))
        if api_key in (ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE):
            elements_max = ACKNOWLEDGE_ELEMENTS_MAX
        if api_key == ApiKey.SHARE_FETCH:
            read = share_fetch.request_reader(api_version)
            write = _fetch_response_writer(head, share_fetch.write_response)

    def read_request(body: memoryview) -> Any:
        if len(body) > size_max:
            raise ProtocolError(
                f"a request is too large api_key={api_key} size={len(body)} size_max={size_max}"
            )
        element_budget.left = elements_max
        try:
            # These three have readers that are not `guarded`, which would cost a call:
            # the errors are caught here.
            return read(body, 0)[0]
        except MALFORMED as error:
            raise malformed(error, f"{request_type.__name__} version={api_version}") from error
        finally:
            # The same thread also decodes stored data, which has no such limit.
            element_budget.left = math.inf

    return VersionCodec(bool(request_type.__flexible__), read_request, write)


def _response_writer(
    head: bytes, encode: Callable[[Any, bytearray], None]
) -> Callable[[int, Any], ResponseBuffers]:
    def write(correlation_id: int, response: Any) -> ResponseBuffers:
        out = bytearray(head)
        encode(response, out)
        _RESPONSE_START.pack_into(out, 0, len(out) - FRAME_SIZE_BYTES, correlation_id)
        return (out,)

    return write


def _fetch_response_writer(
    head: bytes, encode: Callable[[Any, bytearray], ResponseBuffers]
) -> Callable[[int, Any], ResponseBuffers]:
    def write(correlation_id: int, response: Any) -> ResponseBuffers:
        out = bytearray(head)
        buffers = encode(response, out)
        size = sum(map(len, buffers)) - FRAME_SIZE_BYTES
        _RESPONSE_START.pack_into(out, 0, size, correlation_id)
        return buffers

    return write
