"""ReadAhead over a store that counts its GETs."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.errors import RemoteStorageError
from isotherm.remote.read_ahead import ReadAhead, ReadAheadSettings
from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.testing.tiered_partition import InlineExecutor
from isotherm.types import TopicIdPartition

MIB = 1024 * 1024
PARTITION = TopicIdPartition(uuid.UUID(int=1), "t", 0)


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
    """Bytes of a segment tell their position; the interface's fetch_log_segment alone."""

    def __init__(self, *, is_large: bool = False) -> None:
        self.ranges: list[tuple[int, int]] = []
        self.errors: list[Exception] = []
        self.before_fetch: Callable[[int], None] = lambda start: None
        self._content = memoryview(bytes(1) if is_large else random.Random(3).randbytes(1 << 16))
        self._is_large = is_large

    def content(self, start: int, end: int) -> bytes:
        return bytes(self._content[start:end])

    def fetch_log_segment(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: int,
        end_position_inclusive: int | None = None,
    ) -> memoryview:
        assert end_position_inclusive is not None
        end = min(end_position_inclusive + 1, metadata.segment_size_in_bytes)
        assert 0 <= start_position < end
        self.ranges.append((start_position, end))
        self.before_fetch(start_position)
        if self.errors:
            raise self.errors.pop()
        if self._is_large:
            return memoryview(bytes(end - start_position))
        return self._content[start_position:end]


class HeldExecutor(Executor):
    """Keeps what it is given until the test runs it."""

    def __init__(self) -> None:
        self.held: list[Callable[[], Any]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.held.append(lambda: fn(*args, **kwargs))
        return Future()


def read_ahead(
    store: Any, executor: Executor | None = None, *, size_max: int = 4096, range_min: int = 64
) -> ReadAhead:
    settings = ReadAheadSettings(size_max, range_size_min=range_min, range_size_max=16 * range_min)
    return ReadAhead(store, settings, executor or InlineExecutor())


def test_sequential_reader_of_a_gibibyte_makes_at_most_twenty_gets() -> None:
    store = CountingStore(is_large=True)
    ahead = ReadAhead(store, ReadAheadSettings(256 * MIB), InlineExecutor())  # type: ignore[arg-type]
    segment = make_metadata(1024 * MIB)
    for position in range(0, 1024 * MIB, MIB):
        assert len(ahead.read(segment, position, MIB)) == MIB
    assert len(store.ranges) <= 20
    assert sum(end - start for start, end in store.ranges) == 1024 * MIB
    assert ahead.size_in_bytes <= 256 * MIB


def test_single_read_fetches_one_small_range() -> None:
    store = CountingStore()
    ahead = read_ahead(store, range_min=64)
    ahead.read(make_metadata(10_000), 5000, 10)
    assert store.ranges == [(5000, 5064)]


def test_range_read_beyond_its_first_quarter_gets_its_successor_once() -> None:
    store, executor = CountingStore(), HeldExecutor()
    ahead, segment = read_ahead(store, executor), make_metadata(10_000)
    ahead.read(segment, 0, 16)
    assert executor.held == []
    ahead.read(segment, 16, 16)
    ahead.read(segment, 32, 16)
    assert len(executor.held) == 1
    executor.held[0]()
    assert store.ranges == [(0, 64), (64, 192)]
    ahead.read(segment, 60, 20)
    assert store.ranges == [(0, 64), (64, 192)]


def test_read_over_several_ranges_is_joined_and_cut_at_the_segments_end() -> None:
    store = CountingStore()
    ahead, segment = read_ahead(store), make_metadata(1000)
    ahead.read(segment, 0, 10)
    assert bytes(ahead.read(segment, 50, 500)) == store.content(50, 550)
    assert bytes(ahead.read(segment, 900, 500)) == store.content(900, 1000)
    assert bytes(ahead.read(segment, 1000, 5)) == b""


def test_readers_of_the_same_range_share_one_get() -> None:
    store = CountingStore()
    entered, go = threading.Event(), threading.Event()

    def hold(start: int) -> None:
        entered.set()
        assert go.wait(10)

    store.before_fetch = hold
    ahead, segment = read_ahead(store, HeldExecutor()), make_metadata(10_000)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ahead.read, segment, 0, 10)
        assert entered.wait(10)
        second = pool.submit(ahead.read, segment, 5, 10)
        go.set()
        assert bytes(first.result(10)) == store.content(0, 10)
        assert bytes(second.result(10)) == store.content(5, 15)
    assert store.ranges == [(0, 64)]


def test_failed_fetch_is_raised_and_not_kept() -> None:
    store = CountingStore()
    ahead, segment = read_ahead(store), make_metadata(10_000)
    store.errors = [RemoteStorageError("down")]
    with pytest.raises(RemoteStorageError, match="down"):
        ahead.read(segment, 0, 10)
    assert ahead.size_in_bytes == 0
    assert bytes(ahead.read(segment, 0, 10)) == store.content(0, 10)


def test_failed_prefetch_is_fetched_again_when_asked_for() -> None:
    store = CountingStore()
    ahead, segment = read_ahead(store), make_metadata(10_000)
    ahead.read(segment, 0, 16)
    store.errors = [RemoteStorageError("down")]
    ahead.read(segment, 16, 16)
    assert bytes(ahead.read(segment, 64, 10)) == store.content(64, 74)


def test_least_recently_read_ranges_make_room() -> None:
    store, executor = CountingStore(), HeldExecutor()
    ahead = read_ahead(store, executor, size_max=256, range_min=64)
    for number in range(4):
        ahead.read(make_metadata(10_000, number), 0, 10)
    ahead.read(make_metadata(10_000, 0), 0, 10)
    ahead.read(make_metadata(10_000, 9), 0, 10)
    assert len(store.ranges) == 5
    ahead.read(make_metadata(10_000, 0), 0, 10)
    assert len(store.ranges) == 5
    ahead.read(make_metadata(10_000, 1), 0, 10)
    assert len(store.ranges) == 6


def test_read_without_room_fetches_just_what_it_needs() -> None:
    store = CountingStore()
    ahead = read_ahead(store, size_max=0)
    assert bytes(ahead.read(make_metadata(10_000), 100, 10)) == store.content(100, 110)
    assert store.ranges == [(100, 110)]
    assert ahead.size_in_bytes == 0


def test_forgotten_segment_is_fetched_again() -> None:
    store = CountingStore()
    ahead, segment = read_ahead(store, HeldExecutor()), make_metadata(10_000)
    ahead.read(segment, 0, 10)
    ahead.forget(segment.segment_id)
    assert ahead.size_in_bytes == 0
    ahead.read(segment, 0, 10)
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
        data = ahead.read(make_metadata(2000, number), position, size)
        assert bytes(data) == store.content(position, min(2000, position + size))
        assert ahead.size_in_bytes <= size_max
