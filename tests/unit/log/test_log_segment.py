"""A segment's file and indexes. The bytes are those that Kafka writes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from isotherm.config.topic import TopicConfig
from isotherm.errors import CorruptRecordError
from isotherm.log import read_ends
from isotherm.log.batch_scan import find_batch
from isotherm.log.file_cache import FileCache
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_segment import LogSegment, SegmentRead
from isotherm.log.read_ends import ReadEnds
from isotherm.log.roll import RollReason
from isotherm.record.batch import build_batch, read_batch_header
from isotherm.record.validation import ValidatedRecords
from isotherm.segment.transaction_index import AbortedTransaction
from tests.support.faulty_fs import FaultyFileSystem

T0 = 1_700_000_000_000
INDEX_SIZE_MAX = 1000


def segment_at(path: Path, base_offset: int = 0) -> LogSegment:
    segment = LogSegment(FileCache(OsFileSystem()), path, base_offset, now_ms=T0)
    segment.activate(INDEX_SIZE_MAX)
    return segment


def batch(offset: int, *, count: int = 1, timestamp: int = T0, size: int = 10) -> bytearray:
    records = [(timestamp, None, b"v" * size, ())] * count
    return build_batch(records, base_offset=offset, partition_leader_epoch=3)


def append(segment: LogSegment, *batches: bytearray, interval: int = 1) -> list[int]:
    """Append the batches in one call. Returns their positions."""
    positions, position = [], segment.size_in_bytes
    for data in batches:
        positions.append(position)
        position += len(data)
    headers = [read_batch_header(data) for data in batches]
    segment.append(b"".join(batches), headers, interval)
    return positions


def test_index_holds_last_offset_and_start_position_of_every_batch_but_the_first(
    tmp_path: Path,
) -> None:
    """The batch sizes of a segment that Kafka's cleaner wrote, and the bytes of its indexes. Kafka
    had a tiny index interval."""
    segment = segment_at(tmp_path)
    sizes = {2: 80, 4: 61, 5: 78}
    header = read_batch_header(batch(0))
    position = 0
    for offset, delta in ((2, 1), (4, 0), (5, 0), (6, 0)):
        length = sizes.get(offset, 70) - 12
        indexed = header._replace(
            base_offset=offset, last_offset_delta=delta, length=length, max_timestamp=T0 + 1
        )
        segment.index_batch(indexed, position, 1)
        position += length + 12
    segment.deactivate()
    assert segment.offset_index_path.read_bytes() == bytes.fromhex(
        "0000000400000050000000050000008d00000006000000db"
    )
    assert segment.time_index_path.read_bytes() == (T0 + 1).to_bytes(8) + (3).to_bytes(4)


@pytest.mark.parametrize(("interval", "indexed"), [(150, [2, 4]), (10**6, [])])
def test_batch_is_indexed_when_more_than_the_interval_was_written_since(
    tmp_path: Path, interval: int, indexed: list[int]
) -> None:
    segment = segment_at(tmp_path)
    batches = [batch(offset, size=20) for offset in range(6)]
    assert 75 < len(batches[0]) <= 100  # two of them exceed 150 bytes
    positions = append(segment, *batches, interval=interval)
    segment.deactivate()
    data = segment.offset_index_path.read_bytes()
    entries = [
        (int.from_bytes(data[at : at + 4]), int.from_bytes(data[at + 4 : at + 8]))
        for at in range(0, len(data), 8)
    ]
    assert entries == [(offset, positions[offset]) for offset in indexed]


def test_interval_counts_over_append_calls(tmp_path: Path) -> None:
    one, many = segment_at(tmp_path / "."), segment_at(tmp_path, 1000)
    append(one, *(batch(offset) for offset in range(9)), interval=200)
    for offset in range(9):
        append(many, batch(1000 + offset), interval=200)
    one.deactivate()
    many.deactivate()
    assert one.offset_index_path.read_bytes() == many.offset_index_path.read_bytes() != b""


def test_time_index_gets_the_largest_timestamp_so_far_and_a_final_entry(tmp_path: Path) -> None:
    segment = segment_at(tmp_path, 100)
    append(
        segment,
        batch(100, timestamp=T0 + 5),
        batch(101, timestamp=T0),
        batch(102, timestamp=T0 + 1),
        batch(103, count=2, timestamp=T0 + 9),
    )
    assert segment.largest_timestamp == (T0 + 9, 104)
    segment.sync()
    before = segment.time_index_path.read_bytes()[:24]
    assert before == b"".join(
        timestamp.to_bytes(8) + offset.to_bytes(4)
        for timestamp, offset in [(T0 + 5, 0), (T0 + 9, 4)]
    )
    append(segment, batch(105, timestamp=T0 + 11), interval=10**6)
    segment.deactivate()
    final = (T0 + 11).to_bytes(8) + (5).to_bytes(4)
    assert segment.time_index_path.read_bytes() == before + final


def test_index_files_hold_entries_and_nothing_else(tmp_path: Path) -> None:
    segment = segment_at(tmp_path)
    append(segment, *(batch(offset) for offset in range(3)))
    segment.sync()
    assert segment.offset_index_path.stat().st_size == 16
    assert segment.time_index_path.stat().st_size == 12
    segment.deactivate()
    segment.activate(INDEX_SIZE_MAX)
    append(segment, batch(3), batch(4))
    segment.deactivate()
    # An activated segment counts from zero again, so its first batch is not indexed.
    assert segment.offset_index_path.stat().st_size == 24


def test_padding_that_kafka_left_is_cut_off(tmp_path: Path) -> None:
    segment = segment_at(tmp_path)
    append(segment, *(batch(offset) for offset in range(3)))
    segment.deactivate()
    paths = (segment.offset_index_path, segment.time_index_path)
    entries = [path.read_bytes() for path in paths]
    for path, before in zip(paths, entries, strict=True):
        path.write_bytes(before + bytes(12 * 8))
    segment.activate(INDEX_SIZE_MAX)
    assert [path.read_bytes() for path in paths] == entries


def test_sync_of_a_segment_that_was_not_written_to_does_nothing(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    segment = LogSegment(FileCache(fs), tmp_path, 0, now_ms=T0)
    segment.activate(INDEX_SIZE_MAX)
    segment.sync()
    assert not fs.sync_counts
    append(segment, batch(0))
    segment.sync()
    assert fs.sync_counts[segment.log_path] == 1
    segment.sync()
    assert fs.sync_counts[segment.log_path] == 1


def test_indexes_are_full_with_one_time_entry_in_reserve(tmp_path: Path) -> None:
    segment = LogSegment(FileCache(OsFileSystem()), tmp_path, 0, now_ms=T0)
    segment.activate(5 * 12)
    reasons = []
    for offset in range(6):
        added = batch(offset, timestamp=T0 + offset)
        incoming = ValidatedRecords(memoryview(added), offset, T0 + offset, (), ())
        reasons.append(segment.roll_reason(incoming, TopicConfig(), 0, T0))
        append(segment, added)
    assert reasons == [None] * 5 + [RollReason.INDEX_FULL]


def test_offset_index_is_full_with_its_last_entry(tmp_path: Path) -> None:
    """Batches of one timestamp add nothing to the time index."""
    segment = LogSegment(FileCache(OsFileSystem()), tmp_path, 0, now_ms=T0)
    segment.activate(5 * 8)
    reasons = []
    for offset in range(7):
        added = batch(offset)
        incoming = ValidatedRecords(memoryview(added), offset, T0, (), ())
        reasons.append(segment.roll_reason(incoming, TopicConfig(), 0, T0))
        append(segment, added)
    assert reasons == [None] * 6 + [RollReason.INDEX_FULL]


@pytest.mark.parametrize("is_active", [True, False])
def test_read_begins_with_the_batch_that_holds_the_offset(tmp_path: Path, is_active: bool) -> None:
    segment = segment_at(tmp_path)
    batches = [batch(3 * index, count=3) for index in range(20)]
    positions = append(segment, *batches, interval=300)
    if not is_active:
        segment.deactivate()
    size = segment.size_in_bytes
    for offset in range(60):
        read = segment.read(offset, 10**6, size, min_one_message=True)
        assert read is not None
        assert read.position == positions[offset // 3]
        assert read.records == b"".join(batches[offset // 3 :])
    assert segment.read(60, 10**6, size, min_one_message=True) is None


def test_read_returns_whole_batches_within_the_size(tmp_path: Path) -> None:
    segment = segment_at(tmp_path)
    batches = [batch(index, size=index % 40) for index in range(40)]
    append(segment, *batches, interval=500)
    for max_bytes in range(1, segment.size_in_bytes, 17):
        for offset in (0, 7, 39):
            read = segment.read(offset, max_bytes, segment.size_in_bytes, min_one_message=False)
            assert read is not None
            expected = bytearray()
            for data in batches[offset:]:
                if len(expected) + len(data) > max_bytes:
                    break
                expected += data
            assert read.records == expected


def test_batches_appended_last_are_read_as_any_other(tmp_path: Path) -> None:
    segment = segment_at(tmp_path)
    offset = 0
    for count in (1, 3, 2):
        first = offset
        batches = [batch(offset + 2 * index, count=2, size=100) for index in range(count)]
        offset += 2 * count
        positions = append(segment, *batches, interval=200)
        ends = [*positions[1:], segment.size_in_bytes]
        sizes = (1, len(batches[0]) - 1, len(batches[0]), 10**6)
        for end, max_bytes in product(ends, sizes):
            # An offset inside of the first batch is looked up, and has the same result.
            expected = segment.read(first + 1, max_bytes, end, min_one_message=True)
            assert segment.read(first, max_bytes, end, min_one_message=True) == expected
            read = segment.read(
                first, max_bytes, end, min_one_message=True, needs_upper_bound=False
            )
            assert expected is not None
            assert read == expected._replace(upper_bound_offset=None)
            assert read.records


def test_batch_appended_last_is_read_at_once(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    segment = LogSegment(FileCache(fs), tmp_path, 0, now_ms=T0)
    segment.activate(INDEX_SIZE_MAX)
    append(segment, batch(0, size=5000))
    append(segment, batch(1, size=5000))
    size = segment.size_in_bytes
    read = segment.read(1, size, size, min_one_message=True, needs_upper_bound=False)
    assert read is not None
    assert fs.read_sizes[segment.log_path] == len(read.records) == len(batch(1, size=5000))


def test_batch_appended_last_and_truncated_is_not_read(tmp_path: Path) -> None:
    segment = segment_at(tmp_path)
    append(segment, batch(0))
    (position,) = append(segment, batch(1, size=20))
    segment.truncate_to(1, T0)
    append(segment, batch(1, count=2), batch(3))
    size = segment.size_in_bytes
    read = segment.read(1, 10**6, size, min_one_message=True, needs_upper_bound=False)
    assert read is not None
    assert (read.position, read.records) == (position, batch(1, count=2) + batch(3))
    segment.truncate_to(1, T0)
    assert segment.read(1, 10**6, position, min_one_message=True, needs_upper_bound=False) is None


def read_from(segment: LogSegment, offset: int, max_bytes: int, **more: bool) -> SegmentRead:
    read = segment.read(offset, max_bytes, segment.size_in_bytes, min_one_message=True, **more)
    assert read is not None
    return read


def batches_count(records: memoryview) -> int:
    count = position = 0
    while position < len(records):
        position += read_batch_header(records, position).size_in_bytes
        count += 1
    return count


@pytest.mark.parametrize("needs_upper_bound", [False, True])
@pytest.mark.parametrize("interval", [100, 10**6])
@pytest.mark.parametrize("max_bytes", [1, 300, 1000, 5000])
def test_batches_behind_a_read_are_read_as_by_a_reader_without_one_before(
    tmp_path: Path, max_bytes: int, interval: int, needs_upper_bound: bool
) -> None:
    sizes = [20, 400, 90, 5000, 20, 20, 20, 900, 300, 40]
    segment = segment_at(tmp_path)
    append(segment, *(batch(at, size=size) for at, size in enumerate(sizes)), interval=interval)
    append(segment, batch(len(sizes)))
    segment.deactivate()
    offset = 0
    while offset <= len(sizes):
        other = LogSegment(FileCache(OsFileSystem()), tmp_path, 0, now_ms=T0)
        expected = read_from(other, offset, max_bytes, needs_upper_bound=needs_upper_bound)
        read = read_from(segment, offset, max_bytes, needs_upper_bound=needs_upper_bound)
        assert read == expected
        offset += batches_count(read.records)


def test_reader_that_goes_on_reads_at_once(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    segment = LogSegment(FileCache(fs), tmp_path, 0, now_ms=T0)
    segment.activate(INDEX_SIZE_MAX)
    append(segment, *(batch(offset, size=5000) for offset in range(8)))
    max_bytes = 2 * len(batch(0, size=5000)) + 100
    read_from(segment, 0, max_bytes)
    before = fs.read_sizes[segment.log_path]
    for offset in (2, 4, 2):
        assert len(read_from(segment, offset, max_bytes).records) > 10_000
    assert fs.read_sizes[segment.log_path] - before == 3 * max_bytes


def test_batch_behind_a_read_that_is_too_large_is_not_read_twice(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    segment = LogSegment(FileCache(fs), tmp_path, 0, now_ms=T0)
    segment.activate(INDEX_SIZE_MAX)
    append(segment, batch(0), batch(1, size=50_000), batch(2))
    read_from(segment, 0, 1000)
    before = fs.read_sizes[segment.log_path]
    size = len(read_from(segment, 1, 1000).records)
    assert size == len(batch(1, size=50_000))
    assert fs.read_sizes[segment.log_path] - before < size + 5000


def test_places_behind_reads_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ends, "READ_ENDS_MAX", 2)
    segment = segment_at(tmp_path)
    append(segment, *(batch(offset, size=100) for offset in range(10)))
    for offset in range(9):
        read_from(segment, offset, len(batch(0, size=100)) + 20)
        assert 0 < len(segment._read_ends.batches) <= 2


def test_batch_behind_a_read_and_truncated_is_not_read(tmp_path: Path) -> None:
    """Not even where the record of another batch looks like it."""
    segment = segment_at(tmp_path)
    append(segment, batch(0), batch(1, size=20), batch(2))
    read_from(segment, 0, len(batch(0)) + 50)
    segment.truncate_to(0, T0)
    forged = bytes(batch(1))
    # The forged batch is as far from the start as batch 1 was.
    filler = len(batch(0)) - build_batch([(T0, None, forged, ())]).index(forged)
    whole = build_batch([(T0, None, b"x" * filler + forged, ())])
    assert whole.index(forged) == len(batch(0))
    append(segment, whole, batch(1, size=30), batch(2))
    assert read_from(segment, 1, 10**6).records == batch(1, size=30) + batch(2)


@pytest.mark.parametrize("length", [-1, 0, 48])
def test_impossible_length_of_the_batch_appended_last_is_found(tmp_path: Path, length: int) -> None:
    segment = segment_at(tmp_path)
    append(segment, batch(0))
    with segment.log_path.open("r+b") as file:
        file.seek(8)
        file.write(length.to_bytes(4, "big", signed=True))
    size = segment.size_in_bytes
    with pytest.raises(CorruptRecordError):
        segment.read(0, 10**6, size, min_one_message=True, needs_upper_bound=False)


def test_first_batch_larger_than_the_size_is_returned_only_when_one_is_asked_for(
    tmp_path: Path,
) -> None:
    segment = segment_at(tmp_path)
    append(segment, batch(0, size=500), batch(1))
    size = segment.size_in_bytes
    refused = segment.read(0, 100, size, min_one_message=False)
    whole = segment.read(0, 100, size, min_one_message=True)
    assert refused is not None
    assert whole is not None
    assert refused.records == b""
    assert whole.records == batch(0, size=500)


def test_upper_bound_offset_covers_all_offsets_read(tmp_path: Path) -> None:
    segment = segment_at(tmp_path)
    batches = [batch(2 * index, count=2) for index in range(10)]
    append(segment, *batches)
    read = segment.read(4, len(batches[0]), segment.size_in_bytes, min_one_message=True)
    assert read is not None
    assert read.upper_bound_offset == 7
    read = segment.read(18, 10**6, segment.size_in_bytes, min_one_message=True)
    assert read is not None
    assert read.upper_bound_offset is None


def test_offset_by_timestamp_is_that_of_the_first_record_as_young(tmp_path: Path) -> None:
    segment = segment_at(tmp_path)
    for offset in range(0, 20, 2):
        records = [(T0 + 10 * offset, None, b"v", ()), (T0 + 10 * offset + 10, None, b"v", ())]
        append(segment, build_batch(records, base_offset=offset, partition_leader_epoch=3))
    for wanted in range(20):
        found = (T0 + 10 * wanted, wanted, 3)
        assert segment.find_offset_by_timestamp(T0 + 10 * wanted, 0) == found
        assert segment.find_offset_by_timestamp(T0 + 10 * wanted - 9, 0) == found
    assert segment.find_offset_by_timestamp(T0 + 191, 0) is None
    assert segment.find_offset_by_timestamp(0, 7) == (T0 + 70, 7, 3)
    assert segment.find_offset_of_largest_timestamp() == (T0 + 190, 19, 3)


def test_largest_timestamp_of_records_without_one_is_the_files(tmp_path: Path) -> None:
    segment = segment_at(tmp_path)
    append(segment, batch(0, timestamp=-1))
    assert segment.largest_timestamp == (-1, 0)
    assert segment.largest_timestamp_ms == segment.log_path.stat().st_mtime_ns // 10**6


@pytest.mark.parametrize("offset", [0, 1, 4, 5, 17, 18, 19, 20])
def test_truncation_drops_the_batch_that_holds_the_offset(tmp_path: Path, offset: int) -> None:
    segment = segment_at(tmp_path)
    batches = [batch(2 * index, count=2, timestamp=T0 + index) for index in range(10)]
    append(segment, *batches, interval=200)
    segment.append_aborted_transaction(AbortedTransaction(7, 0, 3, 4))
    segment.append_aborted_transaction(AbortedTransaction(7, 4, 17, 18))
    segment.truncate_to(offset, T0)
    kept = offset // 2
    assert segment.log_path.read_bytes() == b"".join(batches[:kept])
    assert segment.read_next_offset() == 2 * kept
    assert segment.largest_timestamp.timestamp_ms == (T0 + kept - 1 if kept else -1)
    aborted = [entry.last_offset for entry in segment.aborted_transactions()]
    assert aborted == [last for last in (3, 17) if last < offset]
    segment.deactivate()
    reopened = LogSegment(FileCache(OsFileSystem()), tmp_path, 0, now_ms=T0)
    assert reopened.read_next_offset() == 2 * kept
    assert reopened.aborted_transactions() == segment.aborted_transactions()


def test_segment_renamed_to_deleted_is_still_read(tmp_path: Path) -> None:
    segment = segment_at(tmp_path)
    append(segment, batch(0), batch(1))
    segment.append_aborted_transaction(AbortedTransaction(7, 0, 1, 2))
    segment.rename_to_deleted()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        f"{0:020d}.{kind}.deleted" for kind in ("index", "log", "timeindex", "txnindex")
    ]
    read = segment.read(1, 100, segment.size_in_bytes, min_one_message=True)
    assert read is not None
    assert read.records == batch(1)
    segment.delete_files()
    segment.delete_files()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        segment.read(1, 100, segment.size_in_bytes, min_one_message=True)


def test_scan_of_a_batch_whose_length_cannot_be_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(batch(0) + bytes(100))
    file = OsFileSystem().open_readable(path)
    first = find_batch(file, 0, file.size(), 0)
    assert first is not None
    assert first.last_offset == 0
    with pytest.raises(CorruptRecordError, match="length cannot be"):
        find_batch(file, 0, file.size(), 1)


def test_whole_size_leaves_a_partial_batch_out() -> None:
    data = bytes(batch(0) + batch(1))
    half = len(data) // 2
    for size in range(len(data) + 1):
        assert ReadEnds().whole_size(data[:size], 0, 0) == size // half * half


@pytest.mark.parametrize(("offset", "kept"), [(7, 2), (6, 1), (4, 1), (3, 0)])
def test_truncation_drops_the_aborted_transactions_that_ended_there(
    tmp_path: Path, offset: int, kept: int
) -> None:
    segment = segment_at(tmp_path)
    append(segment, *(batch(number) for number in range(8)))
    aborted = [AbortedTransaction(7, 0, 3, 4), AbortedTransaction(8, 2, 6, 7)]
    for each in aborted:
        segment.append_aborted_transaction(each)
    segment.truncate_to(offset, T0)
    assert segment.aborted_transactions() == aborted[:kept]
    assert segment.transaction_index_path.stat().st_size == kept * 34
    segment.deactivate()
    assert segment.aborted_transactions() == aborted[:kept]


@pytest.mark.parametrize(
    ("offset", "largest"), [(4, (T0 + 9, 1)), (2, (T0 + 9, 1)), (1, (T0, 0)), (0, (-1, 0))]
)
@pytest.mark.parametrize("interval", [1, 10**6])
def test_truncation_takes_the_largest_timestamp_back(
    tmp_path: Path, offset: int, largest: tuple[int, int], interval: int
) -> None:
    segment = segment_at(tmp_path)
    times = (T0, T0 + 9, T0 + 3, T0 + 8)
    batches = [batch(number, timestamp=each) for number, each in enumerate(times)]
    append(segment, *batches, interval=interval)
    segment.truncate_to(offset, T0)
    assert segment.largest_timestamp == largest
    assert segment.first_batch_timestamp_ms == (T0 if offset else None)
    append(segment, batch(max(offset, 0), timestamp=T0 + 20))
    assert segment.largest_timestamp == (T0 + 20, offset)
    assert segment.read_next_offset() == offset + 1


def test_closed_segment_knows_its_first_timestamp(tmp_path: Path) -> None:
    segment = segment_at(tmp_path)
    append(segment, batch(0, timestamp=T0 + 4), batch(1, timestamp=T0))
    segment.deactivate()
    again = LogSegment(FileCache(OsFileSystem()), tmp_path, 0, now_ms=T0)
    assert again.first_batch_timestamp_ms == T0 + 4
    assert segment_at(tmp_path, 7).first_batch_timestamp_ms is None


def test_first_record_with_the_largest_timestamp_is_found(tmp_path: Path) -> None:
    segment = segment_at(tmp_path)
    assert segment.find_offset_of_largest_timestamp() is None
    records = [(T0 + time, None, b"v", ()) for time in (1, 5, 2, 5)]
    append(segment, batch(0), build_batch(records, base_offset=1, partition_leader_epoch=3))
    append(segment, batch(5, timestamp=T0 + 4))
    assert segment.find_offset_of_largest_timestamp() == (T0 + 5, 2, 3)
    append(segment, batch(6, timestamp=T0 + 6))
    assert segment.find_offset_of_largest_timestamp() == (T0 + 6, 6, 3)


def indexed(segment: LogSegment) -> list[int]:
    """The offsets that the index of a closed segment with base 0 names."""
    data = segment.offset_index_path.read_bytes()
    return [int.from_bytes(data[at : at + 4]) for at in range(0, len(data), 8)]


@pytest.mark.parametrize(("less", "offsets"), [(1, [1, 2, 3, 5, 6, 7]), (0, [2, 6])])
def test_interval_is_counted_to_the_byte_and_anew_after_each_start(
    tmp_path: Path, less: int, offsets: list[int]
) -> None:
    """Batches 0 to 3 are of a new segment, the others are appended after it was opened again."""
    segment = segment_at(tmp_path)
    batches = [batch(offset) for offset in range(8)]
    interval = len(batches[0]) - less
    append(segment, *batches[:4], interval=interval)
    segment.deactivate()
    segment.activate(INDEX_SIZE_MAX)
    append(segment, *batches[4:], interval=interval)
    segment.deactivate()
    assert indexed(segment) == offsets


@pytest.mark.parametrize(("less", "offsets"), [(1, [1, 3, 4]), (0, [2])])
def test_interval_is_counted_anew_after_a_truncation(
    tmp_path: Path, less: int, offsets: list[int]
) -> None:
    segment = segment_at(tmp_path)
    batches = [batch(offset) for offset in range(5)]
    interval = len(batches[0]) - less
    append(segment, *batches[:4], interval=interval)
    segment.truncate_to(2 + (not less), T0)
    append(segment, *batches[2 + (not less) :], interval=interval)
    segment.deactivate()
    assert indexed(segment) == offsets


def close(segment: LogSegment) -> None:
    segment.deactivate()


def discard_indexes(segment: LogSegment) -> None:
    segment.deactivate()
    segment.sync()
    assert not segment.is_dirty
    segment.activate(INDEX_SIZE_MAX, discard_indexes=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda segment: append(segment, batch(2)),
        lambda segment: segment.append_aborted_transaction(AbortedTransaction(7, 0, 1, 2)),
        lambda segment: segment.truncate_to(1, T0),
        lambda segment: segment.cut_file(10),
        discard_indexes,
        close,
    ],
    ids=["append", "aborted transaction", "truncation", "cut", "indexes discarded", "close"],
)
def test_every_change_is_made_durable_by_the_next_sync(
    tmp_path: Path, change: Callable[[LogSegment], object]
) -> None:
    fs = FaultyFileSystem()
    segment = LogSegment(FileCache(fs), tmp_path, 0, now_ms=T0)
    segment.activate(INDEX_SIZE_MAX)
    # The time index lacks the entry that it gets when the segment is closed.
    append(segment, batch(0), batch(1), interval=10**6)
    segment.sync()
    assert not segment.is_dirty
    change(segment)
    assert segment.is_dirty
    fs.sync_counts.clear()
    segment.sync()
    assert not segment.is_dirty
    assert fs.sync_counts[segment.log_path] == 1
    assert fs.sync_counts[segment.transaction_index_path] == 1


def test_sync_of_a_closed_segment_reaches_all_its_files(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    segment = LogSegment(FileCache(fs), tmp_path, 0, now_ms=T0)
    segment.activate(INDEX_SIZE_MAX)
    append(segment, batch(0), batch(1))
    segment.deactivate()
    segment.sync()
    assert fs.sync_counts == dict.fromkeys(
        (
            segment.log_path,
            segment.offset_index_path,
            segment.time_index_path,
            segment.transaction_index_path,
        ),
        1,
    )


@pytest.mark.parametrize("is_active", [True, False])
def test_size_of_an_index_is_that_of_its_entries(tmp_path: Path, is_active: bool) -> None:
    segment = segment_at(tmp_path)
    append(segment, *(batch(offset, timestamp=T0 + offset) for offset in range(4)))
    assert (segment.offset_index_size, segment.time_index_size) == (24, 36)
    if not is_active:
        segment.deactivate()
        for path in (segment.offset_index_path, segment.time_index_path):
            path.write_bytes(path.read_bytes() + bytes(240))  # as Kafka leaves it after a crash
    assert (segment.offset_index_size, segment.time_index_size) == (24, 36)


def test_truncation_above_the_last_batch_changes_nothing(tmp_path: Path) -> None:
    segment = segment_at(tmp_path)
    append(segment, batch(0), batch(1))
    segment.sync()
    size = segment.size_in_bytes
    segment.truncate_to(2, T0)
    assert (segment.size_in_bytes, segment.is_dirty) == (size, False)


def test_segment_that_is_emptied_is_as_old_as_its_truncation(tmp_path: Path) -> None:
    """As in Kafka. Records without a timestamp are as old as their segment."""
    segment = segment_at(tmp_path)
    append(segment, batch(0, timestamp=-1), batch(1, timestamp=-1))
    config = TopicConfig(segment_ms=1000, internal_segment_bytes=10_000)
    added = batch(1, timestamp=-1)
    incoming = ValidatedRecords(memoryview(added), 1, -1, (), ())

    def reason(now_ms: int) -> RollReason | None:
        return segment.roll_reason(incoming, config, 0, now_ms)

    segment.truncate_to(1, T0 + 500)
    assert (reason(T0 + 1000), reason(T0 + 1001)) == (None, RollReason.TIME)
    segment.truncate_to(0, T0 + 5000)
    append(segment, batch(0, timestamp=-1))
    assert (reason(T0 + 6000), reason(T0 + 6001)) == (None, RollReason.TIME)


@pytest.mark.parametrize(
    ("offset", "fits"), [(99, False), (100, True), (100 + 2**31 - 1, True), (100 + 2**31, False)]
)
def test_segment_is_rolled_for_an_offset_that_its_index_cannot_hold(
    tmp_path: Path, offset: int, fits: bool
) -> None:
    segment = segment_at(tmp_path, 100)
    append(segment, batch(100))
    incoming = ValidatedRecords(memoryview(batch(0)), offset, T0, (), ())
    expected = None if fits else RollReason.OFFSET_OVERFLOW
    assert segment.roll_reason(incoming, TopicConfig(), 0, T0) is expected


def test_segment_that_is_opened_again_rolls_by_its_first_batch(tmp_path: Path) -> None:
    segment = segment_at(tmp_path)
    append(segment, batch(0, timestamp=T0 + 4), batch(1, timestamp=T0))
    segment.deactivate()
    again = segment_at(tmp_path)
    config = TopicConfig(segment_ms=1000)
    for time, reason in ((T0 + 1004, None), (T0 + 1005, RollReason.TIME)):
        incoming = ValidatedRecords(memoryview(batch(2)), 2, time, (), ())
        assert again.roll_reason(incoming, config, 0, T0) is reason
        assert again.roll_reason(incoming, config, 1, T0) is RollReason.TIME, "the jitter"


def test_offset_by_timestamp_is_searched_from_the_start_offset(tmp_path: Path) -> None:
    """A batch may hold older records behind younger ones."""
    segment = segment_at(tmp_path)
    for offset, times in ((0, (5, 9, 7)), (3, (1, 2, 3)), (6, (8, 9, 4))):
        records = [(T0 + time, None, b"v", ()) for time in times]
        append(segment, build_batch(records, base_offset=offset, partition_leader_epoch=3))

    def found(time: int, start: int) -> tuple[int, int] | None:
        at = segment.find_offset_by_timestamp(T0 + time, start)
        return None if at is None else (at.timestamp_ms - T0, at.offset)

    assert found(7, 0) == (9, 1)
    assert found(7, 2) == (7, 2)
    assert found(8, 2) == (8, 6)
    assert found(9, 2) == (9, 7)
    assert found(9, 8) is None
    assert found(4, 8) == (4, 8)
    assert found(3, 3) == (3, 5)


def test_segment_without_timestamps_has_no_largest_one(tmp_path: Path) -> None:
    segment = segment_at(tmp_path)
    append(segment, batch(0, timestamp=-1))
    assert segment.find_offset_of_largest_timestamp() is None
    append(segment, batch(1, timestamp=0))
    assert segment.find_offset_of_largest_timestamp() == (0, 1, 3)
    assert segment.largest_timestamp_ms == 0
