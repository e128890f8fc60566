"""Reading ranges of segments: every record once, few extra bytes, and errors that name the
place."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from isotherm.errors import CorruptObjectError
from isotherm.record.batch import CompressionType, NewRecord, build_batch, iterate_batches
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.remote.segment_metadata import IndexType, RemoteLogSegmentMetadata
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.segment.offset_index import OffsetPosition, encode_offset_index
from isotherm.spark.plan.planning import ReadTask, SegmentPiece, SegmentRead
from isotherm.spark.reading.readers import (
    ReadSettings,
    locate,
    read_segments,
)
from isotherm.spark.reading.task_reading import WhenMissing, read_task
from isotherm.spark.reading.time_lookup import first_offset_not_before
from isotherm.spark.row_schema import arrow_schema, full_schema, schema_of
from isotherm.types import TopicIdPartition
from tests.support.record_segments import RecordSegmentMaker

ALL_COLUMNS = frozenset({"key", "value"})
SMALL = ReadSettings(fetch_bytes=4096, fetch_ahead=2, batch_bytes=4096)
Records = Callable[..., list[NewRecord]]


def batches_of(
    records: list[NewRecord], per_batch: int, codec: CompressionType = CompressionType.NONE
) -> list[bytearray]:
    return [
        build_batch(records[start : start + per_batch], base_offset=start, compression=codec)
        for start in range(0, len(records), per_batch)
    ]


@pytest.fixture
def segment(
    maker: RecordSegmentMaker, owner: TopicIdPartition, records: Records
) -> RemoteLogSegmentMetadata:
    """2000 records in 200 batches, with an index entry every 4 KiB."""
    return maker.tier(owner, batches_of(records(2000, value_size=100), 10))


def whole(segment: RemoteLogSegmentMetadata) -> SegmentRead:
    return SegmentRead(segment, segment.start_offset, segment.end_offset_inclusive + 1)


def offsets_of(
    reads: list[SegmentRead],
    storage: ObjectStoreRemoteStorageManager,
    settings: ReadSettings = SMALL,
) -> list[int]:
    decoded = read_segments(reads, storage, ALL_COLUMNS, settings=settings)
    return [offset for _, columns in decoded for offset in columns.offset.tolist()]


def test_whole_segment_is_read_across_small_ranges(
    storage: ObjectStoreRemoteStorageManager, segment: RemoteLogSegmentMetadata
) -> None:
    assert offsets_of([whole(segment)], storage) == list(range(2000))


@pytest.mark.slow
@pytest.mark.parametrize("parts", [2, 3, 7, 500])
def test_parts_of_a_segment_together_hold_every_record_once(
    storage: ObjectStoreRemoteStorageManager, segment: RemoteLogSegmentMetadata, parts: int
) -> None:
    by_part = [offsets_of([part], storage) for part in whole(segment).split(parts)]
    assert [offset for part in by_part for offset in part] == list(range(2000))
    if parts < 10:
        assert min(map(len, by_part)) > 2000 / parts * 0.6


@pytest.mark.parametrize(
    ("start", "end"), [(0, 1), (5, 6), (9, 11), (777, 1333), (1990, 2000), (37, 38), (1999, 2000)]
)
def test_offset_range_reads_its_records_and_few_bytes_more(
    storage: ObjectStoreRemoteStorageManager,
    segment: RemoteLogSegmentMetadata,
    start: int,
    end: int,
) -> None:
    read = SegmentRead(segment, start, end)
    assert offsets_of([read], storage) == list(range(start, end))
    positions = locate(read, storage)
    record_size = segment.segment_size_in_bytes / 2000
    assert positions.end - positions.start < (end - start) * record_size + 4 * 4096


def test_offset_range_may_end_anywhere_in_an_indexed_batch(
    storage: ObjectStoreRemoteStorageManager, segment: RemoteLogSegmentMetadata
) -> None:
    for end in range(700, 770):
        assert offsets_of([SegmentRead(segment, 690, end)], storage) == list(range(690, end))


def test_offset_range_in_parts_is_read_once(
    storage: ObjectStoreRemoteStorageManager, segment: RemoteLogSegmentMetadata
) -> None:
    parts = SegmentRead(segment, 777, 1333).split(4)
    assert [o for part in parts for o in offsets_of([part], storage)] == list(range(777, 1333))


@pytest.mark.parametrize("codec", list(CompressionType))
def test_batch_larger_than_a_range_is_put_together(
    maker: RecordSegmentMaker,
    storage: ObjectStoreRemoteStorageManager,
    owner: TopicIdPartition,
    records: Records,
    codec: CompressionType,
) -> None:
    segment = maker.tier(owner, batches_of(records(900, value_size=300), 300, codec))
    assert offsets_of([whole(segment)], storage) == list(range(900))


def test_rows_have_the_schema_of_the_kafka_source(
    storage: ObjectStoreRemoteStorageManager, segment: RemoteLogSegmentMetadata, records: Records
) -> None:
    schema = arrow_schema(full_schema(include_headers=True))
    batches = list(read_rows(ReadTask((whole(segment),)), storage, schema))
    assert all(batch.schema.equals(schema, check_metadata=True) for batch in batches)
    table = pa.Table.from_batches(batches)
    expected = records(2000, value_size=100)
    assert table["key"].to_pylist() == [record.key for record in expected]
    assert table["value"].to_pylist() == [record.value for record in expected]
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [
        record.timestamp_ms * 1000 for record in expected
    ]
    assert set(table["topic"].to_pylist()) == {"a"}
    assert set(table["partition"].to_pylist()) == {0}
    assert set(table["timestampType"].to_pylist()) == {0}
    assert table["headers"].to_pylist() == [
        [{"key": name, "value": value} for name, value in record.headers] or None
        for record in expected
    ]


def read_rows(
    task: ReadTask,
    storage: ObjectStoreRemoteStorageManager,
    schema: pa.Schema,
    *,
    fail_on_data_loss: bool = True,
):
    return read_task(
        task,
        storage,
        schema,
        settings=SMALL,
        read_tail=lambda read: pytest.fail(f"the tail is not wanted {read}"),
        when_missing=WhenMissing(read_again=lambda read: None, fail_on_data_loss=fail_on_data_loss),
    )


def test_rows_of_chosen_columns_hold_only_these(
    storage: ObjectStoreRemoteStorageManager, segment: RemoteLogSegmentMetadata
) -> None:
    schema = arrow_schema(schema_of(["offset", "topic"]))
    table = pa.Table.from_batches(list(read_rows(ReadTask((whole(segment),)), storage, schema)))
    assert table.schema.equals(schema)
    assert table["offset"].to_pylist() == list(range(2000))


def log_path(storage_settings: ObjectStoreSettings, segment: RemoteLogSegmentMetadata) -> Path:
    folder = Path(storage_settings.url.removeprefix("file://"))
    return folder / storage_settings.create_layout().log_key(segment)


PLACE = r"topic=a partition=0 start_offset=0 end_offset=2000"


def test_missing_object_names_the_place_and_the_offsets(
    storage: ObjectStoreRemoteStorageManager,
    storage_settings: ObjectStoreSettings,
    segment: RemoteLogSegmentMetadata,
) -> None:
    path = log_path(storage_settings, segment)
    path.unlink()
    with pytest.raises(CorruptObjectError, match=rf"{PLACE}.*{path.name}"):
        offsets_of([whole(segment)], storage)


def test_short_object_is_an_error(
    storage: ObjectStoreRemoteStorageManager,
    storage_settings: ObjectStoreSettings,
    segment: RemoteLogSegmentMetadata,
) -> None:
    path = log_path(storage_settings, segment)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptObjectError, match=PLACE):
        offsets_of([whole(segment)], storage)


@pytest.mark.parametrize("position", [0, 8, 16, 23, 59, 80, 5000, 100_000])
def test_damaged_byte_is_an_error(
    storage: ObjectStoreRemoteStorageManager,
    storage_settings: ObjectStoreSettings,
    segment: RemoteLogSegmentMetadata,
    position: int,
) -> None:
    path = log_path(storage_settings, segment)
    content = bytearray(path.read_bytes())
    content[position] ^= 0x5A
    path.write_bytes(content)
    with pytest.raises(CorruptObjectError, match=PLACE):
        offsets_of([whole(segment)], storage)


@pytest.mark.parametrize("batch", [0, 1, 57, 199])
@pytest.mark.parametrize("shift", [-1, 1, 5000])
def test_damaged_offset_of_a_batch_is_an_error(
    maker: RecordSegmentMaker,
    storage: ObjectStoreRemoteStorageManager,
    storage_settings: ObjectStoreSettings,
    segment: RemoteLogSegmentMetadata,
    batch: int,
    shift: int,
) -> None:
    path = log_path(storage_settings, segment)
    content = bytearray(path.read_bytes())
    batches = list(iterate_batches(content))
    position, header = batches[batch]
    content[position : position + 8] = (header.base_offset + shift).to_bytes(8, "big", signed=True)
    path.write_bytes(content)
    with pytest.raises(CorruptObjectError, match=PLACE):
        offsets_of([whole(segment)], storage)


def test_object_of_another_segment_is_an_error(
    maker: RecordSegmentMaker,
    storage: ObjectStoreRemoteStorageManager,
    storage_settings: ObjectStoreSettings,
    owner: TopicIdPartition,
) -> None:
    batches = batches_of([NewRecord(1, None, b"v")] * 20, 10)
    first, second = maker.tier(owner, batches[:1]), maker.tier(owner, batches[1:])
    assert first.segment_size_in_bytes == second.segment_size_in_bytes
    log_path(storage_settings, first).write_bytes(log_path(storage_settings, second).read_bytes())
    with pytest.raises(CorruptObjectError, match="other offsets than its segment base_offset=10"):
        offsets_of([whole(first)], storage)


def test_object_that_ends_inside_a_batch_is_an_error(
    maker: RecordSegmentMaker,
    storage: ObjectStoreRemoteStorageManager,
    storage_settings: ObjectStoreSettings,
    segment: RemoteLogSegmentMetadata,
) -> None:
    path = log_path(storage_settings, segment)
    path.write_bytes(path.read_bytes()[:-7])
    torn = replace(segment, segment_size_in_bytes=segment.segment_size_in_bytes - 7)
    with pytest.raises(CorruptObjectError, match="end inside a record batch"):
        offsets_of([whole(torn)], storage)


def test_damaged_index_is_read_without(
    storage: ObjectStoreRemoteStorageManager,
    segment: RemoteLogSegmentMetadata,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(storage, "fetch_index", lambda metadata, kind: b"\x00\x01\x02")
    assert offsets_of([SegmentRead(segment, 777, 783)], storage) == list(range(777, 783))
    assert "not a whole number of entries" in caplog.text


def test_read_without_a_usable_index_fetches_nothing_beyond_its_last_batch(
    storage: ObjectStoreRemoteStorageManager,
    segment: RemoteLogSegmentMetadata,
    records: Records,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The index leads into a batch, so the segment is read from its start, block by block."""
    amid = 70_001
    index = encode_offset_index([OffsetPosition(600, amid)], 0)
    monkeypatch.setattr(storage, "fetch_index", lambda metadata, kind: index)
    fetched: list[int] = []
    original = storage.fetch_log_segment

    def counting(metadata, start: int, end: int | None = None) -> memoryview:
        fetched.append(start)
        return original(metadata, start, end)

    monkeypatch.setattr(storage, "fetch_log_segment", counting)
    assert offsets_of([SegmentRead(segment, 700, 720)], storage) == list(range(700, 720))
    last_end = sum(map(len, batches_of(records(2000, value_size=100), 10)[:72]))
    from_start = [each for each in fetched if (each - amid) % SMALL.fetch_bytes]
    assert from_start == list(range(0, last_end, SMALL.fetch_bytes))


def test_without_fail_on_data_loss_only_the_damaged_segment_is_left_out(
    maker: RecordSegmentMaker,
    storage: ObjectStoreRemoteStorageManager,
    storage_settings: ObjectStoreSettings,
    owner: TopicIdPartition,
    records: Records,
    caplog: pytest.LogCaptureFixture,
) -> None:
    batches = batches_of(records(300), 10)
    segments = [maker.tier(owner, batches[start : start + 10]) for start in (0, 10, 20)]
    log_path(storage_settings, segments[1]).unlink()
    task = ReadTask(tuple(whole(segment) for segment in segments))
    schema = arrow_schema(schema_of(["offset"]))
    rows = pa.Table.from_batches(list(read_rows(task, storage, schema, fail_on_data_loss=False)))
    assert rows["offset"].to_pylist() == [*range(100), *range(200, 300)]
    assert "start_offset=100 end_offset=200" in caplog.text


def test_closed_reader_stops_fetching(
    storage: ObjectStoreRemoteStorageManager,
    segment: RemoteLogSegmentMetadata,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetched: list[int] = []
    original = storage.fetch_log_segment

    def counting(metadata, start: int, end: int | None = None) -> memoryview:
        fetched.append(start)
        return original(metadata, start, end)

    monkeypatch.setattr(storage, "fetch_log_segment", counting)
    before = threading.active_count()
    schema = arrow_schema(schema_of(["offset"]))
    rows = read_rows(ReadTask((whole(segment),)), storage, schema)
    next(rows)
    rows.close()
    assert len(fetched) <= SMALL.fetch_ahead + 2
    assert threading.active_count() == before


def test_fetches_ahead_are_bounded_across_segments(
    maker: RecordSegmentMaker,
    storage: ObjectStoreRemoteStorageManager,
    owner: TopicIdPartition,
    records: Records,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches = batches_of(records(300), 10)
    segments = [maker.tier(owner, batches[start : start + 3]) for start in range(0, 30, 3)]
    original = storage.fetch_log_segment
    asked: list[int] = []

    def counting(metadata, start: int, end: int | None = None) -> memoryview:
        asked.append(metadata.start_offset)
        return original(metadata, start, end)

    monkeypatch.setattr(storage, "fetch_log_segment", counting)
    decoded = read_segments([whole(s) for s in segments], storage, ALL_COLUMNS, settings=SMALL)
    next(decoded)
    assert len(asked) <= SMALL.fetch_ahead + 1
    assert sum(columns.count for _, columns in decoded) == 300 - 30


def pieces_of(*segments: RemoteLogSegmentMetadata) -> list[SegmentPiece]:
    return [SegmentPiece(s, s.start_offset, s.end_offset_inclusive + 1) for s in segments]


@pytest.mark.parametrize("shift", [-5000, 0, 1, 7, 8, 9, 11, 4003, 12_345, 19_990, 19_994])
def test_first_offset_not_before_is_that_of_a_plain_search(
    maker: RecordSegmentMaker,
    storage: ObjectStoreRemoteStorageManager,
    owner: TopicIdPartition,
    records: Records,
    shift: int,
) -> None:
    made = records(2000)
    batches = batches_of(made, 10)
    segments = [maker.tier(owner, batches[start : start + 50]) for start in (0, 50, 100, 150)]
    target = 1_700_000_000_000 + shift
    expected = next(
        (offset for offset, record in enumerate(made) if record.timestamp_ms >= target), None
    )
    assert first_offset_not_before(pieces_of(*segments), storage, target) == expected


def test_first_offset_not_before_is_the_first_of_many_with_one_time(
    maker: RecordSegmentMaker, storage: ObjectStoreRemoteStorageManager, owner: TopicIdPartition
) -> None:
    made = [NewRecord(1000 + n // 35, None, b"v" * 500) for n in range(700)]
    segment = maker.tier(owner, batches_of(made, 10))
    for step in range(20):
        found = first_offset_not_before(pieces_of(segment), storage, 1000 + step)
        assert found == step * 35


def test_first_offset_not_before_fetches_the_segment_it_is_in_and_asks_the_one_before(
    storage: ObjectStoreRemoteStorageManager,
    segment: RemoteLogSegmentMetadata,
    maker: RecordSegmentMaker,
    owner: TopicIdPartition,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = maker.tier(owner, [build_batch([NewRecord(5, b"k", b"v")])])
    asked: list[tuple[object, IndexType]] = []
    original = storage.fetch_index

    def counting(metadata: RemoteLogSegmentMetadata, kind: IndexType) -> bytes:
        asked.append((metadata.segment_id, kind))
        return original(metadata, kind)

    monkeypatch.setattr(storage, "fetch_index", counting)
    first_offset_not_before(pieces_of(old, segment), storage, 1_700_000_010_000)
    assert asked == [
        (old.segment_id, IndexType.TIMESTAMP),
        (segment.segment_id, IndexType.TIMESTAMP),
        (segment.segment_id, IndexType.OFFSET),
    ]


def test_first_offset_not_before_a_time_after_the_last_record_is_none(
    storage: ObjectStoreRemoteStorageManager, segment: RemoteLogSegmentMetadata
) -> None:
    assert first_offset_not_before(pieces_of(segment), storage, 1_800_000_000_000) is None


def test_first_offset_not_before_respects_the_pieces_bounds(
    storage: ObjectStoreRemoteStorageManager, segment: RemoteLogSegmentMetadata
) -> None:
    assert first_offset_not_before([SegmentPiece(segment, 50, 60)], storage, 0) == 50


def test_first_offset_not_before_counts_markers_as_kafka_does(
    maker: RecordSegmentMaker, storage: ObjectStoreRemoteStorageManager, owner: TopicIdPartition
) -> None:
    """As Kafka's FileRecords.searchForTimestamp, which looks at every record, also control
    records."""
    producer = {"producer_id": 1, "producer_epoch": 0}
    marker = build_end_transaction_marker(
        ControlRecordType.COMMIT, **producer, coordinator_epoch=0, timestamp_ms=900, base_offset=3
    )
    batches = [
        build_batch([NewRecord(100 + n, None, b"v") for n in range(3)], base_offset=0),
        marker,
        build_batch([NewRecord(500 + n, None, b"v") for n in range(3)], base_offset=4),
    ]
    segment = maker.tier(owner, batches)
    assert first_offset_not_before(pieces_of(segment), storage, 102) == 2
    assert first_offset_not_before(pieces_of(segment), storage, 400) == 3
    assert first_offset_not_before([SegmentPiece(segment, 4, 7)], storage, 400) == 4
