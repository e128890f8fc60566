"""RemoteLogReader on real segments of a real log."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from isotherm.errors import (
    CorruptObjectError,
    OffsetOutOfRangeError,
    RemoteHoleError,
    RemoteStorageError,
    RemoteStorageNotReadyError,
)
from isotherm.log.log_read import FetchIsolation
from isotherm.record.batch import CompressionType, build_batch, iterate_batches, read_batch_header
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.record.validation import AppendOrigin
from isotherm.remote.indexes.index_cache_entry import RemoteIndexEntry
from isotherm.remote.reading import remote_log_reader
from isotherm.remote.reading.read_ahead import ReadAhead, ReadAheadSettings
from isotherm.remote.reading.remote_log_reader import RemoteLogReader
from isotherm.remote.reading.tier_border import SEARCHES_MAX
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.segment.transaction_index import AbortedTransaction
from isotherm.types import uuid_to_text
from tests.support.faulty_store import Fault, Operation
from tests.support.tiered_partition import InlineExecutor, TieredPartition, records_of


def value(number: int) -> bytes:
    return b"record-%03d" % number


@pytest.fixture
def cold(tiered: TieredPartition) -> TieredPartition:
    """Offsets 0 to 29, one per batch. All but the last few are only in the remote tier."""
    for number in range(30):
        tiered.append(value(number))
    tiered.copy_task.run()
    tiered.delete_local_segments()
    assert tiered.log.local_log_start_offset > 20
    return tiered


def test_read_returns_batches_from_the_one_that_holds_the_offset(cold: TieredPartition) -> None:
    for offset in range(cold.log.local_log_start_offset):
        (record,) = records_of(cold.read_bytes(offset, 1))
        assert (record.offset, record.value) == (offset, value(offset))


def test_read_goes_on_into_the_next_segments_while_there_is_room(cold: TieredPartition) -> None:
    end = cold.log.local_log_start_offset
    assert cold.read_values(3) == [value(number) for number in range(3, end)]
    assert len(cold.segments()) > 4


def test_read_keeps_within_max_bytes_by_whole_batches(cold: TieredPartition) -> None:
    batch_size = len(cold.read_bytes(0, 1))
    for max_bytes in (batch_size, batch_size + 1, 3 * batch_size - 1, 7 * batch_size):
        data = cold.read_bytes(2, max_bytes)
        assert len(data) == max_bytes // batch_size * batch_size
        assert records_of(data)[0].offset == 2


def test_read_of_first_batch_larger_than_max_bytes_depends_on_min_one_message(
    cold: TieredPartition,
) -> None:
    """As in Kafka: a batch of 11 bytes with at most 10."""
    assert len(records_of(cold.read_bytes(5, 10, min_one_message=True))) == 1
    assert len(cold.read_bytes(5, 10, min_one_message=False)) == 0


def test_read_in_the_middle_of_a_batch_returns_the_whole_batch(tiered: TieredPartition) -> None:
    for number in range(0, 30, 3):
        tiered.append(*(value(number + each) for each in range(3)))
    tiered.copy_task.run()
    tiered.delete_local_segments()
    read = tiered.read(4, 1)
    records = b"".join(read.records)
    assert [record.offset for record in records_of(memoryview(records))] == [3, 4, 5]
    assert read_batch_header(records).base_offset == 3


def test_read_reports_where_the_first_batch_lies(cold: TieredPartition) -> None:
    segment = cold.segments()[1]
    batch_size = len(cold.read_bytes(0, 1))
    read = cold.read(segment.start_offset + 2, 1)
    assert read.start_offset_segment_base == segment.start_offset
    assert read.position == 2 * batch_size
    assert read.log_start_offset == 0
    assert read.high_watermark == read.last_stable_offset == 30


@pytest.mark.parametrize("compression", [CompressionType.GZIP, CompressionType.ZSTD])
def test_read_of_compressed_batches_returns_them_as_they_are(
    tiered: TieredPartition, compression: CompressionType
) -> None:
    for number in range(30):
        tiered.append(value(number), compression=compression)
    tiered.copy_task.run()
    tiered.delete_local_segments()
    data = tiered.read_bytes(0)
    assert {header.compression_type for _, header in iterate_batches(data)} == {compression}
    assert tiered.read_values(0)[:3] == [value(0), value(1), value(2)]


def test_read_of_offset_that_no_segment_holds_is_out_of_range(cold: TieredPartition) -> None:
    for offset in (-1, 29, 1000):
        with pytest.raises(OffsetOutOfRangeError, match=f"offset={offset}"):
            cold.read(offset)


def test_sequential_reads_go_on_without_index_and_with_few_gets(tmp_path: Path) -> None:
    tiered = TieredPartition(
        tmp_path / "p", internal_segment_bytes=20_000, read_ahead=ReadAheadSettings(1 << 20)
    )
    for number in range(600):
        tiered.append(value(number))
    tiered.copy_task.run()
    tiered.delete_local_segments()
    offset = 0
    while offset < tiered.log.local_log_start_offset:
        offset = records_of(tiered.read_bytes(offset, 300))[-1].offset + 1
    calls = [call.operation for call in tiered.store.trace]
    assert calls.count(Operation.FETCH_INDEX) == 0
    assert calls.count(Operation.FETCH_LOG) == len(tiered.segments())


def test_batches_that_lie_in_two_ranges_are_read_wherever_the_ranges_part(tmp_path: Path) -> None:
    tiered = TieredPartition(tmp_path / "p", internal_segment_bytes=2000)
    for number in range(30):
        tiered.append(value(number))
    tiered.copy_task.run()
    tiered.delete_local_segments()
    batch_size = len(tiered.read_bytes(0, 1))
    end = tiered.log.local_log_start_offset
    for size in range(batch_size, 2 * batch_size, 7):
        settings = ReadAheadSettings(1 << 20, range_size_min=size, range_size_max=size)
        ahead = ReadAhead(tiered.store, settings, InlineExecutor(), tiered.clock)
        tiered.reader = RemoteLogReader(tiered.metadata, tiered.index_cache, ahead)
        offset = 0
        while offset < end:
            records = records_of(tiered.read_bytes(offset, 5 * batch_size))
            assert [(record.offset, record.value) for record in records] == [
                (number, value(number)) for number in range(offset, offset + len(records))
            ]
            offset += len(records)


def test_sequential_reader_near_a_segments_end_gets_the_next_segment_before_it_asks(
    cold: TieredPartition,
) -> None:
    first, second, third, fourth = cold.segments()[:4]

    def fetched() -> list[object]:
        return [
            call.segment_id for call in cold.store.trace if call.operation is Operation.FETCH_LOG
        ]

    cold.read(0, 1)
    assert fetched() == [first.segment_id]
    cold.read(1, 1)
    assert fetched() == [first.segment_id, second.segment_id, third.segment_id]
    cold.read(2, 1)
    assert fourth.segment_id not in fetched()


def test_damaged_batch_is_named_with_object_partition_and_offsets(cold: TieredPartition) -> None:
    segment = cold.segments()[1]
    (path,) = cold.bucket.rglob(f"{segment.start_offset:020}*.log")
    cold.damage_declared = "the object is written over"
    good = path.read_bytes()
    path.write_bytes(good[:70] + bytes([good[70] ^ 1]) + good[71:])
    with pytest.raises(CorruptObjectError) as raised:
        cold.read(segment.start_offset, 1 << 20)
    for named in (
        f"object={segment.segment_id}.log",
        "topic=flights",
        "partition=0",
        f"start_offset={segment.start_offset}",
        f"end_offset={segment.end_offset_inclusive}",
    ):
        assert named in str(raised.value)
    path.write_bytes(good)
    assert cold.read_values(segment.start_offset)[0] == value(segment.start_offset)


def test_every_flipped_bit_of_a_segment_is_found(cold: TieredPartition) -> None:
    segment = cold.segments()[0]
    (path,) = cold.bucket.rglob(f"{segment.start_offset:020}*.log")
    cold.damage_declared = "the object is written over"
    good = path.read_bytes()
    batch_size = len(cold.read_bytes(0, 1))
    for position in range(batch_size):
        bad = bytearray(good)
        bad[position] ^= 0x40
        path.write_bytes(bad)
        cold.read_ahead.forget(segment.segment_id)
        with pytest.raises(CorruptObjectError):
            cold.read(0, 10_000)


def test_base_offset_that_goes_back_is_found_where_a_reader_goes_on(cold: TieredPartition) -> None:
    """The base offset is outside the CRC. A reader that trusted it would skip the batch."""
    segment = cold.segments()[0]
    (path,) = cold.bucket.rglob(f"{segment.start_offset:020}*.log")
    cold.damage_declared = "the object is written over"
    batch_size = len(cold.read_bytes(0, 1))
    bad = bytearray(path.read_bytes())
    bad[batch_size : batch_size + 8] = (0).to_bytes(8, "big")
    path.write_bytes(bad)
    cold.read_ahead.forget(segment.segment_id)
    cold.read(0, 1)
    with pytest.raises(CorruptObjectError, match="offsets go back"):
        cold.read(1, 1)


@pytest.mark.parametrize("change", ["garbage", "version", "another"])
def test_index_is_done_without_if_its_manifest_cannot_be_believed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    """An index is a hint: the log is read from its start. A manifest of another segment tells
    positions in other objects."""
    cold = TieredPartition(tmp_path, index_interval_bytes=1)
    for number in range(30):
        cold.append(value(number))
    cold.copy_task.run()
    cold.delete_local_segments()
    cold.damage_declared = "manifest"
    first, second, *_ = sorted(tmp_path.rglob("*.rsm-manifest"))
    content = {
        "garbage": b"{",
        "version": first.read_bytes().replace(b'"version":"1"', b'"version":"2"'),
        "another": second.read_bytes(),
    }
    first.write_bytes(content[change])
    cold.restart()
    for offset in range(1, int(second.name[:20])):
        (record, *_) = records_of(cold.read_bytes(offset, 1))
        assert (record.offset, record.value) == (offset, value(offset))
    assert "index cannot be used, segment is read from its start" in caplog.text


def test_missing_object_is_damage_while_the_metadata_promises_it(cold: TieredPartition) -> None:
    cold.store.fail_always(Operation.FETCH_LOG, Fault.MISSING)
    with pytest.raises(CorruptObjectError, match="flights"):
        cold.read(3)


def test_segment_deleted_while_it_is_read_is_out_of_range(cold: TieredPartition) -> None:
    segment = cold.segments()[0]
    find = cold.metadata.remote_log_segment_metadata

    def find_then_delete(*args: object) -> object:
        found = find(*args)  # type: ignore[arg-type]
        cold.metadata.remote_log_segment_metadata = find  # type: ignore[method-assign]
        cold.log.maybe_increment_log_start_offset(segment.end_offset_inclusive + 1)
        cold.tier.delete_segment(segment)
        return found

    cold.metadata.remote_log_segment_metadata = find_then_delete  # type: ignore
    with pytest.raises(OffsetOutOfRangeError):
        cold.read(0)


def test_reader_at_a_hole_is_reported_once_what_lies_around_it(
    cold: TieredPartition, caplog: pytest.LogCaptureFixture
) -> None:
    before, lost, after, *_ = cold.segments()
    cold.tier.delete_segment(lost)
    assert cold.read_values(0)[-1] == value(before.end_offset_inclusive), "up to the hole"
    for offset in (lost.start_offset, lost.end_offset_inclusive, lost.start_offset):
        with pytest.raises(RemoteHoleError, match=f" offset={offset} ") as raised:
            cold.read(offset)
    assert f"before={before.segment_id.id}:0-{before.end_offset_inclusive} " in str(raised.value)
    assert f"after={after.segment_id.id}:{after.start_offset}-" in str(raised.value)
    assert f"up to offset {after.start_offset} gives" in str(raised.value)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert cold.read_values(after.start_offset)[0] == value(after.start_offset)
    cold.log.maybe_increment_log_start_offset(after.start_offset)
    with pytest.raises(OffsetOutOfRangeError):
        cold.read(lost.start_offset)


def test_hole_before_the_local_log_names_where_that_starts(cold: TieredPartition) -> None:
    last = cold.segments()[-1]
    cold.tier.delete_segment(last)
    start = cold.log.local_log_start_offset
    with pytest.raises(RemoteHoleError, match=f"after=local:{start} "):
        cold.read(last.start_offset)


def test_store_that_is_down_is_a_retriable_error_and_recovers(cold: TieredPartition) -> None:
    cold.store.fail_always(Operation.FETCH_LOG, Fault.ERROR_BEFORE)
    with pytest.raises(RemoteStorageError):
        cold.read(0)
    cold.store.heal()
    assert cold.read_values(0)[0] == value(0)


def test_metadata_that_is_not_read_yet_is_a_retriable_error(cold: TieredPartition) -> None:
    cold.metadata.on_stop_partitions([cold.partition])
    cold.metadata.on_partition_leadership_changes([cold.partition], ())
    with pytest.raises(RemoteStorageNotReadyError):
        cold.read(0)
    cold.metadata.poll()
    assert cold.read_values(0)


def cut_last_batch(cold: TieredPartition, segment: RemoteLogSegmentMetadata) -> None:
    """Cut the segment's last batch off, and let the metadata give the new size."""
    cold.damage_declared = "the object is written over"
    batch_size = len(cold.read_bytes(segment.start_offset, 1))
    (path,) = cold.bucket.rglob(f"*{uuid_to_text(segment.segment_id.id)}.log")
    path.write_bytes(path.read_bytes()[:-batch_size])
    cut = replace(segment, segment_size_in_bytes=segment.segment_size_in_bytes - batch_size)
    tell_instead(cold, segment, cut)


def tell_instead(
    cold: TieredPartition, segment: RemoteLogSegmentMetadata, *instead: RemoteLogSegmentMetadata
) -> None:
    """Let the metadata return `instead` in the place of a segment."""
    find, list_all = (
        cold.metadata.remote_log_segment_metadata,
        cold.metadata.list_remote_log_segments,
    )
    cold.read_ahead.forget(segment.segment_id)
    cold.reader = RemoteLogReader(cold.metadata, cold.index_cache, cold.read_ahead)

    def found(*args: object) -> RemoteLogSegmentMetadata | None:
        was = find(*args)  # type: ignore[arg-type]
        return instead[0] if was is not None and was.segment_id == segment.segment_id else was

    def listed(*args: object) -> list[RemoteLogSegmentMetadata]:
        others = [each for each in list_all(*args) if each.segment_id != segment.segment_id]  # type: ignore[arg-type]
        return sorted([*others, *instead], key=lambda each: each.start_offset)

    cold.metadata.remote_log_segment_metadata = found  # type: ignore
    cold.metadata.list_remote_log_segments = listed  # type: ignore


@pytest.mark.parametrize("number", [0, 2])
def test_log_that_ends_before_what_its_indexes_name_is_damage(
    cold: TieredPartition, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    first, second = cold.segments()[number : number + 2]
    cut_last_batch(cold, first)
    last = first.end_offset_inclusive
    assert cold.read_values(0) == [value(number) for number in range(last)]
    for _ in range(2):
        with pytest.raises(CorruptObjectError, match=f"first_missing={last} last_named={last}"):
            cold.read(last)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert f"object={first.segment_id}.log" in caplog.text
    assert cold.read_values(second.start_offset)[0] == value(second.start_offset)


@pytest.mark.parametrize("number", [0, 2])
def test_offsets_at_a_segments_end_that_no_index_names_are_read_over(
    cold: TieredPartition, number: int
) -> None:
    """Compaction may leave such a segment: its end offset covers the records that are gone."""
    first, second = cold.segments()[number : number + 2]
    last = first.end_offset_inclusive
    (indexes,) = cold.bucket.rglob(f"{first.start_offset:020}*.indexes")
    entry = cold.index_cache.get(first)
    rebuilt = indexes.read_bytes()
    for index, size in ((entry.offset_index, 8), (entry.time_index, 12)):
        assert rebuilt.count(index) == 1
        kept = [index[at : at + size] for at in range(0, len(index), size)]
        named = [
            each
            for each in kept
            if int.from_bytes(each[size - 4 :] if size == 12 else each[:4])
            < last - first.start_offset
        ]
        rebuilt = rebuilt.replace(index, b"".join(named + [named[-1]] * (len(kept) - len(named))))
    indexes.write_bytes(rebuilt)
    cold.index_cache.remove([first.segment_id])
    cut_last_batch(cold, first)
    for max_bytes in (1, 1 << 20):
        read = records_of(cold.read_bytes(last, max_bytes))
        assert read[0].offset == second.start_offset
    assert cold.read_all().keys() == set(range(30)) - {last}


def test_segment_whose_end_offset_is_too_high_hides_no_other(cold: TieredPartition) -> None:
    first, _, third = cold.segments()[:3]
    tell_instead(cold, first, replace(first, end_offset_inclusive=third.end_offset_inclusive))
    assert cold.read_all() == {number: value(number) for number in range(30)}


def second_copy(
    cold: TieredPartition, segment: RemoteLogSegmentMetadata, **changes: Any
) -> RemoteLogSegmentMetadata:
    """Copy a segment's objects.

    Returns the metadata of the copy, which the manager does not know.
    """
    segment_id = RemoteLogSegmentId(cold.partition, uuid.UUID(int=5))
    copy = replace(segment, segment_id=segment_id, **changes)

    def key(metadata: RemoteLogSegmentMetadata) -> str:
        return f"{metadata.start_offset:020}-{uuid_to_text(metadata.segment_id.id)}."

    for path in [*cold.bucket.rglob(f"{key(segment)}*")]:
        path.with_name(path.name.replace(key(segment), key(copy))).write_bytes(path.read_bytes())
    return copy


def without_last_batch(
    cold: TieredPartition, segment: RemoteLogSegmentMetadata, *others: RemoteLogSegmentMetadata
) -> None:
    """Cut the segment's last batch off. The metadata name `others` as well."""
    batch_size = len(cold.read_bytes(segment.start_offset, 1))
    cut_last_batch(cold, segment)
    cut = replace(segment, segment_size_in_bytes=segment.segment_size_in_bytes - batch_size)
    tell_instead(cold, segment, cut, *others)


@pytest.mark.parametrize("number", [0, 2])
def test_offsets_that_a_segment_has_lost_are_read_from_another(
    cold: TieredPartition, number: int
) -> None:
    segment = cold.segments()[number]
    without_last_batch(cold, segment, second_copy(cold, segment))
    assert cold.read_all() == {number: value(number) for number in range(30)}


def test_segment_that_begins_with_the_lost_offset_is_read(cold: TieredPartition) -> None:
    """That it does is no gap, although the indexes of the damaged segment name the offset."""
    first = cold.segments()[0]
    last = first.end_offset_inclusive
    batch_size = len(cold.read_bytes(0, 1))
    rest = second_copy(
        cold,
        first,
        start_offset=last,
        segment_size_in_bytes=batch_size,
        segment_leader_epochs={0: last},
    )
    (path,) = cold.bucket.rglob(f"*{uuid_to_text(rest.segment_id.id)}.log")
    path.write_bytes(path.read_bytes()[-batch_size:])
    without_last_batch(cold, first, rest)
    for max_bytes in (1, 1 << 20):
        assert records_of(cold.read_bytes(last, max_bytes))[0].value == value(last)
    assert cold.read_all() == {number: value(number) for number in range(30)}


@pytest.mark.parametrize(
    "change",
    [
        lambda copy: {"state": RemoteLogSegmentState.COPY_SEGMENT_STARTED},
        lambda copy: {"state": RemoteLogSegmentState.DELETE_SEGMENT_STARTED},
        lambda copy: {"end_offset_inclusive": copy.end_offset_inclusive - 1},
        lambda copy: {"segment_leader_epochs": {1: copy.start_offset}},
        lambda copy: {"segment_leader_epochs": {0: 0, 1: copy.start_offset + 1}},
    ],
    ids=["unfinished", "being deleted", "ends before", "other leader", "divergent"],
)
def test_copy_that_does_not_hold_the_lost_offset_of_this_log_is_not_read(
    cold: TieredPartition,
    change: Callable[[RemoteLogSegmentMetadata], dict[str, Any]],
) -> None:
    segment = cold.segments()[1]
    last = segment.end_offset_inclusive
    copy = second_copy(cold, segment)
    without_last_batch(cold, segment, replace(copy, **change(copy)))
    with pytest.raises(CorruptObjectError, match=f"first_missing={last} last_named={last}"):
        cold.read(last)


def test_other_copy_is_read_up_to_the_end_that_its_metadata_give(cold: TieredPartition) -> None:
    segment = cold.segments()[1]
    last = segment.end_offset_inclusive
    copy = second_copy(cold, segment)
    batch_size = len(cold.read_bytes(0, 1))
    without_last_batch(cold, segment)
    shorter = cold.segments()[1]
    without_last_batch(cold, shorter, replace(copy, end_offset_inclusive=last - 1))
    assert shorter.segment_size_in_bytes == segment.segment_size_in_bytes - batch_size
    assert cold.read_values(last - 1) == [value(last - 1)]
    with pytest.raises(CorruptObjectError, match=f"first_missing={last} last_named={last}"):
        cold.read(last)


@pytest.mark.parametrize("copied_anew", [True, False])
def test_records_cut_off_in_this_lineage_do_not_come_back_from_the_remote_tier(
    *, copied_anew: bool, tiered: TieredPartition
) -> None:
    """The old leader copied [0, n) in epoch 0, and the election truncated epoch 0 inside a segment.
    The rest of it is copied again, or the old copy is read up to the cut."""
    for number in range(8):
        tiered.append(b"kept-%02d-...." % number)
    tiered.log.roll()
    tiered.append(b"active")
    tiered.copy_task.run()
    divergent = tiered.segments()[-1]
    cut = divergent.start_offset + 1
    assert cut < divergent.end_offset_inclusive
    tiered.log.truncate_to(cut)
    if not copied_anew:
        tiered.log.roll()
    tiered.leader_epoch = 1
    for number in range(12):
        tiered.append(b"new-%02d-....." % number)
    tiered.copy_task._copied_offset = None
    tiered.copy_task.run()
    tiered.delete_local_segments()
    for max_bytes in (1, 500, 1 << 20):
        offset = 0
        while offset <= tiered.log.highest_offset_in_remote_storage:
            read = records_of(tiered.read_bytes(offset, max_bytes))
            assert not [
                record for record in read if record.offset >= cut and b"kept" in record.value
            ]
            offset = read[-1].offset + 1
    found = tiered.read_all()
    assert [found[offset] for offset in range(cut)] == [b"kept-%02d-...." % n for n in range(cut)]
    assert found[cut] == b"new-00-....."
    assert sorted(found) == list(range(tiered.log.log_end_offset))


def transactional(producer_id: int, sequence: int, text: bytes) -> bytearray:
    return build_batch(
        [(1, None, text, ())],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=True,
    )


def end_transaction(tiered: TieredPartition, producer_id: int, how: ControlRecordType) -> None:
    marker = build_end_transaction_marker(
        how, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=1
    )
    tiered.append_batch(marker, origin=AppendOrigin.COORDINATOR)


def fill_transactions(tiered: TieredPartition) -> None:
    """Producer 7 opens a transaction at offset 0 and aborts it many segments later, 8 commits, 9
    aborts at once."""
    tiered.append_batch(transactional(7, 0, b"aborted much later"))
    tiered.append_batch(transactional(9, 0, b"aborted at once"))
    end_transaction(tiered, 9, ControlRecordType.ABORT)
    tiered.append_batch(transactional(8, 0, b"committed"))
    end_transaction(tiered, 8, ControlRecordType.COMMIT)
    for number in range(20):
        tiered.append(value(number))
    end_transaction(tiered, 7, ControlRecordType.ABORT)


def aborted(tiered: TieredPartition, offset: int, max_bytes: int) -> list[tuple[int, int]] | None:
    read = tiered.read(offset, max_bytes, isolation=FetchIsolation.TXN_COMMITTED)
    if read.aborted_transactions is None:
        return None
    return [
        (transaction.producer_id, transaction.first_offset)
        for transaction in read.aborted_transactions
    ]


def test_aborted_transactions_are_found_in_later_segments(tiered: TieredPartition) -> None:
    fill_transactions(tiered)
    for number in range(12):
        tiered.append(value(number))
    tiered.copy_task.run()
    tiered.delete_local_segments()
    marker_segment = [segment for segment in tiered.segments() if not segment.txn_index_empty][-1]
    assert marker_segment.start_offset > 10
    assert aborted(tiered, 0, 1) == [(7, 0)]
    assert aborted(tiered, 1, 1) == [(7, 0), (9, 1)]
    assert aborted(tiered, 6, 1) == [(7, 0)]
    assert aborted(tiered, 0, 1 << 20) == [(7, 0), (9, 1)]
    assert aborted(tiered, marker_segment.end_offset_inclusive + 1, 1) == []


def test_aborted_transaction_whose_marker_is_still_local_is_found(tiered: TieredPartition) -> None:
    tiered.append_batch(transactional(9, 0, b"aborted at once"))
    end_transaction(tiered, 9, ControlRecordType.ABORT)
    for number in range(6):
        tiered.append(value(number))
    tiered.append_batch(transactional(7, 0, b"aborted later"))
    for number in range(6):
        tiered.append(value(number))
    # Only segments below the last stable offset are copied.
    tiered.copy_task.run()
    tiered.delete_local_segments()
    end_transaction(tiered, 7, ControlRecordType.ABORT)
    segment = tiered.segments()[-1]
    assert segment.end_offset_inclusive < 8
    assert aborted(tiered, 0, 1 << 20) == [(9, 0)]


def test_markers_are_looked_for_where_there_are_some(
    tiered: TieredPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[int] = []

    def look(records: Sequence[memoryview], aborted: object) -> None:
        looked_at.append(read_batch_header(records[0]).base_offset)

    monkeypatch.setattr(remote_log_reader, "contradicted_transaction", look)
    for number in range(12):
        tiered.append(value(number))
    end_transaction(tiered, 8, ControlRecordType.COMMIT)
    for number in range(12):
        tiered.append(value(number))
    tiered.copy_task.run()
    tiered.delete_local_segments()
    assert aborted(tiered, 0, 1) == []
    assert looked_at == []
    assert aborted(tiered, 12, 1) == []
    assert looked_at == [12]


@pytest.mark.parametrize("change", ["lost", "other producer", "begins later", "other end"])
def test_marker_that_the_transaction_index_contradicts_is_an_error(
    tiered: TieredPartition, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    fill_transactions(tiered)
    tiered.copy_task.run()
    tiered.delete_local_segments()
    right = RemoteIndexEntry.transaction_index.fget  # type: ignore[attr-defined]

    def damaged(entry: RemoteIndexEntry) -> list[AbortedTransaction]:
        changed = []
        for each in right(entry):
            if each.producer_id != 9 or change == "other producer":
                changed.append(each._replace(producer_id=each.producer_id ^ 16))
            elif change == "begins later":
                changed.append(each._replace(first_offset=each.last_offset))
            elif change == "other end":
                changed.append(each._replace(last_offset=each.last_offset + 8))
        return changed

    monkeypatch.setattr(RemoteIndexEntry, "transaction_index", property(damaged))
    for _ in range(2):
        with pytest.raises(
            CorruptObjectError, match="producer_id=9 first_offset=1 marker_offset=2"
        ):
            aborted(tiered, 0, 1 << 20)
    assert tiered.read(0).aborted_transactions is None, "only read_committed goes by it"
    monkeypatch.undo()
    assert (9, 1) in (aborted(tiered, 0, 1 << 20) or [])


def test_markers_of_empty_and_of_earlier_transactions_prove_nothing(
    tiered: TieredPartition,
) -> None:
    tiered.append_batch(transactional(7, 0, b"committed"))
    end_transaction(tiered, 7, ControlRecordType.COMMIT)
    end_transaction(tiered, 7, ControlRecordType.ABORT)
    tiered.append_batch(transactional(9, 0, b"committed"))
    end_transaction(tiered, 8, ControlRecordType.ABORT)
    end_transaction(tiered, 9, ControlRecordType.COMMIT)
    for number in range(6):
        tiered.append(value(number))
    tiered.copy_task.run()
    tiered.delete_local_segments()
    assert aborted(tiered, 0, 1 << 20) == []


def test_segments_without_aborted_transactions_are_not_asked_for_their_index(
    tiered: TieredPartition,
) -> None:
    fill_transactions(tiered)
    for number in range(12):
        tiered.append(value(number))
    tiered.copy_task.run()
    tiered.delete_local_segments()
    aborted(tiered, 0, 1)
    asked = {
        call.segment_id for call in tiered.store.trace if call.operation is Operation.FETCH_INDEX
    }
    assert asked == {
        segment.segment_id for segment in tiered.segments() if not segment.txn_index_empty
    }


def test_read_uncommitted_has_no_aborted_transactions(tiered: TieredPartition) -> None:
    fill_transactions(tiered)
    tiered.copy_task.run()
    tiered.delete_local_segments()
    assert tiered.read(0).aborted_transactions is None


def test_unfinished_copy_is_not_read(tiered: TieredPartition) -> None:
    for number in range(6):
        tiered.append(value(number))
    tiered.copy_task.run()
    first = tiered.segments()[0]
    tiered.tier.publish(
        RemoteLogSegmentMetadataUpdate(
            segment_id=first.segment_id,
            event_timestamp_ms=0,
            state=RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
            broker_id=0,
        )
    )
    with pytest.raises(OffsetOutOfRangeError):
        tiered.read(0)


def test_marker_that_goes_to_the_remote_tier_during_a_read_is_found(
    tiered: TieredPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copy and local retention come between the search of the remote tier and that of the local
    log. Without the marker's entry a consumer would take the aborted record for committed."""
    tiered.append_batch(transactional(7, 0, b"aborted"))
    for number in range(8):
        tiered.append(value(number))
    end_transaction(tiered, 7, ControlRecordType.ABORT)
    for number in range(8):
        tiered.append(value(number))
    tiered.store.fail_next(Operation.COPY, None, Fault.ERROR_BEFORE)
    with pytest.raises(RemoteStorageError):
        tiered.copy_task.run()
    tiered.delete_local_segments()
    border = tiered.log.local_log_start_offset
    assert 0 < border < 9
    find = tiered.metadata.next_segment_with_txn_index

    def find_then_copy(*args: object) -> object:
        found = find(*args)  # type: ignore[arg-type]
        if found is None and tiered.log.local_log_start_offset == border:
            tiered.copy_task.run()
            tiered.delete_local_segments()
            tiered.log.delete_marked_files(tiered.clock.now_ms())
        return found

    monkeypatch.setattr(tiered.metadata, "next_segment_with_txn_index", find_then_copy)
    assert aborted(tiered, 0, 1) == [(7, 0)]
    assert tiered.log.local_log_start_offset > 9


def test_read_whose_border_of_the_tiers_never_rests_is_to_be_tried_again(
    tiered: TieredPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_transactions(tiered)
    for number in range(12):
        tiered.append(value(number))
    tiered.copy_task.run()
    tiered.delete_local_segments()
    offset = tiered.log.local_log_start_offset - 1
    searched: list[int] = []

    def move(*_: object) -> list[AbortedTransaction]:
        searched.append(len(tiered.log.segments()))
        tiered.append(b"more")
        tiered.log.roll()
        tiered.copy_task.run()
        tiered.delete_local_segments()
        return []

    monkeypatch.setattr(remote_log_reader, "aborted_transactions", move)
    with pytest.raises(RemoteStorageError, match="went to the remote tier during a read"):
        aborted(tiered, offset, 1)
    assert len(searched) == SEARCHES_MAX


def test_records_before_damage_are_returned(cold: TieredPartition) -> None:
    """A consumer gets all that is right before the error."""
    first, second, *_ = cold.segments()
    batch_size = len(cold.read_bytes(0, 1))
    for segment, damaged in ((first, 2), (second, second.start_offset)):
        (path,) = cold.bucket.rglob(f"{segment.start_offset:020}*.log")
        cold.damage_declared = "the object is written over"
        good = path.read_bytes()
        bad = bytearray(good)
        bad[(damaged - segment.start_offset) * batch_size + 70] ^= 1
        path.write_bytes(bad)
        cold.read_ahead.forget(segment.segment_id)
        assert cold.read_values(0) == [value(number) for number in range(damaged)]
        for _ in range(2):
            with pytest.raises(CorruptObjectError, match=f"object={segment.segment_id}.log"):
                cold.read(damaged)
        path.write_bytes(good)
        assert cold.read_values(0)[-1] == value(cold.log.local_log_start_offset - 1)


def test_records_before_a_segment_that_is_lost_are_returned(cold: TieredPartition) -> None:
    second = cold.segments()[1]
    (path,) = cold.bucket.rglob(f"{second.start_offset:020}*.log")
    cold.damage_declared = "the object is gone"
    path.unlink()
    assert cold.read_values(0) == [value(number) for number in range(second.start_offset)]
    with pytest.raises(CorruptObjectError, match=f"object={second.segment_id}.log"):
        cold.read(second.start_offset)


def test_forgotten_stop_costs_an_index_look_up(
    cold: TieredPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_log_reader, "_REMEMBERED_STOPS_MAX", 2)
    asked: list[uuid.UUID] = []
    get = cold.index_cache.get

    def counted(metadata: RemoteLogSegmentMetadata) -> RemoteIndexEntry:
        asked.append(metadata.segment_id.id)
        return get(metadata)

    monkeypatch.setattr(cold.index_cache, "get", counted)
    segment = cold.segments()[0]
    assert segment.end_offset_inclusive >= 2

    def read_on(*offsets: int) -> int:
        """The number of index look-ups of these reads, of one batch each."""
        asked.clear()
        for offset in offsets:
            (record,) = records_of(cold.read_bytes(offset, 1))
            assert record.offset == offset
        return len(asked)

    assert read_on(0, 1, 2) == 0
    # The reads that ended at 2 and 3 are remembered, that at 1 is not.
    assert read_on(2) == 0
    assert read_on(1) == 1
    assert read_on(2) == 0


def test_segment_that_is_replaced_during_a_read_is_looked_up_again(
    cold: TieredPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction in place: the metadata name another segment by now, and the old objects are
    gone.
    """
    first = cold.segments()[0]
    compacted = replace(first, segment_id=RemoteLogSegmentId(cold.partition, uuid.UUID(int=5)))
    for path in [*cold.bucket.rglob(f"*{uuid_to_text(first.segment_id.id)}.*")]:
        name = path.name.replace(
            uuid_to_text(first.segment_id.id), uuid_to_text(compacted.segment_id.id)
        )
        path.rename(path.with_name(name))
    cold.damage_declared = "the objects have another name"
    find = cold.metadata.remote_log_segment_metadata
    answers = iter([first])

    def found(*args: object) -> RemoteLogSegmentMetadata | None:
        now = find(*args)  # type: ignore[arg-type]
        if now is None or now.segment_id != first.segment_id:
            return now
        return next(answers, compacted)

    monkeypatch.setattr(cold.metadata, "remote_log_segment_metadata", found)
    assert cold.read_values(0)[0] == value(0)
    answers = iter([first, compacted, first, compacted])
    cold.read_ahead.forget(compacted.segment_id)
    with pytest.raises(RemoteStorageError, match="was replaced while it was read"):
        cold.read(0)


def test_every_read_names_the_aborted_transactions_that_overlap_it(
    tiered: TieredPartition,
) -> None:
    """Three producers over three leader epochs. The model keeps the open transactions."""
    begun: dict[int, int] = {}
    sequences = dict.fromkeys((7, 8, 9), 0)
    expected: list[tuple[int, int, int]] = []

    def end(producer: int, how: ControlRecordType) -> None:
        end_transaction(tiered, producer, how)
        first = begun.pop(producer)
        if how is ControlRecordType.ABORT:
            expected.append((first, tiered.log.log_end_offset - 1, producer))

    for number in range(50):
        tiered.leader_epoch = number // 18
        producer = 7 + number % 3
        if number % 5 == 4 and producer in begun:
            end(producer, ControlRecordType(number % 2))
        else:
            offset = tiered.append_batch(transactional(producer, sequences[producer], b"v"))
            sequences[producer] += 1
            begun.setdefault(producer, offset)
    for producer in list(begun):
        end(producer, ControlRecordType.ABORT)
    for number in range(12):
        tiered.append(value(number))
    tiered.copy_task.run()
    tiered.delete_local_segments()
    end_offset = tiered.log.local_log_start_offset
    assert len(expected) > 4
    assert len(tiered.log.leader_epochs.entries) == 3
    for offset in range(end_offset):
        assert aborted(tiered, offset, 1) == [
            (producer, first)
            for first, last, producer in sorted(expected)
            if first <= offset <= last
        ]
    for offset in (0, 10, 30):
        assert aborted(tiered, offset, 1 << 20) == [
            (producer, first) for first, last, producer in sorted(expected) if last >= offset
        ]
