"""Look-ups by timestamp in segments of the remote tier."""

from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.errors import (
    CorruptObjectError,
    RemoteHoleError,
    RemoteStorageError,
    RemoteStorageNotReadyError,
)
from isotherm.log.log_segment import TimestampAndOffset
from isotherm.record.batch import CompressionType
from isotherm.remote.reading.remote_offset_lookup import RemoteOffsetLookup
from isotherm.remote.reading.segment_reader import RemoteSegmentReader
from isotherm.remote.reading.tier_border import SEARCHES_MAX
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from tests.support.faulty_store import Operation
from tests.support.tiered_partition import TieredPartition, records_of

T0 = 1_700_000_000_000


@pytest.fixture
def cold(tiered: TieredPartition) -> TieredPartition:
    """The record at offset n has timestamp T0 + 10 n. Batches have two records, alternately
    compressed."""
    for number in range(0, 40, 4):
        for offset, compression in (
            (number, CompressionType.NONE),
            (number + 2, CompressionType.ZSTD),
        ):
            tiered.append(b"%03d" % offset, timestamp_ms=T0 + 10 * offset, compression=compression)
            tiered.append(b"%03d" % offset, timestamp_ms=T0 + 10 * (offset + 1))
    tiered.copy_task.run()
    tiered.delete_local_segments()
    return tiered


@pytest.fixture
def lookup(cold: TieredPartition) -> RemoteOffsetLookup:
    return RemoteOffsetLookup(cold.metadata, cold.index_cache, RemoteSegmentReader(cold.read_ahead))


def test_every_timestamp_finds_the_first_record_as_young(
    cold: TieredPartition, lookup: RemoteOffsetLookup
) -> None:
    for offset in range(cold.log.local_log_start_offset):
        for timestamp_ms in (T0 + 10 * offset, T0 + 10 * offset - 9):
            found = lookup.find(cold.log, cold.partition, timestamp_ms, 0)
            assert found == (T0 + 10 * offset, offset, 0)


def test_timestamp_above_the_remote_tier_is_left_to_the_local_log(
    cold: TieredPartition, lookup: RemoteOffsetLookup
) -> None:
    local = cold.log.local_log_start_offset
    assert lookup.find(cold.log, cold.partition, T0 + 10 * local, 0) is None


def test_starting_offset_bounds_the_look_up(
    cold: TieredPartition, lookup: RemoteOffsetLookup
) -> None:
    found = lookup.find(cold.log, cold.partition, T0, 13)
    assert found == (T0 + 130, 13, 0)


def test_segment_that_is_still_local_is_left_to_the_local_log(tiered: TieredPartition) -> None:
    for number in range(12):
        tiered.append(b"%03d" % number, timestamp_ms=T0 + number)
    tiered.copy_task.run()
    lookup = RemoteOffsetLookup(
        tiered.metadata, tiered.index_cache, RemoteSegmentReader(tiered.read_ahead)
    )
    assert lookup.find(tiered.log, tiered.partition, T0, 0) is None
    operations = {call.operation for call in tiered.store.trace}
    assert operations == {Operation.COPY}


def test_segment_whose_deletion_began_is_passed_over(
    cold: TieredPartition, lookup: RemoteOffsetLookup
) -> None:
    first, second, *_ = cold.segments()
    cold.log.maybe_increment_log_start_offset(second.start_offset)
    cold.tier.publish(
        RemoteLogSegmentMetadataUpdate(
            segment_id=first.segment_id,
            event_timestamp_ms=0,
            state=RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
            broker_id=0,
        )
    )
    found = lookup.find(cold.log, cold.partition, T0, 0)
    assert found is not None
    assert found.offset == second.start_offset


def test_first_segment_with_the_time_but_not_from_the_offset_on_is_followed_by_the_next(
    tiered: TieredPartition,
) -> None:
    """Differs from Kafka, which answers nothing: the record with the latest timestamp is below the
    starting offset."""
    tiered.append(b"late", timestamp_ms=T0 + 1000)
    tiered.append(b"early", timestamp_ms=T0)
    tiered.log.roll()
    tiered.append(b"next", timestamp_ms=T0 + 900)
    tiered.log.roll()
    tiered.append(b"active", timestamp_ms=T0)
    tiered.copy_task.run()
    tiered.delete_local_segments()
    lookup = RemoteOffsetLookup(
        tiered.metadata, tiered.index_cache, RemoteSegmentReader(tiered.read_ahead)
    )
    assert tiered.segments()[0].max_timestamp_ms == T0 + 1000
    assert lookup.find(tiered.log, tiered.partition, T0 + 500, 1) == (T0 + 900, 2, 0)


def test_damaged_batch_is_named(cold: TieredPartition, lookup: RemoteOffsetLookup) -> None:
    segment = cold.segments()[0]
    (path,) = cold.bucket.rglob(f"{segment.start_offset:020}*.log")
    cold.damage_declared = "the object is written over"
    damaged = bytearray(path.read_bytes())
    damaged[70] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(CorruptObjectError, match=f"object={segment.segment_id}.log topic=flights"):
        lookup.find(cold.log, cold.partition, T0, 0)


def test_partition_that_was_let_go_of_is_to_be_asked_for_again(tiered: TieredPartition) -> None:
    """A look-up waits for a thread while the topic's tiering is turned off and on."""
    tiered.append(b"record")
    tiered.metadata.on_stop_partitions([tiered.partition])
    lookup = RemoteOffsetLookup(
        tiered.metadata, tiered.index_cache, RemoteSegmentReader(tiered.read_ahead)
    )
    with pytest.raises(RemoteStorageNotReadyError):
        lookup.find(tiered.log, tiered.partition, 0, 0)
    with pytest.raises(RemoteStorageNotReadyError):
        tiered.read(0)


@pytest.mark.slow
def test_flipped_bit_of_an_index_changes_no_answer(tmp_path: Path) -> None:
    """Timestamps rise and fall, so that an entry that leads too far would skip younger records."""
    tiered = TieredPartition(tmp_path / "p", internal_segment_bytes=900)
    times = [T0 + 10 * offset - 35 * (offset % 3) for offset in range(40)]
    for offset, timestamp_ms in enumerate(times):
        tiered.append(b"%03d" % offset, timestamp_ms=timestamp_ms)
    tiered.copy_task.run()
    tiered.delete_local_segments()
    lookup = RemoteOffsetLookup(
        tiered.metadata, tiered.index_cache, RemoteSegmentReader(tiered.read_ahead)
    )
    segment = tiered.segments()[0]
    assert segment.end_offset_inclusive >= 10
    (path,) = tiered.bucket.rglob(f"{segment.start_offset:020}*.indexes")
    tiered.damage_declared = "the object is written over"
    good = path.read_bytes()
    asked = [T0 + 15, T0 + 41, T0 + 78]
    damaged_count = 0
    for position in range(len(good)):
        for bit in (0x01, 0x10, 0x80):
            bad = bytearray(good)
            bad[position] ^= bit
            path.write_bytes(bad)
            tiered.index_cache.remove([segment.segment_id])
            for timestamp_ms in asked:
                first = next(n for n, each in enumerate(times) if each >= timestamp_ms)
                try:
                    found = lookup.find(tiered.log, tiered.partition, timestamp_ms, 0)
                except CorruptObjectError:
                    damaged_count += 1
                else:
                    assert found == (times[first], first, 0), (position, bit)
            for offset in (3, 8):
                (record,) = records_of(tiered.read_bytes(offset, 1))
                assert record.offset == offset, (position, bit)
    assert damaged_count == 0


def test_answer_right_behind_a_hole_is_refused(
    cold: TieredPartition, lookup: RemoteOffsetLookup
) -> None:
    """The first record with that timestamp may have been in the hole."""
    _, lost, after, later, *_ = cold.segments()
    cold.tier.delete_segment(lost)
    for timestamp_ms in (lost.max_timestamp_ms, after.max_timestamp_ms):
        with pytest.raises(RemoteHoleError, match=f" offset={lost.end_offset_inclusive} "):
            lookup.find(cold.log, cold.partition, timestamp_ms, 0)
    found = lookup.find(cold.log, cold.partition, later.max_timestamp_ms, 0)
    assert found is not None
    assert found.offset == later.end_offset_inclusive
    assert lookup.find(cold.log, cold.partition, 0, 0) is not None, "what lies before it is there"
    behind = lookup.find(cold.log, cold.partition, lost.max_timestamp_ms, after.start_offset)
    assert behind is not None
    assert behind.offset == after.start_offset


def test_local_answer_right_behind_a_hole_is_refused(
    cold: TieredPartition, lookup: RemoteOffsetLookup
) -> None:
    last = cold.segments()[-1]
    cold.tier.delete_segment(last)
    with pytest.raises(RemoteHoleError):
        lookup.find(cold.log, cold.partition, last.max_timestamp_ms, 0)


def test_every_starting_offset_bounds_the_look_up(
    cold: TieredPartition, lookup: RemoteOffsetLookup
) -> None:
    for offset in range(cold.log.local_log_start_offset):
        found = lookup.find(cold.log, cold.partition, 0, offset)
        assert found == (T0 + 10 * offset, offset, 0)
    local = cold.log.local_log_start_offset
    assert lookup.find(cold.log, cold.partition, 0, local) is None


def test_record_that_goes_to_the_remote_tier_during_a_look_up_is_found(
    tiered: TieredPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Local retention comes between the search of the remote tier and that of the local log, which
    would answer with a later record."""
    for number in range(20):
        tiered.append(b"%03d" % number, timestamp_ms=T0 + number)
    tiered.copy_task.run()
    lookup = RemoteOffsetLookup(
        tiered.metadata, tiered.index_cache, RemoteSegmentReader(tiered.read_ahead)
    )
    find = tiered.log.offset_for_timestamp

    def delete_then_find(timestamp_ms: int) -> TimestampAndOffset | None:
        tiered.delete_local_segments()
        tiered.log.delete_marked_files(tiered.clock.now_ms())
        return find(timestamp_ms)

    monkeypatch.setattr(tiered.log, "offset_for_timestamp", delete_then_find)
    found = lookup.find_in_both_tiers(tiered.log, tiered.partition, T0 + 5, 0)
    assert found == (T0 + 5, 5, 0)
    assert tiered.log.local_log_start_offset > 5
    last = lookup.find_in_both_tiers(tiered.log, tiered.partition, T0 + 19, 0)
    assert last == (T0 + 19, 19, 0)
    assert lookup.find_in_both_tiers(tiered.log, tiered.partition, T0 + 20, 0) is None


def test_look_up_whose_border_of_the_tiers_never_rests_is_to_be_tried_again(
    cold: TieredPartition, lookup: RemoteOffsetLookup, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[int] = []

    def move(timestamp_ms: int) -> None:
        searched.append(timestamp_ms)
        cold.append(b"more", timestamp_ms=T0)
        cold.log.roll()
        cold.copy_task.run()
        cold.delete_local_segments()

    monkeypatch.setattr(cold.log, "offset_for_timestamp", move)
    with pytest.raises(RemoteStorageError, match="went to the remote tier during a look-up"):
        lookup.find_in_both_tiers(cold.log, cold.partition, T0 + 10_000, 0)
    assert len(searched) == SEARCHES_MAX


def test_hole_that_was_given_up_is_no_obstacle(
    cold: TieredPartition, lookup: RemoteOffsetLookup
) -> None:
    """`kafka-delete-records.sh` has raised the log start above it."""
    _, lost, after, *_ = cold.segments()
    cold.tier.delete_segment(lost)
    cold.log.maybe_increment_log_start_offset(after.start_offset)
    found = lookup.find(cold.log, cold.partition, lost.max_timestamp_ms, 0)
    assert found is not None
    assert found.offset == after.start_offset


def test_local_answer_of_the_time_that_is_asked_for_is_refused_behind_a_hole(
    cold: TieredPartition, lookup: RemoteOffsetLookup
) -> None:
    last = cold.segments()[-1]
    cold.tier.delete_segment(last)
    newest_ms = cold.log.segments()[0].largest_timestamp_ms
    with pytest.raises(RemoteHoleError):
        lookup.find(cold.log, cold.partition, newest_ms, 0)
    # The answer is in none of the tiers, or in a later segment of the local log.
    assert lookup.find(cold.log, cold.partition, newest_ms + 1, 0) is None
