"""The destination of a metadata event: the metadata partition and, at level 1, the record's key.

    key of a segment's state         topicId:partition:endOffset:brokerLeaderEpoch
    key of a partition's deletion    topicId:partition

UTF-8, the topic id in Kafka's text form (22 characters, which never contain a colon), numbers in
decimal. The end offset is inclusive. Source: KIP-1266; for the partition's key its Scenario 5,
which contradicts its section 2. An upload from level 0 has the epoch NO_LEADER_EPOCH or a lower
one.
"""

from __future__ import annotations

import re
import uuid
from typing import NamedTuple, TypeAlias

from isotherm.errors import CorruptMetadataError
from isotherm.types import (
    LeaderEpoch,
    Offset,
    TopicIdPartition,
    uuid_from_text,
    uuid_to_text,
)

_KEY = re.compile(rb"([A-Za-z0-9_-]{22}):([0-9]{1,10})(?::([0-9]{1,19}):(-?[0-9]{1,10}))?")


class PartitionKey(NamedTuple):
    """Key of the deletion of a whole partition."""

    topic_id: uuid.UUID
    partition: int

    def __str__(self) -> str:
        return f"{uuid_to_text(self.topic_id)}:{self.partition}"

    def encode(self) -> bytes:
        return str(self).encode()


class SegmentKey(NamedTuple):
    """Key of the state of one upload of the segment that ends at `end_offset` (inclusive)."""

    topic_id: uuid.UUID
    partition: int
    end_offset: Offset
    broker_leader_epoch: LeaderEpoch

    def __str__(self) -> str:
        place = f"{uuid_to_text(self.topic_id)}:{self.partition}"
        return f"{place}:{self.end_offset}:{self.broker_leader_epoch}"

    def encode(self) -> bytes:
        return str(self).encode()


MetadataKey: TypeAlias = PartitionKey | SegmentKey


def segment_key(
    partition: TopicIdPartition, end_offset: Offset, broker_leader_epoch: LeaderEpoch
) -> SegmentKey:
    return SegmentKey(partition.topic_id, partition.partition, end_offset, broker_leader_epoch)


def partition_key(partition: TopicIdPartition) -> PartitionKey:
    return PartitionKey(partition.topic_id, partition.partition)


def parse_key(encoded: bytes) -> MetadataKey:
    """Inverse of `encode`. Raises CorruptMetadataError if the bytes are not a canonical key."""
    match = _KEY.fullmatch(encoded)
    if match is None:
        raise CorruptMetadataError(f"not a key of a metadata record key={encoded[:100]!r}")
    topic_id, partition, end_offset, epoch = match.groups()
    try:
        place = PartitionKey(uuid_from_text(topic_id.decode()), int(partition))
    except ValueError as error:
        raise CorruptMetadataError(f"not a key of a metadata record key={encoded!r}") from error
    key = place if end_offset is None else SegmentKey(*place, int(end_offset), int(epoch))
    if key.encode() != encoded:
        raise CorruptMetadataError(f"key of a metadata record is not canonical key={encoded!r}")
    return key


_INT_MASK = 0xFFFFFFFF
_LONG_MASK = 0xFFFFFFFFFFFFFFFF
_MURMUR2_SEED = 0x9747B28C
_MURMUR2_MULTIPLIER = 0x5BD1E995


def metadata_partition(partition: TopicIdPartition, partition_count: int) -> int:
    """The metadata partition of a user partition: murmur2 of Objects.hash(low half of the topic id,
    high half, partition). It does not depend on the topic's name.

    Source: Kafka RemoteLogMetadataTopicPartitioner.
    """
    topic_id = partition.topic_id.int
    hashed = 1
    for element in (
        _java_hash_of_long(topic_id & _LONG_MASK),
        _java_hash_of_long(topic_id >> 64),
        partition.partition,
    ):
        hashed = (31 * hashed + element) & _INT_MASK
    return (_murmur2_of_int(hashed) & 0x7FFFFFFF) % partition_count


def _java_hash_of_long(value: int) -> int:
    return (value ^ (value >> 32)) & _INT_MASK


def _murmur2_of_int(value: int) -> int:
    """Kafka's murmur2 of the four big-endian bytes of `value`: one block, read little-endian."""
    block = int.from_bytes(value.to_bytes(4, "big"), "little")
    block = (block * _MURMUR2_MULTIPLIER) & _INT_MASK
    block ^= block >> 24
    block = (block * _MURMUR2_MULTIPLIER) & _INT_MASK
    hashed = ((_MURMUR2_SEED ^ 4) * _MURMUR2_MULTIPLIER) & _INT_MASK
    hashed ^= block
    hashed ^= hashed >> 13
    hashed = (hashed * _MURMUR2_MULTIPLIER) & _INT_MASK
    return hashed ^ (hashed >> 15)
