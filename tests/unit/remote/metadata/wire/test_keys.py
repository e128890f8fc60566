"""The vectors of the partition come from Kafka's RemoteLogMetadataTopicPartitioner, those of the
keys from the format page."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.errors import CorruptMetadataError
from isotherm.remote.metadata.wire.keys import (
    PartitionKey,
    SegmentKey,
    metadata_partition,
    parse_key,
    partition_key,
    segment_key,
)
from isotherm.types import TopicIdPartition

FOO = uuid.UUID("01234567-89ab-cdef-fedc-ba9876543210")
ONE = uuid.UUID(int=1)


@pytest.mark.parametrize(
    ("topic_id", "partition", "expected"),
    [
        (FOO, 0, 11),
        (FOO, 1, 2),
        (FOO, 2, 38),
        (FOO, 3, 12),
        (ONE, 0, 35),
        (ONE, 1, 6),
        (ONE, 2, 18),
    ],
)
def test_metadata_partition_is_the_one_kafka_chooses(
    topic_id: uuid.UUID, partition: int, expected: int
) -> None:
    assert metadata_partition(TopicIdPartition(topic_id, "any name", partition), 50) == expected


FOO_3 = TopicIdPartition(uuid.UUID("01234567-89ab-cdef-fedc-ba9876543210"), "foo", 3)


def test_keys_have_the_text_of_the_format_page() -> None:
    assert segment_key(FOO_3, 199, 5).encode() == b"ASNFZ4mrze_-3LqYdlQyEA:3:199:5"
    assert partition_key(FOO_3).encode() == b"ASNFZ4mrze_-3LqYdlQyEA:3"


@given(
    st.uuids(),
    st.integers(0, 2**31 - 1),
    st.none() | st.tuples(st.integers(0, 2**63 - 1), st.integers(-(2**31), 2**31 - 1)),
)
def test_parse_key_of_encoded_key_gives_it_back(
    topic_id: uuid.UUID, partition: int, segment: tuple[int, int] | None
) -> None:
    key = PartitionKey(topic_id, partition)
    if segment is not None:
        key = SegmentKey(topic_id, partition, *segment)
    assert parse_key(key.encode()) == key


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"ASNFZ4mrze_-3LqYdlQyEA",
        b"ASNFZ4mrze_-3LqYdlQyEA:3:199",
        b"ASNFZ4mrze_-3LqYdlQyEA:3:199:5:UPDATE",
        b"ASNFZ4mrze_-3LqYdlQyEA:03:199:5",
        b"ASNFZ4mrze_-3LqYdlQyEA:3:-1:5",
        b"ASNFZ4mrze_-3LqYdlQyEB:3",  # two texts of one id
        b"foo:3:199:5",
        b"\xff\xfe:3",
    ],
)
def test_parse_key_of_something_else_names_it(encoded: bytes) -> None:
    with pytest.raises(CorruptMetadataError, match="key="):
        parse_key(encoded)
