"""Finds what the metadata of overlapping segments must be right about. Pure.

Leader epochs in the metadata decide which of several segments is the log at an offset. They have no
CRC. So before records are left out, the epochs are compared with the headers of batches (decisions
72 and 199, prove_epoch of isotherm.spark.reading).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.spark.plan.planning import SegmentPiece, cover, spans_by_epoch
from isotherm.types import LeaderEpoch, Offset


class EpochClaim(NamedTuple):
    """The metadata claim that the batch at `offset` in `segment` is of `epoch`. With `is_of_copy`
    it is about records that are left out because another segment has them of the same leader."""

    segment: RemoteLogSegmentMetadata
    offset: Offset
    epoch: LeaderEpoch
    is_of_copy: bool = False


def contested_epochs(segments: Iterable[RemoteLogSegmentMetadata]) -> list[EpochClaim]:
    """The claims because of which records are left out of the log: the leader epoch of these
    records, and the later epoch of the records that supersede them.

    Records are left out wrongly if their epoch is later than the metadata claim. The epochs of a
    log rise, so the last record that is left out shows that of all. The epochs of records that are
    read are compared by their reads. Empty unless segments overlap: after a change of leader
    between two copies, a copy that was repeated, or an unclean election.
    """
    spans, blanks = spans_by_epoch(segments)
    unreadable = {blank.segment_id.id for blank in blanks}
    claims: dict[tuple[uuid.UUID, Offset], EpochClaim] = {}
    superseding: EpochClaim | None = None
    for epoch in sorted(spans, reverse=True):
        limit = None if superseding is None else superseding.offset
        for claim in _left_out(spans[epoch], epoch, limit):
            claims.setdefault((claim.segment.segment_id.id, claim.offset), claim)
            if superseding is not None and not claim.is_of_copy:
                key = superseding.segment.segment_id.id, superseding.offset
                claims[key] = superseding
        first = min(spans[epoch], key=lambda span: span.start_offset)
        if superseding is None or first.start_offset < superseding.offset:
            superseding = EpochClaim(first.segment, first.start_offset, epoch)
    # The epochs of an unreadable segment are those of its batches.
    return [claim for claim in claims.values() if claim.segment.segment_id.id not in unreadable]


def _left_out(
    spans: list[SegmentPiece], epoch: LeaderEpoch, limit: Offset | None
) -> Iterator[EpochClaim]:
    """Yield a claim about the last record of each of `spans` that is not read. They are those of an
    epoch; later epochs begin at `limit`."""
    ordered = sorted(spans, key=lambda span: span.start_offset)
    overlaps = any(before.end_offset > after.start_offset for before, after in pairwise(ordered))
    is_cut = limit is not None and any(span.end_offset > limit for span in ordered)
    if not overlaps and not is_cut:
        return
    # `cover` reads each segment once at most within an epoch.
    read = {piece.segment.segment_id.id: piece for piece in cover(ordered, limit)}
    for span in ordered:
        piece = read.get(span.segment.segment_id.id)
        end = span.end_offset
        if piece is not None and piece.end_offset == end:
            end = piece.start_offset
        if end > span.start_offset:
            is_of_copy = limit is None or end <= limit
            yield EpochClaim(span.segment, end - 1, epoch, is_of_copy)
