"""Ranges of remote segments in memory: few large GETs for many small reads.

A read at a position of a segment is answered from the range that covers it. If there is none, a
range is fetched from that position on. It is at least `range_size_min` long, and each range is
twice as long as the one before it, up to `range_size_max`. So a single small read costs little, and
a reader of a whole 1 GiB segment makes 19 GETs (8 + 16 + 32 MiB and 16 of some 60 MiB). For a
reader that continues where it stopped, the next ranges are fetched ahead, in the next segments as
well.

Ranges belong to segments, not to readers: consumers of the same offsets share them, and a range is
fetched once for all. All ranges together, those in flight included, take at most `size_max` bytes.
Ranges that follow one another are a run, and each run that is being read has an equal share of
`size_max`. One range takes at most half of a share, so that the next one fits beside it;
`run_size` bounds how much of a run is held. The least recently read ranges are dropped first. A
range fetched ahead and not read yet is dropped last, and never for the read-ahead of another run.
A read that finds no room fetches the bytes it needs and keeps nothing.
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
"""Ranges fetched ahead at once, over all readers. Ranges that a reader waits for do not count:
read-ahead takes only so many threads, and the others stay free for waiting readers."""
_PLANS_PER_RANGE = 16
"""Plans of the next ranges while a reader moves through one range. A plan at every read would cost
more than it gives: one read is a small part of a range."""
_IDLE_S = 10.0
"""A run without a read for this long loses its share. A consumer that processes a batch between two
fetches keeps its share, and a reader that has left frees its share soon."""


@dataclass(frozen=True, slots=True)
class ReadAheadSettings:
    """size_max is remote.log.reader.read.ahead.max.bytes. The range sizes are fixed: they depend on
    the cost of a GET, not on the machine."""

    size_max: int
    range_size_min: int = 8 * _MIB
    range_size_max: int = 64 * _MIB

    def range_size(self, size: int, run_count: int) -> int:
        """`size`, limited to the bounds of a range while `run_count` runs are being read."""
        return min(max(size, self.range_size_min), self._range_bound(run_count))

    def run_size(self, run_count: int, *, is_shared: bool) -> int:
        """Bytes of a run to hold, from the start of the range being read; at least two ranges.

        A run with one reader gets three quarters of its share, enough for three GETs at once. A run
        with trailing readers gets half: the other half keeps the ranges already read for them."""
        share = self._share(run_count)
        return max(2 * self._range_bound(run_count), share // 2 if is_shared else share * 3 // 4)

    def _range_bound(self, run_count: int) -> int:
        return min(self.range_size_max, max(1, self._share(run_count) // 2))

    def _share(self, run_count: int) -> int:
        return self.size_max // max(1, run_count)


@dataclass(slots=True, eq=False)
class _Run:
    """Adjacent ranges, across segments too. `is_shared` is true once bytes of it were read twice:
    it has trailing readers."""

    range_count: int = 0
    read_size: int = 0
    read_at_s: float = 0.0
    is_shared: bool = False


@dataclass(slots=True, eq=False)
class _Held:
    """A range, read up to `read_end`. A read at `plan_from` or later plans the next ranges."""

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
    reader that may wait, and AHEAD_AT_ONCE more. `size_max` bounds the fetches that wait for
    them."""

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
        # Ranges in the order of their last read: the first ones are dropped first.
        self._held: OrderedDict[SegmentRange, _Held] = OrderedDict()
        self._by_segment: dict[RemoteLogSegmentId, list[SegmentRange]] = {}
        self._size = 0
        self._ahead: deque[SegmentRange] = deque()
        self._ahead_count = 0

    @property
    def size_in_bytes(self) -> int:
        """Bytes held or in flight."""
        with self._lock:
            return self._size

    @property
    def memory_in_bytes(self) -> int:
        """The memory of ranges, of views of them that answers still have, and of blocks that are
        kept for the next range."""
        return self._memory.size_in_bytes

    def range_at(
        self,
        metadata: RemoteLogSegmentMetadata,
        position: Position,
        size: int,
        wait: ReadWait,
        *,
        is_batch: bool = False,
    ) -> SegmentRange:
        """The range that covers `position`; it may still be in flight. If there is none, a range of
        at least `size` bytes is fetched. `is_batch` states that a batch begins at `position`.

        Raises NotInMemoryError if there is none and `wait` may not wait.
        """
        check_from = position if is_batch else None
        # Only the reservation is under the lock. GETs run outside of it: they take tens of ms.
        with self._lock:
            own_range = self._find(metadata.segment_id, position)
            if own_range is None:
                if not wait.may_wait:
                    raise NotInMemoryError(f"no range in memory position={position}")
                own_range = self._demand(metadata, position, size, check_from)
            must_fetch = own_range is not None and own_range.begin()
        if own_range is None:
            # No room: fetch the wanted bytes in this thread and keep nothing. A reader is never
            # refused because other readers hold the memory.
            end = min(position + size, metadata.segment_size_in_bytes)
            own_range = SegmentRange(metadata, position, end, check_from)
            own_range.fetch(self._storage, self._memory)
        elif must_fetch:
            self._threads.submit(partial(self._fetch, own_range))
        return own_range

    def read(
        self,
        metadata: RemoteLogSegmentMetadata,
        position: Position,
        size: int,
        wait: ReadWait,
    ) -> memoryview:
        """Read [position, position + size) of the segment's `.log`, unchecked, up to the segment's
        end. Pieces of several ranges are joined by a copy.

        Raises what the storage manager raises; a failed range is not kept.
        """
        end = min(position + size, metadata.segment_size_in_bytes)
        pieces = []
        while position < end:
            own_range = self.range_at(metadata, position, end - position, wait)
            piece_end = min(end, own_range.end)
            own_range.wait_until_filled(piece_end, wait)
            self.note_read(metadata, piece_end)
            pieces.append(own_range.read(position, piece_end))
            position = piece_end
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def note_batch(self, batch_range: SegmentRange, position: Position) -> None:
        """Note that a batch of `batch_range` begins at `position`, and check from there if no batch
        was known before."""
        if batch_range.check_from is None:
            batch_range.check_from = position
            batch_range.check_filled()
            self._hand_on(batch_range)

    def note_read(self, metadata: RemoteLogSegmentMetadata, end: Position) -> None:
        """Note that a reader has read bytes up to `end`."""
        with self._lock:
            # The byte before `end`: `end` itself may be the start of the next range.
            read = self._find(metadata.segment_id, end - 1)
            if read is not None:
                held = self._held[read]
                self._held.move_to_end(read)
                # Bytes below `read_end` are read again: there is a trailing reader.
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
        """Fetch ahead for a reader that continued where it stopped and has now read `size` bytes up
        to `position`. `following` returns the next segment."""
        with self._lock:
            plan = self._plan(metadata, position, size)
        segment: RemoteLogSegmentMetadata | None = metadata
        while plan is not None and segment is not None:
            with self._lock:
                plan.at = self._extend(plan, segment)
            # `following` asks the metadata manager: call it without the lock.
            if plan.at < segment.segment_size_in_bytes or not plan.has_room:
                break
            segment, plan.at = following(segment), 0
        self._start_ahead()

    def forget(self, segment_id: RemoteLogSegmentId) -> None:
        """Drop the ranges of a segment that is damaged or replaced."""
        with self._lock:
            for segment_range in list(self._by_segment.get(segment_id, ())):
                self._drop(segment_range)

    def _start_ahead(self) -> None:
        starting = []
        # Submit outside of the lock: the work takes it, too.
        with self._lock:
            while self._ahead and self._ahead_count < AHEAD_AT_ONCE:
                next_range = self._ahead.popleft()
                # It may have been begun for a reader that waits. One that is dropped is not here.
                if next_range.begin():
                    self._ahead_count += 1
                    starting.append(next_range)
        for segment_range in starting:
            self._threads.submit(partial(self._fetch_ahead, segment_range))

    def _fetch_ahead(self, segment_range: SegmentRange) -> None:
        try:
            self._fetch(segment_range)
        finally:
            with self._lock:
                self._ahead_count -= 1
            self._start_ahead()

    def _fetch(self, segment_range: SegmentRange) -> None:
        """Fill a range. The readers that wait for it get the error if it fails."""
        try:
            segment_range.fetch(self._storage, self._memory)
        # Of any kind: a failed range that stays held would answer later readers with this error.
        except BaseException as error:
            with self._lock:
                held = self._held.get(segment_range)
                # The reader of this run has left, so the ranges planned for it are useless too.
                if held is not None and isinstance(error, FetchAbandonedError):
                    self._drop_ahead_of(held.run)
                self._drop(segment_range)
            raise
        self._hand_on(segment_range)

    def _hand_on(self, done: SegmentRange) -> None:
        """Set the first batch of the next range, and check the bytes of it that have arrived.

        A range that starts inside a batch can be checked only once the range before it is."""
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
        # A walk, not a search: a segment has few ranges, which are several MiB each.
        for segment_range in self._by_segment.get(segment_id, ()):
            if segment_range.start <= position < segment_range.end:
                return segment_range
        return None

    def _before(self, segment_id: RemoteLogSegmentId, position: Position) -> SegmentRange | None:
        """The range that ends at `position`."""
        return next(
            (
                segment_range
                for segment_range in self._by_segment.get(segment_id, ())
                if segment_range.end == position
            ),
            None,
        )

    def _demand(
        self,
        metadata: RemoteLogSegmentMetadata,
        position: Position,
        size: int,
        check_from: Position | None,
    ) -> SegmentRange | None:
        """Reserve a range for a reader that waits: twice as long as the range before it, if any.

        None if there is no room, or if the bound on ranges is below `size`.
        """
        before = self._before(metadata.segment_id, position)
        run = _Run(read_at_s=self._clock.monotonic_s())
        wanted_size = size
        if before is not None:
            run = self._held[before].run
            wanted_size = max(size, 2 * before.size)
        # A new run does not count as active yet, but needs a share.
        run_count = self._active_run_count() + (before is None)
        range_size = self._settings.range_size(wanted_size, run_count)
        if range_size < size:
            return None
        return self._reserve(metadata, position, range_size, run, check_from, is_ahead=False)

    def _plan(
        self, metadata: RemoteLogSegmentMetadata, position: Position, size: int
    ) -> _Plan | None:
        """Plan the next ranges; None if it is too early."""
        segment_id = metadata.segment_id
        # At the border of two ranges the next one may not be in memory yet.
        reading = self._find(segment_id, position) or self._before(segment_id, position)
        if reading is None:
            return None
        held = self._held[reading]
        run = held.run
        # Before the returns below: a run counts for the shares from its first continued read on.
        # Otherwise readers that begin together evict each other's ranges.
        run.read_size += size
        run.read_at_s = self._clock.monotonic_s()
        if position < held.plan_from:
            return None
        held.plan_from = position + reading.size // _PLANS_PER_RANGE
        # The first range of a run may serve a single read. So nothing is fetched ahead until a
        # quarter of it is read.
        if run.range_count == 1 and position - reading.start <= reading.size // 4:
            return None
        run_count = max(1, self._active_run_count())
        run_size = self._settings.run_size(run_count, is_shared=run.is_shared)
        # The range being read counts against the run up to the reader's position.
        size_max = run_size - (position - reading.start)
        reach = max(2 * reading.size, run.read_size)
        return _Plan(run, run_count, position, reading.size, size_max, reach)

    def _extend(self, plan: _Plan, segment: RemoteLogSegmentMetadata) -> Position:
        """Reserve the ranges of a plan that one segment lacks. Returns the position at which the
        ranges in memory or in flight end."""
        at = plan.at
        while at < segment.segment_size_in_bytes:
            next_range = self._find(segment.segment_id, at)
            if next_range is None:
                size = self._settings.range_size(2 * plan.last_size, plan.run_count)
                # Split the rest into equal ranges: a short last range would cost a GET of its own.
                rest = segment.segment_size_in_bytes - at
                size = -(-rest // -(-rest // size))
                if not plan.has_room or plan.ahead_size + size > plan.size_max:
                    break
                # A batch begins at the segment's start and where the last batch of a checked range
                # ends. Otherwise the position of the first batch comes later (`_hand_on`).
                before = self._before(segment.segment_id, at)
                check_from = before.last_batch_end if before is not None else 0 if at == 0 else None
                next_range = self._reserve(segment, at, size, plan.run, check_from, is_ahead=True)
                if next_range is None:
                    break
                self._ahead.append(next_range)
            plan.ahead_size += next_range.end - at
            # The last range of a segment may be short. The next segment continues from the largest
            # size so far.
            plan.last_size = max(plan.last_size, next_range.size)
            at = next_range.end
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
        """Reserve a range from `position`, cut where the next range begins; None if there is no
        room."""
        segment_id, segment_size = metadata.segment_id, metadata.segment_size_in_bytes
        of_segment = self._by_segment.get(segment_id, ())
        # Ranges of a segment never overlap: each byte is held once.
        behind = [
            segment_range.start for segment_range in of_segment if segment_range.start > position
        ]
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
        """Drop ranges, the least recently read first. Ranges in flight stay: readers may wait for
        them.

        Read-ahead drops spent ranges only, so that no run takes the unread ranges of another active
        run."""
        # Copies, because `_drop` changes `_held`.
        for held in [held for held in self._held.values() if self._is_spent(held)]:
            if self._size + size > self._settings.size_max:
                self._drop(held.range)
        for held_range in [] if is_ahead else list(self._held):
            if self._size + size > self._settings.size_max and held_range.is_done:
                self._drop(held_range)
        return self._size + size <= self._settings.size_max

    def _is_spent(self, held: _Held) -> bool:
        """The range is read to its end, or its run has no active reader."""
        return held.range.is_done and (held.is_read or not self._is_active(held.run))

    def _is_active(self, run: _Run) -> bool:
        """Whether a reader continued in the run within the last _IDLE_S seconds."""
        return run.read_size > 0 and self._clock.monotonic_s() - run.read_at_s < _IDLE_S

    def _active_run_count(self) -> int:
        return len({id(held.run) for held in self._held.values() if self._is_active(held.run)})

    def _drop_ahead_of(self, run: _Run) -> None:
        """Stop fetching ahead for a reader that has left."""
        for segment_range in [
            segment_range for segment_range in self._ahead if self._held[segment_range].run is run
        ]:
            self._drop(segment_range)

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
    """A plan to fetch ahead from `at` on.

    `size_max` bounds memory. `reach` grows with the bytes that the run has been read: a reader that
    began a moment ago may stop soon, and bytes fetched ahead for it would be wasted.
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
