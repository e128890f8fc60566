"""The frame of a metadata record: version, API key, version, body."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from isotherm.errors import CorruptMetadataError
from isotherm.protocol.framed_messages import decode_framed, encode_framed, registry_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """KRaft's TopicRecord, as its definition has it."""

    __api_key__: ClassVar[int] = 2
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    name: str = field(metadata={"kafka_type": "string"})
    topic_id: uuid.UUID | None = field(metadata={"kafka_type": "uuid"})


REGISTRY = registry_of([TopicRecord])
RECORD = TopicRecord(name="foo", topic_id=uuid.UUID("01234567-89ab-cdef-fedc-ba9876543210"))
ENCODED = bytes.fromhex("01020004666f6f0123456789abcdeffedcba987654321000")


def test_framed_message_is_frame_version_key_version_and_body():
    assert encode_framed(RECORD) == ENCODED


def test_framed_message_is_read_back_from_any_buffer():
    assert decode_framed(ENCODED, REGISTRY) == RECORD
    assert decode_framed(memoryview(ENCODED), REGISTRY) == RECORD


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"", "malformed"),
        (b"\x00" + ENCODED[1:], "frame_version=0"),
        (b"\x02" + ENCODED[1:], "frame_version=2"),
        (b"\x01\x63\x00", "api_key=99"),
        (b"\x01\x02\x05" + ENCODED[3:], "api_version=5"),
        (ENCODED[:-1], "malformed"),
        (ENCODED + b"\x00", "count=1"),
        (b"\xff\xff\xff\xff\xff\x01", "malformed"),
    ],
)
def test_framed_message_that_is_damaged_raises_corrupt_metadata_error(value, message):
    with pytest.raises(CorruptMetadataError, match=message):
        decode_framed(value, REGISTRY)
