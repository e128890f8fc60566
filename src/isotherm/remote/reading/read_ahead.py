"""Ranges of remote segments in memory: few large GETs for many small reads.

A read at a position of a segment is answered from the range that covers it. Where there is none,
one is fetched: it begins at the position and is `range_size_min` long at least, and each range
that follows on another is twice as long as that one, up to `range_size_max`. So a single look
costs little, and a reader of a whole 1 GiB segment makes 19 GETs (8 + 16 + 32 MiB and 16 of some
60 MiB). A reader who goes on where he stopped has the next ranges fetched before he asks, in the
next segments as well.

Ranges belong to segments, not to readers: consumers of the same stretch share them, and one
fetches what several ask for. All ranges together, also those on their way, are at most `size_max`
bytes. Ranges that follow one another are a run, and each run that is being read has an equal
share: its ranges are half of that at most, and `run_size` says how much of it may be ahead. Room
is made by dropping the least recently read; what was fetched ahead and not read yet goes last, and
not for another's read-ahead. A read that finds no room even so fetches just what it needs and
keeps nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from isotherm.clock import Clock
from isotherm.remote.reading.range_memory import RangeMemory
from isotherm.remote.reading.read_wait import NotInMemoryError, ReadWait
from isotherm.remote.reading.segment_range import FetchAbandonedError, SegmentRange
from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.types import Position

_MIB = 1024 * 1024
AHEAD_AT_ONCE = 4
"""Ranges fetched ahead at once. Those that somebody waits for are fetched besides."""
_PLANS_PER_RANGE = 16
"""How often a reader's progress in a range makes us look what he needs next."""
_IDLE_S = 10.0
"""A run that nobody has read for so long has no share any more."""


@dataclass(frozen=True, slots=True)
class ReadAheadSettings:
    """size_max is remote.log.reader.read.ahead.max.bytes; the range sizes are fixed, since they
    follow from what a GET costs and not from the machine."""

    size_max: int
    range_size_min: int = 8 * _MIB
    range_size_max: int = 64 * _MIB

    def range_size(self, wanted: int, run_count: int) -> int:
        """`wanted` kept within the bounds, while so many runs are being read."""
        return min(max(wanted, self.range_size_min), self._range_bound(run_count))

    def run_size(self, run_count: int, *, is_shared: bool) -> int:
        """How much of a run may be held from the range being read on: a range and the next in any
        case; three quarters of its share while one reads it, who gets what a store gives to three
        GETs at once; half while several do, so that who is behind finds his range."""
        share = self._share(run_count)
        return max(2 * self._range_bound(run_count), share // 2 if is_shared else share * 3 // 4)

    def _range_bound(self, run_count: int) -> int:
        return min(self.range_size_max, max(1, self._share(run_count) // 2))

    def _share(self, run_count: int) -> int:
        return self.size_max // max(1, run_count)


@dataclass(slots=True, eq=False)
class _Run:
    """Ranges that follow one another, over segments too. `is_shared`: what one has read was read
    again."""

    range_count: int = 0
    read_size: int = 0
    read_at_s: float = 0.0
    is_shared: bool = False


@dataclass(slots=True, eq=False)
class _Held:
    """A range and how it has been read. `plan_from` is where the next ranges are thought of."""

    range: SegmentRange
    run: _Run
    plan_from: Position
    read_end: Position

    @property
    def is_read(self) -> bool:
        return self.read_end >= self.range.end


class FetchThreads(Protocol):
    """`concurrent.futures.Executor` is one."""

    def submit(self, work: Callable[[], None], /) -> object: ...


class ReadAhead:
    """Thread-safe. `threads` run the fetches; the caller owns them. There should be one for each
    reader that may wait, and AHEAD_AT_ONCE more. What waits for them is bounded by `size_max`."""

    def __init__(
        self,
        storage: RemoteStorageManager,
        settings: ReadAheadSettings,
        threads: FetchThreads,
        clock: Clock,
    ) -> None:
        self._storage = storage
        self._settings = settings
        self._threads = threads
        self._clock = clock
        self._memory = RangeMemory(settings.size_max)
        self._lock = threading.Lock()
        self._held: OrderedDict[SegmentRange, _Held] = OrderedDict()
        self._by_segment: dict[RemoteLogSegmentId, list[SegmentRange]] = {}
        self._size = 0
        self._ahead: deque[SegmentRange] = deque()
        self._ahead_count = 0

    @property
    def size_in_bytes(self) -> int:
        """Bytes held or on their way."""
        with self._lock:
            return self._size

    def range_at(
        self,
        metadata: RemoteLogSegmentMetadata,
        position: Position,
        size: int,
        wait: ReadWait,
        *,
        is_batch: bool = False,
    ) -> SegmentRange:
        """The range that covers `position`, on its way at least; where there is none, one of
        `size` bytes or more is fetched. `is_batch` tells that a batch begins at `position`.

        NotInMemoryError when there is none and `wait` has no time.
        """
        check_from = position if is_batch else None
        with self._lock:
            found = self._find(metadata.segment_id, position)
            if found is None:
                if not wait.may_wait:
                    raise NotInMemoryError(f"no range in memory position={position}")
                found = self._demand(metadata, position, size, check_from)
            must_fetch = found is not None and found.begin()
        if found is None:
            end = min(position + size, metadata.segment_size_in_bytes)
            found = SegmentRange(metadata, position, end, check_from)
            found.fetch(self._storage, self._memory)
        elif must_fetch:
            self._threads.submit(partial(self._fetch, found))
        return found

    def read(
        self,
        metadata: RemoteLogSegmentMetadata,
        position: Position,
        size: int,
        wait: ReadWait,
    ) -> memoryview:
        """[position, position + size) of the segment's `.log`, cut at the segment's end; what lies
        in several ranges is joined. Not checked.

        Raises what the storage manager raises; nothing of a failed fetch is kept.
        """
        end = min(position + size, metadata.segment_size_in_bytes)
        pieces = []
        while position < end:
            found = self.range_at(metadata, position, end - position, wait)
            piece_end = min(end, found.end)
            found.wait_until_filled(piece_end, wait)
            self.note_read(metadata, piece_end)
            pieces.append(found.read(position, piece_end))
            position = piece_end
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def note_batch(self, found: SegmentRange, position: Position) -> None:
        """A batch of `found` begins at `position`: check on from there, if nobody knew it."""
        if found.check_from is None:
            found.check_from = position
            found.check_filled()
            self._hand_on(found)

    def note_read(self, metadata: RemoteLogSegmentMetadata, end: Position) -> None:
        """Somebody has taken the bytes below `end`, those just before it at least."""
        with self._lock:
            read = self._find(metadata.segment_id, end - 1)
            if read is not None:
                held = self._held[read]
                self._held.move_to_end(read)
                held.run.is_shared = held.run.is_shared or end <= held.read_end
                held.read_end = max(held.read_end, end)
                held.run.read_at_s = self._clock.monotonic_s()

    def read_on(
        self,
        metadata: RemoteLogSegmentMetadata,
        position: Position,
        size: int,
        following: Callable[[RemoteLogSegmentMetadata], RemoteLogSegmentMetadata | None],
    ) -> None:
        """A reader who goes on where he stopped has read `size` bytes up to `position`: fetch what
        he asks for next. `following` tells the segment after one."""
        with self._lock:
            plan = self._plan(metadata, position, size)
        segment: RemoteLogSegmentMetadata | None = metadata
        while plan is not None and segment is not None:
            with self._lock:
                plan.at = self._extend(plan, segment)
            if plan.at < segment.segment_size_in_bytes or not plan.has_room:
                break
            segment, plan.at = following(segment), 0
        self._start_ahead()

    def forget(self, segment_id: RemoteLogSegmentId) -> None:
        """Drop the ranges of a segment that is damaged."""
        with self._lock:
            for each in list(self._by_segment.get(segment_id, ())):
                self._drop(each)

    def _start_ahead(self) -> None:
        starting = []
        with self._lock:
            while self._ahead and self._ahead_count < AHEAD_AT_ONCE:
                wanted = self._ahead.popleft()
                if wanted in self._held and wanted.begin():
                    self._ahead_count += 1
                    starting.append(wanted)
        for each in starting:
            self._threads.submit(partial(self._fetch_ahead, each))

    def _fetch_ahead(self, wanted: SegmentRange) -> None:
        try:
            self._fetch(wanted)
        finally:
            with self._lock:
                self._ahead_count -= 1
            self._start_ahead()

    def _fetch(self, wanted: SegmentRange) -> None:
        """Fill a range, for whoever waits for it; they get the error if it fails."""
        try:
            wanted.fetch(self._storage, self._memory)
        except BaseException as error:
            with self._lock:
                held = self._held.get(wanted)
                if held is not None and isinstance(error, FetchAbandonedError):
                    self._drop_ahead_of(held.run)
                self._drop(wanted)
            raise
        self._hand_on(wanted)

    def _hand_on(self, done: SegmentRange) -> None:
        """Tell the next range where its first batch begins; what it has already is checked."""
        after: SegmentRange | None = done
        while after is not None and after.last_batch_end is not None:
            start, done = after.last_batch_end, after
            with self._lock:
                after = self._find(done.metadata.segment_id, done.end)
                if after is not None and after.check_from is None:
                    after.check_from = start
                else:
                    after = None
            if after is not None:
                after.check_filled()

    # The lock is held below here.

    def _find(self, segment_id: RemoteLogSegmentId, position: Position) -> SegmentRange | None:
        for each in self._by_segment.get(segment_id, ()):
            if each.start <= position < each.end:
                return each
        return None

    def _before(self, segment_id: RemoteLogSegmentId, position: Position) -> SegmentRange | None:
        """The range that ends at `position`."""
        return next(
            (each for each in self._by_segment.get(segment_id, ()) if each.end == position), None
        )

    def _demand(
        self,
        metadata: RemoteLogSegmentMetadata,
        position: Position,
        size: int,
        check_from: Position | None,
    ) -> SegmentRange | None:
        """A range for somebody who waits, twice as long as the one that ends there, if one does.

        None when there is no room, and when the bound on ranges is below `size`.
        """
        before = self._before(metadata.segment_id, position)
        run = _Run(read_at_s=self._clock.monotonic_s())
        wanted_size = size
        if before is not None:
            run = self._held[before].run
            wanted_size = max(size, 2 * before.size)
        run_count = self._active_run_count() + (before is None)
        range_size = self._settings.range_size(wanted_size, run_count)
        if range_size < size:
            return None
        return self._reserve(metadata, position, range_size, run, check_from, is_ahead=False)

    def _plan(
        self, metadata: RemoteLogSegmentMetadata, position: Position, size: int
    ) -> _Plan | None:
        """None when there is nothing to think of yet."""
        segment_id = metadata.segment_id
        reading = self._find(segment_id, position) or self._before(segment_id, position)
        if reading is None:
            return None
        held = self._held[reading]
        run = held.run
        run.read_size += size
        run.read_at_s = self._clock.monotonic_s()
        if position < held.plan_from:
            return None
        held.plan_from = position + reading.size // _PLANS_PER_RANGE
        if run.range_count == 1 and position - reading.start <= reading.size // 4:
            return None
        run_count = max(1, self._active_run_count())
        run_size = self._settings.run_size(run_count, is_shared=run.is_shared)
        size_max = run_size - (position - reading.start)
        reach = max(2 * reading.size, run.read_size)
        return _Plan(run, run_count, position, reading.size, size_max, reach)

    def _extend(self, plan: _Plan, segment: RemoteLogSegmentMetadata) -> Position:
        """Reserve the ranges that a plan lacks in one segment; up to where it is provided for."""
        at = plan.at
        while at < segment.segment_size_in_bytes:
            found = self._find(segment.segment_id, at)
            if found is None:
                size = self._settings.range_size(2 * plan.last_size, plan.run_count)
                # In equal parts, so that no GET is spent on a few bytes at the end.
                rest = segment.segment_size_in_bytes - at
                size = -(-rest // -(-rest // size))
                if not plan.has_room or plan.ahead_size + size > plan.size_max:
                    break
                before = self._before(segment.segment_id, at)
                check_from = before.last_batch_end if before is not None else 0 if at == 0 else None
                found = self._reserve(segment, at, size, plan.run, check_from, is_ahead=True)
                if found is None:
                    break
                self._ahead.append(found)
            plan.ahead_size += found.end - at
            plan.last_size = max(plan.last_size, found.size)
            at = found.end
        return at

    def _reserve(
        self,
        metadata: RemoteLogSegmentMetadata,
        position: Position,
        size: int,
        run: _Run,
        check_from: Position | None,
        *,
        is_ahead: bool,
    ) -> SegmentRange | None:
        """A range from `position` on up to where the next one begins; None without room."""
        segment_id, segment_size = metadata.segment_id, metadata.segment_size_in_bytes
        of_segment = self._by_segment.get(segment_id, ())
        behind = [each.start for each in of_segment if each.start > position]
        end = min(position + size, segment_size, *behind)
        if not self._make_room(end - position, is_ahead=is_ahead):
            return None
        reserved = SegmentRange(metadata, position, end, check_from)
        run.range_count += 1
        self._held[reserved] = _Held(reserved, run, plan_from=position, read_end=position)
        self._by_segment.setdefault(segment_id, []).append(reserved)
        self._size += reserved.size
        return reserved

    def _make_room(self, size: int, *, is_ahead: bool) -> bool:
        """Drop ranges, those read longest ago first; those on their way stay."""
        for each in [each for each in self._held.values() if self._is_spent(each)]:
            if self._size + size > self._settings.size_max:
                self._drop(each.range)
        for held_range in [] if is_ahead else list(self._held):
            if self._size + size > self._settings.size_max and held_range.is_done:
                self._drop(held_range)
        return self._size + size <= self._settings.size_max

    def _is_spent(self, held: _Held) -> bool:
        """It may make room for what is fetched ahead: it is read, or nobody reads on there."""
        return held.range.is_done and (held.is_read or not self._is_active(held.run))

    def _is_active(self, run: _Run) -> bool:
        """Somebody went on there, lately."""
        return run.read_size > 0 and self._clock.monotonic_s() - run.read_at_s < _IDLE_S

    def _active_run_count(self) -> int:
        return len({id(each.run) for each in self._held.values() if self._is_active(each.run)})

    def _drop_ahead_of(self, run: _Run) -> None:
        """Fetch nothing more ahead of a reader who has left."""
        for each in [each for each in self._ahead if self._held[each].run is run]:
            self._drop(each)

    def _drop(self, dropped: SegmentRange) -> None:
        if self._held.pop(dropped, None) is None:
            return
        if dropped in self._ahead:
            self._ahead.remove(dropped)
        remaining = self._by_segment[dropped.metadata.segment_id]
        remaining.remove(dropped)
        if not remaining:
            del self._by_segment[dropped.metadata.segment_id]
        self._size -= dropped.size


@dataclass(slots=True)
class _Plan:
    """How far ahead of `at` a reader is provided for, and may be.

    `size_max` bounds memory, `reach` what one who began just now is trusted to read.
    """

    run: _Run
    run_count: int
    at: Position
    last_size: int
    size_max: int
    reach: int
    ahead_size: int = 0

    @property
    def has_room(self) -> bool:
        return self.ahead_size < min(self.size_max, self.reach)
