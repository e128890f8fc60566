"""Computes the remote segments of a partition at an earlier time, from the events of its segments.
Pure.

It starts from the current state and undoes the events after that time. If the first known event of
a segment is later than the time, the segment was in the state that this event follows. Brokers'
disks have no such events, so the local offsets of the past are unknown.
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
    """The facts about a segment that never change. `end_offset` is inclusive."""

    start_offset: Offset
    end_offset: Offset
    size_in_bytes: int
    max_timestamp_ms: TimestampMs


@dataclass(slots=True)
class _Life:
    """The known states of one segment. `times_ms` ascend, and `states` began at these times. With
    `is_whole` the first of them is the segment's first state."""

    times_ms: list[TimestampMs] = field(default_factory=list)
    states: list[_STATE] = field(default_factory=list)
    extent: SegmentExtent | None = None
    is_whole: bool = False

    def state_at(self, at_ms: TimestampMs) -> tuple[_STATE, TimestampMs] | None:
        """The state at a time, and the time since when, as far as known. None if the segment did
        not exist."""
        place = bisect.bisect_right(self.times_ms, at_ms)
        if place:
            return self.states[place - 1], self.times_ms[place - 1]
        before = None if self.is_whole else _BEFORE.get(self.states[0])
        return None if before is None else (before, self.times_ms[0])


class PastSegments(NamedTuple):
    """The segments at an earlier time. `unknown` further segments existed, but no stored event has
    their offsets."""

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
        """Add an event. It has an `extent` if it contains the whole state: a copy's start, or a
        replaced state."""
        life = self._lives.setdefault(segment, _Life())
        if extent is not None:
            life.extent = extent
            life.is_whole |= not life.times_ms
        # Brokers' clocks differ. Times must ascend, so an event is never earlier than the one
        # before.
        life.times_ms.append(max(event_ms, life.times_ms[-1] if life.times_ms else event_ms))
        life.states.append(state)
        self.first_ms = event_ms if self.first_ms is None else min(self.first_ms, event_ms)

    def offsets(self) -> tuple[Offset, Offset] | None:
        """The range from the first offset of all segments to the end of the last. None if no event
        has offsets."""
        extents = [life.extent for life in self._lives.values() if life.extent is not None]
        if not extents:
            return None
        return min(e.start_offset for e in extents), max(e.end_offset for e in extents) + 1

    def as_of(self, present: RemoteSegments, at_ms: TimestampMs) -> PastSegments:
        """The segments at a time, by start offset. `present` are the current ones."""
        places = {segment: place for place, segment in enumerate(present.ids)}
        # A copy that began after `at_ms` did not exist. Its event may be gone, but the current
        # state has the time.
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
    """The log's offsets at a time, as far as they are certain.

    The log began where its first segment began, and reached at least to the end of the segments
    whose records are older. Everything in the remote tier counts as not local.
    """
    finished = past.in_state(_STATE.COPY_SEGMENT_FINISHED)
    starts = past.start_offset[finished]
    log_start = min([local.log_start_offset, *starts[:1].tolist()])
    tiered_end = last_tiered_offset(past) + 1
    written = [
        log.end_offset[log.max_timestamp_ms <= at_ms].max(initial=-1) + 1 for log in (present, past)
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
    made = RemoteSegments([ids[place] for place in order], *(array[order] for array in columns))
    return replace(made, epoch_starts=present.epoch_starts)
