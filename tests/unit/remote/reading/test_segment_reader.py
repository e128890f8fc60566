"""RemoteSegmentReader against a list of the segment's batches, with ranges that part anywhere."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from isotherm.errors import CorruptObjectError, CorruptRecordError
from isotherm.record.batch import build_batch
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.remote.reading import segment_range
from isotherm.remote.reading import segment_reader as module
from isotherm.remote.reading.checked_batches import BatchPlace
from isotherm.remote.reading.read_ahead import ReadAhead, ReadAheadSettings
from isotherm.remote.reading.read_wait import NO_WAIT, NotInMemoryError, ReadWait
from isotherm.remote.reading.segment_reader import BatchRun, RemoteSegmentReader
from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.segment.offset_index import OffsetPosition
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicIdPartition
from tests.support.tiered_partition import InlineExecutor

COUNT = 20
MARKER = 4
"""The batch that is a control batch."""
SIZES = [1 if number == MARKER else 2 for number in range(COUNT)]
"""Records of each batch. There is no gap between batches."""
BASE = [0, *itertools.accumulate(SIZES)]
"""The offset of each batch, and the end."""


def _batch(number: int, base_offset: int) -> bytes:
    if number == MARKER:
        return bytes(
            build_end_transaction_marker(
                ControlRecordType.COMMIT,
                producer_id=1,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp_ms=0,
                base_offset=base_offset,
            )
        )
    value = b"v" * (30 + 7 * number)
    return bytes(build_batch([(0, None, value, ())] * SIZES[number], base_offset=base_offset))


BATCHES = [_batch(number, BASE[number]) for number in range(COUNT)]
CONTENT = b"".join(BATCHES)
STARTS = [len(b"".join(BATCHES[:number])) for number in range(COUNT + 1)]
METADATA = RemoteLogSegmentMetadata(
    segment_id=RemoteLogSegmentId(TopicIdPartition(uuid.UUID(int=1), "t", 0), uuid.UUID(int=2)),
    start_offset=0,
    end_offset_inclusive=BASE[-1] - 1,
    max_timestamp_ms=0,
    broker_id=0,
    event_timestamp_ms=0,
    segment_size_in_bytes=len(CONTENT),
    segment_leader_epochs={0: 0},
)
RANGE_SIZES = [61, 100, 333, 1000, len(CONTENT)]


class Store:
    def __init__(self, content: bytes = CONTENT) -> None:
        self.content = content
        self.fetched: list[tuple[int, int]] = []

    def fetch_log_segment_into(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: int,
        buffer: memoryview,
        on_filled: Callable[[int], None],
    ) -> None:
        end = start_position + len(buffer)
        self.fetched.append((start_position, end))
        buffer[:] = self.content[start_position:end]
        on_filled(len(buffer))


def make(store: Store, range_size: int = 1 << 16, executor: Any = None) -> tuple[Any, ReadAhead]:
    settings = ReadAheadSettings(1 << 20, range_size_min=range_size, range_size_max=range_size)
    ahead = ReadAhead(store, settings, executor or InlineExecutor(), SimClock())  # type: ignore[arg-type]
    return RemoteSegmentReader(ahead), ahead


def run_from(reader: RemoteSegmentReader, number: int, wait: ReadWait | None = None) -> BatchRun:
    """All batches from one on that a run has without other bounds."""
    return reader.run(
        METADATA, STARTS[number], BASE[number], len(CONTENT), BASE[-1], wait or ReadWait()
    )


@pytest.mark.parametrize("range_size", RANGE_SIZES)
def test_run_has_the_batches_that_fit_below_the_end(range_size: int) -> None:
    for first in (0, 3, COUNT - 1):
        reader, _ = make(Store(), range_size)
        for size_max in (1, len(BATCHES[first]), 500, 501, len(CONTENT), 10 * len(CONTENT)):
            for end_offset in (BASE[first], BASE[first] + 1, 13, 14, 15, BASE[-1]):
                chosen = [
                    number
                    for number in range(first, COUNT)
                    if STARTS[number + 1] <= STARTS[first] + size_max and BASE[number] < end_offset
                ]
                run = reader.run(
                    METADATA, STARTS[first], BASE[first], size_max, end_offset, ReadWait()
                )
                expected = b"".join(BATCHES[number] for number in chosen)
                assert b"".join(run.records) == expected
                assert run.size == len(expected)
                after = first + len(chosen)
                ends = after == COUNT or BASE[after] >= end_offset
                if range_size == len(CONTENT):
                    assert run.is_last is ends
                assert ends or not run.is_last
                if chosen:
                    assert run.next_offset == BASE[after]
                assert not (MARKER in chosen and not run.may_have_markers)


def test_run_without_control_batches_near_has_no_markers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segment_range, "_CHECK_SIZE", 300)
    reader, _ = make(Store())
    assert reader.find(METADATA, STARTS[MARKER], BASE[MARKER], ReadWait()) is not None
    run = run_from(reader, MARKER + 3)
    assert not run.may_have_markers
    # The marker is in the first of several pieces.
    run = run_from(reader, MARKER)
    assert len(run.records) > 1
    assert run.may_have_markers


@pytest.mark.parametrize("minimum", [1, 300, 900])
def test_run_waits_for_no_more_than_an_answer_needs(
    monkeypatch: pytest.MonkeyPatch, minimum: int
) -> None:
    monkeypatch.setattr(module, "ANSWER_SIZE_MIN", minimum)
    store = Store()
    reader, _ = make(store, 1000)
    run = run_from(reader, 0)
    assert store.fetched == [(0, 1000)]
    assert minimum <= run.size <= 1000
    assert run.next_offset == BASE[STARTS.index(run.size)]
    assert not run.is_last
    # The next range is fetched for a reader whose answer is too short without it.
    monkeypatch.setattr(module, "ANSWER_SIZE_MIN", 1001)
    run = run_from(reader, 0)
    assert store.fetched == [(0, 1000), (1000, 2000)]
    assert 1001 <= run.size <= 2000


def test_run_takes_what_is_in_memory_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_range, "_CHECK_SIZE", 300)
    reader, _ = make(Store())
    assert reader.find(METADATA, 0, 0, ReadWait()) is not None
    monkeypatch.setattr(module, "ANSWER_SIZE_MIN", 1)
    found = run_from(reader, 0)
    assert found.size == len(CONTENT)
    assert len(found.records) > 1
    with pytest.raises(NotInMemoryError):
        run_from(make(Store())[0], 0, NO_WAIT)


@pytest.mark.parametrize("range_size", RANGE_SIZES)
def test_batch_is_found_by_offset_from_any_batch_on(range_size: int) -> None:
    reader, _ = make(Store(), range_size)
    for offset in range(0, BASE[-1] + 2, 2):
        for first in (0, 2, COUNT - 1):
            found = next((n for n in range(first, COUNT) if BASE[n + 1] > offset), None)
            expected = None
            if found is not None:
                expected = BatchPlace(STARTS[found], len(BATCHES[found]), BASE[found])
            assert reader.find(METADATA, STARTS[first], offset, ReadWait()) == expected
    assert reader.find(METADATA, len(CONTENT), 0, ReadWait()) is None


@pytest.mark.parametrize("range_size", RANGE_SIZES)
def test_all_batches_from_a_position_on_are_walked_through(range_size: int) -> None:
    reader, _ = make(Store(), range_size)
    for first in (0, 7, COUNT - 1, COUNT):
        found, position = b"", STARTS[first]
        for checked in reader.batches_from(METADATA, position):
            index = checked.index_of(position)
            found += checked.bytes_between(index, len(checked.positions))
            position = checked.end
        assert found == CONTENT[STARTS[first] :]


@pytest.mark.parametrize(
    ("offset", "position", "proven"),
    [
        (BASE[3], STARTS[3], STARTS[3]),
        (BASE[3] + 1, STARTS[3], STARTS[3]),
        (BASE[3] - 1, STARTS[3], 0),  # another batch begins there
        (BASE[3] + 1, STARTS[3] + 1, 0),
        (0, 0, 0),
        (BASE[3], -5, 0),
        (BASE[-1], STARTS[-2], STARTS[-2]),
        (BASE[-1], STARTS[-1], 0),
        (BASE[-1], STARTS[-1] + 5, 0),
    ],
)
def test_index_entry_counts_if_its_batch_begins_there(
    caplog: pytest.LogCaptureFixture, offset: int, position: int, proven: int
) -> None:
    store = Store()
    reader, ahead = make(store)
    assert reader.proven(METADATA, OffsetPosition(offset, position), ReadWait()) == proven
    is_wrong = 0 < position < len(CONTENT) and not proven
    assert ("index entry does not match the batch" in caplog.text) is is_wrong
    assert bool(store.fetched) is (0 < position < len(CONTENT))
    if position == STARTS[3] + 1:
        assert ahead.size_in_bytes == 0, "the range was checked from a wrong position"
    place = BatchPlace(STARTS[4], len(BATCHES[4]), BASE[4])
    assert reader.find(METADATA, 0, BASE[4], ReadWait()) == place


def test_damage_is_named_and_fetched_again() -> None:
    bad = bytearray(CONTENT)
    bad[STARTS[6] + 70] ^= 1
    store = Store(bytes(bad))
    reader, ahead = make(store, 100)
    named = f"object={METADATA.segment_id}.log topic=t partition=0 start_offset=0 end_offset=38 "
    acts: list[Callable[[], object]] = [
        lambda: reader.find(METADATA, STARTS[6], BASE[6], ReadWait()),
        lambda: run_from(reader, 6),
        lambda: list(reader.batches_from(METADATA, STARTS[5])),
    ]
    for act in acts:
        with pytest.raises(CorruptObjectError, match=named) as raised:
            act()
        assert isinstance(raised.value.__cause__, CorruptRecordError)
        assert ahead.size_in_bytes == 0
    run = run_from(reader, 0)
    assert (run.size, run.is_last) == (STARTS[6], False), "the batches before it are right"
    store.content = CONTENT
    ahead.forget(METADATA.segment_id)
    assert run_from(reader, 0).size == len(CONTENT)


def test_length_that_reaches_beyond_the_segment_is_damage() -> None:
    """A reader would wait for bytes that never come."""
    for range_size in (100, 1 << 16):
        bad = bytearray(CONTENT)
        length = int.from_bytes(bad[STARTS[-2] + 8 : STARTS[-2] + 12]) + 1
        bad[STARTS[-2] + 8 : STARTS[-2] + 12] = length.to_bytes(4)
        reader, _ = make(Store(bytes(bad)), range_size)
        with pytest.raises(CorruptObjectError, match="reaches beyond its segment"):
            reader.find(METADATA, STARTS[-2], BASE[-2], ReadWait())


def sequential(
    reader: RemoteSegmentReader, metadata: RemoteLogSegmentMetadata, size_max: int
) -> bytes:
    """The bytes that a consumer gets which goes on where its last read ended, up to an error."""
    found, position, offset = b"", 0, metadata.start_offset
    try:
        while position < metadata.segment_size_in_bytes:
            place = reader.find(metadata, position, offset, ReadWait(), floor=offset)
            assert place is not None
            assert place.position == position, "a batch is skipped"
            run = reader.run(
                metadata,
                position,
                offset,
                max(size_max, place.size),
                metadata.end_offset_inclusive + 1,
                ReadWait(),
            )
            found += b"".join(run.records)
            position, offset = position + run.size, run.next_offset
            assert len(found) == position
    except CorruptObjectError as error:
        return found + str(error).encode()
    return found


@pytest.mark.parametrize("size_max", [1, 500])
@pytest.mark.parametrize("range_size", [100, 333, len(CONTENT)])
def test_batch_with_a_wrong_base_offset_is_not_returned_wherever_it_lies(
    range_size: int, size_max: int
) -> None:
    """No CRC covers the base offset. A consumer would get wrong offsets, and skip records."""
    for number in range(COUNT):
        for bit in (0, 3):
            bad = bytearray(CONTENT)
            bad[STARTS[number] + 7] ^= 1 << bit
            reader, _ = make(Store(bytes(bad)), range_size)
            found = sequential(reader, METADATA, size_max)
            sound, is_damaged, _ = found.partition(b"remote segment is damaged")
            assert is_damaged
            assert CONTENT.startswith(sound)
            assert len(sound) <= STARTS[number]


@pytest.mark.parametrize("size_max", [1, 200, 1000, 10_000])
@pytest.mark.parametrize("range_size", [61, 100, 333, 1000, 10_000])
def test_log_with_gaps_is_read_on_whole(range_size: int, size_max: int) -> None:
    """Compaction has removed batches. A batch behind a gap is in its place if it does not overlap
    the next one."""
    batches = [_batch(number, 10 * number) for number in range(COUNT)]
    content = b"".join(batches)
    metadata = replace(METADATA, end_offset_inclusive=10 * COUNT)
    reader, _ = make(Store(content), range_size)
    assert sequential(reader, metadata, size_max) == content


def test_batch_that_may_not_begin_so_low_is_damage() -> None:
    reader, _ = make(Store(), 100)
    for number in (1, 5, 9):
        position, offset = STARTS[number], BASE[number]
        reader.find(METADATA, position, offset, ReadWait(), floor=offset)
        with pytest.raises(CorruptObjectError, match=f"offsets go back position={position} "):
            reader.find(METADATA, position, offset, ReadWait(), floor=offset + 1)
