"""Decides by leader epochs which remote segments belong to a log's history. Pure.

A segment copied by a leader whose records were later cut off (an unclean election) stays in the
remote tier; its epochs show that it does not belong to the log. The log's epochs are a lineage
(leader_epochs.py of isotherm.segment). Source: Kafka RemoteLogManager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from isotherm.errors import CorruptObjectError
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.segment.leader_epoch_checkpoint import EpochEntry, read_leader_epoch_checkpoint
from isotherm.segment.leader_epochs import (
    EpochSpan,
    cut_at_epochs,
    epoch_end_offset,
    epochs_within,
    without_empty_epochs,
)
from isotherm.types import NO_LEADER_EPOCH, UNKNOWN_OFFSET, LeaderEpoch, Offset


class OffsetAndEpoch(NamedTuple):
    offset: Offset
    epoch: LeaderEpoch


NO_OFFSET = OffsetAndEpoch(UNKNOWN_OFFSET, NO_LEADER_EPOCH)


def segment_epochs(metadata: RemoteLogSegmentMetadata) -> list[EpochEntry]:
    return [EpochEntry(*entry) for entry in metadata.segment_leader_epochs.items()]


def epoch_spans(metadata: RemoteLogSegmentMetadata) -> list[EpochSpan]:
    """The segment cut at its epochs' borders, ascending. If the log start lay in the segment when
    it was copied, the offsets below it are in no span."""
    epochs = list(metadata.segment_leader_epochs.items())
    return cut_at_epochs(epochs, metadata.end_offset_inclusive)


def checkpoint_of_copy(metadata: RemoteLogSegmentMetadata, data: bytes) -> list[EpochEntry]:
    """The entries of the checkpoint that was copied with a segment.

    It has no CRC, and wrong epochs would let a log diverge without notice. So this raises
    CorruptObjectError unless they agree with the metadata, and CorruptCheckpointError for a damaged
    checkpoint.
    """
    entries = read_leader_epoch_checkpoint(data)
    end_offset = metadata.end_offset_inclusive + 1
    epochs = epochs_within(entries, metadata.start_offset, end_offset)
    expected = dict(metadata.segment_leader_epochs)
    if epochs != expected:
        raise CorruptObjectError(
            "leader epochs of a remote segment are not those of its metadata"
            f" segment={metadata.segment_id} found={epochs} expected={expected}"
        )
    return entries


def first_recorded_offset(lineage: Sequence[EpochEntry], log_start_offset: Offset) -> Offset:
    """The log start, or where the lineage begins if that is above it.

    A log knows the epoch of each of its records, so it has none below. The log of a follower begins
    so if the cleaner had removed the first records of its leader. Kafka finds no epoch there, and
    answers that the offset is out of range. The entries of `lineage` have to be read before
    `log_start_offset`, which cuts them when it rises.
    """
    return max([log_start_offset, *(entry.start_offset for entry in lineage[:1])])


def is_segment_within_lineage(
    metadata: RemoteLogSegmentMetadata, log_end_offset: Offset, lineage: Sequence[EpochEntry]
) -> bool:
    """Whether every record of the segment is part of the log that `lineage` describes.

    `lineage` has no empty epochs. Epochs of the segment below the lineage's first are ignored: the
    log start may have moved into the segment. The segment must end below the log end.
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
    # The start of the lineage's first epoch may have risen with the log start. It does not show
    # where the epoch began.
    if first > 0 and shared[0].start_offset < lineage[first].start_offset:
        return False
    # Further epochs begin inside the segment, so their starts must be those of the lineage.
    if list(lineage[first + 1 : last + 1]) != shared[1:]:
        return False
    # Beyond the start of the next epoch the segment has records that this log does not have.
    return last + 1 == len(lineage) or (
        metadata.end_offset_inclusive < lineage[last + 1].start_offset
    )


def highest_remote_offset(
    lineage: Sequence[EpochEntry],
    log_end_offset: Offset,
    highest_offset_for_epoch: Callable[[LeaderEpoch], Offset | None],
) -> OffsetAndEpoch:
    """The last offset of this log in the remote tier; NO_OFFSET if there is none.

    The latest epoch with an offset in the remote tier decides. Offsets beyond that epoch's end in
    this lineage were truncated here, and do not count.
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
    earliest epoch that has any, or the local log start, whichever is lower. A segment begins with
    its first epoch: records before it were below the log start when it was copied.

    Kafka counts segments in every state. Here a segment whose deletion has begun does not count:
    retention had raised the log start above it before a crash lost that log start. The log start
    also never rises above records that only the local log holds. `segments_of_epoch` returns
    segments in order of start offset.
    """
    for entry in lineage:
        for segment in segments_of_epoch(entry.epoch):
            if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                first_offset = min(segment.segment_leader_epochs.values())
                return min(first_offset, local_log_start_offset)
    return local_log_start_offset
