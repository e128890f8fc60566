from __future__ import annotations

import datetime
import tracemalloc

import pytest
from kio.schema.api_versions.v0.response import ApiVersionsResponse as ApiVersionsResponseV0
from kio.schema.api_versions.v3.response import ApiVersionsResponse as ApiVersionsResponseV3
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.response import MetadataResponse

from isotherm.protocol import fetch
from isotherm.protocol.api_versions import ADVERTISED, SERVED, ApiKey
from isotherm.protocol.errors import FrameTooLargeError, ProtocolError
from isotherm.protocol.framing import (
    CONTROL_REQUEST_SIZE_MAX,
    RequestHeader,
    frame_size,
    read_request,
    read_request_frame,
    split_frames,
    write_response,
)

NO_TIME = datetime.timedelta(0)
# key 3, version 12, correlation id 7, client id "me", no tags
METADATA_V12_HEADER = bytes.fromhex("0003000c00000007 0002 6d65 00".replace(" ", ""))


def test_frames_in_a_partly_filled_buffer_are_split_and_the_tail_left():
    stream = memoryview(b"\0\0\0\x02ab" + b"\0\0\0\0" + b"\0\0\0\x05xy")
    payloads, position = split_frames(stream, size_max=10)
    assert [bytes(p) for p in payloads] == [b"ab", b""]
    assert position == 10


def test_frame_with_three_bytes_of_size_is_not_there_yet():
    assert frame_size(b"\0\0\0", 0, size_max=10) is None


@pytest.mark.parametrize("size", [b"\xff\xff\xff\xff", b"\0\0\0\x0b", b"\x7f\xff\xff\xff"])
def test_frame_size_outside_the_limit_is_refused_before_the_payload_is_there(size):
    with pytest.raises(FrameTooLargeError, match="size_max=10"):
        split_frames(memoryview(size), size_max=10)


def test_frame_of_exactly_the_limit_is_taken():
    payloads, _ = split_frames(memoryview(b"\0\0\0\x02ab"), size_max=2)
    assert len(payloads) == 1


def test_request_header_v2_is_read_and_the_body_is_a_view():
    payload = memoryview(METADATA_V12_HEADER + b"body")
    frame = read_request_frame(payload)
    assert frame.header == RequestHeader(3, 12, 7, "me")
    assert frame.body.obj is payload.obj
    assert bytes(frame.body) == b"body"


def test_request_header_v1_has_no_tag_section():
    frame = read_request_frame(memoryview(bytes.fromhex("0003000800000007ffff") + b"body"))
    assert frame.header == RequestHeader(3, 8, 7, None)
    assert bytes(frame.body) == b"body"


def test_request_header_of_an_unknown_api_still_gives_the_correlation_id():
    frame = read_request_frame(memoryview(bytes.fromhex("7fff000100000009ffff")))
    assert frame.header == RequestHeader(0x7FFF, 1, 9, None)


@pytest.mark.parametrize("length", range(len(METADATA_V12_HEADER)))
def test_request_header_cut_short_raises_protocol_error(length):
    with pytest.raises(ProtocolError):
        read_request_frame(memoryview(METADATA_V12_HEADER)[:length])


def test_array_longer_than_its_message_is_refused_without_allocating():
    """Five bytes that make kio's reader reserve 34 GB and abort the process."""
    header, body = RequestHeader(ApiKey.METADATA, 12, 1, None), bytes.fromhex("ffffffff0f")
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match=r"an array does not fit .*count=4294967294"):
            read_request(header, memoryview(body))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_request_with_bytes_left_over_is_read_without_them():
    """librdkafka 2.16 writes the null array of Metadata 13 in four bytes instead of one."""
    request = bytes.fromhex("00000000010000")
    header = RequestHeader(ApiKey.METADATA, 13, 1, None)
    assert read_request(header, memoryview(request)).topics is None


def test_control_request_above_its_limit_is_refused_undecoded():
    header = RequestHeader(ApiKey.METADATA, 8, 1, None)
    body = memoryview(bytes(CONTROL_REQUEST_SIZE_MAX + 1))
    with pytest.raises(ProtocolError, match="too large"):
        read_request(header, body)


def test_string_that_is_not_utf8_raises_protocol_error():
    body = bytes.fromhex("00000001 0002 c328 01 00 00".replace(" ", ""))
    with pytest.raises(ProtocolError, match="no legal value"):
        read_request(RequestHeader(ApiKey.METADATA, 8, 1, None), memoryview(body))


def test_null_for_a_field_that_must_not_be_null_raises_protocol_error():
    body = bytes.fromhex("00000001 ffff 01 00 00".replace(" ", ""))
    with pytest.raises(ProtocolError, match="null"):
        read_request(RequestHeader(ApiKey.METADATA, 8, 1, None), memoryview(body))


def test_unknown_tagged_fields_are_skipped():
    tags = bytes.fromhex("02 05 02 aabb 63 00".replace(" ", ""))
    body = bytes.fromhex("00 01 00".replace(" ", "")) + tags
    request = read_request(RequestHeader(ApiKey.METADATA, 12, 1, None), memoryview(body))
    assert request.topics is None


def test_tagged_field_longer_than_the_message_raises_protocol_error():
    body = bytes.fromhex("00 01 00 01 05 7f aa".replace(" ", ""))
    with pytest.raises(ProtocolError, match="does not fit"):
        read_request(RequestHeader(ApiKey.METADATA, 12, 1, None), memoryview(body))


def test_response_of_flexible_version_has_size_correlation_id_and_tags():
    response = MetadataResponse(throttle_time=NO_TIME, brokers=(), topics=())
    frame = b"".join(write_response(ApiKey.METADATA, 12, 0x01020304, response))
    assert frame[:4] == (len(frame) - 4).to_bytes(4, "big")
    assert frame[4:9] == bytes.fromhex("0102030400")


def test_response_to_api_versions_never_has_a_tag_section_in_its_header():
    response = ApiVersionsResponseV3(error_code=ErrorCode.none, api_keys=(), throttle_time=NO_TIME)
    frame = b"".join(write_response(ApiKey.API_VERSIONS, 3, 1, response))
    assert frame[4:] == bytes.fromhex("00000001 0000 01 00000000 00".replace(" ", ""))


def test_response_to_api_versions_of_unknown_version_is_written_in_version_0():
    response = ApiVersionsResponseV0(error_code=ErrorCode.unsupported_version, api_keys=())
    frame = b"".join(write_response(ApiKey.API_VERSIONS, 0, 1, response))
    assert frame[4:] == bytes.fromhex("00000001 0023 00000000".replace(" ", ""))


def test_response_to_fetch_counts_record_bytes_in_its_size():
    records = memoryview(b"r" * 1000)
    partition = fetch.FetchPartitionResponse(0, records=[records[:400], records[400:]])
    response = fetch.FetchResponse([fetch.FetchTopicResponse("t", None, [partition])])
    buffers = write_response(ApiKey.FETCH, 4, 1, response)
    assert int.from_bytes(bytes(buffers[0][:4]), "big") == sum(map(len, buffers)) - 4
    assert len(buffers) == 4


def test_produce_is_advertised_from_version_0_and_served_from_3():
    assert ADVERTISED[ApiKey.PRODUCE] == (0, 13)
    assert SERVED[ApiKey.PRODUCE] == (3, 13)
    assert all(ADVERTISED[key] == SERVED[key] for key in SERVED if key != ApiKey.PRODUCE)
