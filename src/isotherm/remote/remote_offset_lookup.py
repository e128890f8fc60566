"""The first record at or after a time, in the remote tier (ListOffsets by timestamp).

Kafka answers with the first segment whose largest timestamp is high enough, even when that
segment has no such record from the starting offset on. Here the look-up goes on with the next.
Source: Kafka RemoteLogManager.findOffsetByTimestamp.
"""

from __future__ import annotations

from isotherm.log.log_segment import TimestampAndOffset
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import read_records
from isotherm.remote.index_cache import RemoteIndexCache
from isotherm.remote.lineage import is_segment_within_lineage, without_empty_epochs
from isotherm.remote.metadata.api import RemoteLogMetadataManager, check_ready
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.remote.segment_reader import RemoteSegmentReader
from isotherm.types import Offset, TimestampMs, TopicIdPartition


class RemoteOffsetLookup:
    """Thread-safe."""

    def __init__(
        self,
        metadata: RemoteLogMetadataManager,
        index_cache: RemoteIndexCache,
        segments: RemoteSegmentReader,
    ) -> None:
        self._metadata = metadata
        self._index_cache = index_cache
        self._segments = segments

    def find(
        self,
        log: PartitionLog,
        partition: TopicIdPartition,
        timestamp_ms: TimestampMs,
        starting_offset: Offset,
    ) -> TimestampAndOffset | None:
        """The first record of the remote-only part of the log, from `starting_offset` on, that is
        at least as young. None when there is none: the caller goes on with the local log.

        Raises what the storage and metadata managers raise, and CorruptObjectError.
        """
        check_ready(self._metadata, partition)
        lineage = without_empty_epochs(log.leader_epochs.entries)
        first_local_offset = log.segments()[0].base_offset
        for metadata in self._metadata.list_remote_log_segments(partition):
            if metadata.start_offset >= first_local_offset:
                return None
            if (
                metadata.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
                and metadata.max_timestamp_ms >= timestamp_ms
                and metadata.end_offset_inclusive >= starting_offset
                and is_segment_within_lineage(metadata, log.log_end_offset, lineage)
            ):
                found = self._find_in(metadata, timestamp_ms, starting_offset)
                if found is not None:
                    return found
        return None

    def _find_in(
        self,
        metadata: RemoteLogSegmentMetadata,
        timestamp_ms: TimestampMs,
        starting_offset: Offset,
    ) -> TimestampAndOffset | None:
        indexes = self._index_cache.get(metadata)
        start = indexes.lookup_timestamp(timestamp_ms, starting_offset)
        for position, header in self._segments.headers(metadata, start):
            if header.max_timestamp < timestamp_ms or header.last_offset < starting_offset:
                continue
            batch = self._segments.batch(metadata, position, header)
            for record in read_records(batch, 0, header):
                if record.timestamp_ms >= timestamp_ms and record.offset >= starting_offset:
                    return TimestampAndOffset(
                        record.timestamp_ms, record.offset, header.partition_leader_epoch
                    )
        return None
