"""Finds the first record at or after a time in the remote tier (ListOffsets by timestamp).

Kafka searches only the first segment with a large enough timestamp, even if that segment has no
such record from the starting offset on. Here the look-up continues in the next segment.
Source: Kafka RemoteLogManager.findOffsetByTimestamp.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from isotherm.errors import CorruptIndexError, CorruptMetadataError, UnknownObjectVersionError
from isotherm.log.log_segment import LogSegment, TimestampAndOffset
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import read_batch_header
from isotherm.record.record_search import find_record
from isotherm.remote.history.holes import hole_error
from isotherm.remote.history.lineage import first_recorded_offset, is_segment_within_lineage
from isotherm.remote.indexes.index_cache import RemoteIndexCache
from isotherm.remote.metadata.api import RemoteLogMetadataManager, check_ready
from isotherm.remote.reading.damage_log import DamageLog
from isotherm.remote.reading.read_wait import ReadWait
from isotherm.remote.reading.segment_reader import RemoteSegmentReader
from isotherm.remote.reading.tier_border import search_both_tiers
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.segment.leader_epoch_checkpoint import EpochEntry
from isotherm.segment.leader_epochs import epoch_for_offset, without_empty_epochs
from isotherm.segment.time_index import SkippedBy
from isotherm.types import Offset, Position, TimestampMs, TopicIdPartition

_logger = logging.getLogger(__name__)


class RemoteOffsetLookup:
    """Thread-safe."""

    def __init__(
        self,
        metadata: RemoteLogMetadataManager,
        index_cache: RemoteIndexCache,
        segments: RemoteSegmentReader,
        damage_log: DamageLog | None = None,
    ) -> None:
        self._metadata = metadata
        self._index_cache = index_cache
        self._segments = segments
        self._damage_log = damage_log or DamageLog()

    def find_in_both_tiers(
        self,
        log: PartitionLog,
        partition: TopicIdPartition,
        timestamp_ms: TimestampMs,
        starting_offset: Offset,
    ) -> TimestampAndOffset | None:
        """Same as `find`, and if the remote tier has no such record, the first one in the local
        log."""

        def search(_: Sequence[LogSegment]) -> tuple[TimestampAndOffset | None, bool]:
            record = self.find(log, partition, timestamp_ms, starting_offset)
            if record is not None:
                return record, True
            return log.offset_for_timestamp(timestamp_ms), False

        return search_both_tiers(log, partition, "look-up", search)

    def find(
        self,
        log: PartitionLog,
        partition: TopicIdPartition,
        timestamp_ms: TimestampMs,
        starting_offset: Offset,
    ) -> TimestampAndOffset | None:
        """The first record with `timestamp_ms` or a later one in the remote-only part of the log,
        from `starting_offset` on. None if there is none: the caller continues in the local log.

        Raises RemoteHoleError if the answer lies right behind a hole: the first such record may
        have been in it. A hole further back is no obstacle: times roughly rise with offsets, so its
        records were older, too. Raises what the storage and metadata managers raise, and
        CorruptObjectError.
        """
        # Before any look-up: a segment that is not known yet would look like a hole.
        check_ready(self._metadata, partition)
        lineage = without_empty_epochs(log.leader_epochs.entries)
        first_local = log.segments()[0]
        segments = self._metadata.list_remote_log_segments(partition)
        record, holder = self._find(
            log, segments, lineage, first_local.base_offset, timestamp_ms, starting_offset
        )
        # The answer, if there is one, is not in the first local segment. So no hole lies right
        # before it.
        if holder is None and first_local.largest_timestamp_ms < timestamp_ms:
            return None
        offset = (holder.start_offset if holder is not None else first_local.base_offset) - 1
        start_offset = first_recorded_offset(lineage, log.log_start_offset)
        if log.remote_log_enabled and offset >= max(start_offset, starting_offset):
            entry = epoch_for_offset(lineage, offset)
            if entry is None or not self._metadata.remote_log_segment_metadata(
                partition, entry.epoch, offset
            ):
                error = hole_error(partition, segments, offset, log.local_log_start_offset)
                self._damage_log.log_once(error.place, str(error))
                raise error
        return record

    def _find(
        self,
        log: PartitionLog,
        segments: Sequence[RemoteLogSegmentMetadata],
        lineage: Sequence[EpochEntry],
        first_local_offset: Offset,
        timestamp_ms: TimestampMs,
        starting_offset: Offset,
    ) -> tuple[TimestampAndOffset | None, RemoteLogSegmentMetadata | None]:
        """The record, and the segment that holds it."""
        for metadata in segments:
            # Segments that are still local are left to the local log (docs/decisions/0034).
            if metadata.start_offset >= first_local_offset:
                break
            if (
                metadata.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
                and metadata.max_timestamp_ms >= timestamp_ms
                and metadata.end_offset_inclusive >= starting_offset
                and is_segment_within_lineage(metadata, log.log_end_offset, lineage)
            ):
                record = self._find_in(metadata, timestamp_ms, starting_offset)
                if record is not None:
                    return record, metadata
        return None, None

    def _find_in(
        self,
        metadata: RemoteLogSegmentMetadata,
        timestamp_ms: TimestampMs,
        starting_offset: Offset,
    ) -> TimestampAndOffset | None:
        try:
            indexes = self._index_cache.get(metadata)
            older = indexes.entries_before(timestamp_ms)
            # The search begins at the first of two entries; both are compared with their batches.
            start = older[0].offset if len(older) == 2 else metadata.start_offset
            # If the search begins at the starting offset, no entry has let it skip a batch.
            skipped_by = SkippedBy(older if start > starting_offset else ())
            hint = indexes.lookup_offset(max(start, starting_offset))
            position = self._segments.proven(metadata, hint, ReadWait())
            return self._search(metadata, position, timestamp_ms, starting_offset, skipped_by)
        except (CorruptIndexError, CorruptMetadataError, UnknownObjectVersionError) as error:
            # The last two: the manifest, which says where the indexes are.
            _logger.warning(
                "index cannot be used, segment is searched from its start segment=%s reason=%r",
                metadata.segment_id,
                str(error),
            )
            return self._search(metadata, 0, timestamp_ms, starting_offset, SkippedBy())

    def _search(
        self,
        metadata: RemoteLogSegmentMetadata,
        position: Position,
        timestamp_ms: TimestampMs,
        starting_offset: Offset,
        skipped_by: SkippedBy,
    ) -> TimestampAndOffset | None:
        """Search from the batch at `position` on. Raises CorruptIndexError if a batch contradicts
        the time index."""
        for checked in self._segments.batches_from(metadata, position):
            for index in range(checked.index_of(position), len(checked.positions)):
                batch = checked.bytes_between(index, index + 1)
                header = read_batch_header(batch)
                skipped_by.pass_batch(header)
                if header.max_timestamp < timestamp_ms or header.last_offset < starting_offset:
                    continue
                with self._segments.damage_named(metadata):
                    record = find_record(batch, header, timestamp_ms, starting_offset)
                if record is not None:
                    skipped_by.end(header)
                    return TimestampAndOffset(*record, header.partition_leader_epoch)
            position = checked.end
        skipped_by.end()
        return None
