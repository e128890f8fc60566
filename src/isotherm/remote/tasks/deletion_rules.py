"""What may be deleted, and when. PURE: each rule is a predicate of what is known now.

A plan is not a licence. Whoever deletes asks the rule again, with the state as it is under the
write lock of the partition's metadata, right before it records the deletion. The page
docs/destructive-acts.md lists the acts; each names its rule here.

A rule does not know what keeps its arguments from changing: that is the lock, and the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence

from isotherm.remote.history.lineage import epoch_spans
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.segment.leader_epoch_checkpoint import EpochEntry
from isotherm.types import BrokerId, Offset, TimestampMs

_COPY_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_COPY_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
_DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED

FAILED_COPY_STATES = frozenset({_COPY_STARTED})
UNFINISHED_DELETION_STATES = frozenset({_DELETE_STARTED, _DELETE_FINISHED})
GONE_STATES = frozenset({_DELETE_FINISHED})
"""The states in which a sweep may take away what it found: of a failed copy, of an unfinished
deletion, and of a segment that the metadata did not name. A segment without a state may go too."""


def is_as_decided(
    current: RemoteLogSegmentMetadata | None, decided_on: RemoteLogSegmentMetadata
) -> bool:
    """Every deletion of a segment: it is in the state that the deletion was decided on. Id and
    state are enough, because a state only moves forward (docs/decisions/0064)."""
    return current is not None and current.state is decided_on.state


def is_given_up(current: RemoteLogSegmentMetadata | None) -> bool:
    """Objects of a copy that cannot be finished: its segment is deleted or being deleted, and no
    event reverts that."""
    return current is None or current.state is _DELETE_STARTED


def is_deletion_begun(segment: RemoteLogSegmentMetadata) -> bool:
    """A deletion that is resumed."""
    return segment.state is _DELETE_STARTED


def is_dangling(segment: RemoteLogSegmentMetadata, broker_id: BrokerId) -> bool:
    """A copy that this broker began and never finished. Another broker may still be copying its
    own, and the caller knows which copies this broker has in progress."""
    return segment.state is _COPY_STARTED and segment.broker_id == broker_id


def is_before_log_start(segment: RemoteLogSegmentMetadata, log_start_offset: Offset) -> bool:
    """An expired segment, once the log start is raised: no reader can ask for its records. Give the
    durable log start, which a crash does not set back."""
    return segment.end_offset_inclusive < log_start_offset


def is_below_log_start(
    segment: RemoteLogSegmentMetadata, lineage: Sequence[EpochEntry], log_start_offset: Offset
) -> bool:
    """A segment that DeleteRecords or an earlier run has passed, of no later epoch than the first
    of the lineage. As in Kafka, those of later epochs expire by retention."""
    return (
        is_before_log_start(segment, log_start_offset)
        and bool(lineage)
        and max(segment.segment_leader_epochs) <= lineage[0].epoch
    )


def is_unreferenced(
    segment: RemoteLogSegmentMetadata, lineage: Sequence[EpochEntry], log_start_offset: Offset
) -> bool:
    """All epochs of the segment are before the log's first one. A lineage that begins above the log
    start does not name the epochs of the records below it, so none of these is unreferenced."""
    if not lineage or max(segment.segment_leader_epochs) >= lineage[0].epoch:
        return False
    covers_log = lineage[0].start_offset <= log_start_offset
    return covers_log or is_before_log_start(segment, log_start_offset)


def may_make_way(
    earlier: RemoteLogSegmentMetadata,
    *,
    local_log_start_offset: Offset,
    durable_log_start_offset: Offset,
) -> bool:
    """An earlier copy under the key of a new one. One that was never finished has no readers. Of a
    finished one the local log must hold all records: local retention relies only on finished
    copies, so they stay there until the new one is. Those below the durable log start do not
    count; a crash may bring back the ones above it."""
    if earlier.state is not _COPY_FINISHED:
        return True
    return local_log_start_offset <= max(earlier.start_offset, durable_log_start_offset)


def is_garbage_of_partition(
    current: RemoteLogSegmentMetadata | None,
    listed: RemoteLogSegmentMetadata,
    *,
    is_tiered: bool,
) -> bool:
    """A segment of a partition whose deletion runs. Its own deletion may have begun since it was
    listed: that is never taken back. Otherwise it is as listed, and the partition not tiered again:
    another broker may lead it then and copy, and its log may rely on any finished copy."""
    if current is None:
        return False
    return is_deletion_begun(current) or (is_as_decided(current, listed) and not is_tiered)


def is_abandoned(segment: RemoteLogSegmentMetadata, settled_before_ms: TimestampMs) -> bool:
    """An upload or deletion that stands still, of any broker: known by its age alone."""
    is_settled = segment.event_timestamp_ms < settled_before_ms
    return is_settled and segment.state in (_COPY_STARTED, _DELETE_STARTED)


def is_superseded(
    segment: RemoteLogSegmentMetadata,
    other: RemoteLogSegmentMetadata,
    settled_before_ms: TimestampMs,
) -> bool:
    """A finished copy whose records a later leader's finished copy `other` holds. Both are old
    enough that no reader has looked up the earlier one and reads it still."""
    return (
        segment.state is _COPY_FINISHED
        and other.state is _COPY_FINISHED
        and other.broker_leader_epoch > segment.broker_leader_epoch
        and segment.event_timestamp_ms < settled_before_ms
        and other.event_timestamp_ms < settled_before_ms
        and _holds_records_of(other, segment)
    )


def _holds_records_of(other: RemoteLogSegmentMetadata, segment: RemoteLogSegmentMetadata) -> bool:
    """Whether all records of `segment` are in `other`: those of the same offset and epoch.

    The offsets alone do not show it. After an unclean election two leaders may have given the same
    offsets to different records, and the earlier leader's may be those of the log now.
    """
    spans = {span.epoch: span for span in epoch_spans(other)}
    return all(
        (around := spans.get(span.epoch)) is not None
        and around.start_offset <= span.start_offset
        and span.end_offset_inclusive <= around.end_offset_inclusive
        for span in epoch_spans(segment)
    )


def may_be_replaced(current: RemoteLogSegmentMetadata | None) -> bool:
    """A segment whose place a compacted one takes. If it may not, it never may again: then the
    staged objects of the compacted one are deleted, unless that one is in the metadata."""
    return current is not None and current.state is _COPY_FINISHED


def is_replaced(old: RemoteLogSegmentMetadata | None) -> bool:
    """The objects of a segment that a compacted one has replaced: complete metadata does not name
    it. While it does, they belong to the task that began the segment's deletion."""
    return old is None


def is_kept_long_enough(
    *, published_ms: TimestampMs, keep_old_ms: int, now_ms: TimestampMs
) -> bool:
    """The objects of segments that a compaction has replaced: no read that began before still needs
    them."""
    return published_ms + keep_old_ms <= now_ms


def is_partition_gone(*, exists: bool, is_deletion_recorded: bool) -> bool:
    """Everything of a compaction whose partition is deleted. A partition that the cluster does not
    have may be another cluster's: that one has no record of its deletion here."""
    return is_deletion_recorded and not exists


def is_run_abandoned(
    *, modified_ms: TimestampMs, abandoned_after_ms: int, now_ms: TimestampMs
) -> bool:
    """The staged objects of a compaction whose job has stored nothing for long."""
    return modified_ms + abandoned_after_ms <= now_ms
