"""The window of a share partition: from its start offset to the last record in flight. Pure.

    start_offset                 end_offset
         │  batch │ batch │ gap │ batch │
    done │ ───────┴───────┴─────┴────── │ not fetched yet

Everything below the start is done or gone. While the window is empty, the end is the offset that is
fetched next; otherwise it is the last offset in flight. A gap is only left by a state that was
loaded: offsets that nobody had acknowledged when the last leader wrote it.

Source: Kafka SharePartition.
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from isotherm.broker.coordinators.shares.state_batches import StateBatch
from isotherm.broker.share_partitions.in_flight import (
    TERMINAL_STATES,
    InFlightBatch,
    RecordState,
    Run,
)
from isotherm.errors import CorruptMetadataError
from isotherm.metrics.tally import Tally
from isotherm.types import Offset, TimestampMs

_first_offset = operator.attrgetter("first_offset")


@dataclass(slots=True)
class _Gap:
    """Offsets from `start_offset` to the loaded end that may be in no batch."""

    start_offset: Offset
    end_offset: Offset


@dataclass(slots=True)
class Window:
    """Not thread-safe."""

    start_offset: Offset
    end_offset: Offset
    batches: list[InFlightBatch] = field(default_factory=list)
    # No run is due before. May be too early, never too late.
    next_lock_end_ms: TimestampMs | None = None
    _gap: _Gap | None = None
    # Of all batches that were ever in the window, for metrics.
    batch_sizes: Tally = field(default_factory=Tally)
    # Whether a record in the window may be acquirable; False only if none is.
    _may_have_available: bool = True

    @classmethod
    def load(cls, start_offset: Offset, batches: Sequence[StateBatch]) -> Window:
        """The window that a state describes. Raises CorruptMetadataError."""
        window = cls(start_offset, start_offset)
        expected = start_offset
        gap_start: Offset | None = None
        for batch in batches:
            first, last, delivery_count, delivery_state = batch
            if first < start_offset or last < first:
                raise CorruptMetadataError(
                    "a share partition's state has a range that cannot be"
                    f" start_offset={start_offset} first_offset={first} last_offset={last}"
                )
            if gap_start is None and first > expected:
                gap_start = expected
            expected = last + 1
            run = Run(first, last, RecordState(delivery_state), delivery_count)
            window.add(InFlightBatch(first, last, [run]))
        if window.batches:
            window.end_offset = window.batches[-1].last_offset_inclusive
            if gap_start is not None:
                window._gap = _Gap(gap_start, window.end_offset)
            window.advance_start()
        return window

    # ---- look-ups

    @property
    def record_count(self) -> int:
        """Offsets from the start to the end of the window; they count for the limit of locks."""
        return self.end_offset - self.start_offset + 1 if self.batches else 0

    @property
    def batch_count(self) -> int:
        return len(self.batches)

    @property
    def delivery_complete_count(self) -> int:
        """Records from the start on whose delivery is over."""
        count, start_offset = 0, self.start_offset
        for batch in self.batches:
            for run in batch.runs:
                last = run.last_offset_inclusive
                if run.state in TERMINAL_STATES and last >= start_offset:
                    count += last - max(run.first_offset, start_offset) + 1
        return count

    @property
    def gap_start(self) -> Offset | None:
        """Where unfetched offsets inside of the window may begin; None without any."""
        gap = self._gap
        return gap.start_offset if gap is not None and gap.end_offset == self.end_offset else None

    def runs(self) -> Iterator[Run]:
        for batch in self.batches:
            yield from batch.runs

    def floor(self, offset: Offset) -> InFlightBatch | None:
        """The last batch that begins at `offset` or before."""
        index = bisect.bisect_right(self.batches, offset, key=_first_offset)
        return self.batches[index - 1] if index else None

    def between(self, first_offset: Offset, last_offset_inclusive: Offset) -> list[InFlightBatch]:
        """The batches that begin in this range."""
        low = bisect.bisect_left(self.batches, first_offset, key=_first_offset)
        high = bisect.bisect_right(self.batches, last_offset_inclusive, key=_first_offset)
        return self.batches[low:high]

    def next_fetch_offset(self) -> Offset:
        """The first offset that a member could acquire."""
        if not self.batches or self.start_offset > self.batches[-1].last_offset_inclusive:
            return self.end_offset
        if not self._may_have_available:
            return self.end_offset + 1
        gap_start = self.gap_start
        for batch in self.batches:
            if gap_start is not None:
                if batch.first_offset > gap_start:
                    return gap_start
                gap_start = max(batch.last_offset_inclusive + 1, gap_start)
            for run in batch.runs:
                if run.is_acquirable:
                    return run.first_offset
        self._may_have_available = False
        return self.end_offset + 1

    def can_acquire(self, record_locks_max: int) -> bool:
        """Whether a fetch could acquire anything."""
        if self.next_fetch_offset() != self.end_offset + 1:
            return True
        return self.record_count < record_locks_max

    # ---- changes

    def note_available(self) -> None:
        """A record may have become acquirable."""
        self._may_have_available = True

    def note_lock(self, lock_end_ms: TimestampMs) -> None:
        if self.next_lock_end_ms is None or lock_end_ms < self.next_lock_end_ms:
            self.next_lock_end_ms = lock_end_ms

    def add(self, batch: InFlightBatch) -> None:
        self.batch_sizes.add(len(batch))
        bisect.insort(self.batches, batch, key=_first_offset)

    def move_gap(self, offset: Offset) -> None:
        """Everything below `offset` has been fetched."""
        gap = self._gap
        if gap is None:
            return
        if gap.end_offset == self.end_offset and offset <= gap.end_offset:
            gap.start_offset = offset
        else:
            self._gap = None

    def archive(
        self,
        first_offset: Offset,
        end_offset: Offset,
        batches: Sequence[InFlightBatch],
        state: RecordState,
    ) -> None:
        """Archive the records of a range (`end_offset` is exclusive) that are in `state`."""
        for batch in batches:
            if batch.first_offset >= end_offset:
                break
            if not batch.is_split and not batch.is_within(first_offset, end_offset - 1):
                if batch.whole.state is not state:
                    continue
                batch.is_split = True
            for run in batch.runs_of(first_offset, end_offset - 1):
                if run.state is state:
                    run.archive()
                    self.note_available()
            batch.join()

    def archive_stale(self, fetch_offset: Offset, found_offset: Offset) -> None:
        """Archive records that a fetch at `fetch_offset` did not find in the log, which begins at
        `found_offset`: compaction has removed them."""
        if not self.batches or fetch_offset >= found_offset:
            return
        floor = self.floor(fetch_offset)
        begin = fetch_offset
        if floor is not None and floor.last_offset_inclusive >= fetch_offset:
            begin = floor.first_offset
        stale = self.between(begin, found_offset - 1)
        self.archive(fetch_offset, found_offset, stale, RecordState.AVAILABLE)

    def move_start(self, log_start_offset: Offset) -> None:
        """The log begins behind the window's start: what is gone is delivered to nobody.

        Members keep what they have acquired, and may acknowledge it.
        """
        if log_start_offset <= self.start_offset:
            return
        if not self.batches:
            self.start_offset = self.end_offset = log_start_offset
            return
        self.archive(self.start_offset, log_start_offset, self.batches, RecordState.AVAILABLE)
        self.start_offset = log_start_offset
        gap_start = self.gap_start
        self.end_offset = max(self.end_offset, log_start_offset)
        self._gap = None
        if gap_start is not None and log_start_offset < self.end_offset:
            self._gap = _Gap(max(gap_start, log_start_offset), self.end_offset)

    def advance_start(self) -> bool:
        """Move the start behind records whose delivery is over. Returns whether there were any."""
        if not self.batches:
            return False
        first_offset = self.batches[0].first_offset
        if self.start_offset < first_offset and not self._has_gap_below(first_offset):
            # The log has lost the offsets in between.
            self.start_offset = first_offset
        done = self._done_offset()
        if done is None or not self._is_done_at_start():
            return False
        last = self.batches[-1].last_offset_inclusive
        if done == last:
            # The log start may have moved beyond them.
            self.start_offset = self.end_offset = max(self.start_offset, last + 1)
            self.batches.clear()
            return True
        floor = self.floor(done)
        assert floor is not None
        index = self.batches.index(floor)
        start_offset = done + 1
        if done == floor.last_offset_inclusive:
            index += 1
            following = self.batches[index].first_offset
            if not self._has_gap_below(following):
                start_offset = following
        self.start_offset = max(self.start_offset, start_offset)
        # A batch stays until all of it is done.
        del self.batches[:index]
        return True

    def _has_gap_below(self, offset: Offset) -> bool:
        gap_start = self.gap_start
        return gap_start is not None and gap_start < offset

    def _is_done_at_start(self) -> bool:
        batch = self.floor(self.start_offset)
        if batch is None:
            return False
        at_start = next(
            (run for run in batch.runs if run.last_offset_inclusive >= self.start_offset),
            batch.runs[-1],
        )
        return at_start.is_done

    def _done_offset(self) -> Offset | None:
        """The last offset before the first one that is not done, or that is in a gap."""
        done: Offset | None = None
        gap_start = self.gap_start
        for batch in self.batches:
            if gap_start is not None:
                if batch.first_offset > gap_start:
                    return done
                gap_start = max(batch.last_offset_inclusive + 1, gap_start)
            for run in batch.runs:
                if not run.is_done:
                    return done
                done = run.last_offset_inclusive
        return done
