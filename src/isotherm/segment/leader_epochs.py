"""Leader epochs and the offsets that they hold. Pure.

A lineage is the entries of a leader-epoch checkpoint: epochs rise, start offsets do not fall. An
entry holds the offsets up to the start of the next one, and the last entry those up to the end of
the log. The log, the remote tier, its metadata and Spark's planning all use it. For whole columns
of batches see epoch_columns.py of isotherm.remote.history. Source: Kafka LeaderEpochFileCache.java,
RemoteLogManager.java.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from isotherm.segment.leader_epoch_checkpoint import EpochEntry
from isotherm.types import LeaderEpoch, Offset

_OFFSET_MIN = -(2**63)


class EpochSpan(NamedTuple):
    """The offsets of one leader epoch; the end is inclusive."""

    epoch: LeaderEpoch
    start_offset: Offset
    end_offset_inclusive: Offset


def first_out_of_order(entries: Sequence[EpochEntry]) -> EpochEntry | None:
    """The first entry whose epoch does not rise, or whose start offset falls; None for a
    lineage."""
    for before, after in pairwise(entries):
        if after.epoch <= before.epoch or after.start_offset < before.start_offset:
            return after
    return None


def without_empty_epochs(entries: Sequence[EpochEntry]) -> list[EpochEntry]:
    """The entries without those that start where the next one starts: they have no records."""
    kept = [entry for entry, after in pairwise(entries) if entry.start_offset != after.start_offset]
    return kept + list(entries[-1:])


def joined(below: Sequence[EpochEntry], above: Sequence[EpochEntry]) -> tuple[EpochEntry, ...]:
    """Join two lineages. The last epoch of `below` may continue as the first of `above`."""
    continues = bool(below and above) and below[-1].epoch == above[0].epoch
    return (*below, *above[continues:])


def epoch_for_offset(lineage: Sequence[EpochEntry], offset: Offset) -> EpochEntry | None:
    """The last entry whose start is at or below `offset`; None below the first."""
    index = bisect_right(lineage, offset, key=lambda entry: entry.start_offset)
    return lineage[index - 1] if index else None


def epoch_end_offset(
    lineage: Sequence[EpochEntry], epoch: LeaderEpoch, log_end_offset: Offset
) -> Offset:
    """The end (exclusive) of the records of `epoch`: the next epoch's start, or the log end."""
    # An epoch that the lineage lacks has no records: it ends where the next higher one starts.
    index = bisect_right(lineage, epoch, key=lambda entry: entry.epoch)
    return lineage[index].start_offset if index < len(lineage) else log_end_offset


def epochs_within(
    lineage: Sequence[EpochEntry], start_offset: Offset, end_offset: Offset
) -> dict[LeaderEpoch, Offset]:
    """The epochs of [start_offset, end_offset), each with its first offset in there."""
    return {
        entry.epoch: max(entry.start_offset, start_offset)
        for index, entry in enumerate(lineage)
        if entry.start_offset < end_offset
        # `>`: an epoch that ends at `start_offset` has no offset in the range.
        and (index + 1 == len(lineage) or lineage[index + 1].start_offset > start_offset)
    }


def cut_at_epochs(
    epochs: Sequence[tuple[LeaderEpoch, Offset]], end_offset_inclusive: Offset
) -> list[EpochSpan]:
    """The spans of epochs with their start offsets, ascending, up to an end."""
    # Damaged metadata may have the lowest offset. The one before it would not fit into 64 bits.
    ends = [max(start - 1, _OFFSET_MIN) for _, start in epochs[1:]]
    return [
        EpochSpan(epoch, start, end)
        for (epoch, start), end in zip(epochs, [*ends, end_offset_inclusive], strict=True)
    ]
