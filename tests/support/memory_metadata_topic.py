"""A `MetadataTopic` in memory: appends are visible at once, and `compact` acts like the cleaner."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence

from isotherm.errors import LogEndMovedError, OffsetOutOfRangeError
from isotherm.remote.metadata.api import MetadataColumns, MetadataTopicRecord, NewMetadataRecord
from isotherm.remote.metadata.wire.events import columns_of
from isotherm.types import Offset, TimestampMs


class MemoryMetadataTopic:
    """Thread-safe. `before_append` is called with the partition and the value before an append. If
    it raises, `append` raises the same, and the record is not stored."""

    def __init__(self, partition_count: int = 50) -> None:
        self._lock = threading.Lock()
        self._partitions: list[list[MetadataTopicRecord]] = [[] for _ in range(partition_count)]
        self.before_append: Callable[[int, bytes | None], None] | None = None
        self.append_visible = True
        """While False, appended records are stored, but `read` and `offsets` do not show them."""
        self.is_behind = False
        """Whether the topic acts as a replica that lags behind its leader."""
        self._visible = [0] * partition_count
        self._ends = [0] * partition_count

    @property
    def partition_count(self) -> int:
        return len(self._partitions)

    def append(
        self, partition: int, key: bytes | None, value: bytes | None, timestamp_ms: TimestampMs
    ) -> Offset:
        if self.before_append is not None:
            self.before_append(partition, value)
        with self._lock:
            offset = self._ends[partition]
            self._ends[partition] += 1
            self._partitions[partition].append(
                MetadataTopicRecord(partition, offset, timestamp_ms, key, value)
            )
            if self.append_visible:
                self._visible[partition] = self._ends[partition]
            return offset

    def append_all(self, partition: int, records: Sequence[NewMetadataRecord]) -> Offset:
        offsets = [
            self.append(partition, record.key, record.value, record.timestamp_ms)
            for record in records
        ]
        return offsets[0]

    def append_at(
        self, partition: int, end_offset: Offset, records: Sequence[NewMetadataRecord]
    ) -> None:
        """Append all records or none; `before_append` sees each value first."""
        if self.before_append is not None:
            for record in records:
                self.before_append(partition, record.value)
        with self._lock:
            if self._ends[partition] != end_offset:
                raise LogEndMovedError(
                    f"partition={partition} end={self._ends[partition]} expected={end_offset}"
                )
            self._partitions[partition] += [
                MetadataTopicRecord(
                    partition,
                    end_offset + index,
                    each.timestamp_ms,
                    each.key,
                    each.value,
                    each.decided_at,
                )
                for index, each in enumerate(records)
            ]
            self._ends[partition] = end_offset + len(records)
            if self.append_visible:
                self._visible[partition] = self._ends[partition]

    def read(
        self, partition: int, start_offset: Offset, max_bytes: int
    ) -> list[MetadataTopicRecord]:
        with self._lock:
            end = self._visible[partition]
            if not 0 <= start_offset <= end:
                raise OffsetOutOfRangeError(
                    f"no such offset partition={partition} offset={start_offset} end={end}"
                )
            taken: list[MetadataTopicRecord] = []
            size = 0
            records = self._partitions[partition]
            first = bisect_left(records, start_offset, key=lambda record: record.offset)
            for record in records[first:]:
                if record.offset >= end:
                    break
                size += len(record.value or b"")
                if taken and size > max_bytes:
                    break
                taken.append(record)
            return taken

    def read_columns(self, partition: int, start_offset: Offset, max_bytes: int) -> MetadataColumns:
        return columns_of(self.read(partition, start_offset, max_bytes), start_offset)

    def offsets(self, partition: int) -> tuple[Offset, Offset]:
        """The leader's offsets. A replica that lags cannot read up to them yet."""
        with self._lock:
            return 0, (self._ends if self.is_behind else self._visible)[partition]

    def is_current(self, partition: int) -> bool:
        return not self.is_behind

    def has_all_below(self, partition: int, end_offset: Offset) -> bool:
        return not self.is_behind

    def show_all(self) -> None:
        """Make the records visible that were appended while `append_visible` was False."""
        with self._lock:
            self._visible = list(self._ends)

    def compact(self, *, keep_tombstones: bool = False) -> None:
        """Keep the last record of each key, without tombstones, as the cleaner does after
        delete.retention.ms. Records without a key are dropped. Offsets do not change."""
        with self._lock:
            for number, records in enumerate(self._partitions):
                last = {record.key: record.offset for record in records if record.key is not None}
                self._partitions[number] = [
                    record
                    for record in records
                    if record.key is not None
                    and last[record.key] == record.offset
                    and (keep_tombstones or record.value is not None)
                ]

    def records(self) -> list[MetadataTopicRecord]:
        """Every record of every partition."""
        with self._lock:
            return [record for records in self._partitions for record in records]

    def close(self) -> None:
        """Nothing to release."""
