"""SegmentRange: one thread fills it, others read and check it."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from isotherm.errors import CorruptRecordError, RemoteStorageError
from isotherm.record.batch import build_batch
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
