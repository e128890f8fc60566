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

import numpy as np

from isotherm.remote.segment_metadata import RemoteLogSegmentState
from isotherm.storage_view.copy_signs import CopySigns
from isotherm.storage_view.partition_storage import (
    LocalTier,
    Retention,
    StorageSums,
    UnfinishedUploads,
    closed_bytes,
    last_tiered_offset,
    unfinished_uploads,
)
from isotherm.storage_view.remote_segments import RemoteSegments
from isotherm.types import Offset, TimestampMs

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
    COPY_FAILED = "copies fail"
    COPY_HALTED = "copying has halted"
    METADATA_UNREAD = "metadata is not read yet"
    COPY_WAITS = "copying is behind"


PROBLEMS = (HoldCause.COPY_HALTED, HoldCause.COPY_FAILED, HoldCause.METADATA_UNREAD)
"""The causes that stop all copies of a partition, the first one first. Somebody has to act on the
first two; the last one ends by itself after a start, or does not if the metadata cannot be read."""


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
    signs: CopySigns | None = None,
) -> list[Hold]:
    """The causes of a partition's local bytes, the largest first. The partition's leader must have
    answered. `signs` are those of this partition, None without metrics."""
    if not is_tiered:
        held = [Hold(HoldCause.NOT_TIERED, local.size_in_bytes, local.log_start_offset)]
    else:
        held = [
            *_copied(local, segments, sums, settings, now_ms),
            *_uncopied(local, segments, sums, settings, now_ms, signs or CopySigns()),
        ]
    return sorted(
        (hold for hold in held if hold.size_in_bytes > 0), key=lambda hold: -hold.size_in_bytes
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
    signs: CopySigns,
) -> Iterator[Hold]:
    left = local.size_in_bytes - sums.overlap_bytes
    first = max(local.log_start_offset, last_tiered_offset(segments) + 1)
    if settings.is_copy_disabled:
        yield Hold(HoldCause.COPY_DISABLED, left, first)
        return
    uploads = unfinished_uploads(segments, first, now_ms)
    closed = closed_bytes(left, uploads.size_in_bytes, settings.segment_bytes)
    if signs.lag_bytes is not None:
        closed = min(left, signs.lag_bytes)
    elif (signs.failures or signs.store_reasons) and not closed:
        closed = left  # a closed segment is smaller than `segment.bytes` if `segment.ms` rolled it
    yield Hold(HoldCause.ACTIVE_SEGMENT, left - closed, first)
    begun = min(uploads.size_in_bytes, closed)
    # A segment is copied only if it lies below the last stable offset.
    unstable = max(0, local.high_watermark - max(local.last_stable_offset, first))
    share = unstable / max(1, local.high_watermark - first)
    blocked = min(closed - begun, round(share * (left - begun)))
    yield Hold(HoldCause.OPEN_TRANSACTION, blocked, max(local.last_stable_offset, first))
    problem = _problem(uploads, signs)
    if problem is not None:
        # Copies go from the oldest segment on, so the segments behind a failed one wait for it.
        size = closed - blocked
        yield Hold(problem, size, first, uploads.since_ms, uploads.attempts)
        return
    yield Hold(HoldCause.COPYING, begun, first, uploads.since_ms, uploads.attempts)
    yield Hold(HoldCause.COPY_WAITS, closed - begun - blocked, first)


def _problem(uploads: UnfinishedUploads, signs: CopySigns) -> HoldCause | None:
    if signs.halted_partitions:
        return HoldCause.COPY_HALTED
    if signs.store_reasons or uploads.has_failed:
        return HoldCause.COPY_FAILED
    if signs.is_metadata_unread:
        return HoldCause.METADATA_UNREAD
    return HoldCause.COPY_FAILED if signs.failures else None
