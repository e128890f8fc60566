"""Sums the bytes of a partition in both tiers, and what is late to be copied or deleted. Pure.

Bytes are those of `.log` files. A segment in both tiers counts in `local_bytes`, `remote_bytes` and
`overlap_bytes`, and once in `total_bytes`. If a border lies inside a segment, each side gets the
share of its offsets.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from isotherm.remote.segment_metadata import RemoteLogSegmentState
from isotherm.storage_view.remote_segments import RemoteSegments
from isotherm.types import Offset, TimestampMs

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64Array: TypeAlias = npt.NDArray[np.int64]

UPLOAD_GRACE_MS = 3_600_000
"""An unfinished upload that is older has failed. It is the default of `isotherm pipeline audit`."""
_UNLIMITED = -1
_STATE = RemoteLogSegmentState


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTier:
    """The leader's view of a partition. `size_in_bytes` is that of the leader's replica alone.

    `shows_bytes` is false if the leader shows no bytes of a log that has local offsets: a read
    replica, whose tail lies at the real leader, or a broker that may not show its directories."""

    log_start_offset: Offset
    local_log_start_offset: Offset
    last_stable_offset: Offset
    high_watermark: Offset
    size_in_bytes: int
    shows_bytes: bool = True


@dataclass(frozen=True, slots=True)
class Retention:
    """`retention.ms` and `retention.bytes` of a topic. -1 means no limit."""

    ms: int = _UNLIMITED
    bytes: int = _UNLIMITED


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSums:
    """The sums of one partition, or of several.

    remote_bytes      bytes in finished segments; offsets with several copies count several times
    overlap_bytes     bytes of the local log that are also in finished segments
    total_bytes       bytes of the log, each offset once
    missing_offsets   offsets of the log that neither tier has
    copying_s         the seconds since the oldest copy in progress began, None without one. The lag
                      stays as it is while a copy runs, in brokers' metrics as well
    copy_lag_*        closed segments that are not in the remote tier yet, as Kafka's
                      RemoteCopyLagBytes; 0 if the topic is not tiered. No request tells where the
                      active segment begins, so up to `segment.bytes` count as active. `_s` is the
                      age of the newest tiered record, None before the first copy. All are None if
                      there is more than the tier has and the leader does not show its bytes
    deletion_lag_*    segments that retention or the log start has passed, or whose deletion has
                      begun. `_s` is the seconds since then, None if only the size limit has passed
    """

    local_bytes: int
    remote_bytes: int
    overlap_bytes: int
    total_bytes: int
    remote_segments: int
    copying_segments: int
    copying_s: float | None
    deleting_segments: int
    missing_offsets: int
    copy_lag_offsets: int | None
    copy_lag_bytes: int | None
    copy_lag_s: float | None
    deletion_lag_segments: int
    deletion_lag_bytes: int
    deletion_lag_s: float | None


def partition_sums(
    local: LocalTier,
    segments: RemoteSegments,
    retention: Retention,
    now_ms: TimestampMs,
    *,
    is_tiered: bool,
    segment_bytes: int,
) -> StorageSums:
    finished = segments.in_state(_STATE.COPY_SEGMENT_FINISHED)
    start, end = segments.start_offset[finished], segments.end_offset[finished]
    size = segments.size_in_bytes[finished]
    # The part of each segment that no segment before it has.
    own_start = np.maximum(start, _reached_before(end))
    overlap = int(_share(start, end, size, np.maximum(own_start, local.local_log_start_offset)))
    # After compaction the local log may be smaller than its copy.
    overlap = min(overlap, local.size_in_bytes)
    distinct = int(_share(start, end, size, np.maximum(own_start, local.log_start_offset)))
    last_tiered = last_tiered_offset(segments)
    first_uncopied = max(local.log_start_offset, last_tiered + 1)
    lag_offsets = max(0, local.high_watermark - first_uncopied) if is_tiered else 0
    uncopied = local.size_in_bytes - overlap if lag_offsets else 0
    uploads = unfinished_uploads(segments, first_uncopied, now_ms)
    lag_bytes = closed_bytes(uncopied, uploads.size_in_bytes, segment_bytes)
    if lag_bytes < uncopied:
        lag_offsets = round(lag_offsets * lag_bytes / uncopied)
    is_lag_known = local.shows_bytes or not lag_offsets
    has_copies = is_tiered and len(end) > 0
    newest_ms = int(segments.max_timestamp_ms[finished].max()) if has_copies else None
    copying = segments.in_state(_STATE.COPY_SEGMENT_STARTED)
    late = _deletion_lag(local, segments, retention, now_ms, distinct - overlap)
    return StorageSums(
        local_bytes=local.size_in_bytes,
        remote_bytes=int(size.sum()),
        overlap_bytes=overlap,
        total_bytes=local.size_in_bytes + distinct - overlap,
        remote_segments=len(size),
        copying_segments=int(copying.sum()),
        copying_s=_seconds_since(segments.event_timestamp_ms[copying], now_ms),
        deleting_segments=int(segments.in_state(_STATE.DELETE_SEGMENT_STARTED).sum()),
        missing_offsets=_missing_offsets(local, start, end) if is_tiered else 0,
        copy_lag_offsets=lag_offsets if is_lag_known else None,
        copy_lag_bytes=lag_bytes if is_lag_known else None,
        copy_lag_s=_copy_lag_s(lag_offsets, newest_ms, now_ms) if is_lag_known else None,
        deletion_lag_segments=late[0],
        deletion_lag_bytes=late[1],
        deletion_lag_s=late[2],
    )


@dataclass(frozen=True, slots=True)
class UnfinishedUploads:
    """The uploads above the finished segments. Several for the same start offset count once in
    `size_in_bytes`. `since_ms` is the time of the last one, None without any. `has_failed` tells
    that one was given up, was tried again, or is older than the grace period."""

    attempts: int = 0
    size_in_bytes: int = 0
    since_ms: TimestampMs | None = None
    has_failed: bool = False


def unfinished_uploads(
    segments: RemoteSegments, first_uncopied: Offset, now_ms: TimestampMs
) -> UnfinishedUploads:
    """The uploads that begin above the finished segments."""
    # A copy that failed is deleted at once: if that fails too, its deletion stays unfinished.
    given_up = segments.in_state(_STATE.DELETE_SEGMENT_STARTED)
    unfinished = segments.in_state(_STATE.COPY_SEGMENT_STARTED) | given_up
    attempted = np.flatnonzero(unfinished & (segments.end_offset >= first_uncopied))
    if not len(attempted):
        return UnfinishedUploads()
    begun_ms = segments.event_timestamp_ms[attempted]
    largest: dict[int, int] = {}
    starts, sizes = segments.start_offset[attempted], segments.size_in_bytes[attempted]
    for at, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        largest[at] = max(largest.get(at, 0), size)
    return UnfinishedUploads(
        len(attempted),
        sum(largest.values()),
        int(begun_ms.max()),
        bool(
            given_up[attempted].any()
            or len(largest) < len(attempted)
            or begun_ms.max() < now_ms - UPLOAD_GRACE_MS
        ),
    )


def closed_bytes(uncopied: int, uploads: int, segment_bytes: int) -> int:
    """The bytes of `uncopied` that are in closed segments: those of unfinished uploads, and of the
    rest what does not fit into one active segment."""
    begun = min(uploads, uncopied)
    return begun + max(0, uncopied - begun - segment_bytes)


def added(sums: Iterable[StorageSums]) -> StorageSums:
    """The sums of all. A lag in seconds is the longest known one; other lags of copies
    are None if one is."""
    listed = list(sums)
    columns = {
        field.name: [getattr(one, field.name) for one in listed] for field in fields(StorageSums)
    }
    return StorageSums(**{name: _added(name, column) for name, column in columns.items()})


def _added(name: str, column: list[Any]) -> Any:
    if name.endswith("_s"):
        return max((value for value in column if value is not None), default=None)
    return None if None in column else sum(column)


def last_tiered_offset(segments: RemoteSegments) -> Offset:
    """The last offset of the finished segments. -1 if there are none."""
    end = segments.end_offset[segments.in_state(_STATE.COPY_SEGMENT_FINISHED)]
    return int(end.max()) if len(end) else -1


def _reached_before(end: Int64Array) -> Int64Array:
    """For each segment, the first offset after all segments before it."""
    reached = np.maximum.accumulate(end) + 1
    return np.concatenate((np.zeros(min(1, len(end)), dtype=np.int64), reached[:-1]))


def _share(start: Int64Array, end: Int64Array, size: Int64Array, own_start: Int64Array) -> int:
    """The bytes of the segments from `own_start` on, in proportion to their offsets."""
    offsets = end - start + 1
    own = np.clip(end - own_start + 1, 0, offsets)
    return int(np.where(own == offsets, size, np.rint(size * (own / offsets))).sum())


def _missing_offsets(local: LocalTier, start: Int64Array, end: Int64Array) -> int:
    """The number of offsets from the log start to the local log start that no finished segment
    has.
    """
    first, last = local.log_start_offset, local.local_log_start_offset - 1
    own_start = np.maximum(np.maximum(start, _reached_before(end)), first)
    covered = np.clip(np.minimum(end, last) - own_start + 1, 0, None).sum()
    return int(max(0, last - first + 1) - covered)


def _copy_lag_s(lag_offsets: int, newest_ms: int | None, now_ms: int) -> float | None:
    if not lag_offsets:
        return 0.0
    return None if newest_ms is None else max(0, now_ms - newest_ms) / 1000


def _seconds_since(times_ms: Int64Array, now_ms: TimestampMs) -> float | None:
    return max(0, now_ms - int(times_ms.min())) / 1000 if len(times_ms) else None


def _deletion_lag(
    local: LocalTier,
    segments: RemoteSegments,
    retention: Retention,
    now_ms: TimestampMs,
    only_remote_bytes: int,
) -> tuple[int, int, float | None]:
    """The segments, bytes and seconds of `deletion_lag_*`. Like Kafka's expiration it goes from the
    oldest segment to the first one that stays, so a later expired segment does not count. Source:
    Kafka RemoteLogManager.cleanupExpiredRemoteLogSegments."""
    deleting = segments.in_state(_STATE.DELETE_SEGMENT_STARTED)
    finished = segments.in_state(_STATE.COPY_SEGMENT_FINISHED)
    below = finished & (segments.end_offset < local.log_start_offset)
    kept = np.flatnonzero(finished & ~below)
    size, newest_ms = segments.size_in_bytes[kept], segments.max_timestamp_ms[kept]
    expired_ms = newest_ms + retention.ms
    too_old = (expired_ms < now_ms) & (retention.ms != _UNLIMITED)
    excess = local.size_in_bytes + only_remote_bytes - retention.bytes
    left = excess - (np.cumsum(size) - size)
    too_large = (left > 0) & (left >= size) & (retention.bytes != _UNLIMITED)
    # Stop at the first segment that stays, as Kafka does.
    due = np.logical_and.accumulate(too_old | too_large)
    since = [*segments.event_timestamp_ms[deleting].tolist(), *expired_ms[due & too_old].tolist()]
    late = deleting | below
    late[kept[due]] = True
    count = int(late.sum())
    lag_s = max(0, now_ms - min(since)) / 1000 if since else None
    return count, int(segments.size_in_bytes[late].sum()), lag_s if count else 0.0
