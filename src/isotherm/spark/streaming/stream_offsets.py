"""Encodes the offsets of a stream as JSON, and computes the end of a batch. Pure.

The text is that of the Kafka source: the next offset to read of every partition.

    {"topicA":{"0":23,"1":345},"topicB":{"0":7}}

It is sorted, because Spark compares offsets as text. The end of a stream's first batch also
contains the start of that batch, under a name that no topic can have:

    {"@start":{"topicA":{"0":0,"1":0}},"topicA":{"0":23,"1":345}}

The reason: Spark stores no initial offset. It asks for it again whenever it plans the first batch,
and at each start of the query until then. A stream that begins at `latest` would skip the records
in between. So the first batch of a stream runs even if it is empty, and its end stores the start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from isotherm.spark.plan.offsets import OffsetRange
from isotherm.spark.plan.planning import Read
from isotherm.types import Offset, TopicPartition

START = "@start"

PartitionOffsets = dict[TopicPartition, Offset]


class StreamOffset(NamedTuple):
    """`start` is the start of the batch that ends here. Only the first batch has it."""

    offsets: PartitionOffsets
    start: PartitionOffsets | None = None


def encode_offset(offset: StreamOffset) -> dict[str, Any]:
    encoded = _by_topic(offset.offsets)
    # "@" sorts before every letter and digit a topic's name can begin with, but after "." and "-".
    return encoded if offset.start is None else {START: _by_topic(offset.start), **encoded}


def decode_offset(encoded: Mapping[str, Any]) -> StreamOffset:
    start = encoded.get(START)
    offsets = {topic: partitions for topic, partitions in encoded.items() if topic != START}
    return StreamOffset(_by_partition(offsets), None if start is None else _by_partition(start))


def _by_topic(offsets: Mapping[TopicPartition, Offset]) -> dict[str, dict[str, Offset]]:
    topics: dict[str, dict[str, Offset]] = {}
    for partition in sorted(offsets):
        topics.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    return topics


def _by_partition(topics: Mapping[str, Mapping[str, Offset]]) -> PartitionOffsets:
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in topics.items()
        for partition, offset in partitions.items()
    }


def admit_records(available: Sequence[OffsetRange], records_max: int) -> PartitionOffsets:
    """The end of a batch of about `records_max` offsets, in each partition.

    Each partition gets a share in proportion to its available offsets, but at least one offset, so
    that small partitions make progress. The sum may exceed the limit a little. Source: Spark
    KafkaMicroBatchStream.rateLimit.
    """
    total = float(sum(max(0, whole.size) for whole in available))
    ends: PartitionOffsets = {}
    for whole in available:
        if whole.size <= 0:
            ends[whole.topic_partition] = whole.end
            continue
        # In this order, and rounded as there: batches end at the same offsets.
        share = records_max * (whole.size / total)
        count = math.ceil(share) if share < 1 else math.floor(share)
        ends[whole.topic_partition] = min(whole.end, whole.start + count)
    return ends


def admit_bytes(
    available: Mapping[TopicPartition, Sequence[Read]], bytes_max: int
) -> PartitionOffsets:
    """The end of a batch of about `bytes_max` bytes, in each partition with unread records.

    The bytes are shared as in `admit_records`. The bytes of one read are assumed to be spread
    evenly over its offsets.
    """
    sizes = {p: sum(read.size_in_bytes for read in reads) for p, reads in available.items()}
    total = sum(sizes.values())
    return {
        partition: reads[-1].end_offset
        if total <= bytes_max
        else _end_within(reads, bytes_max * sizes[partition] // total)
        for partition, reads in available.items()
        if reads
    }


def _end_within(reads: Sequence[Read], size_max: int) -> Offset:
    left = size_max
    for read in reads:
        if read.size_in_bytes > left:
            count = (read.end_offset - read.start_offset) * left // read.size_in_bytes
            # At least one offset, or the stream would make no progress.
            return max(read.start_offset + count, reads[0].start_offset + 1)
        left -= read.size_in_bytes
    return reads[-1].end_offset
