"""The offsets of a stream: their JSON form, and how far one batch goes. Pure.

The text is the Kafka source's, the next offset to read of every partition:

    {"topicA":{"0":23,"1":345},"topicB":{"0":7}}

and sorted, since Spark compares offsets as text. The end of a stream's first batch also says where
that batch began, under a name that no topic can have:

    {"@start":{"topicA":{"0":0,"1":0}},"topicA":{"0":23,"1":345}}

Spark keeps no initial offset. It asks for it again when it plans the first batch, and whenever the
query is started before there was one: without the remembered start a stream that begins at `latest`
would skip records then. So the first batch of a stream is made even when it is empty.
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
    """`start` is where the batch that ends here began; only the first batch has it."""

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
    """Where a batch of about `records_max` offsets ends in each partition.

    Each gets its share of what is available, at least one offset, so that a small partition is
    not starved: the sum may exceed the limit a little. Source: Spark KafkaMicroBatchStream.rateLimit.
    """
    total = sum(max(0, whole.size) for whole in available)
    ends: PartitionOffsets = {}
    for whole in available:
        if whole.size <= 0 or total <= records_max:
            ends[whole.topic_partition] = whole.end
            continue
        share = records_max * whole.size / total
        count = math.ceil(share) if share < 1 else math.floor(share)
        ends[whole.topic_partition] = min(whole.end, whole.start + count)
    return ends


def admit_bytes(
    available: Mapping[TopicPartition, Sequence[Read]], bytes_max: int
) -> PartitionOffsets:
    """Where a batch of about `bytes_max` bytes ends in each partition that has something to read.

    Shared as `admit_records` does it; within one read bytes are taken to be spread evenly.
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
            # One offset at least, or the stream would stand still.
            return max(read.start_offset + count, reads[0].start_offset + 1)
        left -= read.size_in_bytes
    return reads[-1].end_offset
