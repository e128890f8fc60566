"""Plans which local segments are copied to the remote tier. Pure.

Source: Kafka RemoteLogManager.candidateLogSegments, with the copy lag of KIP-1241.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from isotherm.config.topic import TopicConfig
from isotherm.log.log_segment import LogSegment
from isotherm.types import Offset, TimestampMs


@dataclass(frozen=True, slots=True)
class CandidateSegment:
    """A closed segment and the base offset of the next one."""

    segment: LogSegment
    next_base_offset: Offset


@dataclass(frozen=True, slots=True)
class CopyLag:
    """The time that a segment stays local before it is copied: until it is `lag_ms` old, or
    `lag_bytes` of younger segments follow it. 0 in either means at once; -1 disables that
    condition."""

    lag_ms: int
    lag_bytes: int

    @classmethod
    def from_config(cls, config: TopicConfig) -> Self:
        """remote.copy.lag.ms and .bytes, where -1 stands for the local retention."""
        lag_ms, lag_bytes = config.remote_copy_lag_ms, config.remote_copy_lag_bytes
        return cls(
            config.effective_local_retention_ms if lag_ms == -1 else lag_ms,
            config.effective_local_retention_bytes if lag_bytes == -1 else lag_bytes,
        )

    def has_passed(
        self, largest_timestamp_ms: TimestampMs, bytes_after: int, now_ms: TimestampMs
    ) -> bool:
        """Whether a segment may be copied now. A timestamp in the future does not delay it."""
        if self.lag_ms == 0 or self.lag_bytes == 0:
            return True
        age_ms = now_ms - largest_timestamp_ms
        return (self.lag_ms > 0 and (age_ms < 0 or age_ms >= self.lag_ms)) or (
            0 < self.lag_bytes <= bytes_after
        )


def plan_copies(
    segments: Sequence[LogSegment],
    from_offset: Offset,
    last_stable_offset: Offset,
    lag: CopyLag,
    now_ms: TimestampMs,
) -> list[CandidateSegment]:
    """Segments from the one that holds `from_offset` on that may be copied now, ascending.

    `segments` ascend and the last one is active. A segment may be copied once all of it is below
    the last stable offset; the active one never is. The first segment within the copy lag holds
    back all later ones.
    """
    first = max(
        (index for index, segment in enumerate(segments) if segment.base_offset <= from_offset),
        default=0,
    )
    waiting = segments[first:]
    # The active segment counts, as in Kafka.
    bytes_after = sum(candidate.size_in_bytes for candidate in waiting)
    candidates = []
    for segment, following in pairwise(waiting):
        bytes_after -= segment.size_in_bytes
        # `>`: a segment that ends right below the last stable offset may be copied.
        if following.base_offset > last_stable_offset or not lag.has_passed(
            segment.largest_timestamp_ms, bytes_after, now_ms
        ):
            break
        candidates.append(CandidateSegment(segment, following.base_offset))
    return candidates
