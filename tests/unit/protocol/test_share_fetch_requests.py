"""The hand-written reader of ShareFetch requests reads what kio's encoder writes."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.codec import encoder
from isotherm.protocol.entities import entity_of
from isotherm.protocol.errors import ProtocolError
from isotherm.protocol.framing import version_codec
from isotherm.protocol.share_fetch import ShareFetchRequest

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.none() | st.text(max_size=200)
TOPIC_ID = st.none() | st.uuids()
NUMBERS = (
    "share_session_epoch",
    "max_wait_ms",
    "min_bytes",
    "max_bytes",
    "max_records",
    "batch_size",
)
BATCH = st.tuples(INT64, INT64, st.binary(max_size=200))
PARTITION = st.tuples(INT32, st.lists(BATCH, max_size=3))
TOPICS = st.lists(st.tuples(TOPIC_ID, st.lists(PARTITION, max_size=3)), max_size=3)
FORGOTTEN = st.lists(st.tuples(TOPIC_ID, st.lists(INT32, max_size=200)), max_size=3)


@st.composite
def requests(draw: st.DrawFn) -> tuple[int, ShareFetchRequest]:
    version = draw(st.sampled_from([1, 2]))
    mode = draw(st.tuples(st.integers(-128, 127), st.booleans())) if version == 2 else ()
    numbers = [draw(INT32) for _ in NUMBERS]
    texts = draw(TEXT), draw(st.text(max_size=200))
    topics, forgotten = draw(TOPICS), draw(FORGOTTEN)
    return version, ShareFetchRequest(*texts, *numbers, topics, forgotten, *mode)  # type: ignore[arg-type]


def encoded(version: int, request: ShareFetchRequest) -> bytearray:
    fields: dict[str, Any] = request._asdict()
    wait_ms = fields.pop("max_wait_ms")
    fields["max_wait"] = datetime.timedelta(milliseconds=wait_ms)
    fields["topics"] = [
        {
            "topic_id": topic_id,
            "partitions": [
                {
                    "partition_index": index,
                    "acknowledgement_batches": [
                        {
                            "first_offset": first,
                            "last_offset": last,
                            # The wire has signed numbers.
                            "acknowledge_types": [type_ - (type_ > 127) * 256 for type_ in types],
                        }
                        for first, last, types in batches
                    ],
                }
                for index, batches in partitions
            ],
        }
        for topic_id, partitions in request.topics
    ]
    fields["forgotten_topics_data"] = [
        {"topic_id": topic_id, "partitions": partitions}
        for topic_id, partitions in request.forgotten_topics_data
    ]
    if version < 2:
        del fields["share_acquire_mode"], fields["is_renew_ack"]
    out = bytearray()
    encoder(request_class(ApiKey.SHARE_FETCH, version))(
        entity_of(request_class(ApiKey.SHARE_FETCH, version), fields), out
    )
    return out


@given(requests())
def test_request_is_read_as_it_was_encoded(drawn: tuple[int, ShareFetchRequest]) -> None:
    version, request = drawn
    body = encoded(version, request)
    assert version_codec(ApiKey.SHARE_FETCH, version).read_request(memoryview(body)) == request


@pytest.mark.parametrize("version", [1, 2])
def test_request_that_is_cut_off_is_refused(version: int) -> None:
    mode = (1, True) if version == 2 else ()
    topics = [(None, [(0, [(1, 2, bytes([1] * 130))])])]
    request = ShareFetchRequest("g", "m", 1, 2, 3, 4, 5, 6, topics, [(None, [7])], *mode)  # type: ignore[arg-type]
    body = encoded(version, request)
    read = version_codec(ApiKey.SHARE_FETCH, version).read_request
    assert read(memoryview(body)) == request
    for size in range(len(body)):
        with pytest.raises(ProtocolError):
            read(memoryview(body)[:size])
