"""Batches found in blocks of a log that are cut anywhere."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.errors import CorruptRecordError
from isotherm.record.batch import NewRecord, build_batch
from isotherm.record.batch_table import read_batch_table
from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.remote.storage.segment_blocks import (
    BatchJoiner,
    block_ranges,
    fetch_ahead,
    segment_blocks,
    segment_blocks_ahead,
)
from isotherm.types import TopicIdPartition

BATCHES = [
    bytes(build_batch([NewRecord(0, b"k", bytes(size))], base_offset=offset))
    for offset, size in enumerate((0, 300, 1, 5))
]
LOG = b"".join(BATCHES)


def positions(joiner: BatchJoiner, blocks: list[bytes]) -> list[int]:
    """The positions of all batches."""
    found = []
    for block in blocks:
        for part in joiner.parts(memoryview(block)):
            table, size = read_batch_table(part)
            found += [joiner.position + int(each["position"]) for each in table]
            joiner.took(part, size)
    return found


def cut(data: bytes, places: set[int]) -> list[bytes]:
    borders = [0, *sorted(places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(borders)]


@given(st.sets(st.integers(1, len(LOG) - 1), max_size=12))
def test_batches_are_found_wherever_blocks_are_cut(places: set[int]) -> None:
    joiner = BatchJoiner(len(LOG))
    sizes = [0, *map(len, BATCHES)]
    expected = [sum(sizes[: index + 1]) for index in range(len(BATCHES))]
    assert positions(joiner, cut(LOG, places)) == expected
    joiner.end()
    assert joiner.position == len(LOG)


def test_only_batches_across_blocks_are_copied() -> None:
    first, second = memoryview(LOG[:-1]), memoryview(LOG[-1:])
    joiner = BatchJoiner(len(LOG))
    (part,) = joiner.parts(first)
    assert part.obj is first.obj
    _, size = read_batch_table(part)
    joiner.took(part, size)
    (joined,) = joiner.parts(second)
    assert bytes(joined) == BATCHES[-1]


@given(st.integers(1, len(LOG) - 1), st.integers(1, len(LOG) - 1))
def test_log_that_ends_in_mid_batch_is_an_error(size: int, place: int) -> None:
    joiner = BatchJoiner(len(LOG))
    positions(joiner, cut(LOG[:size], {place} if place < size else set()))
    if joiner.position == size:
        joiner.end()
    else:
        with pytest.raises(CorruptRecordError, match=f"position={joiner.position} "):
            joiner.end()


def test_batch_that_would_end_beyond_its_log_is_an_error() -> None:
    joiner = BatchJoiner(len(LOG) - 1, 0)
    with pytest.raises(CorruptRecordError, match="bytes end inside a record batch"):
        positions(joiner, cut(LOG, {len(LOG) - 3}))


@given(st.integers(12, len(LOG) - len(BATCHES[3]) - 1), st.integers(-(2**31), 48))
def test_damaged_size_is_an_error_and_ends(place: int, size: int) -> None:
    """A size that is smaller than the rest of a header cannot be a batch's."""
    damaged = LOG[:8] + size.to_bytes(4, "big", signed=True) + LOG[12:]
    with pytest.raises(CorruptRecordError):
        positions(BatchJoiner(len(LOG)), cut(damaged, {place}))


def test_ranges_of_a_segment_end_with_it() -> None:
    assert list(block_ranges(5, 30, 10)) == [(5, 15), (15, 25), (25, 30)]
    assert list(block_ranges(30, 30, 10)) == []


class RunsAtOnce(Executor):
    """Runs submitted work at once, in the calling thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


def test_fetches_go_ahead_in_order_and_no_further_than_allowed() -> None:
    begun: list[int] = []

    def fetch(number: int) -> int:
        begun.append(number)
        return -number

    fetched = fetch_ahead(range(5), fetch, RunsAtOnce(), 2)
    number, done = next(fetched)
    assert (number, done.result()) == (0, 0)
    assert begun == [0, 1, 2]
    assert [(each, later.result()) for each, later in fetched] == [
        (1, -1), (2, -2), (3, -3), (4, -4),
    ]  # fmt: skip


def test_error_of_a_fetch_is_that_of_its_own_block() -> None:
    def fetch(number: int) -> int:
        return 1 // number

    with ThreadPoolExecutor(1) as pool:
        (_, good), (_, bad) = fetch_ahead([1, 0], fetch, pool, 1)
        assert good.result() == 1
        with pytest.raises(ZeroDivisionError):
            bad.result()


SEGMENT = RemoteLogSegmentMetadata(
    segment_id=RemoteLogSegmentId(TopicIdPartition(uuid.UUID(int=1), "t", 0), uuid.UUID(int=2)),
    start_offset=0,
    end_offset_inclusive=3,
    max_timestamp_ms=0,
    broker_id=0,
    event_timestamp_ms=0,
    segment_size_in_bytes=len(LOG),
    segment_leader_epochs={0: 0},
)


class LogStore:
    """Serves a log and notes the ranges, whose ends are inclusive."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start: int, end_inclusive: int
    ) -> memoryview:
        assert 0 <= start <= end_inclusive < metadata.segment_size_in_bytes
        self.ranges.append((start, end_inclusive))
        return memoryview(LOG)[start : end_inclusive + 1]


@pytest.mark.parametrize("start", [0, 61, len(LOG) - 1, len(LOG)])
@pytest.mark.parametrize("size", [1, 100, len(LOG) - 1, len(LOG), len(LOG) + 1])
def test_blocks_of_a_segment_are_its_bytes_each_fetched_once(start: int, size: int) -> None:
    store = LogStore()
    blocks = list(segment_blocks(store, SEGMENT, size, start=start))  # type: ignore[arg-type]
    assert b"".join(blocks) == LOG[start:]
    assert all(len(block) == size for block in blocks[:-1])
    assert all(0 < len(block) <= size for block in blocks)
    ahead = list(segment_blocks_ahead(LogStore(), SEGMENT, size, RunsAtOnce()))  # type: ignore[arg-type]
    assert b"".join(ahead) == LOG


def test_block_after_the_one_in_hand_is_fetched_meanwhile() -> None:
    for ahead in (1, 3):
        store = LogStore()
        blocks = segment_blocks_ahead(store, SEGMENT, 50, RunsAtOnce(), ahead=ahead)  # type: ignore[arg-type]
        next(blocks)
        assert len(store.ranges) == 1 + ahead


def test_fetches_that_have_not_begun_are_cancelled_with_the_reader() -> None:
    began, go, fetched = threading.Event(), threading.Event(), list[int]()

    def fetch(number: int) -> int:
        if number == 1:
            began.set()
            assert go.wait(300)
        fetched.append(number)
        return number

    with ThreadPoolExecutor(1) as pool:
        blocks = fetch_ahead(range(9), fetch, pool, 4)
        next(blocks)[1].result(300)
        assert began.wait(300)
        blocks.close()
        go.set()
    assert fetched == [0, 1]


@given(st.sets(st.integers(len(BATCHES[0]) + 1, len(LOG) - 1), max_size=6))
def test_batches_are_found_from_a_later_position_on(places: set[int]) -> None:
    start = len(BATCHES[0])
    joiner = BatchJoiner(len(LOG), start)
    blocks = cut(LOG, {start, *places})[1:]
    expected = list(itertools.accumulate(map(len, BATCHES[1:-1]), initial=start))
    assert positions(joiner, blocks) == expected
    joiner.end()
