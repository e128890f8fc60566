"""Computes the growth of a partition's remote tier, and forecasts its size. Pure.

The forecast continues the mean rate of copies of the last 30 days, and subtracts the deletions of
retention. It assumes that traffic and settings do not change.
"""

from __future__ import annotations

from dataclasses import dataclass

from isotherm.remote.segment_metadata import RemoteLogSegmentState
from isotherm.storage_view.partition_storage import Retention
from isotherm.storage_view.remote_segments import RemoteSegments
from isotherm.types import TimestampMs

DAY_MS = 86_400_000
MONTH_MS = 30 * DAY_MS
SPAN_MS_MIN = 3_600_000
"""From a shorter history no rate is computed."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The copies that finished in a window of `span_ms`: the last 30 days, or the time since the
    first copy."""

    span_ms: int
    size_in_bytes: int
    segments: int

    @property
    def bytes_per_ms(self) -> float | None:
        """The rate of copied bytes. None if the history is too short."""
        return self.size_in_bytes / self.span_ms if self.span_ms >= SPAN_MS_MIN else None

    @property
    def segments_per_month(self) -> float | None:
        return self.segments * MONTH_MS / self.span_ms if self.span_ms >= SPAN_MS_MIN else None


def growth(segments: RemoteSegments, now_ms: TimestampMs) -> Growth:
    finished = segments.in_state(RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
    copied_ms = segments.event_timestamp_ms[finished]
    if not len(copied_ms):
        return Growth(0, 0, 0)
    recent = copied_ms > now_ms - MONTH_MS
    span_ms = min(MONTH_MS, now_ms - int(copied_ms.min()))
    size = int(segments.size_in_bytes[finished][recent].sum())
    return Growth(span_ms, size, int(recent.sum()))


def forecast_bytes(
    segments: RemoteSegments, retention: Retention, now_ms: TimestampMs, ahead_ms: int
) -> int | None:
    """The bytes of finished segments after `ahead_ms`.

    None if the history is too short for a rate.
    """
    rate = growth(segments, now_ms).bytes_per_ms
    if rate is None:
        return None
    finished = segments.in_state(RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
    size = segments.size_in_bytes[finished]
    arriving_ms = ahead_ms
    if retention.ms >= 0:
        size = size[segments.max_timestamp_ms[finished] + retention.ms >= now_ms + ahead_ms]
        arriving_ms = min(ahead_ms, retention.ms)
    total = int(size.sum()) + round(rate * arriving_ms)
    return total if retention.bytes < 0 else min(total, retention.bytes)
