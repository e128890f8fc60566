"""Maps a group or transactional id to a partition of its coordinator's topic."""

from __future__ import annotations

_INT_MASK = 0xFFFFFFFF
_INT_MIN = -(2**31)


def coordinator_partition(key: str, partition_count: int) -> int:
    """Kafka: Utils.abs(key.hashCode()) % partitions. Java's hash uses UTF-16 code units."""
    return _java_abs(_java_hash(key)) % partition_count


def _java_hash(text: str) -> int:
    hashed = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(units), 2):
        hashed = (31 * hashed + (units[index] << 8 | units[index + 1])) & _INT_MASK
    return hashed - (1 << 32) if hashed >= 1 << 31 else hashed


def _java_abs(value: int) -> int:
    """Kafka's Utils.abs: the smallest int has no positive counterpart and gives 0."""
    return 0 if value == _INT_MIN else abs(value)
