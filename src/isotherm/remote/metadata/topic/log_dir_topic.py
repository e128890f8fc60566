"""`__remote_log_metadata` in a broker's log directories, of Isotherm or Apache Kafka.

The segment files are read as they are when the topic is opened: nothing is locked, recovered or
changed, so a broker may be running. Records that it has not flushed, or will truncate, may be seen
or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from isotherm.errors import CorruptLogError, PolicyViolationError, UnknownTopicOrPartitionError
from isotherm.record.columns import RecordColumns
from isotherm.remote.metadata.api import (
    MetadataColumns,
    MetadataTopicRecord,
    NewMetadataRecord,
)
from isotherm.remote.metadata.topic.log_files import (
    LogFile,
    end_offset,
    metadata_columns,
    read_log_files,
)
from isotherm.remote.metadata.wire.events import columns_of
from isotherm.remote.storage.inventory import open_for_reading
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.segment.file_names import LOG_SUFFIX, live_partition
from isotherm.types import NO_TIMESTAMP, REMOTE_LOG_METADATA_TOPIC, Offset, TimestampMs

_OFFSET_MAX = 2**63 - 1
_READ_SIZE_MIN = 2 * 1024 * 1024


class LogDirMetadataTopic:
    """A `MetadataTopic` that can only be read. Not thread-safe.

    Reading a partition onward is a stream; a read from another offset begins at the first segment.
    """

    def __init__(self, log_dirs: Iterable[Path], topic: str = REMOTE_LOG_METADATA_TOPIC) -> None:
        """List the topic's segments. Raises UnknownTopicOrPartitionError if there is no
        partition."""
        directories = list(log_dirs)
        self._stores = [
            open_for_reading(ObjectStoreSettings(url=directory.absolute().as_uri()))
            for directory in directories
        ]
        self._files: dict[int, list[LogFile]] = {}
        for store, log_dir in enumerate(directories):
            for directory in log_dir.iterdir():
                partition = live_partition(directory.name, topic)
                if partition is not None:
                    self._files[partition] = [
                        LogFile(store, f"{directory.name}/{path.name}", path.stat().st_size)
                        for path in sorted(directory.glob(f"*{LOG_SUFFIX}"))
                    ]
        if not self._files:
            raise UnknownTopicOrPartitionError(
                f"the log directories have no such topic topic={topic}"
            )
        # By the offset that each is read up to.
        self._streams: dict[tuple[int, Offset], Iterator[RecordColumns]] = {}
        self._ends: dict[int, Offset] = {}

    @property
    def partition_count(self) -> int:
        """The number of partitions up to the last existing one. Missing ones among them are
        empty."""
        return max(self._files) + 1

    def size_in_bytes(self, partition: int) -> int:
        return sum(file.size for file in self._files.get(partition, ()))

    def append(
        self, partition: int, key: bytes | None, value: bytes | None, timestamp_ms: TimestampMs
    ) -> Offset:
        """Always raises PolicyViolationError: the topic is only read."""
        return self.append_all(partition, [NewMetadataRecord(key, value, timestamp_ms)])

    def append_all(self, partition: int, records: Sequence[NewMetadataRecord]) -> Offset:
        """Always raises PolicyViolationError: the topic is only read."""
        raise PolicyViolationError(
            f"the log directory is only read partition={partition} records={len(records)}"
        )

    def read(
        self, partition: int, start_offset: Offset, max_bytes: int
    ) -> list[MetadataTopicRecord]:
        """See `MetadataTopic.read`; without timestamps."""
        position = start_offset
        while True:
            columns = self.read_columns(partition, position, max_bytes)
            if len(columns.offset) or columns.next_offset == position:
                break
            position = columns.next_offset
        rows = (columns.offset.tolist(), columns.key.to_pylist(), columns.value.to_pylist())
        return [
            MetadataTopicRecord(partition, offset, NO_TIMESTAMP, key, value)
            for offset, key, value in zip(*rows, strict=True)
        ]

    def read_columns(self, partition: int, start_offset: Offset, max_bytes: int) -> MetadataColumns:
        """See `MetadataTopic.read_columns`; a stream keeps the `max_bytes` of its first read.
        Raises CorruptLogError for a damaged batch, and for a closed segment that ends within
        one."""
        stream = self._streams.pop((partition, start_offset), None) or read_log_files(
            self._stores,
            self._files.get(partition, []),
            (start_offset, _OFFSET_MAX),
            _refuse,
            max(max_bytes, _READ_SIZE_MIN),
        )
        for decoded in stream:
            if decoded.next_offset > start_offset:
                self._streams[partition, decoded.next_offset] = stream
                return metadata_columns(decoded)
        return columns_of([], start_offset)

    def offsets(self, partition: int) -> tuple[Offset, Offset]:
        files = self._files.get(partition, [])
        if not files:
            return 0, 0
        if partition not in self._ends:
            self._ends[partition] = end_offset(self._stores[files[-1].store], files[-1])
        return files[0].base_offset, self._ends[partition]

    def is_current(self, partition: int) -> bool:
        return True

    def close(self) -> None:
        """Nothing is open."""


def _refuse(_offset: Offset, reason: str) -> None:
    raise CorruptLogError(reason, "compare the partition with another replica")
