"""Plans which local segments to delete. Pure; source: Kafka UnifiedLog.deleteOldSegments, KIP-405.

With tiered storage a local segment is deleted by the *local* limits, and only once the remote tier
has it. Deletion of the remote copy is decided elsewhere, by the total limits.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from isotherm.config.topic import TopicConfig
from isotherm.log.log_read import LogView
from isotherm.log.log_segment import LogSegment
from isotherm.types import Offset, TimestampMs


class DeletionReason(enum.Enum):
    LOG_START = "wholly below the log start offset"
    SIZE = "the log is larger than its size limit"
    TIME = "the newest record is older than the time limit"
    ERASED = "records of it were erased from its remote copy"


class RemoteCopies(Protocol):
    """The copies of a log in the remote tier."""

    def held(self, start_offset: Offset, end_offset: Offset) -> AbstractContextManager[Offset]:
        """The offset (exclusive, at most `end_offset`) up to which the remote tier has the records.

        Finished remote segments must have them from `start_offset` on, without a gap and durably.
        `start_offset` if it is not known. Within the context no deletion of them starts."""


class DeletedSegment(NamedTuple):
    """A deleted segment."""

    base_offset: Offset
    size: int
    reason: DeletionReason


@dataclass(frozen=True, slots=True)
class SegmentDeletion:
    base_offset: Offset
    reason: DeletionReason


@dataclass(frozen=True, slots=True)
class RetentionState:
    """The log as retention sees it. `segments` ascend; the last one is active. Local copies of the
    records below `erased_end_offset` are to go, once the remote tier has them."""

    segments: Sequence[LogSegment]
    log_end_offset: Offset
    high_watermark: Offset
    log_start_offset: Offset
    local_log_start_offset: Offset
    highest_offset_in_remote_storage: Offset
    remote_log_enabled: bool
    erased_end_offset: Offset = 0

    @classmethod
    def of(
        cls,
        view: LogView,
        highest_offset_in_remote_storage: Offset,
        log_start_offset: Offset,
        *,
        remote_log_enabled: bool,
    ) -> RetentionState:
        """`log_start_offset` may be below that of the view."""
        return cls(
            view.segments,
            view.log_end_offset,
            view.high_watermark,
            log_start_offset,
            max(log_start_offset, view.segments[0].base_offset),
            highest_offset_in_remote_storage,
            remote_log_enabled,
        )

    def upper_bound_offset(self, index: int) -> Offset:
        following = index + 1
        if following < len(self.segments):
            return self.segments[following].base_offset
        return self.log_end_offset

    def held_remotely(
        self, copies: RemoteCopies | None, config: TopicConfig, count: int
    ) -> AbstractContextManager[Offset]:
        """The offset up to which the remote tier has the first `count` segments, at least one.

        All of them count as copied if there is nothing to ask, or no segment depends on it.
        """
        end = self.upper_bound_offset(count - 1)
        if copies is None or not _copies_to_remote(self, config):
            return nullcontext(end)
        return copies.held(max(self.segments[0].base_offset, self.log_start_offset), end)

    def confirmed(self, held_end_offset: Offset) -> RetentionState:
        """The state, with the highest remote offset limited to what was confirmed."""
        highest = min(self.highest_offset_in_remote_storage, held_end_offset - 1)
        return replace(self, highest_offset_in_remote_storage=highest)


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """A prefix of the log's segments. If it includes the active segment, roll before deleting.

    `roll_active` is set if the active segment is due but not copied: once rolled, it can be
    copied, and deleted later.
    """

    deletions: tuple[SegmentDeletion, ...]
    roll_active: bool


_Breach = Callable[[int], bool]


def deleted_segments(
    segments: Sequence[LogSegment], deletions: Sequence[SegmentDeletion]
) -> list[DeletedSegment]:
    """The deleted segments, with the reasons that were planned."""
    return [
        DeletedSegment(segment.base_offset, segment.size_in_bytes, deletion.reason)
        for segment, deletion in zip(segments, deletions, strict=True)
    ]


def plan_retention(
    state: RetentionState, config: TopicConfig, now_ms: TimestampMs
) -> RetentionPlan:
    """Plan the deletions: first below the log start, then by size, then by time."""
    deletions: list[SegmentDeletion] = []
    roll_active = False
    for reason, breach in _breaches(state, config, now_ms):
        index = len(deletions)
        while index < len(state.segments):
            # Uncommitted records stay. Only a prefix may go: the first segment to stay ends it.
            if state.high_watermark < state.upper_bound_offset(index) or not breach(index):
                break
            is_active = index + 1 == len(state.segments)
            is_empty = state.segments[index].size_in_bytes == 0
            # The active segment is never copied, so retention would wait for it forever.
            if is_active and not is_empty and state.remote_log_enabled:
                roll_active = True
            # An empty active segment would only be replaced by another one.
            if (is_active and is_empty) or not _may_go(state, config, index):
                break
            deletions.append(SegmentDeletion(state.segments[index].base_offset, reason))
            index += 1
    return RetentionPlan(tuple(deletions), roll_active)


def retention_due_ms(state: RetentionState, config: TopicConfig) -> TimestampMs | None:
    """When a plan may next differ from an empty one, if nothing but time changes.

    None if time alone changes nothing. 0 if the first segment is due for another reason, or has
    been for long, but has to wait for the high watermark or its copy.
    """
    if len(state.segments) == 1 and state.segments[0].size_in_bytes == 0:
        return None
    due_ms: TimestampMs | None = None
    for reason, breach in _breaches(state, config, 0):
        if reason is not DeletionReason.TIME and breach(0):
            return 0
        if reason is DeletionReason.TIME:
            copies = _copies_to_remote(state, config)
            _, limit_ms = local_retention_limits(config, remote_copy_enabled=copies)
            if limit_ms >= 0:
                due_ms = max(0, state.segments[0].largest_timestamp_ms + limit_ms + 1)
    return due_ms


def plan_without_copies(
    state: RetentionState, config: TopicConfig, now_ms: TimestampMs
) -> tuple[int, Offset]:
    """Plan the retention of a log that is no longer copied: the number of segments to delete, and
    the log start after that."""
    untiered = replace(state, remote_log_enabled=False)
    count = len(plan_retention(untiered, config, now_ms).deletions)
    return count, state.upper_bound_offset(count - 1) if count else state.log_start_offset


def local_retention_limits(config: TopicConfig, *, remote_copy_enabled: bool) -> tuple[int, int]:
    """The limits (bytes, ms) of local segments; -1 is no limit."""
    if remote_copy_enabled:
        return config.effective_local_retention_bytes, config.effective_local_retention_ms
    return config.retention_bytes, config.retention_ms


def _breaches(
    state: RetentionState, config: TopicConfig, now_ms: TimestampMs
) -> list[tuple[DeletionReason, _Breach]]:
    breaches: list[tuple[DeletionReason, _Breach]] = [
        (DeletionReason.LOG_START, _log_start_breach(state))
    ]
    if state.remote_log_enabled:
        breaches.append((DeletionReason.ERASED, _erased_breach(state)))
    copies = _copies_to_remote(state, config)
    # With an empty cleanup.policy the local limits apply still, as in Kafka's deleteOldSegments:
    # only the remote segments are kept for ever.
    if config.deletes or (not config.cleanup_policy and copies):
        bytes_limit, ms_limit = local_retention_limits(config, remote_copy_enabled=copies)
        breaches.append((DeletionReason.SIZE, _size_breach(state, bytes_limit)))
        breaches.append((DeletionReason.TIME, _time_breach(state, ms_limit, now_ms)))
    return breaches


def _log_start_breach(state: RetentionState) -> _Breach:
    start = state.local_log_start_offset if state.remote_log_enabled else state.log_start_offset

    def breach(index: int) -> bool:
        following = index + 1
        # `<=`: a segment ends before the base of the next one.
        return following < len(state.segments) and state.segments[following].base_offset <= start

    return breach


def _erased_breach(state: RetentionState) -> _Breach:
    def breach(index: int) -> bool:
        return state.segments[index].base_offset < state.erased_end_offset

    return breach


def _size_breach(state: RetentionState, limit: int) -> _Breach:
    # Summed over the segments themselves, so segments deleted for an earlier reason do not count.
    sizes_from = [0]
    for segment in reversed(state.segments):
        sizes_from.append(sizes_from[-1] + segment.size_in_bytes)
    sizes_from.reverse()

    def breach(index: int) -> bool:
        # A segment goes only if those after it reach the limit, as in Kafka: at least
        # retention.bytes stay.
        return 0 <= limit <= sizes_from[index + 1]

    return breach


def _time_breach(state: RetentionState, limit_ms: int, now_ms: TimestampMs) -> _Breach:
    def breach(index: int) -> bool:
        return limit_ms >= 0 and now_ms - state.segments[index].largest_timestamp_ms > limit_ms

    return breach


def _copies_to_remote(state: RetentionState, config: TopicConfig) -> bool:
    return state.remote_log_enabled and not config.remote_log_copy_disable


def _may_go(state: RetentionState, config: TopicConfig, index: int) -> bool:
    """Whether no required data is lost: the remote tier has the segment, or it is expired."""
    if not state.remote_log_enabled:
        return True
    following = index + 1
    if (
        following < len(state.segments)
        and state.segments[following].base_offset <= state.log_start_offset
    ):
        return True
    held_end_offset = state.highest_offset_in_remote_storage + 1
    return _copies_to_remote(state, config) and (
        # `0 <`: while the highest remote offset is unknown the end is 0, as that of an empty log.
        0 < state.upper_bound_offset(index) <= held_end_offset
    )
