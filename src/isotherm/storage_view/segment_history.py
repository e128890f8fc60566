"""What the remote tier of a partition held at a time of the last day, by the events of its segments. Pure.

The present state is known; the events since then are taken back. A segment whose first known event is a
later one was before it what that event follows. The disks of brokers have no such record: of the
past, nothing tells which offsets they had beside the remote tier.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from isotherm.remote.segment_metadata import RemoteLogSegmentState
from isotherm.storage_view.partition_storage import LocalTier, last_tiered_offset
from isotherm.storage_view.remote_segments import RemoteSegments
from isotherm.types import Offset, TimestampMs

if TYPE_CHECKING:
    import numpy.typing as npt

    BoolArray: TypeAlias = npt.NDArray[np.bool_]

_STATE = RemoteLogSegmentState
_BEFORE = {
    _STATE.COPY_SEGMENT_FINISHED: _STATE.COPY_SEGMENT_STARTED,
    _STATE.DELETE_SEGMENT_STARTED: _STATE.COPY_SEGMENT_FINISHED,
    _STATE.DELETE_SEGMENT_FINISHED: _STATE.DELETE_SEGMENT_STARTED,
}


class SegmentExtent(NamedTuple):
    """What stays the same of a segment. `end_offset` is inclusive."""

    start_offset: Offset
    end_offset: Offset
    size_in_bytes: int
    max_timestamp_ms: TimestampMs


@dataclass(slots=True)
class _Life:
    """`times_ms` ascend, each with the state that began then. `is_whole` if the first is the beginning."""

    times_ms: list[TimestampMs] = field(default_factory=list)
    states: list[_STATE] = field(default_factory=list)
    extent: SegmentExtent | None = None
    is_whole: bool = False

    def state_at(self, at_ms: TimestampMs) -> tuple[_STATE, TimestampMs] | None:
        """And since when, as far as it is known. None if it was not there."""
        place = bisect.bisect_right(self.times_ms, at_ms)
        if place:
            return self.states[place - 1], self.times_ms[place - 1]
        before = None if self.is_whole else _BEFORE.get(self.states[0])
        return None if before is None else (before, self.times_ms[0])


class PastSegments(NamedTuple):
    """`unknown` segments were there too, and no event that is kept tells which offsets they had."""

    segments: RemoteSegments
    unknown: int


class SegmentHistory:
    """The events of one partition's segments, in the order of their topic. Not thread-safe."""

    def __init__(self) -> None:
        self._lives: dict[bytes, _Life] = {}
        self.first_ms: TimestampMs | None = None

    def note(
        self,
        segment: bytes,
        state: RemoteLogSegmentState,
        event_ms: TimestampMs,
        extent: SegmentExtent | None,
    ) -> None:
        """`extent` of an event that has the whole state: a copy's start, or its replacement."""
        life = self._lives.setdefault(segment, _Life())
        if extent is not None:
            life.extent = extent
            life.is_whole |= not life.times_ms
        # Clocks of several brokers: an event is not before the one that it follows.
        life.times_ms.append(max(event_ms, life.times_ms[-1] if life.times_ms else event_ms))
        life.states.append(state)
        self.first_ms = event_ms if self.first_ms is None else min(self.first_ms, event_ms)

    def offsets(self) -> tuple[Offset, Offset] | None:
        """The first of any segment, and the one after the last; None where no event tells."""
        extents = [each.extent for each in self._lives.values() if each.extent is not None]
        if not extents:
            return None
        return min(e.start_offset for e in extents), max(e.end_offset for e in extents) + 1

    def as_of(self, present: RemoteSegments, at_ms: TimestampMs) -> PastSegments:
        """The segments that were there, by start offset."""
        places = {segment: place for place, segment in enumerate(present.ids)}
        # A copy that began later: its event is not kept, but it has the time.
        began = present.in_state(_STATE.COPY_SEGMENT_STARTED)
        kept = ~(began & (present.event_timestamp_ms > at_ms))
        unknown, rows = 0, []
        for segment, life in self._lives.items():
            if life.times_ms[-1] <= at_ms:
                continue
            place = places.get(segment)
            if place is not None:
                kept[place] = False
            was = life.state_at(at_ms)
            if was is None or was[0] is _STATE.DELETE_SEGMENT_FINISHED:
                continue
            extent = life.extent if place is None else _extent(present, place)
            if extent is None:
                unknown += 1
            else:
                rows.append((segment, *extent, was[1], int(was[0])))
        return PastSegments(_joined(present, kept, rows), unknown)


def past_log(
    local: LocalTier, present: RemoteSegments, past: RemoteSegments, at_ms: TimestampMs
) -> LocalTier:
    """What is certain of a log's offsets at that time: it began where its first segment did, and
    reached as far as the segments whose records are older. All that was in the remote tier counts
    as no longer local."""
    finished = past.in_state(_STATE.COPY_SEGMENT_FINISHED)
    starts = past.start_offset[finished]
    log_start = min([local.log_start_offset, *starts[:1].tolist()])
    tiered_end = last_tiered_offset(past) + 1
    written = [
        each.end_offset[each.max_timestamp_ms <= at_ms].max(initial=-1) + 1
        for each in (present, past)
    ]
    end = max(log_start, tiered_end, *map(int, written), int(past.end_offset.max(initial=-1)) + 1)
    return LocalTier(
        log_start_offset=log_start,
        local_log_start_offset=max(log_start, tiered_end),
        last_stable_offset=end,
        high_watermark=end,
        size_in_bytes=0,
    )


def _extent(segments: RemoteSegments, place: int) -> SegmentExtent:
    return SegmentExtent(
        int(segments.start_offset[place]),
        int(segments.end_offset[place]),
        int(segments.size_in_bytes[place]),
        int(segments.max_timestamp_ms[place]),
    )


def _joined(
    present: RemoteSegments, kept: BoolArray, rows: Iterable[tuple[bytes, *tuple[int, ...]]]
) -> RemoteSegments:
    added = list(rows)
    ids = [*(present.ids[place] for place in np.flatnonzero(kept)), *(row[0] for row in added)]
    columns = [
        np.concatenate((column[kept], np.array([row[at] for row in added], dtype=np.int64)))
        for at, column in enumerate(
            (
                *(present.start_offset, present.end_offset, present.size_in_bytes),
                *(present.max_timestamp_ms, present.event_timestamp_ms, present.state),
            ),
            1,
        )
    ]
    order = np.lexsort((columns[1], columns[0]))
    made = RemoteSegments([ids[place] for place in order], *(each[order] for each in columns))
    return replace(made, epoch_starts=present.epoch_starts)
