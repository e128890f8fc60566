"""SegmentRange: one thread fills it, others read and check it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from isotherm.errors import (
    CorruptObjectError,
    CorruptRecordError,
    RemoteStorageError,
    RequestTimedOutError,
)
from isotherm.record.batch import build_batch
from isotherm.remote.reading import segment_range as module
from isotherm.remote.reading.range_memory import RangeMemory
from isotherm.remote.reading.read_wait import NO_WAIT, NotInMemoryError, ReadWait
from isotherm.remote.reading.segment_range import SegmentRange
from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.types import TopicIdPartition

BATCHES = [
    build_batch([(0, None, b"v" * (50 + 7 * number), ())], base_offset=number)
    for number in range(20)
]
CONTENT = b"".join(BATCHES)
STARTS = [len(b"".join(BATCHES[:number])) for number in range(21)]
METADATA = RemoteLogSegmentMetadata(
    segment_id=RemoteLogSegmentId(TopicIdPartition(uuid.UUID(int=1), "t", 0), uuid.UUID(int=2)),
    start_offset=0,
    end_offset_inclusive=19,
    max_timestamp_ms=0,
    broker_id=0,
    event_timestamp_ms=0,
    segment_size_in_bytes=len(CONTENT),
    segment_leader_epochs={0: 0},
)


# Ends a test that hangs. No assertion depends on it.
WAIT_S = 300


class SteppingStore:
    """Fills the buffer up to each stop, and calls `at_stop` there."""

    def __init__(self, content: bytes, *stops: int) -> None:
        self.content = content
        self.stops = stops
        self.at_stop: Callable[[int], None] = lambda position: None

    def fetch_log_segment_into(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: int,
        buffer: memoryview,
        on_filled: Callable[[int], None],
    ) -> None:
        for stop in (*self.stops, start_position + len(buffer)):
            buffer[: stop - start_position] = self.content[start_position:stop]
            on_filled(stop - start_position)
            self.at_stop(stop)


class WholeStore:
    """A storage manager without `fetch_log_segment_into`."""

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start: int, end_inclusive: int | None = None
    ) -> memoryview:
        assert end_inclusive is not None
        return memoryview(CONTENT)[start : end_inclusive + 1]


def fetched(store: object, start: int, end: int, check_from: int | None) -> SegmentRange:
    segment_range = SegmentRange(METADATA, start, end, check_from)
    segment_range.fetch(store, RangeMemory(1 << 20))  # type: ignore[arg-type]
    return segment_range


def test_range_is_begun_once() -> None:
    segment_range = SegmentRange(METADATA, 0, 10, None)
    assert [segment_range.begin() for _ in range(3)] == [True, False, False]


def test_batches_are_checked_as_their_bytes_arrive() -> None:
    store = SteppingStore(CONTENT, STARTS[3] + 5, STARTS[7])
    segment_range = SegmentRange(METADATA, 0, len(CONTENT), 0)
    ends: list[int] = []

    def note(position: int) -> None:
        last = segment_range.checked_at(STARTS[len(ends) * 4])
        assert last is not None
        ends.append(last.end)

    store.at_stop = note
    segment_range.fetch(store, RangeMemory(1 << 20))  # type: ignore[arg-type]
    assert ends == [STARTS[3], STARTS[7], STARTS[20]]
    assert segment_range.last_batch_end == len(CONTENT)


@pytest.mark.parametrize("store", [SteppingStore(CONTENT), WholeStore()])
def test_range_tells_where_the_batch_that_reaches_beyond_it_ends(store: object) -> None:
    for cut in (STARTS[5] + 61, STARTS[6] - 1):
        assert fetched(store, STARTS[2], cut, STARTS[2]).last_batch_end == STARTS[6]
    assert fetched(store, STARTS[2], STARTS[5], STARTS[2]).last_batch_end == STARTS[5]
    # The range ends before the whole header of the last batch.
    assert fetched(store, STARTS[2], STARTS[5] + 60, STARTS[2]).last_batch_end is None
    assert fetched(store, STARTS[2], STARTS[5], None).last_batch_end is None


def test_reader_checks_what_nobody_knew_how_to() -> None:
    segment_range = fetched(SteppingStore(CONTENT), 10, len(CONTENT), None)
    assert segment_range.checked_at(STARTS[4]) is None
    found = segment_range.check(STARTS[4])
    assert found is not None
    assert (found.start, found.end) == (STARTS[4], len(CONTENT))
    assert segment_range.checked_at(STARTS[9]) is found
    before = segment_range.check(STARTS[1])
    assert before is not None
    assert (before.start, segment_range.checked_at(STARTS[9])) == (STARTS[1], before)


def test_damage_is_raised_to_the_reader_who_comes_there_and_to_no_other() -> None:
    bad = bytearray(CONTENT)
    bad[STARTS[6] + 70] ^= 1
    segment_range = fetched(SteppingStore(bytes(bad)), 0, len(CONTENT), 0)
    good = segment_range.checked_at(STARTS[5])
    assert good is not None
    assert (good.end, segment_range.last_batch_end) == (STARTS[6], None)
    for _ in range(2):
        with pytest.raises(CorruptRecordError):
            segment_range.check(STARTS[6])


def test_offset_that_goes_back_is_found_across_two_checks() -> None:
    bad = bytearray(CONTENT)
    bad[STARTS[3] : STARTS[3] + 8] = (1).to_bytes(8, "big")
    segment_range = fetched(SteppingStore(bytes(bad), STARTS[3]), 0, len(CONTENT), 0)
    with pytest.raises(CorruptRecordError, match="offsets go back"):
        segment_range.check(STARTS[3])


def test_failed_fetch_is_asked_to_those_who_wait_and_what_came_before_it_serves() -> None:
    store = SteppingStore(CONTENT, STARTS[3])

    def fail(position: int) -> None:
        raise RemoteStorageError("down")

    store.at_stop = fail
    segment_range = SegmentRange(METADATA, 0, len(CONTENT), 0)
    with pytest.raises(RemoteStorageError, match="down"):
        segment_range.fetch(store, RangeMemory(1 << 20))  # type: ignore[arg-type]
    assert segment_range.is_done
    segment_range.wait_until_filled(STARTS[3], ReadWait())
    assert bytes(segment_range.read(0, STARTS[3])) == CONTENT[: STARTS[3]]
    with pytest.raises(RemoteStorageError, match="down"):
        segment_range.wait_until_filled(STARTS[4], ReadWait())
    with pytest.raises(NotInMemoryError):
        segment_range.wait_until_filled(STARTS[4], NO_WAIT)


class EarlyStore(SteppingStore):
    """Ends each range at the last stop."""

    def fetch_log_segment_into(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: int,
        buffer: memoryview,
        on_filled: Callable[[int], None],
    ) -> None:
        super().fetch_log_segment_into(
            metadata, start_position, buffer[: self.stops[-1] - start_position], on_filled
        )


class CutStore:
    """A storage manager without `fetch_log_segment_into` that returns another length."""

    def __init__(self, by: int) -> None:
        self.by = by

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start: int, end_inclusive: int
    ) -> memoryview:
        return memoryview(CONTENT)[start : end_inclusive + 1 + self.by]


@pytest.mark.parametrize("store", [EarlyStore(CONTENT, STARTS[4]), CutStore(STARTS[4] - STARTS[9])])
def test_range_that_the_store_ends_early_fails_and_its_readers_with_it(store: object) -> None:
    segment_range = SegmentRange(METADATA, STARTS[2], STARTS[9], STARTS[2])
    place = f"start={STARTS[2]} end={STARTS[9]} ended_at={STARTS[4]}"
    with pytest.raises(CorruptObjectError, match=place):
        segment_range.fetch(store, RangeMemory(1 << 20))  # type: ignore[arg-type]
    assert (segment_range.is_done, segment_range.is_whole) == (True, False)
    segment_range.wait_until_filled(STARTS[4], ReadWait())
    with pytest.raises(CorruptObjectError, match=place):
        segment_range.wait_until_filled(STARTS[4] + 1, ReadWait())


def test_bytes_beyond_the_range_are_not_of_it() -> None:
    segment_range = fetched(CutStore(STARTS[9] - STARTS[5]), STARTS[2], STARTS[5], STARTS[2])
    assert segment_range.is_whole
    assert segment_range.last_batch_end == STARTS[5]
    assert segment_range.checked_at(STARTS[5]) is None
    assert segment_range.check(STARTS[4]) is segment_range.checked_at(STARTS[2])


@pytest.mark.parametrize(("size", "is_cut"), [(1, False), (100, False), (400, True), (1000, True)])
def test_range_is_checked_in_pieces_unless_a_batch_is_larger(
    monkeypatch: pytest.MonkeyPatch, *, size: int, is_cut: bool
) -> None:
    monkeypatch.setattr(module, "_CHECK_SIZE", size)
    segment_range = fetched(SteppingStore(CONTENT), 0, len(CONTENT), 0)
    sizes, position = [], 0
    while position < len(CONTENT):
        piece = segment_range.checked_at(position)
        assert piece is not None
        assert piece.start == position
        assert segment_range.checked_at(piece.end - 1) is piece
        sizes.append(piece.end - piece.start)
        position = piece.end
    assert (len(sizes) > 1, max(sizes) <= size) == (is_cut, is_cut)
    assert segment_range.last_batch_end == len(CONTENT)


def test_checked_pieces_are_kept_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHECK_SIZE", STARTS[3])
    segment_range = fetched(SteppingStore(CONTENT), 0, len(CONTENT), None)
    starts = (STARTS[3], STARTS[12], STARTS[0], STARTS[7])
    pieces = [segment_range.check(start) for start in starts]
    assert pieces[2] is not None
    assert pieces[2].end == STARTS[3], "it touches the first one"
    assert [segment_range.checked_at(start) for start in starts] == pieces
    assert [segment_range.check(start) for start in starts] == pieces


class Waiting:
    """Threads that wait for the bytes of a range."""

    def __init__(self, segment_range: SegmentRange, pool: ThreadPoolExecutor) -> None:
        self._range = segment_range
        self._pool = pool
        self._count = 0

    def add(self, wait: ReadWait) -> Callable[[], None]:
        """Wait in a thread for the tenth batch; returns a function that gives the outcome."""
        future = self._pool.submit(self._range.wait_until_filled, STARTS[10], wait)
        self._count += 1
        while self._range._waiting_count < self._count:
            threading.Event().wait(0.001)

        def outcome() -> None:
            self._count -= 1
            future.result(WAIT_S)

        return outcome


@pytest.mark.parametrize("comes_later", [True, False])
def test_fetch_goes_on_for_a_reader_that_stays_or_comes(*, comes_later: bool) -> None:
    """It is given up only if no reader waits when its next bytes arrive."""
    store = SteppingStore(CONTENT, STARTS[3], STARTS[7])
    segment_range = SegmentRange(METADATA, 0, len(CONTENT), 0)
    with ThreadPoolExecutor(2) as pool:
        waiting = Waiting(segment_range, pool)
        leaving = ReadWait()
        left = waiting.add(leaving)
        staying = [] if comes_later else [waiting.add(ReadWait())]

        def leave(position: int) -> None:
            if position == STARTS[3]:
                leaving.stop(has_left=True)
                with pytest.raises(RequestTimedOutError):
                    left()
                if comes_later:
                    staying.append(waiting.add(ReadWait()))

        store.at_stop = leave
        segment_range.fetch(store, RangeMemory(1 << 20))  # type: ignore[arg-type]
        staying[0]()
    assert segment_range.is_whole


def test_waiting_readers_get_the_error_of_a_failed_fetch() -> None:
    store = SteppingStore(CONTENT, STARTS[3])

    def fail(position: int) -> None:
        raise RemoteStorageError("down")

    store.at_stop = fail
    segment_range = SegmentRange(METADATA, 0, len(CONTENT), 0)
    with ThreadPoolExecutor(2) as pool:
        waiting = Waiting(segment_range, pool)
        outcomes = [waiting.add(ReadWait()) for _ in range(2)]
        with pytest.raises(RemoteStorageError, match="down"):
            segment_range.fetch(store, RangeMemory(1 << 20))  # type: ignore[arg-type]
        for outcome in outcomes:
            with pytest.raises(RemoteStorageError, match="down"):
                outcome()


def test_offset_that_goes_back_is_found_behind_any_number_of_checks() -> None:
    bad = bytearray(CONTENT)
    bad[STARTS[9] : STARTS[9] + 8] = (7).to_bytes(8, "big")
    store = SteppingStore(bytes(bad), STARTS[3], STARTS[6], STARTS[9])
    segment_range = fetched(store, 0, len(CONTENT), 0)
    with pytest.raises(CorruptRecordError, match="offsets go back"):
        segment_range.check(STARTS[9])


def test_range_that_one_batch_fills_tells_where_it_ends() -> None:
    assert fetched(SteppingStore(CONTENT), 0, STARTS[1] - 1, 0).last_batch_end == STARTS[1]


def test_bytes_of_a_range_are_read_by_their_position_in_the_segment() -> None:
    segment_range = fetched(SteppingStore(CONTENT), STARTS[2], STARTS[9], None)
    found = segment_range.read(STARTS[3], STARTS[5])
    assert bytes(found) == CONTENT[STARTS[3] : STARTS[5]]
    assert found.readonly
