"""Request headers and bodies: views without copies, and errors for frames that are cut, too long or
malformed."""

from __future__ import annotations

import datetime
import tracemalloc

import pytest
from kio.schema.api_versions.v0.response import ApiVersionsResponse as ApiVersionsResponseV0
from kio.schema.api_versions.v3.response import ApiVersionsResponse as ApiVersionsResponseV3
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.response import MetadataResponse

from isotherm.protocol import fetch
from isotherm.protocol.api_keys import ApiKey
from isotherm.protocol.errors import ProtocolError
from isotherm.protocol.framing import (
    CONTROL_REQUEST_SIZE_MAX,
    REQUEST_ELEMENTS_MAX,
    RequestHeader,
    read_request_frame,
    version_codec,
)
from isotherm.protocol.primitives import write_unsigned_varint

NO_TIME = datetime.timedelta(0)
# key 3, version 12, correlation id 7, client id "me", no tags
METADATA_V12_HEADER = bytes.fromhex("0003000c00000007 0002 6d65 00".replace(" ", ""))


def test_request_header_v2_is_read_and_the_body_is_a_view():
    payload = memoryview(METADATA_V12_HEADER + b"body")
    header, body = read_request_frame(payload, is_flexible=True)
    assert header == RequestHeader(3, 12, 7, "me")
    assert body.obj is payload.obj
    assert bytes(body) == b"body"


def test_request_header_v1_has_no_tag_section():
    payload = memoryview(bytes.fromhex("0003000800000007ffff") + b"body")
    header, body = read_request_frame(payload, is_flexible=False)
    assert header == RequestHeader(3, 8, 7, None)
    assert bytes(body) == b"body"


def test_request_header_of_an_unknown_api_still_gives_the_correlation_id():
    payload = memoryview(bytes.fromhex("7fff000100000009ffff"))
    header, _ = read_request_frame(payload, is_flexible=False)
    assert header == RequestHeader(0x7FFF, 1, 9, None)


@pytest.mark.parametrize("length", range(len(METADATA_V12_HEADER)))
def test_request_header_cut_short_raises_protocol_error(length):
    with pytest.raises(ProtocolError):
        read_request_frame(memoryview(METADATA_V12_HEADER)[:length], is_flexible=True)


def test_array_longer_than_its_message_is_refused_without_allocating():
    """These five bytes make kio's reader reserve 34 GB, which aborts the process."""
    body = bytes.fromhex("ffffffff0f")
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match=r"an array does not fit .*count=4294967294"):
            version_codec(ApiKey.METADATA, 12).read_request(memoryview(body))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_request_with_bytes_left_over_is_read_without_them():
    """librdkafka 2.16 writes the null array of Metadata 13 in four bytes instead of one."""
    request = bytes.fromhex("00000000010000")
    assert version_codec(ApiKey.METADATA, 13).read_request(memoryview(request)).topics is None


def test_control_request_above_its_limit_is_refused_undecoded():
    body = memoryview(bytes(CONTROL_REQUEST_SIZE_MAX + 1))
    with pytest.raises(ProtocolError, match="too large"):
        version_codec(ApiKey.METADATA, 8).read_request(body)


def test_string_that_is_not_utf8_raises_protocol_error():
    body = bytes.fromhex("00000001 0002 c328 01 00 00".replace(" ", ""))
    with pytest.raises(ProtocolError, match="no legal value"):
        version_codec(ApiKey.METADATA, 8).read_request(memoryview(body))


def test_null_for_a_field_that_must_not_be_null_raises_protocol_error():
    body = bytes.fromhex("00000001 ffff 01 00 00".replace(" ", ""))
    with pytest.raises(ProtocolError, match="null"):
        version_codec(ApiKey.METADATA, 8).read_request(memoryview(body))


def test_unknown_tagged_fields_are_skipped():
    tags = bytes.fromhex("02 05 02 aabb 63 00".replace(" ", ""))
    body = bytes.fromhex("00 01 00".replace(" ", "")) + tags
    request = version_codec(ApiKey.METADATA, 12).read_request(memoryview(body))
    assert request.topics is None


def test_tagged_field_longer_than_the_message_raises_protocol_error():
    body = bytes.fromhex("00 01 00 01 05 7f aa".replace(" ", ""))
    with pytest.raises(ProtocolError, match="does not fit"):
        version_codec(ApiKey.METADATA, 12).read_request(memoryview(body))


def test_response_of_flexible_version_has_size_correlation_id_and_tags():
    response = MetadataResponse(throttle_time=NO_TIME, brokers=(), topics=())
    frame = b"".join(version_codec(ApiKey.METADATA, 12).write_response(0x01020304, response))
    assert frame[:4] == (len(frame) - 4).to_bytes(4, "big")
    assert frame[4:9] == bytes.fromhex("0102030400")


def test_response_to_api_versions_never_has_a_tag_section_in_its_header():
    response = ApiVersionsResponseV3(error_code=ErrorCode.none, api_keys=(), throttle_time=NO_TIME)
    frame = b"".join(version_codec(ApiKey.API_VERSIONS, 3).write_response(1, response))
    assert frame[4:] == bytes.fromhex("00000001 0000 01 00000000 00".replace(" ", ""))


def test_response_to_api_versions_of_unknown_version_is_written_in_version_0():
    response = ApiVersionsResponseV0(error_code=ErrorCode.unsupported_version, api_keys=())
    frame = b"".join(version_codec(ApiKey.API_VERSIONS, 0).write_response(1, response))
    assert frame[4:] == bytes.fromhex("00000001 0023 00000000".replace(" ", ""))


def test_response_to_fetch_counts_record_bytes_in_its_size():
    records = memoryview(b"r" * 1000)
    partition = fetch.FetchPartitionResponse(0, records=[records[:400], records[400:]])
    response = fetch.FetchResponse([fetch.FetchTopicResponse("t", None, [partition])])
    buffers = version_codec(ApiKey.FETCH, 4).write_response(1, response)
    assert int.from_bytes(bytes(buffers[0][:4]), "big") == sum(map(len, buffers)) - 4
    assert len(buffers) == 4


def test_tagged_fields_of_a_fetch_request_are_counted():
    """A fetch request without topics that has 20,001 empty tagged fields."""
    head = bytes.fromhex(
        "00000000 00000000 00000000 00 00000000 ffffffff 01 01 01".replace(" ", "")
    )
    body = bytearray(head)
    write_unsigned_varint(REQUEST_ELEMENTS_MAX + 1, body)
    body += bytes.fromhex("0500") * (REQUEST_ELEMENTS_MAX + 1)
    with pytest.raises(ProtocolError, match="too many elements count=20001"):
        version_codec(ApiKey.FETCH, 17).read_request(memoryview(body))
