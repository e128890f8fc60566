"""Finds segments of the remote tier that no reader needs, by cause and age. Pure.

Only segments with metadata are found. `isotherm pipeline sweep` finds objects without metadata.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from isotherm.remote.segment_metadata import RemoteLogSegmentState
from isotherm.storage_view.partition_storage import LocalTier
from isotherm.storage_view.remote_segments import RemoteSegments
from isotherm.storage_view.tier_map import NO_SEGMENT, SpanKind, tier_spans
from isotherm.types import Offset, TimestampMs

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64Array: TypeAlias = npt.NDArray[np.int64]

_STATE = RemoteLogSegmentState


class LeftoverCause(enum.StrEnum):
    UPLOAD_ABANDONED = "upload was not finished"
    DELETION_UNFINISHED = "deletion was not finished"
    BELOW_LOG_START = "below the log start"


@dataclass(frozen=True, slots=True)
class Leftover:
    cause: LeftoverCause
    segments: int
    size_in_bytes: int
    oldest_event_ms: TimestampMs
    first_offset: Offset


def leftovers(
    local: LocalTier, segments: RemoteSegments, now_ms: TimestampMs
) -> Iterator[Leftover]:
    """Yield one leftover for each cause that the partition has."""
    spans = tier_spans(local, segments, now_ms)
    orphans = spans.segment[(spans.kind == SpanKind.ORPHAN) & (spans.segment != NO_SEGMENT)]
    deleting = np.flatnonzero(segments.in_state(_STATE.DELETE_SEGMENT_STARTED))
    finished = segments.in_state(_STATE.COPY_SEGMENT_FINISHED)
    below = np.flatnonzero(finished & (segments.end_offset < local.log_start_offset))
    for cause, chosen in (
        (LeftoverCause.UPLOAD_ABANDONED, orphans),
        (LeftoverCause.DELETION_UNFINISHED, deleting),
        (LeftoverCause.BELOW_LOG_START, below),
    ):
        if len(chosen):
            yield _leftover(cause, segments, chosen)


def _leftover(cause: LeftoverCause, segments: RemoteSegments, chosen: Int64Array) -> Leftover:
    return Leftover(
        cause,
        len(chosen),
        int(segments.size_in_bytes[chosen].sum()),
        int(segments.event_timestamp_ms[chosen].min()),
        int(segments.start_offset[chosen].min()),
    )
