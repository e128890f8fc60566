"""Offsets of a stream as JSON, and the division of limits among partitions, as in Spark's Kafka
source."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.spark.plan.offsets import OffsetRange
from isotherm.spark.plan.planning import BrokerRead, SegmentRead
from isotherm.spark.streaming.stream_offsets import (
    StreamOffset,
    admit_bytes,
    admit_records,
    decode_offset,
    encode_offset,
)
from isotherm.types import TopicPartition

A0, A1, A10, B0 = (TopicPartition(*each) for each in (("a", 0), ("a", 1), ("a", 10), ("b", 0)))

partition_offsets = st.dictionaries(
    st.builds(
        TopicPartition,
        st.text("abz._-09", min_size=1, max_size=5),
        st.integers(0, 12),
    ),
    st.integers(0, 2**63 - 1),
    max_size=6,
)


def test_offsets_have_the_kafka_sources_form() -> None:
    offset = StreamOffset({B0: 7, A10: 3, A1: 345, A0: 23})
    # Partitions sort as numbers, as in Spark's JsonUtils, which sorts TopicPartitions and not
    # texts.
    assert json.dumps(encode_offset(offset)) == '{"a": {"0": 23, "1": 345, "10": 3}, "b": {"0": 7}}'


@given(partition_offsets, st.none() | partition_offsets)
def test_offsets_survive_json(offsets, start) -> None:
    encoded = json.loads(json.dumps(encode_offset(StreamOffset(offsets, start))))
    assert decode_offset(encoded) == StreamOffset(offsets, start)


def ranges(*sizes: int, start: int = 100) -> list[OffsetRange]:
    return [
        OffsetRange(TopicPartition("a", number), start, start + size)
        for number, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("sizes", "limit", "counts"),
    [
        ((10, 10), 100, (10, 10)),
        ((10, 10), 20, (10, 10)),
        ((300, 100), 40, (30, 10)),
        ((1000, 1), 10, (9, 1)),  # 9.99 is rounded down, 0.01 is rounded up to 1
        ((5, 5, 5), 2, (1, 1, 1)),  # every partition gets one, though the sum exceeds the limit
        ((0, 8), 4, (0, 4)),
        # The Kafka source divides first: 22 * (15 / 22) is 14.999... in floating point.
        ((15, 7), 22, (14, 7)),
        ((30, 14), 22, (14, 7)),
    ],
)
def test_records_are_shared_as_the_kafka_source_shares_them(sizes, limit, counts) -> None:
    admitted = admit_records(ranges(*sizes), limit)
    assert tuple(end - 100 for end in admitted.values()) == counts


def test_partition_that_went_backwards_ends_where_it_ends() -> None:
    assert admit_records([OffsetRange(A0, 50, 20), OffsetRange(A1, 0, 100)], 10) == {A0: 20, A1: 10}


def test_bytes_are_shared_by_size_and_cut_within_a_segment(
    segment: Callable[..., RemoteLogSegmentMetadata],
) -> None:
    first, second = segment(0, 99, size=1000), segment(100, 199, size=3000)
    reads = {
        A0: [SegmentRead(first, 0, 100), SegmentRead(second, 100, 200)],
        A1: [BrokerRead(A1, 0, 40, record_size=100)],
    }
    assert admit_bytes(reads, 8000) == {A0: 200, A1: 40}
    # Half of 8000 each. A0: the first segment, and 1000 of the second one's 3000 bytes. A1: 20
    # records.
    assert admit_bytes(reads, 4000) == {A0: 133, A1: 20}
    assert admit_bytes(reads, 1) == {A0: 1, A1: 1}
