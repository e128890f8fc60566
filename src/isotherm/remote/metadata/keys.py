"""Which partition of `__remote_log_metadata` carries the events of a user partition."""

from __future__ import annotations

from isotherm.types import TopicIdPartition

_INT_MASK = 0xFFFFFFFF
_LONG_MASK = 0xFFFFFFFFFFFFFFFF
_MURMUR2_SEED = 0x9747B28C
_MURMUR2_MULTIPLIER = 0x5BD1E995


def metadata_partition(partition: TopicIdPartition, partition_count: int) -> int:
    """Kafka's choice: murmur2 of Objects.hash(low half of the topic id, high half, partition).

    The topic's name plays no part. Source: Kafka RemoteLogMetadataTopicPartitioner.
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
