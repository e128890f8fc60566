"""Copies the closed segments of a local log to a bucket at once, with the layout of a copy task."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

from isotherm.log.partition_log import PartitionLog
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.remote.tasks.copy import segment_data
from isotherm.remote.tasks.copy_plan import CopyLag, plan_copies
from isotherm.segment.leader_epochs import epochs_within
from isotherm.types import LeaderEpoch, TopicIdPartition


def tier_closed_segments(
    storage: RemoteStorageManager,
    owner: TopicIdPartition,
    log: PartitionLog,
    ids: Iterator[int],
    *,
    broker_leader_epoch: LeaderEpoch = 0,
) -> list[RemoteLogSegmentMetadata]:
    """Copy all non-empty closed segments below the last stable offset; return their finished
    metadata.

    `ids` gives the segments' ids.
    """
    tiered = []
    for candidate in plan_copies(log.segments(), 0, log.last_stable_offset, CopyLag(0, 0), 0):
        segment, end = candidate.segment, candidate.next_base_offset
        if not segment.size_in_bytes:
            continue
        metadata = RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(owner, uuid.UUID(int=next(ids))),
            start_offset=segment.base_offset,
            end_offset_inclusive=end - 1,
            max_timestamp_ms=segment.largest_timestamp_ms,
            broker_id=1,
            event_timestamp_ms=1,
            segment_size_in_bytes=segment.size_in_bytes,
            segment_leader_epochs=epochs_within(
                log.leader_epochs.entries, segment.base_offset, end
            ),
            state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            txn_index_empty=not segment.aborted_transactions(),
            broker_leader_epoch=broker_leader_epoch,
        )
        storage.copy_log_segment_data(metadata, segment_data(log, candidate))
        tiered.append(metadata)
    return tiered
