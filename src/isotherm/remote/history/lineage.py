"""Leader epochs as a lineage: which remote segments are part of this log's history. Pure.

A segment copied by a leader whose records were later cut off (an unclean election) stays in the
remote tier; its epochs show that it does not belong to the log. Epochs are given as the entries of a
leader-epoch checkpoint, ascending: (epoch, start offset). Source: Kafka RemoteLogManager.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.segment.leader_epoch_checkpoint import EpochEntry
from isotherm.types import NO_LEADER_EPOCH, UNKNOWN_OFFSET, LeaderEpoch, Offset


class OffsetAndEpoch(NamedTuple):
    offset: Offset
    epoch: LeaderEpoch


class EpochSpan(NamedTuple):
    """The part of a segment that belongs to one leader epoch; the end is inclusive."""

    epoch: LeaderEpoch
    start_offset: Offset
    end_offset_inclusive: Offset


_OFFSET_MIN = -(2**63)

NO_OFFSET = OffsetAndEpoch(UNKNOWN_OFFSET, NO_LEADER_EPOCH)


def without_empty_epochs(entries: Sequence[EpochEntry]) -> list[EpochEntry]:
    """The entries without those that start where the next one starts: they have no records."""
    kept = [entry for entry, after in pairwise(entries) if entry.start_offset != after.start_offset]
    return kept + list(entries[-1:])


def segment_epochs(metadata: RemoteLogSegmentMetadata) -> list[EpochEntry]:
    return [EpochEntry(*entry) for entry in metadata.segment_leader_epochs.items()]


def epoch_spans(metadata: RemoteLogSegmentMetadata) -> list[EpochSpan]:
    """The segment cut at its epochs' borders, ascending. What lies below its first epoch, where the
    log start was in the segment when it was copied, is in none."""
    epochs = list(metadata.segment_leader_epochs.items())
    return cut_at_epochs(epochs, metadata.end_offset_inclusive)


def cut_at_epochs(
    epochs: Sequence[tuple[LeaderEpoch, Offset]], end_offset_inclusive: Offset
) -> list[EpochSpan]:
    """As `epoch_spans`, of epochs with their start offsets, ascending."""
    # Damaged metadata may have any number: an offset has 64 bits all the same.
    ends = [max(start - 1, _OFFSET_MIN) for _, start in epochs[1:]]
    return [
        EpochSpan(epoch, start, end)
        for (epoch, start), end in zip(epochs, [*ends, end_offset_inclusive], strict=True)
    ]


def is_segment_within_lineage(
    metadata: RemoteLogSegmentMetadata, log_end_offset: Offset, lineage: Sequence[EpochEntry]
) -> bool:
    """Whether every record of the segment is part of the log that `lineage` describes.

    `lineage` has no empty epochs. Epochs of the segment below the lineage's first are passed
    over: the log start may have moved into the segment. The segment ends below the log end.
    """
    of_segment = without_empty_epochs(segment_epochs(metadata))
    if not lineage or not lineage[0].epoch <= of_segment[-1].epoch <= lineage[-1].epoch:
        return False
    if metadata.end_offset_inclusive >= log_end_offset:
        return False
    shared = [entry for entry in of_segment if entry.epoch >= lineage[0].epoch]
    index_of = {entry.epoch: index for index, entry in enumerate(lineage)}
    if any(entry.epoch not in index_of for entry in shared):
        return False
    first, last = index_of[shared[0].epoch], index_of[shared[-1].epoch]
    if first > 0 and shared[0].start_offset < lineage[first].start_offset:
        return False
    if list(lineage[first + 1 : last + 1]) != shared[1:]:
        return False
    return last + 1 == len(lineage) or (
        metadata.end_offset_inclusive < lineage[last + 1].start_offset
    )


def epoch_for_offset(lineage: Sequence[EpochEntry], offset: Offset) -> EpochEntry | None:
    """The last entry whose start is at or below `offset`; None below the first."""
    index = bisect_right(lineage, offset, key=lambda entry: entry.start_offset)
    return lineage[index - 1] if index else None


def epoch_end_offset(
    lineage: Sequence[EpochEntry], epoch: LeaderEpoch, log_end_offset: Offset
) -> Offset:
    """Where the records of `epoch` end (exclusive): the next epoch's start, or the log end."""
    index = bisect_right(lineage, epoch, key=lambda entry: entry.epoch)
    return lineage[index].start_offset if index < len(lineage) else log_end_offset


def highest_remote_offset(
    lineage: Sequence[EpochEntry],
    log_end_offset: Offset,
    highest_offset_for_epoch: Callable[[LeaderEpoch], Offset | None],
) -> OffsetAndEpoch:
    """The last offset of this log in the remote tier; NO_OFFSET when it has none.

    The latest epoch with an offset in the remote tier decides. Offsets beyond that epoch's end in
    this lineage were cut off here, and do not count.
    """
    for entry in reversed(lineage):
        highest = highest_offset_for_epoch(entry.epoch)
        if highest is not None:
            end = epoch_end_offset(lineage, entry.epoch, log_end_offset)
            return OffsetAndEpoch(min(highest, end - 1), entry.epoch)
    return NO_OFFSET


def remote_log_start_offset(
    lineage: Sequence[EpochEntry],
    local_log_start_offset: Offset,
    segments_of_epoch: Callable[[LeaderEpoch], Sequence[RemoteLogSegmentMetadata]],
) -> Offset:
    """The log start of both tiers together: the first record of the first finished segment of the
    earliest epoch that has any, or the local log start, whichever is lower. A segment begins with its
    first epoch: records before it were below the log start when it was copied.

    Kafka counts segments in every state. Here one whose deletion has begun does not count: retention
    had raised the log start above it, and a crash forgot that. Nor does the log start ever rise above
    records that only the local log holds. `segments_of_epoch` answers in order of start offset.
    """
    for entry in lineage:
        for segment in segments_of_epoch(entry.epoch):
            if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                first_offset = min(segment.segment_leader_epochs.values())
                return min(first_offset, local_log_start_offset)
    return local_log_start_offset
