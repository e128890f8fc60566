"""`__remote_log_metadata` in a broker's log directories, of Isotherm or Apache Kafka.

The segment files are read as they are: nothing is locked, recovered or changed, so a broker may be
running. Records that it has not flushed, or will truncate, may be seen or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from isotherm.errors import CorruptLogError, PolicyViolationError, UnknownTopicOrPartitionError
from isotherm.record.batch_header import HEADER_SIZE, read_batch_header
from isotherm.record.batch_table import read_batch_table
from isotherm.record.columns import decode_columns
from isotherm.remote.metadata.api import (
    MetadataColumns,
    MetadataTopicRecord,
    NewMetadataRecord,
)
from isotherm.remote.metadata.wire.events import columns_of
from isotherm.segment.file_names import LOG_SUFFIX, live_partition
from isotherm.types import NO_TIMESTAMP, REMOTE_LOG_METADATA_TOPIC, Offset, TimestampMs

_COLUMNS = frozenset({"key", "value"})
_OFFSET_MAX = 2**63 - 1
_READ_SIZE_MIN = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of the next read: `position` in the partition's segment with this index."""

    segment: int
    position: int


class LogDirMetadataTopic:
    """A `MetadataTopic` that can only be read. Not thread-safe.

    Reading a partition onward is a stream; a read from another offset begins at the first segment.
    """

    def __init__(self, log_dirs: Iterable[Path], topic: str = REMOTE_LOG_METADATA_TOPIC) -> None:
        """List the topic's segments. Raises UnknownTopicOrPartitionError if there is no
        partition."""
        self._segments: dict[int, list[Path]] = {}
        for directory in (each for log_dir in log_dirs for each in log_dir.iterdir()):
            partition = live_partition(directory.name, topic)
            if partition is not None:
                self._segments[partition] = sorted(directory.glob(f"*{LOG_SUFFIX}"))
        if not self._segments:
            raise UnknownTopicOrPartitionError(
                f"the log directories have no such topic topic={topic}"
            )
        self._streams: dict[tuple[int, Offset], _Place] = {}
        self._ends: dict[int, Offset] = {}

    @property
    def partition_count(self) -> int:
        """The number of partitions up to the last existing one. Missing ones among them are
        empty."""
        return max(self._segments) + 1

    def size_in_bytes(self, partition: int) -> int:
        return sum(path.stat().st_size for path in self._segments.get(partition, ()))

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
        """See `MetadataTopic.read_columns`. Raises CorruptLogError for a closed segment that ends
        within a batch."""
        segments = self._segments.get(partition, [])
        place = self._streams.pop((partition, start_offset), _Place(0, 0))
        while place.segment < len(segments):
            data = _read_file(segments[place.segment], place.position, max_bytes)
            decoded = decode_columns(
                data, offset_range=(start_offset, _OFFSET_MAX), columns=_COLUMNS
            )
            if decoded.position_end == 0:
                if data and place.segment + 1 < len(segments):
                    raise CorruptLogError(
                        "segment ends within a batch and is not the last one"
                        f" file={segments[place.segment]} position={place.position}",
                        "compare the partition with another replica",
                    )
                place = _Place(place.segment + 1, 0)
                continue
            place = _Place(place.segment, place.position + decoded.position_end)
            if decoded.next_offset > start_offset:
                self._streams[partition, decoded.next_offset] = place
                assert decoded.key is not None
                assert decoded.value is not None
                return MetadataColumns(
                    decoded.offset, decoded.key, decoded.value, decoded.next_offset
                )
        return columns_of([], start_offset)

    def offsets(self, partition: int) -> tuple[Offset, Offset]:
        segments = self._segments.get(partition, [])
        if not segments:
            return 0, 0
        if partition not in self._ends:
            self._ends[partition] = _end_offset(segments[-1])
        return int(segments[0].stem), self._ends[partition]

    def is_current(self, partition: int) -> bool:
        return True

    def close(self) -> None:
        """Nothing is open."""


def _read_file(path: Path, position: int, size: int) -> memoryview:
    """Read `size` bytes, or more if the first batch is larger; it is whole unless the file ends
    before. Raises CorruptRecordError for a damaged header."""
    with path.open("rb") as file:
        file.seek(position)
        data = file.read(max(size, _READ_SIZE_MIN))
        if len(data) >= HEADER_SIZE:
            missing = read_batch_header(data).size_in_bytes - len(data)
            if missing > 0:
                data += file.read(missing)
        return memoryview(data)


def _end_offset(path: Path) -> Offset:
    """The offset after the last complete batch. Only headers are decoded."""
    end = int(path.stem)
    position = 0
    while True:
        batches, size = read_batch_table(_read_file(path, position, _READ_SIZE_MIN))
        if size == 0:
            return end
        end = int(batches[-1]["base_offset"] + batches[-1]["last_offset_delta"]) + 1
        position += size
