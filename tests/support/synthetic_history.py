"""A history of any size that takes no space: segments are generated when they are read.

All batches are equal except for the base offset, which no CRC covers. Indexes have an entry for
each batch but the first, as with a broker's batches that exceed its index interval. The store
counts its requests.
"""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass

import numpy as np

from isotherm.record.batch import CompressionType, NewRecord, build_batch
from isotherm.remote.segment_metadata import (
    IndexType,
    LogSegmentData,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.segment.offset_index import OffsetPosition, encode_offset_index
from isotherm.types import Offset, Position, TopicIdPartition

TIMESTAMP_MS = 1_700_000_000_000
_TOPIC_ID = uuid.UUID(int=0x5E6)


@dataclass(frozen=True, slots=True)
class HistoryShape:
    """`segment_size` is rounded down to whole batches."""

    partitions: int
    segments_per_partition: int
    segment_size: int
    records_per_batch: int = 1000
    value_size: int = 1000
    codec: CompressionType = CompressionType.NONE
    topic: str = "history"


class SyntheticHistory:
    """A RemoteStorageManager that can only read; thread-safe."""

    def __init__(self, shape: HistoryShape) -> None:
        self.shape = shape
        value = bytes(range(256)) * (shape.value_size // 256 + 1)
        records = [
            NewRecord(TIMESTAMP_MS + number, b"key-%08d" % number, value[: shape.value_size])
            for number in range(shape.records_per_batch)
        ]
        batch = build_batch(records, compression=shape.codec)
        self._batch = np.frombuffer(bytes(batch), dtype=np.uint8)
        self._batches = max(1, shape.segment_size // len(batch))
        self._lock = threading.Lock()
        self.gets = 0
        self.bytes = 0

    @property
    def segment_size(self) -> int:
        return self._batches * len(self._batch)

    @property
    def records_per_segment(self) -> int:
        return self._batches * self.shape.records_per_batch

    @property
    def total_size(self) -> int:
        return self.segment_size * self.shape.segments_per_partition * self.shape.partitions

    def owners(self) -> list[TopicIdPartition]:
        return [
            TopicIdPartition(_TOPIC_ID, self.shape.topic, number)
            for number in range(self.shape.partitions)
        ]

    def segments(self) -> list[RemoteLogSegmentMetadata]:
        return [
            self._segment(owner, number)
            for owner in self.owners()
            for number in range(self.shape.segments_per_partition)
        ]

    def fetch_log_segment(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: Position,
        end_position_inclusive: Position | None = None,
    ) -> memoryview:
        size = len(self._batch)
        last = self.segment_size - 1 if end_position_inclusive is None else end_position_inclusive
        end = min(last + 1, self.segment_size)
        first_batch, batch_end = start_position // size, -(-end // size)
        batches = np.tile(self._batch, (batch_end - first_batch, 1))
        numbers = np.arange(first_batch, batch_end, dtype=np.int64)
        offsets = metadata.start_offset + numbers * self.shape.records_per_batch
        batches[:, :8] = offsets.astype(">i8").view(np.uint8).reshape(-1, 8)
        skipped = first_batch * size
        wanted = batches.reshape(-1)[start_position - skipped : end - skipped]
        self._count(len(wanted))
        return wanted.data.toreadonly()

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        assert index_type is IndexType.OFFSET, "nothing else is made"
        per_batch, size = self.shape.records_per_batch, len(self._batch)
        entries = [
            OffsetPosition(metadata.start_offset + (number + 1) * per_batch - 1, number * size)
            for number in range(1, self._batches)
        ]
        index = encode_offset_index(entries, metadata.start_offset)
        self._count(len(index))
        return index

    def fetch_segment_metadata(
        self, metadata: RemoteLogSegmentMetadata
    ) -> RemoteLogSegmentMetadata:
        return metadata

    def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        raise NotImplementedError("a synthetic history is only read")

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        raise NotImplementedError("a synthetic history is only read")

    def close(self) -> None:
        """Nothing is held open."""

    def _segment(self, owner: TopicIdPartition, number: int) -> RemoteLogSegmentMetadata:
        start: Offset = number * self.records_per_segment
        segment_id = uuid.UUID(int=(owner.partition << 64) + number + 1)
        return RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(owner, segment_id),
            start_offset=start,
            end_offset_inclusive=start + self.records_per_segment - 1,
            max_timestamp_ms=TIMESTAMP_MS + self.shape.records_per_batch - 1,
            broker_id=1,
            event_timestamp_ms=TIMESTAMP_MS,
            segment_size_in_bytes=self.segment_size,
            segment_leader_epochs={0: start},
            state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            txn_index_empty=True,
        )

    def _count(self, size: int) -> None:
        with self._lock:
            self.gets += 1
            self.bytes += size
