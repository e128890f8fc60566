"""ReadAhead over a store that counts its GETs."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.errors import RemoteStorageError, RequestTimedOutError
from isotherm.remote.reading.read_ahead import AHEAD_AT_ONCE, ReadAhead, ReadAheadSettings
from isotherm.remote.reading.read_wait import NO_WAIT, NotInMemoryError, ReadWait
from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicIdPartition
from tests.support.tiered_partition import InlineExecutor

MIB = 1024 * 1024
PARTITION = TopicIdPartition(uuid.UUID(int=1), "t", 0)
# Ends a test that hangs. No assertion depends on it.
WAIT_S = 300


def make_metadata(size: int, number: int = 0) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(PARTITION, uuid.UUID(int=number)),
        start_offset=0,
        end_offset_inclusive=1,
        max_timestamp_ms=0,
        broker_id=0,
        event_timestamp_ms=0,
        segment_size_in_bytes=size,
        segment_leader_epochs={0: 0},
    )


class CountingStore:
    """A store whose bytes differ by position, and that fills buffers in steps of `step` bytes. With
    `is_large` it fills nothing, to be fast."""

    def __init__(self, *, is_large: bool = False, step: int = 1 << 30) -> None:
        self.ranges: list[tuple[int, int]] = []
        self.segments: list[int] = []
        self.errors: list[Exception] = []
        self.on_step: Callable[[int], None] = lambda position: None
        self._content = memoryview(bytes(1) if is_large else random.Random(3).randbytes(1 << 16))
        self._is_large = is_large
        self._step = step

    def content(self, start: int, end: int) -> bytes:
        return bytes(self._content[start:end])

    def fetch_log_segment_into(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: int,
        buffer: memoryview,
        on_filled: Callable[[int], None],
    ) -> None:
        end = start_position + len(buffer)
        assert 0 <= start_position < end <= metadata.segment_size_in_bytes
        self.ranges.append((start_position, end))
        self.segments.append(metadata.segment_id.id.int)
        for at in range(0, len(buffer), self._step):
            self.on_step(start_position + at)
            if self.errors:
                raise self.errors.pop()
            count = min(self._step, len(buffer) - at)
            if not self._is_large:
                start = start_position + at
                buffer[at : at + count] = self._content[start : start + count]
            on_filled(at + count)


class HeldExecutor(Executor):
    """Keeps submitted work until the test runs it."""

    def __init__(self) -> None:
        self.held: list[Callable[[], Any]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.held.append(lambda: fn(*args, **kwargs))
        return Future()

    def run_all(self) -> None:
        while self.held:
            self.held.pop(0)()


def read_ahead(
    store: Any,
    executor: Executor | None = None,
    *,
    size_max: int = 4096,
    range_min: int = 64,
    clock: SimClock | None = None,
) -> ReadAhead:
    settings = ReadAheadSettings(size_max, range_size_min=range_min, range_size_max=16 * range_min)
    return ReadAhead(store, settings, executor or InlineExecutor(), clock or SimClock())


def read(
    ahead: ReadAhead,
    segment: RemoteLogSegmentMetadata,
    position: int,
    size: int,
    *,
    following: RemoteLogSegmentMetadata | None = None,
) -> memoryview:
    """Read as a consumer that continues where it stopped."""
    data = ahead.read(segment, position, size, ReadWait())
    end = position + len(data)
    if position:
        ahead.read_on(segment, end, len(data), lambda each: following if each is segment else None)
    return data


def test_sequential_reader_of_a_gibibyte_makes_at_most_twenty_gets() -> None:
    store = CountingStore(is_large=True)
    ahead = ReadAhead(store, ReadAheadSettings(256 * MIB), InlineExecutor(), SimClock())  # type: ignore[arg-type]
    segment = make_metadata(1024 * MIB)
    for position in range(0, 1024 * MIB, MIB):
        assert len(read(ahead, segment, position, MIB)) == MIB
        assert ahead.size_in_bytes <= 256 * MIB
    assert len(store.ranges) <= 20
    assert sum(end - start for start, end in store.ranges) == 1024 * MIB


def test_reader_of_several_segments_makes_at_most_twenty_gets_a_gibibyte() -> None:
    """The segments' sizes are no multiples of a range. What is known of the reader carries over to
    the next segment."""
    store = CountingStore(is_large=True)
    ahead = ReadAhead(store, ReadAheadSettings(256 * MIB), InlineExecutor(), SimClock())  # type: ignore[arg-type]
    segments = [make_metadata(256 * MIB - 1000, number) for number in range(4)]
    for segment, after in pairwise([*segments, None]):
        assert segment is not None
        for position in range(0, segment.segment_size_in_bytes, MIB):
            data = ahead.read(segment, position, MIB, ReadWait())
            end = position + len(data)
            ahead.read_on(
                segment,
                end,
                len(data),
                lambda each, here=segment, next_=after: next_ if each is here else None,
            )
    assert len(store.ranges) <= 20
    assert sum(end - start for start, end in store.ranges) == sum(
        segment.segment_size_in_bytes for segment in segments
    )


def test_four_consumers_of_one_history_make_the_gets_of_one() -> None:
    """The consumers are at most 16 MiB apart, less than is kept behind the first one."""
    store = CountingStore(is_large=True)
    ahead = ReadAhead(store, ReadAheadSettings(256 * MIB), InlineExecutor(), SimClock())  # type: ignore[arg-type]
    segment = make_metadata(1024 * MIB)
    rng, positions = random.Random(5), [0, 0, 0, 0]
    while min(positions) < 1024 * MIB:
        number = rng.randrange(4)
        position = positions[number]
        if position - min(positions) <= 16 * MIB and position < 1024 * MIB:
            read(ahead, segment, position, MIB)
            positions[number] += MIB
    assert len(store.ranges) <= 20


def test_consumers_of_one_history_that_drift_apart_make_the_gets_of_one() -> None:
    """The last consumer falls 100 MiB behind the first, further than is kept behind a single
    reader."""
    store = CountingStore(is_large=True)
    ahead = ReadAhead(store, ReadAheadSettings(256 * MIB), InlineExecutor(), SimClock())  # type: ignore[arg-type]
    segment = make_metadata(1024 * MIB)
    steps = range(0, 1024 * MIB, MIB)
    for position in steps:
        for behind in (0, position // 30, position // 20, position // 10):
            read(ahead, segment, position - behind // MIB * MIB, MIB)
    assert len(store.ranges) <= 20


def test_sixteen_consumers_of_different_partitions_do_not_drive_each_others_ranges_out() -> None:
    store = CountingStore(is_large=True)
    ahead = ReadAhead(store, ReadAheadSettings(256 * MIB), InlineExecutor(), SimClock())  # type: ignore[arg-type]
    segments = [make_metadata(64 * MIB, number) for number in range(16)]
    for position in range(0, 64 * MIB, MIB):
        for segment in segments:
            read(ahead, segment, position, MIB)
            assert ahead.size_in_bytes <= 256 * MIB
    # Each reader has ranges of its share, and hardly a byte is fetched twice.
    assert sum(end - start for start, end in store.ranges) <= 1.1 * 16 * 64 * MIB
    assert len(store.ranges) <= 16 * 12


def test_single_read_fetches_one_small_range() -> None:
    store = CountingStore()
    ahead = read_ahead(store, range_min=64)
    read(ahead, make_metadata(10_000), 5000, 10)
    assert store.ranges == [(5000, 5064)]


def test_reader_beyond_the_first_quarter_of_a_range_has_the_next_fetched_once() -> None:
    store, executor = CountingStore(), HeldExecutor()
    ahead, segment = read_ahead(store, executor), make_metadata(10_000)
    reading = ahead.range_at(segment, 0, 16, ReadWait())
    executor.run_all()
    ahead.read_on(segment, 16, 16, lambda _: None)
    assert executor.held == []
    ahead.read_on(segment, 32, 16, lambda _: None)
    ahead.read_on(segment, 48, 16, lambda _: None)
    assert len(executor.held) == 1
    executor.run_all()
    assert store.ranges == [(0, 64), (64, 192)]
    assert (reading.start, reading.end) == (0, 64)
    ahead.read(segment, 60, 20, ReadWait())
    assert store.ranges == [(0, 64), (64, 192)]


def test_reader_near_a_segments_end_has_the_following_segment_fetched() -> None:
    store = CountingStore()
    ahead = read_ahead(store)
    first, second = make_metadata(200, 1), make_metadata(200, 2)
    for position in range(0, 160, 20):
        read(ahead, first, position, 20, following=second)
    fetched = list(zip(store.segments, store.ranges, strict=True))
    assert fetched[:3] == [(1, (0, 64)), (1, (64, 132)), (1, (132, 200))]
    assert fetched[3] == (2, (0, 100))


def test_reader_that_goes_back_finds_the_ranges_that_it_read() -> None:
    store = CountingStore()
    ahead, segment = read_ahead(store), make_metadata(10_000)
    for position in range(0, 500, 20):
        read(ahead, segment, position, 20)
    count = len(store.ranges)
    assert bytes(read(ahead, segment, 100, 300)) == store.content(100, 400)
    assert len(store.ranges) == count


def test_reader_that_goes_back_to_a_dropped_range_fetches_up_to_the_next() -> None:
    store = CountingStore()
    ahead, segment = read_ahead(store, size_max=256), make_metadata(10_000)
    ahead.read(segment, 1040, 10, ReadWait())
    ahead.read(segment, 1000, 30, ReadWait())
    assert store.ranges == [(1040, 1104), (1000, 1040)]


def test_read_over_several_ranges_is_joined_and_cut_at_the_segments_end() -> None:
    store = CountingStore()
    ahead, segment = read_ahead(store), make_metadata(1000)
    read(ahead, segment, 0, 10)
    assert bytes(read(ahead, segment, 50, 500)) == store.content(50, 550)
    assert bytes(read(ahead, segment, 900, 500)) == store.content(900, 1000)


def test_bytes_are_handed_out_while_the_rest_of_their_range_arrives() -> None:
    store = CountingStore(step=16)
    arrived, go = threading.Event(), threading.Event()

    def hold(position: int) -> None:
        if position == 32:
            arrived.set()
            assert go.wait(WAIT_S)

    store.on_step = hold
    with ThreadPoolExecutor(1) as pool:
        ahead, segment = read_ahead(store, pool), make_metadata(10_000)
        assert bytes(ahead.read(segment, 0, 32, ReadWait())) == store.content(0, 32)
        assert arrived.wait(WAIT_S)
        with pytest.raises(NotInMemoryError):
            ahead.read(segment, 32, 1, NO_WAIT)
        assert bytes(ahead.read(segment, 0, 32, NO_WAIT)) == store.content(0, 32)
        go.set()
        assert bytes(ahead.read(segment, 0, 64, ReadWait())) == store.content(0, 64)
    assert store.ranges == [(0, 64)]


def test_readers_of_the_same_range_share_one_get() -> None:
    store, executor = CountingStore(), HeldExecutor()
    ahead, segment = read_ahead(store, executor), make_metadata(10_000)
    first = ahead.range_at(segment, 0, 10, ReadWait())
    second = ahead.range_at(segment, 5, 10, ReadWait())
    assert first is second
    executor.run_all()
    assert bytes(ahead.read(segment, 5, 10, NO_WAIT)) == store.content(5, 15)
    assert store.ranges == [(0, 64)]


def test_read_without_time_makes_no_request() -> None:
    store, executor = CountingStore(), HeldExecutor()
    ahead = read_ahead(store, executor)
    with pytest.raises(NotInMemoryError):
        ahead.read(make_metadata(10_000), 0, 10, NO_WAIT)
    assert executor.held == []
    assert ahead.size_in_bytes == 0


def test_failed_fetch_is_raised_and_not_kept() -> None:
    store = CountingStore()
    ahead, segment = read_ahead(store), make_metadata(10_000)
    store.errors = [RemoteStorageError("down")]
    with pytest.raises(RemoteStorageError, match="down"):
        read(ahead, segment, 0, 10)
    assert ahead.size_in_bytes == 0
    assert bytes(read(ahead, segment, 0, 10)) == store.content(0, 10)


def test_what_could_not_be_fetched_ahead_is_fetched_again_when_asked_for() -> None:
    store = CountingStore()
    ahead, segment = read_ahead(store), make_metadata(10_000)
    read(ahead, segment, 0, 16)
    store.errors = [RemoteStorageError("down")]
    read(ahead, segment, 16, 16)
    assert bytes(read(ahead, segment, 64, 10)) == store.content(64, 74)


class NotedPatience(ReadWait):
    """A wait with an event that is set once a reader waits."""

    def __init__(self) -> None:
        super().__init__()
        self.is_waited = threading.Event()

    @contextmanager
    def waiting(self, wake: Callable[[], None]) -> Iterator[None]:
        with super().waiting(wake):
            self.is_waited.set()
            yield


def test_reader_that_has_left_ends_the_fetch_and_its_read_ahead() -> None:
    """The GET ends at its next step. Of the planned read-ahead only the fetches that have begun
    complete."""
    store, executor = CountingStore(step=16), HeldExecutor()
    ahead = ReadAhead(store, ReadAheadSettings(4096, 64, 64), executor, SimClock())  # type: ignore[arg-type]
    segment, wait = make_metadata(100_000), NotedPatience()
    ahead.range_at(segment, 0, 64, ReadWait())
    executor.run_all()
    ahead.read_on(segment, 32, 1000, lambda _: None)
    assert len(executor.held) == AHEAD_AT_ONCE
    assert ahead.size_in_bytes > (1 + AHEAD_AT_ONCE) * 64
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ahead.read, segment, 64, 64, wait)
        assert wait.is_waited.wait(WAIT_S)

        def leave(position: int) -> None:
            if position == 80 and not wait.is_over:
                wait.stop(has_left=True)
                with pytest.raises(RequestTimedOutError):
                    waiting.result(WAIT_S)

        store.on_step = leave
        with pytest.raises(RemoteStorageError, match="no reader waits"):
            executor.held.pop(0)()
    executor.run_all()
    assert len(store.ranges) == 1 + AHEAD_AT_ONCE
    assert ahead.size_in_bytes == AHEAD_AT_ONCE * 64
    assert bytes(ahead.read(segment, 128, 64, NO_WAIT)) == store.content(128, 192)


def test_reader_that_times_out_leaves_the_fetch_going() -> None:
    """The client retries, and the bytes are there by then."""
    store, executor = CountingStore(), HeldExecutor()
    ahead, segment = read_ahead(store, executor), make_metadata(10_000)
    wait = ReadWait()
    wait.stop(has_left=False)
    with pytest.raises(RequestTimedOutError):
        ahead.read(segment, 0, 10, wait)
    executor.run_all()
    assert bytes(ahead.read(segment, 0, 10, NO_WAIT)) == store.content(0, 10)


def test_least_recently_read_ranges_make_room() -> None:
    store, executor = CountingStore(), InlineExecutor()
    ahead = read_ahead(store, executor, size_max=256, range_min=64)
    for number in range(4):
        read(ahead, make_metadata(10_000, number), 0, 10)
    read(ahead, make_metadata(10_000, 0), 0, 10)
    read(ahead, make_metadata(10_000, 9), 0, 10)
    assert len(store.ranges) == 5
    read(ahead, make_metadata(10_000, 0), 0, 10)
    assert len(store.ranges) == 5
    read(ahead, make_metadata(10_000, 1), 0, 10)
    assert len(store.ranges) == 6


def test_reading_ahead_takes_no_room_from_what_others_have_still_to_read() -> None:
    clock, store = SimClock(), CountingStore()
    ahead = read_ahead(store, size_max=512, clock=clock)
    slow, fast = make_metadata(10_000, 1), make_metadata(10_000, 2)
    for position in (0, 20, 40):
        read(ahead, slow, position, 20)
    of_slow = [
        each for each, number in zip(store.ranges, store.segments, strict=True) if number == 1
    ]
    for position in range(0, 2000, 20):
        read(ahead, fast, position, 20)
    end = of_slow[-1][1]
    assert bytes(ahead.read(slow, 60, end - 60, NO_WAIT)) == store.content(60, end)
    clock.advance(20_000)
    for position in range(2000, 4000, 20):
        read(ahead, fast, position, 20)
    with pytest.raises(NotInMemoryError):
        ahead.read(slow, 60, end - 60, NO_WAIT)


def test_read_without_room_fetches_just_what_it_needs() -> None:
    store = CountingStore()
    ahead = read_ahead(store, size_max=0)
    assert bytes(read(ahead, make_metadata(10_000), 100, 10)) == store.content(100, 110)
    assert store.ranges == [(100, 110)]
    assert ahead.size_in_bytes == 0


def test_forgotten_segment_is_fetched_again() -> None:
    store = CountingStore()
    ahead, segment = read_ahead(store), make_metadata(10_000)
    read(ahead, segment, 0, 10)
    ahead.forget(segment.segment_id)
    assert ahead.size_in_bytes == 0
    read(ahead, segment, 0, 10)
    assert len(store.ranges) == 2


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1999), st.integers(1, 700)), max_size=30),
    st.integers(0, 2000),
)
@settings(max_examples=100)
def test_any_reads_give_the_segments_bytes_within_the_bound(
    reads: list[tuple[int, int, int]], size_max: int
) -> None:
    store = CountingStore()
    ahead = read_ahead(store, size_max=size_max, range_min=32)
    for number, position, size in reads:
        data = read(ahead, make_metadata(2000, number), position, size)
        assert bytes(data) == store.content(position, min(2000, position + size))
        assert ahead.size_in_bytes <= size_max


@pytest.mark.parametrize(
    ("run_count", "range_sizes", "alone", "shared"),
    [
        # Two ranges of 64 MiB fit into half of 256 MiB.
        (0, (8, 50, 64), 192, 128),
        (1, (8, 50, 64), 192, 128),
        (2, (8, 50, 64), 128, 128),
        (4, (8, 32, 32), 64, 64),
        (16, (8, 8, 8), 16, 16),
        (64, (2, 2, 2), 4, 4),
    ],
)
def test_range_takes_at_most_half_of_the_share_of_its_run(
    run_count: int, range_sizes: tuple[int, ...], alone: int, shared: int
) -> None:
    settings = ReadAheadSettings(256 * MIB)
    for wanted, size in zip((1, 50, 100), range_sizes, strict=True):
        assert settings.range_size(wanted * MIB, run_count) == size * MIB
    assert settings.run_size(run_count, is_shared=False) == alone * MIB
    assert settings.run_size(run_count, is_shared=True) == shared * MIB


@pytest.mark.parametrize(("idle_ms", "is_kept"), [(9_999, True), (10_000, False)])
def test_run_loses_its_share_after_ten_seconds_without_a_read(
    *, idle_ms: int, is_kept: bool
) -> None:
    clock, store = SimClock(), CountingStore()
    ahead = read_ahead(store, size_max=512, clock=clock)
    slow, fast = make_metadata(10_000, 1), make_metadata(10_000, 2)
    for position in (0, 20, 40):
        read(ahead, slow, position, 20)
    clock.advance(idle_ms)
    for position in range(0, 2000, 20):
        read(ahead, fast, position, 20)
    try:
        assert bytes(ahead.read(slow, 64, 10, NO_WAIT)) == store.content(64, 74)
        assert is_kept
    except NotInMemoryError:
        assert not is_kept


def test_reader_that_waits_is_served_beside_the_ranges_fetched_ahead() -> None:
    """Fetches ahead take AHEAD_AT_ONCE threads at most, and a reader's fetch does not count."""
    store, executor = CountingStore(), HeldExecutor()
    ahead = ReadAhead(store, ReadAheadSettings(4096, 64, 64), executor, SimClock())  # type: ignore[arg-type]
    segment = make_metadata(100_000)
    ahead.range_at(segment, 0, 64, ReadWait())
    executor.run_all()
    ahead.read_on(segment, 32, 1000, lambda _: None)
    assert len(executor.held) == AHEAD_AT_ONCE
    ahead.range_at(make_metadata(100_000, 1), 0, 64, ReadWait())
    assert len(executor.held) == AHEAD_AT_ONCE + 1
    # Each fetch that ends makes room for one more.
    executor.held.pop(0)()
    assert len(executor.held) == AHEAD_AT_ONCE + 1
    executor.run_all()
    assert len(store.ranges) == len(set(zip(store.segments, store.ranges, strict=True)))


def test_planned_range_that_a_reader_waits_for_is_fetched_once() -> None:
    store, executor = CountingStore(), HeldExecutor()
    ahead = ReadAhead(store, ReadAheadSettings(4096, 64, 64), executor, SimClock())  # type: ignore[arg-type]
    segment = make_metadata(100_000)
    ahead.range_at(segment, 0, 64, ReadWait())
    executor.run_all()
    ahead.read_on(segment, 32, 1000, lambda _: None)
    position = 64 * (1 + AHEAD_AT_ONCE)
    planned = ahead.range_at(segment, position, 10, ReadWait())
    assert planned.start == position
    executor.run_all()
    assert store.ranges.count((position, position + 64)) == 1
    assert bytes(ahead.read(segment, position, 64, NO_WAIT)) == store.content(
        position, position + 64
    )


def fetched_ahead(position: int, read_size: int, *, size_max: int = 4096) -> list[tuple[int, int]]:
    """The ranges fetched ahead for a reader in the range [1000, 1064) that is at `position` and has
    read `read_size` bytes. Each range has 64 bytes."""
    store, executor = CountingStore(), HeldExecutor()
    ahead = ReadAhead(store, ReadAheadSettings(size_max, 64, 64), executor, SimClock())  # type: ignore[arg-type]
    segment = make_metadata(100_000)
    ahead.range_at(segment, 1000, 64, ReadWait())
    executor.run_all()
    ahead.read_on(segment, position, read_size, lambda _: None)
    executor.run_all()
    assert ahead.size_in_bytes == 64 * len(store.ranges)
    return store.ranges[1:]


def ranges_from(start: int, count: int) -> list[tuple[int, int]]:
    return [(start + 64 * number, start + 64 * number + 64) for number in range(count)]


@pytest.mark.parametrize("position", [1017, 1032, 1063])
def test_run_holds_three_quarters_of_its_share_from_the_range_being_read_on(position: int) -> None:
    count = 4096 * 3 // 4 // 64
    assert fetched_ahead(position, 10_000) == ranges_from(1064, count - 1)


@pytest.mark.parametrize(
    ("position", "read_size", "count"),
    [
        (1063, 1, 2),
        (1064, 1, 2),
        (1065, 1, 0),  # no range there yet
        (1064, 128, 2),
        (1064, 129, 3),
        (1064, 192, 3),
        (1064, 193, 4),
        (1016, 193, 0),  # the reader is in the first quarter of its first range
        (1017, 193, 3),
    ],
)
def test_read_ahead_reaches_as_far_as_was_read_at_least_two_ranges(
    position: int, read_size: int, count: int
) -> None:
    assert fetched_ahead(position, read_size) == ranges_from(1064, count)


@pytest.mark.parametrize(("is_read_on", "is_kept"), [(False, True), (True, False)])
def test_first_range_of_a_run_leaves_the_others_their_shares(
    *, is_read_on: bool, is_kept: bool
) -> None:
    """A range takes half of a share at most: 128 bytes of 256 alone, 64 beside another run."""
    store, executor = CountingStore(), HeldExecutor()
    ahead = ReadAhead(store, ReadAheadSettings(256, 8, 128), executor, SimClock())  # type: ignore[arg-type]
    first, second = make_metadata(8, 1), make_metadata(10_000, 2)
    ahead.range_at(first, 0, 8, ReadWait())
    executor.run_all()
    if is_read_on:
        ahead.read_on(first, 8, 8, lambda _: None)
        executor.run_all()
    ahead.range_at(second, 0, 100, ReadWait())
    assert ahead.size_in_bytes == 8 + is_kept * 100
