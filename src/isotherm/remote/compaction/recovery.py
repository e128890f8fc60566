"""Finishing or undoing what a compaction staged. Light: the broker loads it when it starts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from isotherm.remote.compaction.journal import CompactionJournals, FoundRun
from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.types import Offset


class StagingStorage(Protocol):
    """What of ObjectStoreRemoteStorageManager is needed once segments are staged."""

    def commit_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, manifest: bytes
    ) -> None: ...

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None: ...


def undo_run(storage: StagingStorage, journals: CompactionJournals, found: FoundRun) -> None:
    """Delete what a run staged that came to nothing, and forget the run. Idempotent."""
    delete_staged(storage, found, kept=())
    journals.forget(found)


def finish_copy(storage: StagingStorage, journals: CompactionJournals, found: FoundRun) -> None:
    """Make the segments of a copy whole, oldest first, and forget the run. Idempotent."""
    assert found.journal is not None, "a run without a journal has nothing to finish"
    replacements = found.journal.replacements
    for replacement in replacements:
        storage.commit_log_segment_data(replacement.new, replacement.manifest)
    delete_staged(storage, found, kept=[each.new.segment_id for each in replacements])
    journals.forget(found)


def delete_staged(
    storage: StagingStorage,
    found: FoundRun,
    *,
    kept: Collection[RemoteLogSegmentId],
) -> None:
    """Delete the segments that a run announced, but for `kept`: those of attempts that failed."""
    for start_offset, segment_id in found.staged:
        if segment_id not in kept:
            storage.delete_log_segment_data(_place_of(segment_id, start_offset))


def _place_of(segment_id: RemoteLogSegmentId, start_offset: Offset) -> RemoteLogSegmentMetadata:
    """As much of a segment as names its objects."""
    return RemoteLogSegmentMetadata(
        segment_id=segment_id,
        start_offset=start_offset,
        end_offset_inclusive=start_offset,
        max_timestamp_ms=0,
        broker_id=0,
        event_timestamp_ms=0,
        segment_size_in_bytes=0,
        segment_leader_epochs={0: start_offset},
    )
