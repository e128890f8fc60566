"""The history of a topic that was compacted, and is tiered since: segments without a record, and
offsets without one at the beginning, in the middle and at the end of segments.

Expected is what Kafka does: it copies every closed segment, and a reader at an offset that has no
record gets the next record.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from isotherm.errors import OffsetOutOfRangeError, RemoteHoleError, RemoteStorageError
from isotherm.log.log_read import FetchIsolation
from isotherm.record.batch import build_batch, iterate_batches
from isotherm.remote.compaction.compacted_piece import CompactionRules, compact_piece
from isotherm.remote.history.lineage import checkpoint_of_copy
from isotherm.remote.reading.read_request import ReadRequest
from isotherm.remote.reading.remote_offset_lookup import RemoteOffsetLookup
from isotherm.remote.reading.segment_reader import RemoteSegmentReader
from isotherm.remote.reading.tier_border import read_local_log
from isotherm.remote.rewriting.pieces import Piece
from isotherm.remote.segment_metadata import IndexType, RemoteLogSegmentId
from isotherm.segment.producer_snapshot import read_producer_snapshot
from isotherm.types import Offset
from tests.support.compacted_tier import (
    BEFORE,
    EMPTY,
    FULL,
    PATTERNS,
    PER_SEGMENT,
    SEGMENT_BYTES,
    append,
    copy_all,
    offsets_of,
    open_compacted,
)
from tests.support.tiered_partition import TieredPartition, records_of


def consume(partition: TieredPartition, offset: Offset, isolation: FetchIsolation) -> list[Offset]:
    """The offsets that a consumer gets from `offset` on.

    Each of its fetches must bring it further.
    """
    log, found = partition.log, list[Offset]()
    while offset < log.log_end_offset:
        if offset < log.local_log_start_offset:
            data = partition.read_bytes(offset, isolation=isolation)
        else:
            data = log.read(offset, 1000, isolation=isolation).records
        headers = [header for _, header in iterate_batches(data)]
        assert headers, f"answer at {offset} is empty"
        found += [record.offset for record in records_of(data) if record.offset >= offset]
        offset = headers[-1].next_offset
    return found


def check_reads(partition: TieredPartition, expected: list[Offset]) -> None:
    """A consumer gets the same from any offset on, which may have no record."""
    for offset in range(partition.log.log_start_offset, partition.log.log_end_offset):
        for isolation in (FetchIsolation.HIGH_WATERMARK, FetchIsolation.TXN_COMMITTED):
            found = consume(partition, offset, isolation)
            assert found == [each for each in expected if each >= offset], (offset, isolation)


def ranges(partition: TieredPartition) -> list[tuple[Offset, Offset]]:
    return [
        (segment.start_offset, segment.end_offset_inclusive) for segment in partition.segments()
    ]


@pytest.mark.parametrize("pattern", PATTERNS, ids="-".join)
def test_cleaner_leaves_the_pattern(tmp_path: Path, pattern: tuple[str, ...]) -> None:
    """What the other tests rely on."""
    log = open_compacted(tmp_path / "p", pattern).log
    assert [segment.base_offset for segment in log.segments()] == [
        PER_SEGMENT * index for index in range(len(pattern) + 1)
    ]
    assert [segment.size_in_bytes > 0 for segment in log.segments()[:-1]] == [
        each != EMPTY for each in pattern
    ]


@pytest.mark.parametrize("pattern", PATTERNS, ids="-".join)
def test_every_closed_segment_is_copied_and_leaves_the_disk(
    tmp_path: Path, pattern: tuple[str, ...]
) -> None:
    partition = open_compacted(tmp_path / "p", pattern)
    log, end = partition.log, PER_SEGMENT * len(pattern)
    copy_all(partition)
    assert ranges(partition) == [
        (base, base + PER_SEGMENT - 1) for base in range(0, end, PER_SEGMENT)
    ]
    assert (log.log_start_offset, log.local_log_start_offset) == (0, end)
    assert log.highest_offset_in_remote_storage == end - 1
    assert [segment.base_offset for segment in log.segments()] == [end]
    assert [segment.segment_size_in_bytes > 0 for segment in partition.segments()] == [
        each != EMPTY for each in pattern
    ]


@pytest.mark.parametrize("pattern", PATTERNS, ids="-".join)
def test_reader_at_any_offset_gets_the_next_record(
    tmp_path: Path, pattern: tuple[str, ...]
) -> None:
    partition = open_compacted(tmp_path / "p", pattern)
    expected = offsets_of(pattern)
    check_reads(partition, expected)
    copy_all(partition)
    check_reads(partition, expected)
    partition.restart()
    check_reads(partition, expected)
    for number in range(3):
        append(partition, partition.log.log_end_offset, b"%d" % number)
    copy_all(partition)
    check_reads(partition, [*expected, *range(expected[-1] + 1, expected[-1] + 4)])


@pytest.mark.parametrize("pattern", [("o..o", "..", "oo"), ("....", "o."), ("oo", "..oo")])
def test_leader_may_change_at_any_offset(tmp_path: Path, pattern: tuple[str, ...]) -> None:
    """A span of a segment ends with its epoch, where the segment's batches may go on."""
    for border in range(1, sum(map(len, pattern)) + 1):
        partition = open_compacted(tmp_path / f"p{border}", pattern, new_epoch_at=border)
        copy_all(partition)
        check_reads(partition, offsets_of(pattern))


@pytest.mark.parametrize("pattern", PATTERNS, ids="-".join)
def test_look_up_by_time_finds_the_next_record(tmp_path: Path, pattern: tuple[str, ...]) -> None:
    partition = open_compacted(tmp_path / "p", pattern)
    copy_all(partition)
    for offset in range(partition.log.log_end_offset):
        following = next(each for each in offsets_of(pattern) if each >= offset)
        assert found_by_time(partition, 1000 + offset) == following


def found_by_time(partition: TieredPartition, timestamp_ms: int) -> Offset | None:
    """The offset of the first record with this time or a later one."""
    lookup = RemoteOffsetLookup(
        partition.metadata, partition.index_cache, RemoteSegmentReader(partition.read_ahead)
    )
    found = lookup.find_in_both_tiers(
        partition.log, partition.partition, timestamp_ms, partition.log.log_start_offset
    )
    return None if found is None else found.offset


@pytest.mark.parametrize("pattern", PATTERNS, ids="-".join)
@pytest.mark.parametrize("is_copied", [False, True])
def test_restart_reports_no_loss_and_changes_nothing(
    tmp_path: Path, pattern: tuple[str, ...], is_copied: bool, caplog: pytest.LogCaptureFixture
) -> None:
    partition = open_compacted(tmp_path / "p", pattern)
    if is_copied:
        copy_all(partition)
    bases = [segment.base_offset for segment in partition.log.segments()]
    partition.restart()
    partition.copy_task.run()
    assert [segment.base_offset for segment in partition.log.segments()] == bases
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert len(partition.segments()) == len(pattern)
    check_reads(partition, offsets_of(pattern))


@pytest.mark.parametrize("pattern", PATTERNS, ids="-".join)
def test_delete_records_to_any_offset_removes_what_is_below(
    tmp_path: Path, pattern: tuple[str, ...]
) -> None:
    expected = offsets_of(pattern)
    for offset in range(PER_SEGMENT * len(pattern) + 1):
        partition = open_compacted(tmp_path / f"p{offset}", pattern)
        copy_all(partition)
        partition.log.maybe_increment_log_start_offset(offset)
        partition.log.make_log_start_durable()
        partition.expiration_task.run()
        kept = [each for each in ranges(partition) if each[1] >= offset]
        assert ranges(partition) == kept
        assert len(kept) == -(-(PER_SEGMENT * len(pattern) - offset) // PER_SEGMENT)
        check_reads(partition, [each for each in expected if each >= offset])


@pytest.mark.parametrize("first", [EMPTY, FULL])
@pytest.mark.parametrize("last", [EMPTY, FULL])
def test_total_retention_by_time_deletes_all_that_is_old(
    tmp_path: Path, first: str, last: str
) -> None:
    partition = open_compacted(tmp_path / "p", (first, EMPTY, FULL, EMPTY, last))
    copy_all(partition)
    partition.update_config(retention_ms=1000)
    partition.expiration_task.run()
    assert ranges(partition) == []
    assert partition.log.log_start_offset == PER_SEGMENT * 5


def test_total_retention_by_size_takes_an_empty_segment_with_the_older_ones(
    tmp_path: Path,
) -> None:
    """As in Kafka: while bytes are in excess an empty segment goes, and no more once none are."""
    partition = open_compacted(tmp_path / "p", (EMPTY, FULL, EMPTY, FULL, EMPTY))
    copy_all(partition)
    sizes = [segment.segment_size_in_bytes for segment in partition.segments()]
    partition.update_config(retention_bytes=sizes[1] + partition.log.size_in_bytes)
    partition.expiration_task.run()
    assert ranges(partition) == [(4, 5), (6, 7), (8, 9)]
    assert partition.log.log_start_offset == 4
    partition.update_config(retention_bytes=0)
    partition.expiration_task.run()
    assert ranges(partition) == []


# A log that knows no epoch of its first offsets


def open_follower(directory: Path) -> TieredPartition:
    """The log of a follower whose leader had no record below offset 3 any more."""
    partition = TieredPartition(directory, internal_segment_bytes=SEGMENT_BYTES)
    for offset in range(3, 9):
        append_as_follower(partition, offset)
    partition.log.update_high_watermark(9)
    assert [(entry.epoch, entry.start_offset) for entry in partition.log.leader_epochs.entries] == [
        (4, 3)
    ]
    return partition


def append_as_follower(partition: TieredPartition, offset: Offset) -> None:
    record = (1000 + offset, b"%03d" % offset, b"v", ())
    batch = build_batch([record], base_offset=offset, partition_leader_epoch=4)
    partition.log.append_as_follower(memoryview(batch), 4)


def open_without_epochs(directory: Path) -> TieredPartition:
    """A log whose first segment is empty, and whose checkpoint of leader epochs was lost."""
    partition = open_compacted(directory, (EMPTY, BEFORE, FULL, FULL))
    partition.log.close()
    (partition.log.directory / "leader-epoch-checkpoint").unlink()
    partition.restart()
    assert [entry.start_offset for entry in partition.log.leader_epochs.entries] == [3]
    return partition


@pytest.mark.parametrize("open_log", [open_follower, open_without_epochs])
def test_offsets_below_the_first_epoch_have_no_record(
    tmp_path: Path, open_log: Callable[[Path], TieredPartition]
) -> None:
    partition = open_log(tmp_path / "p")
    log, expected = partition.log, list(range(3, 9))
    copy_all(partition)
    assert log.log_start_offset == 0
    assert log.local_log_start_offset == log.segments()[-1].base_offset
    check_reads(partition, expected)
    assert found_by_time(partition, 0) == 3
    partition.restart()
    copy_all(partition)
    assert partition.log.log_start_offset == 0
    check_reads(partition, expected)


def test_follower_whose_first_record_is_local_reads_it_from_below(tmp_path: Path) -> None:
    """The local log begins above the log start, and nothing is copied."""
    partition = TieredPartition(tmp_path / "p")
    partition.log.truncate_fully_and_start_at(5, log_start_offset=2)
    append_as_follower(partition, 7)
    partition.log.update_high_watermark(8)
    check_reads(partition, [7])


def test_missing_segment_is_a_hole_still(tmp_path: Path) -> None:
    """A segment that the tier lacks is lost, although the one before it has no record."""
    partition = open_compacted(tmp_path / "p", (FULL, EMPTY, FULL, FULL))
    copy_all(partition)
    partition.tier.delete_segment(partition.segments()[2])
    assert partition.read_values(0) == [b"v", b"v"]
    for offset in (2, 3, 4, 5):
        with pytest.raises(RemoteHoleError, match=f"offset={max(offset, 4)} "):
            partition.read(offset)


def test_copy_of_an_empty_segment_has_what_a_follower_begins_with(tmp_path: Path) -> None:
    """A follower begins behind the last segment of the tier, with its leader epochs and
    producers.
    """
    partition = open_compacted(tmp_path / "p", (FULL, EMPTY), new_epoch_at=3)
    copy_all(partition)
    last = partition.segments()[-1]
    assert last.segment_size_in_bytes == 0
    epochs = checkpoint_of_copy(last, partition.store.fetch_index(last, IndexType.LEADER_EPOCH))
    assert epochs == list(partition.log.leader_epochs.entries)
    snapshot = partition.store.fetch_index(last, IndexType.PRODUCER_SNAPSHOT)
    assert read_producer_snapshot(snapshot) == []


def test_compaction_of_the_tier_leaves_an_empty_segment_as_it_is(tmp_path: Path) -> None:
    partition = open_compacted(tmp_path / "p", (FULL, EMPTY, FULL))
    copy_all(partition)
    empty = partition.segments()[1]
    rewritten = compact_piece(
        partition.store,
        Piece(0, empty, empty.start_offset, empty.end_offset_inclusive + 1),
        np.empty(0, np.int64),
        (),
        CompactionRules(now_ms=partition.clock.now_ms(), delete_retention_ms=0),
        RemoteLogSegmentId(partition.partition, uuid.UUID(int=5)),
        tmp_path,
    )
    assert not rewritten.is_changed
    assert rewritten.metadata.segment_size_in_bytes == 0
    assert rewritten.metadata.max_timestamp_ms == empty.max_timestamp_ms


def test_local_segment_that_leaves_during_a_read_is_asked_for_again(tmp_path: Path) -> None:
    partition = open_compacted(tmp_path / "p", (FULL, FULL))
    copy_all(partition)
    log = partition.log
    asked = ReadRequest(log, partition.partition, 0, 100, FetchIsolation.HIGH_WATERMARK, True)
    assert [record.offset for record in records_of(read_local_log(asked, 4).records[0])] == [4]
    with pytest.raises(RemoteStorageError, match="went to the remote tier during a read"):
        read_local_log(asked, 2)
    log.maybe_increment_log_start_offset(3)
    with pytest.raises(OffsetOutOfRangeError):
        read_local_log(asked, 2)
