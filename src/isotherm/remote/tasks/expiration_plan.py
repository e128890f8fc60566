"""Plans which remote segments are deleted. Pure. Source: Kafka RLMExpirationTask (KIP-405).

Three kinds, besides those whose deletion has begun already:
- expired: by the total retention of both tiers, or below the log start;
- unreferenced: all its epochs are before the log's first one;
- dangling: a copy by this broker that is not in progress and never finished. Kafka leaves these
  to retention.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from isotherm.remote.history.lineage import is_segment_within_lineage
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.remote.tasks.deletion_rules import (
    is_before_log_start,
    is_below_log_start,
    is_dangling,
    is_deletion_begun,
    is_unreferenced,
)
from isotherm.segment.leader_epoch_checkpoint import EpochEntry
from isotherm.types import BrokerId, Offset, TimestampMs

_UNLIMITED = -1


class RemoteDeletionReason(enum.Enum):
    RETRY = "its deletion had begun"
    LOG_START = "wholly below the log start offset"
    TIME = "the newest record is older than retention.ms"
    SIZE = "the log is larger than retention.bytes"
    UNREFERENCED = "of epochs before the log's first one"
    DANGLING = "its copy was never finished"


@dataclass(frozen=True, slots=True)
class RemoteSegmentDeletion:
    metadata: RemoteLogSegmentMetadata
    reason: RemoteDeletionReason


@dataclass(frozen=True, slots=True)
class ExpirationPlan:
    """`log_start_offset` is the log start after the deletions; None if it stays. It is raised
    before anything is deleted, so that a reader finds the offset out of range, not missing."""

    deletions: tuple[RemoteSegmentDeletion, ...]
    log_start_offset: Offset | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpirationState:
    """The log as expiration sees it. `lineage` has no empty epochs. `local_segments` has base
    offset and size of each local segment. `copied_offset` is the last offset that the log knows to
    be in the remote tier. A retention of -1 is unlimited."""

    lineage: Sequence[EpochEntry]
    log_start_offset: Offset
    log_end_offset: Offset
    local_segments: Sequence[tuple[Offset, int]]
    copied_offset: Offset
    retention_ms: int
    retention_bytes: int
    now_ms: TimestampMs
    broker_id: BrokerId


def finished_size(segments: Iterable[RemoteLogSegmentMetadata]) -> int:
    """Bytes of the finished segments."""
    return sum(segment.segment_size_in_bytes for segment in segments if _is_finished(segment))


def total_size(segments: Sequence[RemoteLogSegmentMetadata], state: ExpirationState) -> int:
    """Bytes of both tiers. Records in both tiers count once.

    The log learns of a finished copy after the metadata does, much later if the answer was lost.
    Until then Kafka counts the segment twice, and deletes as much too early.
    """
    ends = [segment.end_offset_inclusive for segment in segments if _is_finished(segment)]
    copied_offset = max([state.copied_offset, *ends])
    only_local = sum(size for base, size in state.local_segments if base > copied_offset)
    return only_local + finished_size(segments)


def _is_finished(segment: RemoteLogSegmentMetadata) -> bool:
    return segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED


def size_over_retention(
    segments: Sequence[RemoteLogSegmentMetadata], state: ExpirationState
) -> int:
    """Bytes of both tiers above retention.bytes; 0 if there are none.

    Segments outside the lineage or below the log start do not count: their records are not part of
    the log. Such segments remain if the deletions of an earlier run failed.
    """
    if state.retention_bytes == _UNLIMITED:
        return 0
    segments = [
        segment_metadata
        for segment_metadata in segments
        if segment_metadata.end_offset_inclusive >= state.log_start_offset
    ]
    valid = [
        segment
        for segment in segments
        if is_segment_within_lineage(segment, state.log_end_offset, state.lineage)
    ]
    return max(0, total_size(valid, state) - state.retention_bytes)


def plan_expiration(
    segments: Sequence[RemoteLogSegmentMetadata],
    state: ExpirationState,
    copying: Collection[RemoteLogSegmentId],
) -> ExpirationPlan:
    """Plan the deletions due now. `segments` are in any live state, ordered by start offset; those
    in `copying` stay."""
    if not segments:
        return ExpirationPlan((), None)
    settled = {
        segment.segment_id: reason
        for segment in segments
        if segment.segment_id not in copying
        and (reason := _reason_without_retention(segment, state)) is not None
    }
    expired, log_start_offset = _plan_retention(segments, state, copying, settled)
    deletions = [
        RemoteSegmentDeletion(segment, reason)
        for segment in segments
        if (reason := settled.get(segment.segment_id) or expired.get(segment.segment_id))
    ]
    return ExpirationPlan(tuple(deletions), log_start_offset)


def expiration_due_ms(
    segments: Sequence[RemoteLogSegmentMetadata], state: ExpirationState
) -> TimestampMs | None:
    """When a plan without deletions may have one, if neither the log nor its metadata changes: the
    first of its segments reaches retention.ms. None if time alone makes none due. 0 if a copy or a
    deletion has begun."""
    if not all(_is_finished(segment) for segment in segments):
        return 0
    if state.retention_ms == _UNLIMITED:
        return None
    return min(segment.max_timestamp_ms for segment in segments) + state.retention_ms + 1


def _reason_without_retention(
    segment: RemoteLogSegmentMetadata, state: ExpirationState
) -> RemoteDeletionReason | None:
    if is_deletion_begun(segment):
        return RemoteDeletionReason.RETRY
    if is_dangling(segment, state.broker_id):
        return RemoteDeletionReason.DANGLING
    if is_unreferenced(segment, state.lineage, state.log_start_offset):
        return RemoteDeletionReason.UNREFERENCED
    return None


def is_still_due(
    deletion: RemoteSegmentDeletion, segment: RemoteLogSegmentMetadata, state: ExpirationState
) -> bool:
    """Whether a planned segment may still be deleted. `segment` is its present metadata, `state`
    the present log. For expired segments the plan has already raised the log start."""
    match deletion.reason:
        case RemoteDeletionReason.TIME | RemoteDeletionReason.SIZE:
            return is_before_log_start(segment, state.log_start_offset)
        case RemoteDeletionReason.LOG_START:
            return is_below_log_start(segment, state.lineage, state.log_start_offset)
        case reason:
            return _reason_without_retention(segment, state) is reason


def _plan_retention(
    segments: Sequence[RemoteLogSegmentMetadata],
    state: ExpirationState,
    copying: Collection[RemoteLogSegmentId],
    settled: Collection[RemoteLogSegmentId],
) -> tuple[dict[RemoteLogSegmentId, RemoteDeletionReason], Offset | None]:
    """Expire segments from the oldest epoch on, up to the first one that stays."""
    expired: dict[RemoteLogSegmentId, RemoteDeletionReason] = {}
    breached = size_over_retention(segments, state)
    log_start_offset: Offset | None = None
    for segment in _in_epoch_order(segments, state.lineage):
        # As in Kafka the walk ends at the first segment that stays: the log start would be raised
        # over it.
        if segment.segment_id in copying:
            break
        if segment.segment_id in settled:
            continue
        if is_below_log_start(segment, state.lineage, state.log_start_offset):
            expired[segment.segment_id] = RemoteDeletionReason.LOG_START
            continue
        # As in Kafka: a segment of another branch neither expires nor ends the walk.
        if not is_segment_within_lineage(segment, state.log_end_offset, state.lineage):
            continue
        reason = _retention_reason(segment, state, breached)
        if reason is None:
            break
        expired[segment.segment_id] = reason
        breached = max(0, breached - segment.segment_size_in_bytes)
        log_start_offset = max(log_start_offset or 0, segment.end_offset_inclusive + 1)
    return expired, log_start_offset


def _in_epoch_order(
    segments: Sequence[RemoteLogSegmentMetadata], lineage: Sequence[EpochEntry]
) -> Iterator[RemoteLogSegmentMetadata]:
    """Each segment once, at the first epoch of the lineage that it has a part in."""
    by_epoch: dict[int, list[RemoteLogSegmentMetadata]] = {entry.epoch: [] for entry in lineage}
    for segment in segments:
        for epoch in segment.segment_leader_epochs:
            if epoch in by_epoch:
                by_epoch[epoch].append(segment)
                break
    for listed in by_epoch.values():
        yield from listed


def _retention_reason(
    segment: RemoteLogSegmentMetadata, state: ExpirationState, breached: int
) -> RemoteDeletionReason | None:
    if (
        state.retention_ms > _UNLIMITED
        and state.now_ms >= state.retention_ms
        and segment.max_timestamp_ms < state.now_ms - state.retention_ms
    ):
        return RemoteDeletionReason.TIME
    # As in Kafka: a segment goes only if at least retention.bytes stay.
    if breached > 0 and breached >= segment.segment_size_in_bytes:
        return RemoteDeletionReason.SIZE
    return None
