"""Writes records in order as the segments of a history, in files.

    rows -> batches -> segment -> next segment ...    a segment ends before it exceeds
                                                      `segment_bytes`, as in a broker's log

All records have leader epoch 0, no producer, and offsets without gaps: what a log has whose only
leader got them from a producer without idempotence. So producer snapshots and transaction indexes
are empty, and the leader epochs are those of a log that began with epoch 0.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from isotherm.record.compression import CompressionType
from isotherm.record.crc32c import crc32c_extended
from isotherm.record.encode import encode_batches
from isotherm.remote.rewriting.adoption import HISTORY_EPOCH, HISTORY_EPOCHS
from isotherm.remote.rewriting.segment_rewrite import RewriteCounts, RewrittenSegment
from isotherm.remote.segment_metadata import (
    LogSegmentData,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
)
from isotherm.segment.cleaning.written_indexes import WrittenIndexes
from isotherm.segment.leader_epoch_checkpoint import encode_leader_epoch_checkpoint
from isotherm.segment.offset_index import RELATIVE_OFFSET_MAX
from isotherm.segment.producer_snapshot import encode_producer_snapshot
from isotherm.types import Offset, TimestampMs, TopicIdPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from isotherm.record.filter import FilteredBatches

_NO_BROKER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRules:
    """The shape of the segments: the topic's settings. `batch_size` is that of a batch before
    compression. Picklable."""

    now_ms: TimestampMs
    segment_bytes: int
    index_interval_bytes: int
    max_message_bytes: int
    batch_size: int
    compression: CompressionType
    compression_level: int | None = None


class HistoryWriter:
    """Writes the records of one partition. For each segment that is full, `append` yields once; the
    caller takes it, and removes its files, before it goes on."""

    def __init__(
        self,
        partition: TopicIdPartition,
        start_offset: Offset,
        rules: HistoryRules,
        directory: Path,
    ) -> None:
        self.next_offset = start_offset
        self._partition = partition
        self._rules = rules
        self._log_path = directory / "log"
        self._begin()

    def append(self, rows: pa.RecordBatch) -> Iterator[None]:
        """Append records; see `encode_batches` for their columns and what it raises."""
        encoded = encode_batches(
            rows,
            self.next_offset,
            HISTORY_EPOCH,
            compression=self._rules.compression,
            level=self._rules.compression_level,
            batch_size=self._rules.batch_size,
            max_message_bytes=self._rules.max_message_bytes,
        )
        while len(encoded.batches):
            count = self._fitting(encoded)
            if count:
                self._write(encoded.head(count))
                encoded = encoded.tail(count)
            else:
                yield

    @property
    def has_records(self) -> bool:
        """Whether there is a segment to take."""
        return self.next_offset > self._start_offset

    def take(self) -> RewrittenSegment:
        """The segment that is full, or at the end the last one."""
        data = self._files()
        metadata = RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(
                self._partition, uuid.UUID(bytes=os.urandom(16), version=4)
            ),
            start_offset=self._start_offset,
            end_offset_inclusive=self.next_offset - 1,
            max_timestamp_ms=self._indexes.largest_timestamp_ms,
            broker_id=_NO_BROKER,
            event_timestamp_ms=self._rules.now_ms,
            segment_size_in_bytes=self._indexes.position,
            segment_leader_epochs={HISTORY_EPOCH: self._start_offset},
            txn_index_empty=True,
        )
        size, records = self._indexes.position, self.next_offset - self._start_offset
        return RewrittenSegment(
            metadata,
            data,
            RewriteCounts(records, records, size, size),
            self._crc,
            has_new_batches=True,
        )

    def remove_files(self) -> None:
        """Remove the files of the segment that was taken, and begin the next one."""
        for path in self._log_path.parent.iterdir():
            path.unlink()
        self._begin()

    def _begin(self) -> None:
        self._start_offset = self.next_offset
        self._indexes = WrittenIndexes(
            self.next_offset, interval_bytes=self._rules.index_interval_bytes
        )
        self._crc = 0

    def _fitting(self, encoded: FilteredBatches) -> int:
        """How many of the batches fit into the segment: at least one into an empty one."""
        ends = self._indexes.position + np.cumsum(encoded.batches["size"])
        fits = ends <= self._rules.segment_bytes
        fits &= encoded.batches["last_offset"] - self._start_offset <= RELATIVE_OFFSET_MAX
        count = len(fits) if fits.all() else int(np.argmin(fits))
        return count or int(self._indexes.position == 0)

    def _write(self, encoded: FilteredBatches) -> None:
        with self._log_path.open("ab") as log:
            log.write(encoded.records)
        self._crc = crc32c_extended(self._crc, encoded.records)
        self._indexes.append(encoded.batches)
        self.next_offset = int(encoded.batches["last_offset"][-1]) + 1

    def _files(self) -> LogSegmentData:
        def write(name: str, content: bytes | memoryview) -> Path:
            path = self._log_path.with_name(name)
            path.write_bytes(content)
            return path

        return LogSegmentData(
            log_path=self._log_path,
            offset_index_path=write("index", self._indexes.offset_index()),
            time_index_path=write("timeindex", self._indexes.time_index()),
            transaction_index_path=None,
            producer_snapshot_path=write("snapshot", encode_producer_snapshot(())),
            leader_epoch_checkpoint=encode_leader_epoch_checkpoint(HISTORY_EPOCHS),
        )
