"""Segments of real record batches, with the indexes that a broker writes for them."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from isotherm.record.batch import read_batch_header
from isotherm.remote.segment_metadata import (
    LogSegmentData,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.segment.leader_epoch_checkpoint import EpochEntry, encode_leader_epoch_checkpoint
from isotherm.segment.offset_index import OffsetPosition, encode_offset_index
from isotherm.segment.producer_snapshot import encode_producer_snapshot
from isotherm.segment.time_index import TimestampOffset, encode_time_index
from isotherm.testing.segment_files import MadeSegment
from isotherm.types import LeaderEpoch, Offset, Position, TimestampMs, TopicIdPartition

INDEX_INTERVAL_BYTES = 4096


class RecordSegmentMaker:
    """Writes segments under `directory` and copies them to a tier; ids come from `seed`."""

    def __init__(self, directory: Path, storage: RemoteStorageManager, seed: int = 0) -> None:
        self._directory = directory
        self._storage = storage
        self._rng = random.Random(seed)

    def tier(
        self,
        partition: TopicIdPartition,
        batches: Sequence[bytes | bytearray],
        *,
        end_offset_inclusive: Offset | None = None,
        leader_epochs: Mapping[LeaderEpoch, Offset] | None = None,
        event_timestamp_ms: TimestampMs = 0,
        index_interval_bytes: int = INDEX_INTERVAL_BYTES,
    ) -> RemoteLogSegmentMetadata:
        """Copy one segment of these batches (offsets already assigned); return the finished
        metadata.

        The segment ends with its last batch unless `end_offset_inclusive` says it covers a gap.
        """
        segment_id = RemoteLogSegmentId(partition, uuid.UUID(bytes=self._rng.randbytes(16)))
        made = write_segment(
            self._directory / segment_id.id.hex,
            segment_id,
            batches,
            end_offset_inclusive=end_offset_inclusive,
            leader_epochs=leader_epochs,
            event_timestamp_ms=event_timestamp_ms,
            index_interval_bytes=index_interval_bytes,
        )
        custom = self._storage.copy_log_segment_data(made.metadata, made.data)
        return replace(
            made.metadata,
            state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            custom_metadata=custom,
        )


def write_segment(
    directory: Path,
    segment_id: RemoteLogSegmentId,
    batches: Sequence[bytes | bytearray],
    *,
    end_offset_inclusive: Offset | None,
    leader_epochs: Mapping[LeaderEpoch, Offset] | None,
    event_timestamp_ms: TimestampMs,
    index_interval_bytes: int,
) -> MadeSegment:
    headers = [read_batch_header(memoryview(batch)) for batch in batches]
    base_offset = headers[0].base_offset
    epochs = dict(leader_epochs or {0: base_offset})
    offsets, times = _index_entries(batches, index_interval_bytes)
    directory.mkdir(parents=True)
    data = LogSegmentData(
        log_path=_write(directory / "log", b"".join(batches)),
        offset_index_path=_write(directory / "index", encode_offset_index(offsets, base_offset)),
        time_index_path=_write(directory / "timeindex", encode_time_index(times, base_offset)),
        transaction_index_path=None,
        producer_snapshot_path=_write(directory / "snapshot", encode_producer_snapshot([])),
        leader_epoch_checkpoint=encode_leader_epoch_checkpoint(
            [EpochEntry(epoch, start) for epoch, start in epochs.items()]
        ),
    )
    metadata = RemoteLogSegmentMetadata(
        segment_id=segment_id,
        start_offset=base_offset,
        end_offset_inclusive=headers[-1].last_offset
        if end_offset_inclusive is None
        else end_offset_inclusive,
        max_timestamp_ms=max(header.max_timestamp for header in headers),
        broker_id=1,
        event_timestamp_ms=event_timestamp_ms,
        segment_size_in_bytes=sum(map(len, batches)),
        segment_leader_epochs=epochs,
        txn_index_empty=True,
    )
    return MadeSegment(metadata, data)


def _index_entries(
    batches: Sequence[bytes | bytearray], interval_bytes: int
) -> tuple[list[OffsetPosition], list[TimestampOffset]]:
    """Entries as Kafka's LogSegment.append makes them, and the time index's closing entry."""
    offsets: list[OffsetPosition] = []
    times: list[TimestampOffset] = []
    position: Position = 0
    since_entry = 0
    largest = TimestampOffset(-1, 0)
    for batch in batches:
        header = read_batch_header(memoryview(batch))
        if header.max_timestamp > largest.timestamp_ms:
            largest = TimestampOffset(header.max_timestamp, header.last_offset)
        if since_entry > interval_bytes:
            offsets.append(OffsetPosition(header.last_offset, position))
            _append_rising(times, largest)
            since_entry = 0
        since_entry += len(batch)
        position += len(batch)
    _append_rising(times, largest)
    return offsets, times


def _append_rising(times: list[TimestampOffset], entry: TimestampOffset) -> None:
    if entry.timestamp_ms > (times[-1].timestamp_ms if times else -1):
        times.append(entry)


def _write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path
