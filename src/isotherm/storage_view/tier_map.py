"""Divides the offsets of a partition into spans by the tier that holds them, and joins spans to
cells. Pure.

There are two lanes. The spans of the first one follow one another from the log start to the high
watermark, and show where a consumer's records come from. The second lane has the segments that are
not yet, or no longer, part of the log.

    first   local · both · remote · missing (in neither tier)
    second  copying · deleting (or wholly below the log start) · orphan

An upload is an orphan if no broker will finish it: it is older than the grace period, or finished
segments have all of its offsets. Objects without metadata are in no span; `isotherm pipeline sweep`
finds them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from isotherm.remote.segment_metadata import RemoteLogSegmentState
from isotherm.storage_view.partition_storage import UPLOAD_GRACE_MS, LocalTier
from isotherm.storage_view.remote_segments import RemoteSegments
from isotherm.types import Offset, TimestampMs

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64Array: TypeAlias = npt.NDArray[np.int64]

NO_SEGMENT = -1
_STATE = RemoteLogSegmentState


class SpanKind(enum.IntEnum):
    LOCAL = 0
    BOTH = 1
    REMOTE = 2
    MISSING = 3
    COPYING = 4
    DELETING = 5
    ORPHAN = 6


FIRST_LANE = (SpanKind.LOCAL, SpanKind.BOTH, SpanKind.REMOTE, SpanKind.MISSING)


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Columns with one element for each span, by start offset. `end` is exclusive. `segment` is the
    index of the span's segment, or NO_SEGMENT. If a segment has several spans, the first one has
    all its bytes."""

    kind: Int64Array
    start: Int64Array
    end: Int64Array
    size_in_bytes: Int64Array
    segment: Int64Array

    def __len__(self) -> int:
        return len(self.kind)

    def within(self, first: Offset, end: Offset) -> Spans:
        """The spans with an offset in the range, not cut."""
        return self._chosen((self.start < end) & (self.end > first))

    def of_kinds(self, kinds: Iterable[SpanKind]) -> Spans:
        return self._chosen(np.isin(self.kind, [int(kind) for kind in kinds]))

    def _chosen(self, mask: npt.NDArray[np.bool_]) -> Spans:
        return Spans(*(column[mask] for column in self._columns()))

    def _columns(self) -> tuple[Int64Array, ...]:
        return self.kind, self.start, self.end, self.size_in_bytes, self.segment


@dataclass(frozen=True, slots=True)
class Cell:
    """One span, or all spans that overlap a range of offsets.

    In the second case there may be several kinds, `segment` is NO_SEGMENT, and the bytes are those
    of the segments that begin in the range.
    """

    start: Offset
    end: Offset
    kinds: tuple[SpanKind, ...]
    segments: int
    size_in_bytes: int
    segment: int


def tier_spans(
    local: LocalTier,
    segments: RemoteSegments,
    now_ms: TimestampMs,
    grace_ms: int = UPLOAD_GRACE_MS,
) -> Spans:
    finished = np.flatnonzero(segments.in_state(_STATE.COPY_SEGMENT_FINISHED))
    end = segments.end_offset[finished] + 1
    # Where the finished segments before each one end, so that overlapping offsets belong to one
    # segment only.
    reached = np.maximum.accumulate(np.concatenate(([local.log_start_offset], end)))
    own_start = np.maximum(segments.start_offset[finished], reached[:-1])
    has_own = own_start < end
    size = segments.size_in_bytes
    own, own_start, own_end = finished[has_own], own_start[has_own], end[has_own]
    border = local.local_log_start_offset
    below = end <= local.log_start_offset
    return _joined(
        _part(SpanKind.REMOTE, own_start, np.minimum(own_end, border), own, size[own]),
        _part(
            SpanKind.BOTH,
            np.maximum(own_start, border),
            own_end,
            own,
            # If the segment also has a remote span, that one has its bytes.
            np.where(own_start < border, 0, size[own]),
        ),
        *_gaps(local, own_start, own_end),
        _part(
            SpanKind.DELETING,
            segments.start_offset[finished[below]],
            end[below],
            finished[below],
            size[finished[below]],
        ),
        *_unfinished(segments, own_start, own_end, now_ms - grace_ms),
    )


def map_cells(spans: Spans, first: Offset, end: Offset, columns: int) -> list[Cell]:
    """At most `columns` cells of one lane between two offsets, ascending. They are the spans
    themselves if there are no more than `columns`, else ranges of equal length with all kinds that
    overlap them."""
    inside = spans.within(first, end)
    if len(inside) <= columns:
        return _single_cells(inside)
    width = -(-(end - first) // columns)
    count = -(-(end - first) // width)
    starts = np.clip((inside.start - first) // width, 0, count - 1)
    last = np.clip((inside.end - 1 - first) // width, 0, count - 1)
    has_segment = inside.segment != NO_SEGMENT
    segments = np.bincount(starts, weights=has_segment, minlength=count).astype(np.int64)
    sizes = np.bincount(starts, weights=inside.size_in_bytes, minlength=count).astype(np.int64)
    touched = {
        kind: _touched(starts[inside.kind == kind], last[inside.kind == kind], count)
        for kind in SpanKind
        if (inside.kind == kind).any()
    }
    return [
        Cell(
            first + place * width,
            min(first + (place + 1) * width, end),
            tuple(kind for kind, mask in touched.items() if mask[place]),
            int(segments[place]),
            int(sizes[place]),
            NO_SEGMENT,
        )
        for place in range(count)
        if any(mask[place] for mask in touched.values())
    ]


def _single_cells(spans: Spans) -> list[Cell]:
    rows = zip(
        *(
            column.tolist()
            for column in (spans.start, spans.end, spans.kind, spans.segment, spans.size_in_bytes)
        ),
        strict=True,
    )
    return [
        Cell(start, end, (SpanKind(kind),), int(segment != NO_SEGMENT), size, segment)
        for start, end, kind, segment, size in rows
    ]


def _touched(first: Int64Array, last: Int64Array, count: int) -> npt.NDArray[np.bool_]:
    """A mask of the `count` places: whether each lies from `first[i]` to `last[i]`, for any i."""
    # +1 where a range begins and -1 after its end: the running sum counts the ranges at each place.
    steps = np.bincount(first, minlength=count + 1) - np.bincount(last + 1, minlength=count + 1)
    inside: npt.NDArray[np.bool_] = np.cumsum(steps)[:count] > 0
    return inside


def _part(
    kind: SpanKind,
    start: Int64Array,
    end: Int64Array,
    segment: Int64Array,
    size: Int64Array,
) -> Spans:
    """The spans of one kind, without empty ones."""
    kept = start < end
    kinds = np.full(int(kept.sum()), int(kind), dtype=np.int64)
    return Spans(kinds, start[kept], end[kept], size[kept], segment[kept])


def _gaps(local: LocalTier, own_start: Int64Array, own_end: Int64Array) -> tuple[Spans, Spans]:
    """The spans that no finished segment has: missing ones below the local log start, and local
    ones from there on."""
    end = max(local.high_watermark, local.log_start_offset)
    gap_start = np.minimum(np.concatenate(([local.log_start_offset], own_end)), end)
    gap_end = np.minimum(np.concatenate((own_start, [end])), end)
    border = local.local_log_start_offset
    return (
        _without_segment(SpanKind.MISSING, gap_start, np.minimum(gap_end, border)),
        _without_segment(SpanKind.LOCAL, np.maximum(gap_start, border), gap_end),
    )


def _without_segment(kind: SpanKind, start: Int64Array, end: Int64Array) -> Spans:
    kept = start < end
    start, end = start[kept], end[kept]
    zero = np.zeros(len(start), dtype=np.int64)
    return Spans(zero + int(kind), start, end, zero, zero + NO_SEGMENT)


def _unfinished(
    segments: RemoteSegments, own_start: Int64Array, own_end: Int64Array, oldest_ms: TimestampMs
) -> tuple[Spans, ...]:
    started = segments.in_state(_STATE.COPY_SEGMENT_STARTED)
    lengths = np.concatenate(([0], np.cumsum(own_end - own_start)))

    def covered_below(offset: Int64Array) -> Int64Array:
        place = np.searchsorted(own_start, offset, side="right")
        last_end = np.concatenate(([0], own_end))[place]
        covered: Int64Array = lengths[place] - np.maximum(0, last_end - offset)
        return covered

    end = segments.end_offset + 1
    # Offsets of each segment that finished segments have too.
    covered = covered_below(end) - covered_below(segments.start_offset)
    is_superseded = covered == end - segments.start_offset
    is_orphan = started & (is_superseded | (segments.event_timestamp_ms < oldest_ms))
    masks = {
        SpanKind.COPYING: started & ~is_orphan,
        SpanKind.DELETING: segments.in_state(_STATE.DELETE_SEGMENT_STARTED),
        SpanKind.ORPHAN: is_orphan,
    }
    return tuple(
        _part(
            kind,
            segments.start_offset[mask],
            end[mask],
            np.flatnonzero(mask),
            segments.size_in_bytes[mask],
        )
        for kind, mask in masks.items()
    )


def _joined(*parts: Spans) -> Spans:
    columns = [
        np.concatenate(column) for column in zip(*(p._columns() for p in parts), strict=True)
    ]
    order = np.lexsort((columns[0], columns[1]))
    return Spans(*(column[order] for column in columns))
