"""Views of a metadata partition for its migration: all records, counted, and those with a key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from isotherm.remote.metadata.api import (
    MetadataColumns,
    MetadataTopic,
    MetadataTopicRecord,
    NewMetadataRecord,
)
from isotherm.remote.metadata.wire.events import next_offset
from isotherm.types import Offset, TimestampMs

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(slots=True)
class RecordCounts:
    """Counts of the records so far. Sizes are those of keys and values."""

    without_key: int = 0
    with_key: int = 0
    tombstones: int = 0
    size_without_key: int = 0
    size_with_key: int = 0

    def add(self, key: bytes | None, value: bytes | None) -> None:
        size = len(key or b"") + len(value or b"")
        if key is None:
            self.without_key += 1
            self.size_without_key += size
        else:
            self.with_key += 1
            self.tombstones += value is None
            self.size_with_key += size

    def add_columns(self, columns: MetadataColumns) -> None:
        keyed = _keyed_columns(columns)
        size = _size(columns.key) + _size(columns.value)
        size_with_key = _size(keyed.key) + _size(keyed.value)
        self.without_key += len(columns.key) - len(keyed.key)
        self.with_key += len(keyed.key)
        self.tombstones += keyed.value.null_count
        self.size_without_key += size - size_with_key
        self.size_with_key += size_with_key


class _Reading:
    """A `MetadataTopic` that changes the reads of another one."""

    def __init__(self, topic: MetadataTopic) -> None:
        self._topic = topic

    @property
    def partition_count(self) -> int:
        return self._topic.partition_count

    def append(
        self, partition: int, key: bytes | None, value: bytes | None, timestamp_ms: TimestampMs
    ) -> Offset:
        return self._topic.append(partition, key, value, timestamp_ms)

    def append_all(self, partition: int, records: Sequence[NewMetadataRecord]) -> Offset:
        return self._topic.append_all(partition, records)

    def offsets(self, partition: int) -> tuple[Offset, Offset]:
        return self._topic.offsets(partition)

    def is_current(self, partition: int) -> bool:
        return True

    def close(self) -> None:
        """The topic belongs to the caller."""


class CountedRecords(_Reading):
    """Counts records and bytes."""

    def __init__(self, topic: MetadataTopic, counts: RecordCounts) -> None:
        super().__init__(topic)
        self._counts = counts

    def read(
        self, partition: int, start_offset: Offset, max_bytes: int
    ) -> list[MetadataTopicRecord]:
        records = self._topic.read(partition, start_offset, max_bytes)
        for record in records:
            self._counts.add(record.key, record.value)
        return records

    def read_columns(self, partition: int, start_offset: Offset, max_bytes: int) -> MetadataColumns:
        columns = self._topic.read_columns(partition, start_offset, max_bytes)
        self._counts.add_columns(columns)
        return columns


class KeyedRecords(_Reading):
    """Skips the records without a key, as if compaction had dropped them."""

    def read(
        self, partition: int, start_offset: Offset, max_bytes: int
    ) -> list[MetadataTopicRecord]:
        position = start_offset
        while True:
            records = self._topic.read(partition, position, max_bytes)
            keyed = [record for record in records if record.key is not None]
            if keyed or not records:
                return keyed
            position = next_offset(records, position)

    def read_columns(self, partition: int, start_offset: Offset, max_bytes: int) -> MetadataColumns:
        return _keyed_columns(self._topic.read_columns(partition, start_offset, max_bytes))


def _keyed_columns(columns: MetadataColumns) -> MetadataColumns:
    is_keyed = columns.key.is_valid()
    return MetadataColumns(
        offset=columns.offset[is_keyed.to_numpy(zero_copy_only=False)],
        key=columns.key.filter(is_keyed),
        value=columns.value.filter(is_keyed),
        next_offset=columns.next_offset,
    )


def _size(column: pa.BinaryArray) -> int:
    # Imported here: few brokers ever migrate.
    import pyarrow.compute as pc

    return int(pc.sum(pc.binary_length(column)).as_py() or 0)
