"""Explains the size of a partition's local log: why bytes are not copied, or not deleted, yet.
Pure.

Each byte of the local log gets one cause, so the causes add up to its size. Copied bytes are kept
by local retention, or their deletion is late. Bytes that are not copied are in the active segment,
or wait for a reason that follows from the offsets and the upload attempts.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from isotherm.remote.segment_metadata import RemoteLogSegmentState
from isotherm.storage_view.partition_storage import (
    LocalTier,
    Retention,
    StorageSums,
    last_tiered_offset,
)
from isotherm.storage_view.remote_segments import RemoteSegments
from isotherm.storage_view.tier_map import ORPHAN_GRACE_MS
from isotherm.types import Offset, TimestampMs

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64Array: TypeAlias = npt.NDArray[np.int64]

SEGMENT_BYTES_DEFAULT = 1024**3  # Kafka's
_STATE = RemoteLogSegmentState


class HoldCause(enum.StrEnum):
    NOT_TIERED = "not tiered"
    LOCAL_RETENTION = "local retention"
    DELETION_LATE = "local deletion is late"
    ACTIVE_SEGMENT = "active segment"
    COPY_DISABLED = "copying is disabled"
    OPEN_TRANSACTION = "open transaction"
    COPYING = "being copied"
    COPY_FAILED = "copies failed"
    COPY_WAITS = "copying is behind"


@dataclass(frozen=True, slots=True)
class TierSettings:
    """The settings of a topic.

    In `local_retention`, Kafka's -2 ("as `retention.*`") is resolved.
    """

    local_retention: Retention
    segment_bytes: int
    is_copy_disabled: bool


@dataclass(frozen=True, slots=True)
class Hold:
    """Bytes of the local log with one cause. `since_ms` is the time at which the oldest of them
    should have been deleted, or at which their last copy began. `attempts` counts unfinished
    uploads."""

    cause: HoldCause
    size_in_bytes: int
    first_offset: Offset
    since_ms: TimestampMs | None = None
    attempts: int = 0


def local_holds(
    local: LocalTier,
    segments: RemoteSegments,
    sums: StorageSums,
    settings: TierSettings,
    now_ms: TimestampMs,
    *,
    is_tiered: bool,
) -> list[Hold]:
    """The causes of a partition's local bytes, the largest first. The partition's leader must have
    answered."""
    if not is_tiered:
        held = [Hold(HoldCause.NOT_TIERED, local.size_in_bytes, local.log_start_offset)]
    else:
        held = [
            *_copied(local, segments, sums, settings, now_ms),
            *_uncopied(local, segments, sums, settings, now_ms),
        ]
    return sorted(
        (each for each in held if each.size_in_bytes > 0), key=lambda each: -each.size_in_bytes
    )


def _copied(
    local: LocalTier,
    segments: RemoteSegments,
    sums: StorageSums,
    settings: TierSettings,
    now_ms: TimestampMs,
) -> Iterator[Hold]:
    """The causes of copied bytes. As in Kafka, local deletion goes from the oldest segment to the
    first one that stays. Source: Kafka UnifiedLog.deleteRetentionMsBreachedSegments and
    deleteRetentionSizeBreachedSegments."""
    finished = segments.in_state(_STATE.COPY_SEGMENT_FINISHED)
    kept = np.flatnonzero(finished & (segments.start_offset >= local.local_log_start_offset))
    size, limits = segments.size_in_bytes[kept], settings.local_retention
    expired_ms = segments.max_timestamp_ms[kept] + limits.ms
    too_old = (expired_ms < now_ms) & (limits.ms >= 0)
    excess = local.size_in_bytes - limits.bytes - (np.cumsum(size) - size)
    too_large = (excess >= size) & (limits.bytes >= 0)
    # Stop at the first segment that stays, as Kafka does.
    due = np.logical_and.accumulate(too_old | too_large)
    late = min(int(size[due].sum()), sums.overlap_bytes)
    since = expired_ms[due & too_old]
    first = local.local_log_start_offset
    yield Hold(HoldCause.DELETION_LATE, late, first, int(since.min()) if len(since) else None)
    yield Hold(HoldCause.LOCAL_RETENTION, sums.overlap_bytes - late, first)


def _uncopied(
    local: LocalTier,
    segments: RemoteSegments,
    sums: StorageSums,
    settings: TierSettings,
    now_ms: TimestampMs,
) -> Iterator[Hold]:
    left = local.size_in_bytes - sums.overlap_bytes
    first = max(local.log_start_offset, last_tiered_offset(segments) + 1)
    if settings.is_copy_disabled:
        yield Hold(HoldCause.COPY_DISABLED, left, first)
        return
    attempted = segments.in_state(_STATE.COPY_SEGMENT_STARTED) & (segments.end_offset >= first)
    uploads = _attempts(segments, np.flatnonzero(attempted), now_ms)
    if uploads is not None:
        size = min(uploads.size_in_bytes, left)
        yield Hold(uploads.cause, size, first, uploads.since_ms, uploads.attempts)
        left -= size
    active = min(left, settings.segment_bytes)
    yield Hold(HoldCause.ACTIVE_SEGMENT, active, first)
    behind = left - active
    # A segment is copied only if it lies below the last stable offset.
    unstable = max(0, local.high_watermark - max(local.last_stable_offset, first))
    share = unstable / max(1, local.high_watermark - first)
    blocked = min(behind, round(share * (behind + active)))
    yield Hold(HoldCause.OPEN_TRANSACTION, blocked, max(local.last_stable_offset, first))
    yield Hold(HoldCause.COPY_WAITS, behind - blocked, first)


def _attempts(segments: RemoteSegments, attempted: Int64Array, now_ms: TimestampMs) -> Hold | None:
    """The bytes of unfinished uploads, where several attempts for the same start offset count once.

    If there are several attempts for it, the earlier ones have failed. Otherwise the copy is in
    progress, unless the last attempt is older than the grace period.
    """
    if not len(attempted):
        return None
    start, size = segments.start_offset[attempted], segments.size_in_bytes[attempted]
    begun_ms = segments.event_timestamp_ms[attempted]
    largest = {int(at): 0 for at in start}
    for at, bytes_ in zip(start.tolist(), size.tolist(), strict=True):
        largest[at] = max(largest[at], bytes_)
    has_failed = len(largest) < len(attempted) or begun_ms.max() < now_ms - ORPHAN_GRACE_MS
    return Hold(
        HoldCause.COPY_FAILED if has_failed else HoldCause.COPYING,
        sum(largest.values()),
        int(start.min()),
        int(begun_ms.max()),
        len(attempted),
    )
