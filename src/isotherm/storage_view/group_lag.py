"""Computes the lag of a group, and the tier that its next records come from. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from isotherm.remote.segment_metadata import RemoteLogSegmentState
from isotherm.storage_view.cluster_storage import PartitionStorage, TopicStorage
from isotherm.storage_view.group_reader import GroupState
from isotherm.storage_view.partition_storage import LocalTier
from isotherm.storage_view.remote_segments import RemoteSegments
from isotherm.storage_view.share_offsets import ShareOffset
from isotherm.types import Offset, TimestampMs, TopicPartition


class ReadsFrom(enum.StrEnum):
    """The place of the record at the committed offset. DELETED means below the log start, and
    BEYOND beyond the end, where the group's reset policy applies. UNKNOWN means that the partition
    does not exist, or that its leader does not answer. NOTHING means that a share group has
    delivered no record yet."""

    BEYOND = "offsets beyond the end"
    END = "the end of the log"
    LOCAL = "the local tier"
    REMOTE = "the remote tier"
    DELETED = "deleted offsets"
    UNKNOWN = "unknown"
    NOTHING = "nothing yet"


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The lag of a group in one partition.

    `lag` counts all unread offsets, `remote_lag` those below the local log start. `lag` is negative
    for a commit beyond the end, as after the topic was deleted and created again. If timestamps
    ascend, the record at the committed offset is at least `age_s` old, the age of the newest record
    in its remote segment, and at most `age_s_max` old, the age of the newest record in the segments
    before. Both are 0 at the end of the log, and None if there is no such segment.

    Of a share group `committed_offset` is the start offset, None before the first delivery, and
    `lag` counts the records from there on whose delivery is not over. `delivered_max` is the most
    records from there on whose delivery is over: the end of the log is read after the lag, so what
    was written in between is counted too.
    """

    place: TopicPartition
    committed_offset: Offset | None
    reads_from: ReadsFrom
    lag: int | None
    remote_lag: int | None
    age_s: float | None
    age_s_max: float | None = None
    delivered_max: int | None = None


def group_lags(
    group: GroupState, topics: Mapping[str, TopicStorage], now_ms: TimestampMs
) -> list[PartitionLag]:
    """The lag of each partition with a committed offset, by topic and partition. `topics` must have
    been read after `group`: a commit of newer records would seem to be beyond the end."""
    if group.share is not None:
        return [
            _share_lag(place, offset, _partition(topics, place), now_ms)
            for place, offset in sorted(group.share.items())
        ]
    return [
        _partition_lag(place, offset, _partition(topics, place), now_ms)
        for place, offset in sorted(group.committed.items())
    ]


def _partition(
    topics: Mapping[str, TopicStorage], place: TopicPartition
) -> PartitionStorage | None:
    topic = topics.get(place.topic)
    partitions = (
        partition
        for partition in (topic.partitions if topic is not None else ())
        if partition.state.partition.partition == place.partition
    )
    return next(partitions, None)


def _share_lag(
    place: TopicPartition, share: ShareOffset, storage: PartitionStorage | None, now_ms: TimestampMs
) -> PartitionLag:
    if share.start_offset is None:
        reads_from = ReadsFrom.NOTHING if share.error is None else ReadsFrom.UNKNOWN
        return PartitionLag(place, None, reads_from, None, None, None)
    from_start = _partition_lag(place, share.start_offset, storage, now_ms)
    if share.lag is None or from_start.lag is None or from_start.remote_lag is None:
        return replace(from_start, lag=share.lag)
    delivered_max = max(0, from_start.lag - share.lag)
    if share.lag == 0:
        # All is done from the start offset on, whose own record is none that is next.
        return PartitionLag(place, share.start_offset, ReadsFrom.END, 0, 0, 0.0, 0.0, delivered_max)
    return replace(
        from_start,
        lag=share.lag,
        remote_lag=min(from_start.remote_lag, share.lag),
        delivered_max=delivered_max,
    )


def _partition_lag(
    place: TopicPartition, offset: Offset, storage: PartitionStorage | None, now_ms: TimestampMs
) -> PartitionLag:
    local = storage.state.local if storage is not None else None
    if storage is None or local is None:
        return PartitionLag(place, offset, ReadsFrom.UNKNOWN, None, None, None)
    first = max(offset, local.log_start_offset)
    tier = _reads_from(offset, local)
    is_end = tier is ReadsFrom.END
    return PartitionLag(
        place,
        offset,
        tier,
        local.high_watermark - first,
        max(0, local.local_log_start_offset - first),
        0.0 if is_end else _age_s(storage.segments, first, now_ms),
        0.0 if is_end else _age_s_max(storage.segments, first, now_ms),
    )


def _reads_from(offset: Offset, local: LocalTier) -> ReadsFrom:
    if offset >= local.high_watermark:
        return ReadsFrom.END if offset == local.high_watermark else ReadsFrom.BEYOND
    if offset < local.log_start_offset:
        return ReadsFrom.DELETED
    return ReadsFrom.REMOTE if offset < local.local_log_start_offset else ReadsFrom.LOCAL


def _age_s(segments: RemoteSegments, offset: Offset, now_ms: TimestampMs) -> float | None:
    holds = (
        segments.in_state(RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
        & (segments.start_offset <= offset)
        & (segments.end_offset >= offset)
    )
    if not holds.any():
        return None
    newest_ms = int(np.min(segments.max_timestamp_ms[holds]))
    return max(0, now_ms - newest_ms) / 1000


def _age_s_max(segments: RemoteSegments, offset: Offset, now_ms: TimestampMs) -> float | None:
    before = segments.in_state(RemoteLogSegmentState.COPY_SEGMENT_FINISHED) & (
        segments.end_offset < offset
    )
    if not before.any():
        return None
    return max(0, now_ms - int(np.max(segments.max_timestamp_ms[before]))) / 1000
