"""What a member gets of the records that a fetch has read. Pure.

Records that were released before are acquired by the batches that they were first acquired in, new
ones by the log's batches. A record on its last delivery is delivered alone, and records that failed
often are delivered in small numbers: one of them may be what makes consumers fail.

Source: Kafka SharePartition.acquire, ShareFetchUtils.
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Sequence
from typing import NamedTuple

from isotherm.broker.share_partitions.in_flight import InFlightBatch, RecordState, Run
from isotherm.broker.share_partitions.window import Window
from isotherm.types import Offset, TimestampMs

# Records that were delivered less often than that are delivered in any number.
THROTTLED_DELIVERIES_MIN = 2
# With fewer deliveries than that, no record's last one is treated apart.
LAST_DELIVERY_ALONE_MIN = 3

_base_offset = operator.attrgetter("base_offset")


class LogBatch(NamedTuple):
    """A record batch that the fetch has read."""

    base_offset: Offset
    last_offset_inclusive: Offset


class Acquired(NamedTuple):
    first_offset: Offset
    last_offset_inclusive: Offset
    delivery_count: int


def record_count(acquired: Sequence[Acquired]) -> int:
    return sum(part.last_offset_inclusive - part.first_offset + 1 for part in acquired)


class Acquisition(NamedTuple):
    """A member's fetch: who acquires, how much at most, and until when.

    - `record_count_max`: in record limit mode exact, otherwise the batch that exceeds it is whole.
    - `batch_size`: records after which a new in-flight batch begins.
    """

    member_id: str
    record_count_max: int
    batch_size: int
    is_record_limit: bool
    lock_end_ms: TimestampMs
    delivery_count_max: int
    record_locks_max: int

    @property
    def throttled_deliveries(self) -> int:
        return max(THROTTLED_DELIVERIES_MIN, -(-self.delivery_count_max // 2))


def acquire(
    window: Window, acquisition: Acquisition, fetch_offset: Offset, log_batches: Sequence[LogBatch]
) -> list[Acquired]:
    """Acquire records of `log_batches`, which a fetch at `fetch_offset` has read."""
    if acquisition.record_count_max <= 0 or not log_batches:
        return []
    if log_batches[-1].last_offset_inclusive < window.start_offset:
        return []
    last_offset, count_max = _bounds(window, acquisition, fetch_offset, log_batches)
    if count_max <= 0:
        return []
    first_read = log_batches[0].base_offset
    window.archive_stale(fetch_offset, first_read)
    base_offset = first_read
    floor = window.floor(first_read)
    if floor is not None and floor.last_offset_inclusive >= first_read:
        base_offset = floor.first_offset
    overlapping = window.between(base_offset, last_offset)
    read = _Read(window, acquisition, log_batches, first_read, last_offset)
    if overlapping:
        acquired = read.acquire_over(overlapping, base_offset, count_max)
    else:
        acquired = read.acquire_new(base_offset, last_offset, count_max)
    # What is stale may have been all that held the start.
    window.advance_start()
    return acquired


def _bounds(
    window: Window, acquisition: Acquisition, fetch_offset: Offset, log_batches: Sequence[LogBatch]
) -> tuple[Offset, int]:
    """The last offset and the number of records that may be acquired."""
    last_offset = log_batches[-1].last_offset_inclusive
    room = acquisition.record_locks_max - window.record_count
    count_max = min(acquisition.record_count_max, room)
    if count_max <= 0 and fetch_offset <= window.end_offset:
        # There is room for nothing new, but what is in flight already may be acquired again.
        count_max = min(acquisition.record_count_max, window.end_offset - fetch_offset + 1)
        last_offset = min(last_offset, window.end_offset)
    return last_offset, count_max


class _Read:
    """One acquisition from the batches that were read."""

    def __init__(
        self,
        window: Window,
        acquisition: Acquisition,
        log_batches: Sequence[LogBatch],
        first_offset: Offset,
        last_offset: Offset,
    ) -> None:
        self._window = window
        self._acquisition = acquisition
        self._log_batches = log_batches
        self._first_offset = first_offset
        self._last_offset = last_offset

    # ---- records in flight

    def acquire_over(
        self, overlapping: Sequence[InFlightBatch], base_offset: Offset, count_max: int
    ) -> list[Acquired]:
        """Acquire what is acquirable of batches in flight, the gaps between them, and what follows
        them."""
        acquired: list[Acquired] = []
        gap_start = base_offset
        for batch in overlapping:
            room = count_max - record_count(acquired)
            if room > 0 and self._window.gap_start is not None:
                if gap_start < batch.first_offset:
                    acquired += self.acquire_new(gap_start, batch.first_offset - 1, room)
                    room = count_max - record_count(acquired)
                gap_start = batch.last_offset_inclusive + 1
            if room <= 0:
                break
            is_throttled = self._is_throttled(batch)
            if is_throttled and acquired:
                # They come alone, in the next fetch.
                break
            parts = self._acquire_batch(batch, room, is_throttled=is_throttled)
            acquired += parts
            if is_throttled and parts:
                break
        else:
            room = count_max - record_count(acquired)
            begin = overlapping[-1].last_offset_inclusive + 1
            # The log has nothing more in the gaps before, also if nothing was acquirable.
            self._window.move_gap(begin)
            if room > 0 and begin <= self._last_offset:
                acquired += self.acquire_new(begin, self._last_offset, room)
        if acquired:
            self._window.move_gap(acquired[-1].last_offset_inclusive + 1)
        return acquired

    def _acquire_batch(
        self, batch: InFlightBatch, count_max: int, *, is_throttled: bool
    ) -> list[Acquired]:
        is_cut = self._acquisition.is_record_limit and len(batch) > count_max
        is_within = batch.is_within(self._first_offset, self._last_offset)
        if not batch.is_split:
            run = batch.whole
            if not run.is_acquirable:
                return []
            if is_within and not (is_cut or is_throttled):
                self._acquire(run)
                return [_acquired(run)]
            batch.is_split = True
        return self._acquire_parts(batch, count_max)

    def _is_throttled(self, batch: InFlightBatch) -> bool:
        limit = self._acquisition.throttled_deliveries
        if not batch.is_split:
            run = batch.whole
            return run.is_acquirable and run.delivery_count >= limit
        return any(
            run.is_acquirable
            and run.delivery_count >= limit
            and run.last_offset_inclusive >= self._first_offset
            and run.first_offset <= self._last_offset
            for run in batch.runs
        )

    def _acquire_parts(self, batch: InFlightBatch, count_max: int) -> list[Acquired]:
        """Acquire the acquirable records of a batch one by one, as it were."""
        acquisition = self._acquisition
        acquired: list[Acquired] = []
        count = 0
        count_throttled: int | None = None
        is_last_alone = acquisition.delivery_count_max >= LAST_DELIVERY_ALONE_MIN
        for run in batch.runs_of(self._first_offset, self._last_offset):
            if not run.is_acquirable:
                continue
            is_last_delivery = (
                is_last_alone and run.delivery_count == acquisition.delivery_count_max - 1
            )
            if is_last_delivery and count > 0:
                break
            over = run.delivery_count - acquisition.throttled_deliveries
            if over >= 0 and count_throttled is None:
                count_throttled = max(1, len(batch) >> (over + 1))
            left = [len(run)]
            if is_last_delivery:
                left.append(1)
            if acquisition.is_record_limit:
                left.append(count_max - count)
            # As in Kafka, a bound that was passed before it was set does not hold.
            if count_throttled is not None and count_throttled > count:
                left.append(count_throttled - count)
            taken = min(left)
            batch.cut(run.first_offset + taken)
            self._acquire(run)
            acquired.append(_acquired(run))
            count += taken
            is_full = acquisition.is_record_limit and count == count_max
            if is_last_delivery or is_full or count == count_throttled:
                break
        batch.join()
        return _joined(acquired)

    def _acquire(self, run: Run) -> None:
        run.acquire(self._acquisition.member_id, self._acquisition.lock_end_ms)
        self._window.note_lock(self._acquisition.lock_end_ms)

    # ---- new records

    def acquire_new(
        self, first_offset: Offset, last_offset: Offset, count_max: int
    ) -> list[Acquired]:
        """Acquire offsets that are not in flight. Unless the limit is exact, the log's batch that
        exceeds it is acquired whole."""
        window, acquisition = self._window, self._acquisition
        # A batch of the log may begin before its start, and before the window's.
        first_offset = max(first_offset, window.start_offset)
        if first_offset > last_offset:
            return []
        if count_max < last_offset - first_offset + 1:
            end = last_offset
            last_offset = self._end_of_log_batch(first_offset + count_max - 1)
            if window.gap_start is not None:
                last_offset = min(last_offset, end)
        for batch in self._new_batches(first_offset, last_offset):
            run = Run(batch.first_offset, batch.last_offset_inclusive, RecordState.AVAILABLE, 0)
            batch.runs.append(run)
            if acquisition.is_record_limit and len(batch) > count_max:
                batch.cut(batch.first_offset + count_max)
                batch.is_split = True
                window.note_available()
            self._acquire(run)
            window.add(batch)
        if window.batches[0].first_offset == first_offset:
            window.start_offset = first_offset
        window.end_offset = max(window.end_offset, last_offset)
        new = [_acquired(batch.runs[0]) for batch in window.between(first_offset, last_offset)]
        window.move_gap(new[-1].last_offset_inclusive + 1)
        return new

    def _new_batches(self, first_offset: Offset, last_offset: Offset) -> list[InFlightBatch]:
        """In-flight batches of at least `batch_size` records, which begin where the log's do."""
        acquisition = self._acquisition
        starts = [first_offset]
        if (
            not acquisition.is_record_limit
            and last_offset - first_offset + 1 > acquisition.batch_size
        ):
            for base_offset, _ in self._log_batches:
                if base_offset > last_offset:
                    break
                if base_offset - starts[-1] >= acquisition.batch_size:
                    starts.append(base_offset)
        ends = [*(start - 1 for start in starts[1:]), last_offset]
        return [InFlightBatch(start, end) for start, end in zip(starts, ends, strict=True)]

    def _end_of_log_batch(self, offset: Offset) -> Offset:
        """The last offset of the log's batch that has `offset`; itself if none has it."""
        index = bisect.bisect_right(self._log_batches, offset, key=_base_offset)
        if index and offset <= self._log_batches[index - 1].last_offset_inclusive:
            return self._log_batches[index - 1].last_offset_inclusive
        return offset


def without_aborted(
    window: Window, acquired: Sequence[Acquired], aborted: Sequence[LogBatch]
) -> list[Acquired]:
    """The acquired records without those of aborted transactions, which are archived. `aborted` is
    sorted."""
    for base_offset, last_offset in aborted:
        floor = window.floor(base_offset)
        begin = base_offset if floor is None else floor.first_offset
        batches = window.between(begin, last_offset)
        window.archive(base_offset, last_offset + 1, batches, RecordState.ACQUIRED)
    window.advance_start()
    kept: list[Acquired] = []
    for part in acquired:
        first = part.first_offset
        for base_offset, last_offset in aborted:
            if last_offset < first or base_offset > part.last_offset_inclusive:
                continue
            if first < base_offset:
                kept.append(Acquired(first, base_offset - 1, part.delivery_count))
            first = last_offset + 1
        if first <= part.last_offset_inclusive:
            kept.append(part._replace(first_offset=first))
    return kept


def _acquired(run: Run) -> Acquired:
    return Acquired(run.first_offset, run.last_offset_inclusive, run.delivery_count)


def _joined(acquired: Sequence[Acquired]) -> list[Acquired]:
    """Neighbours with the same delivery count are one range."""
    joined: list[Acquired] = []
    for part in acquired:
        if joined and (
            joined[-1].last_offset_inclusive + 1,
            joined[-1].delivery_count,
        ) == (part.first_offset, part.delivery_count):
            joined[-1] = joined[-1]._replace(last_offset_inclusive=part.last_offset_inclusive)
        else:
            joined.append(part)
    return joined
