"""A range of a remote segment in memory. Its bytes arrive in order from its start, and the batches
in them are checked.

    start ........ checked ........ filled_end ........ end
          batches are valid   bytes are there   in flight

One thread fills the range; any thread may wait for bytes and read them. The filling thread checks
batches as their bytes arrive, once the position of the first batch is known. The first reader
checks the rest.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from contextlib import suppress

from isotherm.errors import CorruptObjectError, CorruptRecordError, RemoteStorageError
from isotherm.record.batch_header import HEADER_SIZE, read_batch_header
from isotherm.remote.reading.checked_batches import CheckedBatches, check_batches
from isotherm.remote.reading.range_memory import RangeMemory
from isotherm.remote.reading.read_wait import NotInMemoryError, ReadWait
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.remote.storage.api import FillsBuffers, RemoteStorageManager
from isotherm.types import Offset, Position

_CHECK_SIZE = 4 * 1024 * 1024
"""Bytes checked at once. A small piece keeps a reader from waiting until a whole range is
checked."""


class FetchAbandonedError(RemoteStorageError):
    """The fetch was abandoned because its last waiting reader left. A reader that arrives at that
    moment tries again."""


class SegmentRange:
    """[start, end) of a segment's `.log`. Thread-safe.

    `check_from` is the position of the next batch to check, None while it is unknown.
    `last_batch_end` is the end of the last batch, set once all are checked; it lies in the next
    range if that batch crosses the border.
    """

    def __init__(
        self,
        metadata: RemoteLogSegmentMetadata,
        start: Position,
        end: Position,
        check_from: Position | None,
    ) -> None:
        self.metadata = metadata
        self.start = start
        self.end = end
        self.check_from = check_from
        self.last_batch_end: Position | None = None
        self._data = memoryview(b"")
        self._filled_end = start
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._waiting_count = 0
        self._is_begun = False
        self._is_abandoned = False
        self._checking = threading.Lock()
        self._checked: tuple[CheckedBatches, ...] = ()

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def is_whole(self) -> bool:
        return self._filled_end == self.end

    @property
    def is_done(self) -> bool:
        """Whether no more bytes arrive."""
        return self.is_whole or self._error is not None

    def begin(self) -> bool:
        """Whether the caller must call `fetch`: True for the first caller only."""
        with self._changed:
            is_first, self._is_begun = not self._is_begun, True
            return is_first

    def fetch(self, storage: RemoteStorageManager, memory: RangeMemory) -> None:
        """Fill the range, after `begin`. Raises what the storage manager raises, and
        FetchAbandonedError. Waiting readers get the same error."""
        try:
            if isinstance(storage, FillsBuffers):
                self._data = memory.lend(self.size)
                storage.fetch_log_segment_into(
                    self.metadata, self.start, self._data, self._note_filled
                )
            else:
                # It may return bytes beyond the end, as Kafka's LocalTieredStorage does.
                data = storage.fetch_log_segment(self.metadata, self.start, self.end - 1)
                self._data = data
                self._note_filled(min(len(data), self.size))
            self._check_whole()
        # Of any kind: waiting readers would never wake.
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()
            raise

    def _check_whole(self) -> None:
        """Raise CorruptObjectError if the range ended early: a reader would wait for the rest for
        ever."""
        if not self.is_whole:
            raise CorruptObjectError(
                f"storage manager ended a range early segment={self.metadata.segment_id}"
                f" start={self.start} end={self.end} ended_at={self._filled_end}"
            )

    def wait_until_filled(self, position: Position, wait: ReadWait) -> None:
        """Wait until the bytes below `position` have arrived.

        Raises what the fetch raised, RequestTimedOutError if `wait` ends before, and
        NotInMemoryError if it may not wait.
        """
        # Without the lock: `_filled_end` only grows, and bytes below it never change.
        if self._filled_end >= position:
            return
        if not wait.may_wait:
            raise NotInMemoryError(f"bytes have not arrived segment={self.metadata.segment_id}")
        # Registered before the condition is taken: the loop sees a stop that came earlier, and a
        # later one wakes it.
        with wait.waiting(self._wake), self._changed:
            # The fetch continues for this reader unless it has noticed the abandonment already.
            self._is_abandoned = False
            self._waiting_count += 1
            while self._filled_end < position and self._error is None and not wait.is_over:
                self._changed.wait()
            self._waiting_count -= 1
            # If the last waiting client has left, the GET ends at its next bytes. A client that
            # timed out asks again, so its GET continues.
            self._is_abandoned = wait.has_left and self._waiting_count == 0
            # First: bytes that have arrived serve, even if the fetch failed or the wait ended
            # meanwhile.
            if self._filled_end >= position:
                return
            if self._error is not None:
                raise self._error
        wait.check()

    def read(self, start: Position, end: Position) -> memoryview:
        """A view of bytes that have arrived, unchecked."""
        return self._data[start - self.start : end - self.start].toreadonly()

    def checked_at(self, position: Position) -> CheckedBatches | None:
        """The checked batches that contain `position`."""
        checked = self._checked
        index = bisect_right(checked, position, key=lambda batches: batches.start) - 1
        return checked[index] if index >= 0 and position < checked[index].end else None

    def check(self, position: Position) -> CheckedBatches | None:
        """Check the batches that have arrived, from the one at `position` on.

        None if the first has not wholly arrived. Raises CorruptRecordError if the first is damaged.
        """
        # One thread checks at a time. `_checked` is replaced as a whole, so readers need no lock.
        with self._checking:
            checked = self.checked_at(position)
            if checked is not None:
                return checked
            filled_end = self._filled_end
            checked = self._check(position, min(filled_end, position + _CHECK_SIZE))
            # A batch larger than _CHECK_SIZE does not fit: try all bytes that have arrived.
            if checked is None and filled_end - position > _CHECK_SIZE:
                checked = self._check(position, filled_end)
            if checked is not None:
                # A check that began inside these batches covered some of them: keep each once.
                others = [
                    batches
                    for batches in self._checked
                    if batches.end <= checked.start or batches.start >= checked.end
                ]
                self._checked = tuple(sorted([*others, checked], key=lambda batches: batches.start))
            return checked

    def _check(self, position: Position, end: Position) -> CheckedBatches | None:
        next_offset = self._next_offset(position)
        return check_batches(self.metadata, self._data, self.start, position, end, next_offset)

    def _next_offset(self, position: Position) -> Offset:
        # Offsets must rise across checked pieces, too. Without the previous piece any offset
        # passes.
        before = self.checked_at(position - 1)
        return before.next_offset if before is not None and before.end == position else 0

    def check_filled(self) -> None:
        """Check the bytes that have arrived, if the position of a batch is known."""
        position = self.check_from
        while position is not None and position < self._filled_end:
            try:
                checked = self.checked_at(position) or self.check(position)
            except CorruptRecordError:
                # Only the reader that reaches this batch gets the error: other readers of the
                # range may never need it.
                return
            if checked is None:
                self._note_last_batch(position)
                return
            position = self.check_from = checked.end
        if position == self.end:
            self.last_batch_end = position

    def _note_last_batch(self, position: Position) -> None:
        # With less than a header here, the reader that joins the batch notes where the next
        # range's first batch begins (`note_batch`).
        if self.is_whole and self.end - position >= HEADER_SIZE:
            with suppress(CorruptRecordError):
                header = read_batch_header(self._data, position - self.start)
                self.last_batch_end = position + header.size_in_bytes

    def _note_filled(self, count: int) -> None:
        if self._is_abandoned:
            raise FetchAbandonedError(f"no reader waits segment={self.metadata.segment_id}")
        with self._changed:
            self._filled_end = self.start + count
        # Check before waking the readers: the bytes are still in the processor's cache, and the
        # readers then find checked batches.
        self.check_filled()
        self._wake()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
