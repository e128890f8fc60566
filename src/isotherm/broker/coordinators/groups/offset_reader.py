"""Reads offset records during a load. They are nearly all records of a partition of
`__consumer_offsets`.

    key    type i16 | group string | topic string | partition i32

A topic and partition are the same bytes in the keys of all groups. So they are decoded once, and
the offsets in memory share one object. Values stay encoded (`stored_offset`). Reasons:
docs/decisions/0127.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from isotherm.broker.coordinators.groups.group_records import (
    LEGACY_OFFSET_COMMIT,
    OffsetCommitKey,
    decode_record,
)
from isotherm.broker.coordinators.groups.stored_offset import StoredOffset, stored_offset
from isotherm.errors import CorruptMetadataError
from isotherm.types import NO_PRODUCER_ID, Offset, ProducerId, TopicPartition

_TYPES = tuple(
    struct.pack(">h", api_key) for api_key in (OffsetCommitKey.__api_key__, LEGACY_OFFSET_COMMIT)
)


class CommittedOffset(NamedTuple):
    """An offset record.

    `stored` is None for a tombstone; `producer_id` is -1 outside transactions.
    """

    group_id: str
    partition: TopicPartition
    stored: StoredOffset | None
    producer_id: ProducerId = NO_PRODUCER_ID


class OffsetReader:
    """Reads the records of one load. For one thread."""

    def __init__(self) -> None:
        self._partitions: dict[bytes, TopicPartition] = {}

    def read(
        self,
        key: bytes,
        value: bytes | None,
        record_offset: Offset,
        producer_id: ProducerId = NO_PRODUCER_ID,
    ) -> CommittedOffset | None:
        """The offset record; None for a record of another type. Raises CorruptMetadataError."""
        if not key.startswith(_TYPES):
            return None
        group_end = 4 + int.from_bytes(key[2:4])
        place = key[group_end:]
        partition = self._partitions.get(place)
        if partition is None:
            partition = self._partitions[place] = _partition_of(key)
        try:
            group_id = key[4:group_end].decode()
        except UnicodeDecodeError as error:
            raise CorruptMetadataError(f"a text is not UTF-8 size={len(key)}") from error
        stored = None if value is None else stored_offset(value, record_offset)
        return CommittedOffset(group_id, partition, stored, producer_id)


def _partition_of(key: bytes) -> TopicPartition:
    record = decode_record(key, None)
    assert record is not None, "the type is known"
    return TopicPartition(record.key.topic, record.key.partition)
