"""A partition's log: appends, reads, rolls, retention and failures of the disk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from isotherm.config.topic import TopicConfig
from isotherm.errors import (
    CorruptMessageError,
    LogDirFailedError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    RecordListTooLargeError,
)
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_loader import LogCheckpoints
from isotherm.log.log_read import FetchIsolation
from isotherm.log.partition_log import PartitionLog
from isotherm.log.retention import DeletionReason
from isotherm.record.batch import build_batch, iterate_batches, read_records
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.record.validation import AppendOrigin
from isotherm.segment.offset_index import Buffer
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicPartition
from tests.support.local_log import open_local_log

T0 = 1_700_000_000_000
SMALL = TopicConfig(
    internal_segment_bytes=1000, index_interval_bytes=200, segment_index_bytes=1200, retention_ms=-1
)
TIERED = TopicConfig(
    internal_segment_bytes=1000,
    segment_index_bytes=1200,
    retention_ms=-1,
    remote_storage_enable=True,
    local_retention_bytes=1,
)
CLEAN = LogCheckpoints(clean_shutdown=True)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "topic-0"


def records(count: int = 1, *, timestamp: int = T0, size: int = 100, **more: Any) -> bytearray:
    return build_batch([(timestamp, b"k", b"v" * size, ())] * count, **more)


def append(log: PartitionLog, count: int = 1, *, epoch: int = 0, **more: Any) -> Any:
    info = log.append_as_leader(records(count, **more), epoch, now_ms=T0)
    log.update_high_watermark(log.log_end_offset)
    return info


def end_transaction(log: PartitionLog, kind: ControlRecordType, producer: int = 7) -> None:
    marker = build_end_transaction_marker(
        kind, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp_ms=T0
    )
    log.append_as_leader(marker, 0, now_ms=T0, origin=AppendOrigin.COORDINATOR)
    log.update_high_watermark(log.log_end_offset)


def base_offsets(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments()]


def offsets_read(log: PartitionLog, start: int = 0, **how: Any) -> list[int]:
    found: list[int] = []
    while True:
        read = log.read(start, 300, **how)
        batches = list(iterate_batches(read.records))
        if not batches:
            return found
        for position, header in batches:
            found += [record.offset for record in read_records(read.records, position, header)]
        start = batches[-1][1].next_offset


def test_append_tells_the_offsets_and_keeps_the_bytes(directory: Path) -> None:
    log = open_local_log(directory)
    assert append(log, 3, timestamp=T0 + 7) == (0, 2, T0 + 7, -1, 0, False, False)
    assert append(log, 2, epoch=4) == (3, 4, T0, -1, 0, False, False)
    stored = log.read(0, 10**6).records
    assert stored == records(3, timestamp=T0 + 7, partition_leader_epoch=0) + records(
        2, base_offset=3, partition_leader_epoch=4
    )
    assert list(log.leader_epochs.entries) == [(0, 0), (4, 3)]


def test_append_to_a_log_append_time_topic_tells_the_time(directory: Path) -> None:
    log = open_local_log(directory, config=TopicConfig(message_timestamp_type="LogAppendTime"))
    info = log.append_as_leader(records(timestamp=T0 - 5), 0, now_ms=T0 + 100)
    assert (info.max_timestamp_ms, info.log_append_time_ms) == (T0 + 100, T0 + 100)


def test_refused_append_leaves_the_log_as_it_was(directory: Path) -> None:
    log = open_local_log(directory, config=SMALL)
    append(log)
    before = log.segments()[0].log_path.read_bytes()
    damaged = records()
    damaged[-1] ^= 1
    with pytest.raises(CorruptMessageError):
        log.append_as_leader(damaged, 0, now_ms=T0)
    with pytest.raises(RecordListTooLargeError, match="segment_bytes=1000"):
        log.append_as_leader(records(20), 0, now_ms=T0)
    assert log.log_end_offset == 1
    assert log.segments()[0].log_path.read_bytes() == before


def test_log_rolls_by_size_with_a_snapshot_and_trimmed_indexes(directory: Path) -> None:
    log = open_local_log(directory, config=SMALL)
    for _ in range(12):
        append(log)
    assert base_offsets(log) == [0, 5, 10]
    assert log.snapshots.path(5) == directory / f"{5:020d}.snapshot"
    assert (5 in log.snapshots.offsets, 6 in log.snapshots.offsets) == (True, False)
    first = log.segments()[0]
    assert first.offset_index_path.stat().st_size == 16
    assert first.time_index_path.stat().st_size == 12
    assert first.size_in_bytes <= 1000
    assert log.size_in_bytes == sum(path.stat().st_size for path in directory.glob("*.log"))


def test_log_rolls_by_the_age_of_its_data(directory: Path) -> None:
    log = open_local_log(directory, config=TopicConfig(segment_ms=100))
    for timestamp in (T0, T0 + 100, T0 + 101, T0 + 150):
        append(log, timestamp=timestamp)
    assert base_offsets(log) == [0, 2]


def test_roll_of_an_empty_segment_does_nothing(directory: Path) -> None:
    log = open_local_log(directory)
    log.roll()
    append(log)
    log.roll()
    log.roll()
    assert base_offsets(log) == [0, 1]


def test_read_crosses_no_segment_and_returns_whole_batches(directory: Path) -> None:
    log = open_local_log(directory, config=SMALL)
    for _ in range(12):
        append(log)
    read = log.read(2, 10**6)
    assert [header.base_offset for _, header in iterate_batches(read.records)] == [2, 3, 4]
    assert (read.start_offset_segment_base, read.log_end_offset) == (0, 12)
    assert offsets_read(log) == list(range(12))
    assert log.read(12, 10**6).records == b""


@pytest.mark.parametrize("offset", [-1, 13])
def test_read_outside_the_log_is_refused(directory: Path, offset: int) -> None:
    log = open_local_log(directory, config=SMALL)
    for _ in range(12):
        append(log)
    with pytest.raises(OffsetOutOfRangeError, match=f"offset={offset} .*log_end_offset=12"):
        log.read(offset, 100)


def test_reader_sees_up_to_its_isolation(directory: Path) -> None:
    log = open_local_log(directory, config=SMALL)
    for _ in range(12):
        append(log)
    log.update_high_watermark(7)
    assert offsets_read(log, isolation=FetchIsolation.HIGH_WATERMARK) == list(range(7))
    assert log.read(7, 10**6, isolation=FetchIsolation.HIGH_WATERMARK).records == b""
    assert offsets_read(log, isolation=FetchIsolation.LOG_END) == list(range(12))


def test_last_stable_offset_waits_for_the_end_of_transactions(directory: Path) -> None:
    log = open_local_log(directory)
    append(log)
    append(log, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    append(log, producer_id=8, producer_epoch=0, base_sequence=0, is_transactional=True)
    append(log)
    assert (log.last_stable_offset, log.high_watermark) == (1, 4)
    assert offsets_read(log, isolation=FetchIsolation.TXN_COMMITTED) == [0]
    end_transaction(log, ControlRecordType.COMMIT, 7)
    assert log.last_stable_offset == 2
    end_transaction(log, ControlRecordType.ABORT, 8)
    assert log.last_stable_offset == 6
    read = log.read(0, 10**6, isolation=FetchIsolation.TXN_COMMITTED)
    assert read.aborted_transactions == [(8, 2, 5, 6)]
    assert read.last_stable_offset == 6
    assert log.read(0, 10**6).aborted_transactions is None


def test_last_stable_offset_is_never_below_the_log_start(directory: Path) -> None:
    log = open_local_log(directory)
    append(log)
    append(log, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    append(log, 2)
    # As Kafka's maybeIncrementFirstUnstableOffset: a read_committed consumer that seeks to the end
    # must not get an offset that is out of range.
    log.maybe_increment_log_start_offset(3)
    assert (log.last_stable_offset, log.view().last_stable_offset) == (3, 3)
    read = log.read(log.last_stable_offset, 10**6, isolation=FetchIsolation.TXN_COMMITTED)
    assert (read.records, read.last_stable_offset) == (b"", 3)
    end_transaction(log, ControlRecordType.COMMIT, 7)
    assert log.last_stable_offset == 5


def test_aborted_transaction_is_found_from_a_segment_before_its_marker(directory: Path) -> None:
    log = open_local_log(directory, config=SMALL)
    append(log, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    for _ in range(12):
        append(log)
    end_transaction(log, ControlRecordType.ABORT)
    assert [segment.has_transaction_index for segment in log.segments()] == [False, False, True]
    read = log.read(0, 200, isolation=FetchIsolation.TXN_COMMITTED)
    assert read.aborted_transactions == [(7, 0, 13, 14)]
    read = log.read(12, 200, isolation=FetchIsolation.TXN_COMMITTED)
    assert read.aborted_transactions == [(7, 0, 13, 14)]


def idempotent(sequence: int, count: int = 1) -> bytearray:
    return records(count, producer_id=7, producer_epoch=0, base_sequence=sequence)


def test_batch_sent_again_is_answered_with_its_old_offsets(directory: Path) -> None:
    log = open_local_log(directory)
    append(log)
    first = log.append_as_leader(idempotent(0, 2), 0, now_ms=T0)
    log.append_as_leader(idempotent(2, 3), 0, now_ms=T0)
    again = log.append_as_leader(idempotent(0, 2), 0, now_ms=T0)
    assert again == first._replace(duplicate=True)
    assert (again.first_offset, again.last_offset, log.log_end_offset) == (1, 2, 6)
    with pytest.raises(OutOfOrderSequenceError, match="expected=5"):
        log.append_as_leader(idempotent(6), 0, now_ms=T0)
    assert log.log_end_offset == 6


@pytest.mark.parametrize("checkpoints", [CLEAN, LogCheckpoints()])
def test_batch_sent_again_after_a_restart_is_still_known(
    directory: Path, checkpoints: LogCheckpoints
) -> None:
    log = open_local_log(directory, config=SMALL)
    for sequence in range(12):
        log.append_as_leader(idempotent(sequence), 0, now_ms=T0)
    if checkpoints.clean_shutdown:
        log.close()
    log = open_local_log(directory, config=SMALL, checkpoints=checkpoints)
    assert log.append_as_leader(idempotent(11), 0, now_ms=T0).duplicate
    assert log.append_as_leader(idempotent(12), 0, now_ms=T0).first_offset == 12


def test_open_transaction_survives_a_restart(directory: Path) -> None:
    log = open_local_log(directory)
    append(log)
    append(log, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    log.close()
    log = open_local_log(directory, checkpoints=LogCheckpoints(clean_shutdown=True))
    log.update_high_watermark(2)
    assert log.last_stable_offset == 1


def test_offset_for_timestamp_looks_through_all_segments(directory: Path) -> None:
    log = open_local_log(directory, config=SMALL)
    for index in range(12):
        append(log, timestamp=T0 + 10 * index, epoch=index // 6)
    assert len(base_offsets(log)) == 3
    for index in range(12):
        assert log.offset_for_timestamp(T0 + 10 * index) == (T0 + 10 * index, index, index // 6)
    assert log.offset_for_timestamp(0) == (T0, 0, 0)
    assert log.offset_for_timestamp(T0 + 111) is None
    assert log.max_timestamp_offset() == (T0 + 110, 11, 1)


def test_empty_log_has_no_timestamps(directory: Path) -> None:
    log = open_local_log(directory)
    assert log.offset_for_timestamp(0) is None
    assert log.max_timestamp_offset() is None


def test_log_start_moves_up_to_the_high_watermark_only(directory: Path) -> None:
    log = open_local_log(directory, config=SMALL)
    for index in range(12):
        append(log, epoch=index // 4)
    log.update_high_watermark(9)
    with pytest.raises(OffsetOutOfRangeError, match="high_watermark=9"):
        log.maybe_increment_log_start_offset(10)
    assert log.maybe_increment_log_start_offset(6)
    assert not log.maybe_increment_log_start_offset(5)
    assert (log.log_start_offset, log.local_log_start_offset) == (6, 6)
    assert list(log.leader_epochs.entries) == [(1, 6), (2, 8)]
    with pytest.raises(OffsetOutOfRangeError):
        log.read(5, 100)
    assert [d.reason for d in log.delete_old_segments(T0)] == [DeletionReason.LOG_START]
    assert (base_offsets(log), log.log_start_offset) == ([5, 10], 6)
    assert log.maybe_increment_log_start_offset(9)
    assert log.log_start_offset == 9


def test_high_watermark_stays_within_the_log(directory: Path) -> None:
    log = open_local_log(directory)
    append(log, 5)
    assert log.update_high_watermark(99) == 5
    assert log.update_high_watermark(-3) == 0


def test_high_watermark_is_never_below_the_local_log(directory: Path) -> None:
    """Its checkpoint may be older than local retention, and so may the one of a new leader."""
    log = open_local_log(directory, config=TIERED)
    for _ in range(12):
        append(log)
    log.update_highest_offset_in_remote_storage(9)
    assert log.delete_old_segments(T0)
    log.flush()
    log.abandon()
    checkpoints = LogCheckpoints(log.recovery_point, 0, high_watermark=2)
    log = open_local_log(directory, config=TIERED, checkpoints=checkpoints)
    assert (log.log_start_offset, log.high_watermark) == (0, log.local_log_start_offset)
    assert log.update_high_watermark(1) == log.local_log_start_offset > 0
    # As at the end of tiering. An error there ends the broker's membership in its cluster.
    assert log.maybe_increment_log_start_offset(log.local_log_start_offset)


def test_retention_deletes_and_raises_the_log_start(directory: Path) -> None:
    log = open_local_log(directory, config=SMALL)
    for index in range(12):
        append(log, timestamp=T0 + index)
    log.update_config(TopicConfig(retention_ms=100, file_delete_delay_ms=50))
    assert log.delete_old_segments(T0 + 104) == []
    deleted = log.delete_old_segments(T0 + 105)
    assert [(d.base_offset, d.reason) for d in deleted] == [(0, DeletionReason.TIME)]
    assert (base_offsets(log), log.log_start_offset) == ([5, 10], 5)
    assert list(log.leader_epochs.entries) == [(0, 5)]
    assert len(list(directory.glob("*.deleted"))) == 3
    log.delete_marked_files(T0 + 154)
    assert len(list(directory.glob("*.deleted"))) == 3
    log.delete_marked_files(T0 + 155)
    assert list(directory.glob("*.deleted")) == []


def test_retention_of_everything_leaves_an_empty_segment_at_the_end(directory: Path) -> None:
    log = open_local_log(directory, config=SMALL)
    for _ in range(7):
        append(log)
    log.update_config(TopicConfig(retention_ms=1))
    assert len(log.delete_old_segments(T0 + 10**6)) == 2
    assert (base_offsets(log), log.log_start_offset, log.log_end_offset) == ([7], 7, 7)
    assert append(log).first_offset == 7


def test_reader_of_a_segment_that_retention_deletes_goes_on(directory: Path) -> None:
    log = open_local_log(directory, config=SMALL)
    for _ in range(12):
        append(log)
    held = log.segments()[0]
    view = log.view()
    log.update_config(TopicConfig(retention_bytes=0))
    log.delete_old_segments(T0)
    read = held.read(3, 100, held.size_in_bytes, min_one_message=True)
    assert read is not None
    assert next(iterate_batches(read.records))[1].base_offset == 3
    log.delete_marked_files(T0 + 10**9)
    assert view.segments[0] is held
    with pytest.raises(OffsetOutOfRangeError):
        log.read(3, 100)
    with pytest.raises(OffsetOutOfRangeError):
        log.read_local(3, 100, isolation=FetchIsolation.LOG_END, min_one_message=True)


def test_producers_do_not_wait_for_files_that_go(directory: Path) -> None:
    class BesideProducers(OsFileSystem):
        """Another thread appends while a file is renamed, removed or synced."""

        meanwhile: Callable[[], object] = staticmethod(lambda: None)

        def rename(self, source: Path, target: Path) -> None:
            self.meanwhile()
            super().rename(source, target)

        def remove(self, path: Path) -> None:
            self.meanwhile()
            super().remove(path)

        def write_atomically(self, path: Path, data: Buffer) -> None:
            self.meanwhile()
            super().write_atomically(path, data)

    def append_elsewhere() -> None:
        appender = threading.Thread(target=append, args=(log,))
        appender.start()
        appender.join(300)
        assert not appender.is_alive(), "an append waits for the disk"
        appended.append(log.log_end_offset)

    fs, appended = BesideProducers(), list[int]()
    log = open_local_log(directory, config=SMALL, fs=fs)
    for _ in range(12):
        append(log)
    log.update_config(TopicConfig(retention_bytes=0, file_delete_delay_ms=0))
    fs.meanwhile = append_elsewhere
    assert [segment.base_offset for segment in log.delete_old_segments(T0)] == [0, 5, 10]
    renamed, before = len(list(directory.glob("*.deleted"))), len(appended)
    assert before >= renamed > 9
    log.delete_marked_files(T0)
    assert len(appended) - before >= renamed
    assert list(directory.glob("*.deleted")) == []
    assert offsets_read(log, 12) == list(range(12, log.log_end_offset))


def test_tiered_log_keeps_segments_until_they_are_copied(directory: Path) -> None:
    log = open_local_log(directory, config=TIERED)
    for _ in range(12):
        append(log)
    assert log.delete_old_segments(T0) == []
    log.update_highest_offset_in_remote_storage(4)
    assert [d.base_offset for d in log.delete_old_segments(T0)] == [0]
    assert (log.log_start_offset, log.local_log_start_offset) == (0, 5)
    assert list(log.leader_epochs.entries) == [(0, 0)]
    with pytest.raises(OffsetOutOfRangeError, match="local_log_start_offset=5"):
        log.read(0, 100)
    where = {"isolation": FetchIsolation.LOG_END, "min_one_message": True}
    for offset in (0, 4):
        assert log.read_local(offset, 100, **where) is None
    for offset in (-1, log.log_end_offset + 1):
        with pytest.raises(OffsetOutOfRangeError, match=f"offset={offset} "):
            log.read_local(offset, 100, **where)
    assert log.read_local(5, 100, **where) == log.read(5, 100)
    log.update_highest_offset_in_remote_storage(3)
    assert log.highest_offset_in_remote_storage == 4


def test_log_that_is_copied_no_more_keeps_a_log_start_within_a_segment(directory: Path) -> None:
    log = open_local_log(directory, config=replace(TIERED, remote_log_copy_disable=True))
    for _ in range(12):
        append(log)
    log.update_high_watermark(log.log_end_offset)
    log.maybe_increment_log_start_offset(7)
    assert [d.base_offset for d in log.delete_old_segments(T0)] == [0]
    assert (log.log_start_offset, base_offsets(log)) == (7, [5, 10])


def test_tiered_log_rolls_an_active_segment_that_breaches_local_retention(directory: Path) -> None:
    config = TopicConfig(retention_ms=-1, remote_storage_enable=True, local_retention_ms=1)
    log = open_local_log(directory, config=config)
    append(log, 4)
    assert log.delete_old_segments(T0 + 5) == []
    assert base_offsets(log) == [0, 4]
    log.update_highest_offset_in_remote_storage(3)
    assert [d.base_offset for d in log.delete_old_segments(T0 + 5)] == [0]
    assert (log.local_log_start_offset, log.log_end_offset) == (4, 4)


def test_epoch_of_segments_that_are_in_the_bucket_alone_outlives_a_crash(directory: Path) -> None:
    log = open_local_log(directory, config=TIERED)
    for epoch in (1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3):
        append(log, epoch=epoch)
    log.update_highest_offset_in_remote_storage(9)
    assert log.delete_old_segments(T0)
    # Nothing was flushed or closed, so the files are those of a killed process.
    checkpoints = LogCheckpoints(log_start_offset=0, clean_shutdown=False)
    again = open_local_log(directory, config=TIERED, checkpoints=checkpoints)
    assert (again.log_start_offset, again.local_log_start_offset) == (0, 10)
    assert list(again.leader_epochs.entries) == [(1, 0), (3, 6)]
    again.close()


def test_tiered_log_start_is_kept_on_loading(directory: Path) -> None:
    log = open_local_log(directory, config=TIERED)
    for _ in range(12):
        append(log)
    log.update_highest_offset_in_remote_storage(9)
    log.delete_old_segments(T0)
    log.close()
    checkpoints = LogCheckpoints(log_start_offset=2, clean_shutdown=True)
    tiered = open_local_log(directory, config=TIERED, checkpoints=checkpoints)
    assert (tiered.log_start_offset, tiered.local_log_start_offset) == (2, 10)
    assert list(tiered.leader_epochs.entries) == [(0, 2)]
    tiered.close()
    plain = open_local_log(directory, config=SMALL, checkpoints=checkpoints)
    assert plain.log_start_offset == 10


@pytest.mark.parametrize(
    ("topic", "config", "system", "enabled"),
    [
        ("t", TIERED, True, True),
        ("t", TIERED, False, False),
        ("t", SMALL, True, False),
        ("__remote_log_metadata", TIERED, True, False),
        ("__consumer_offsets", TIERED, True, False),
        ("__cluster_metadata", TIERED, True, False),
        (
            "t",
            TopicConfig(remote_storage_enable=True, cleanup_policy=("compact",)),
            True,
            False,
        ),
    ],
)
def test_remote_log_is_in_effect_only_for_plain_topics(
    directory: Path, topic: str, config: TopicConfig, system: bool, enabled: bool
) -> None:
    log = open_local_log(
        directory,
        config=config,
        topic_partition=TopicPartition(topic, 0),
        remote_storage_system_enable=system,
    )
    assert log.remote_log_enabled is enabled


@pytest.mark.parametrize("offset", range(14))
def test_truncation_drops_the_end(directory: Path, offset: int) -> None:
    log = open_local_log(directory, config=SMALL)
    for sequence in range(12):
        append(log, epoch=sequence // 3, producer_id=7, producer_epoch=0, base_sequence=sequence)
    log.flush()
    log.truncate_to(offset)
    end = min(offset, 12)
    assert (log.log_end_offset, log.high_watermark, log.recovery_point) == (end, end, end)
    assert offsets_read(log) == list(range(end))
    assert all(entry.start_offset < end for entry in log.leader_epochs.entries)
    info = log.append_as_leader(idempotent(end), 9, now_ms=T0)
    assert (info.first_offset, info.duplicate) == (end, False)
    log.close()
    reopened = open_local_log(directory, config=SMALL, checkpoints=CLEAN)
    assert offsets_read(reopened) == list(range(end + 1))


def test_truncation_below_the_first_segment_starts_anew(directory: Path) -> None:
    log = open_local_log(directory, config=SMALL)
    for _ in range(12):
        append(log)
    log.maybe_increment_log_start_offset(10)
    log.delete_old_segments(T0)
    log.truncate_to(4)
    assert (log.log_start_offset, log.log_end_offset, base_offsets(log)) == (4, 4, [4])
    assert append(log).first_offset == 4


def test_flush_raises_the_recovery_point(directory: Path) -> None:
    log = open_local_log(directory, config=SMALL)
    for _ in range(12):
        append(log)
    assert log.recovery_point == 0
    log.flush(closed_segments_only=True)
    assert log.recovery_point == 10
    log.flush()
    assert log.recovery_point == 12


def test_flush_syncs_beside_the_records_only_what_has_changed(directory: Path) -> None:
    class Recording(OsFileSystem):
        def sync_file(self, path: Path) -> None:
            if path.exists():
                synced.append(path.name)
            super().sync_file(path)

        def sync_directory(self, path: Path) -> None:
            synced.append("names")
            super().sync_directory(path)

    synced: list[str] = []
    log = open_local_log(directory, config=SMALL, fs=Recording())

    def synced_by_flush() -> list[str]:
        append(log)
        synced.clear()
        log.flush()
        return synced

    assert synced_by_flush()[-1] == "names"
    assert synced_by_flush() == []
    # Another 200 bytes give the indexes an entry.
    assert synced_by_flush() == [f"{0:020}.index", f"{0:020}.timeindex"]
    log.roll()
    assert {"names", f"{3:020}.snapshot"} <= set(synced_by_flush())
    assert synced_by_flush() == []


def test_append_asks_for_a_flush_from_flush_messages_on(directory: Path) -> None:
    log = open_local_log(directory, config=TopicConfig(flush_messages=3))
    assert [append(log).needs_flush for _ in range(5)] == [False, False, True, True, True]
    log.flush()
    assert [append(log).needs_flush for _ in range(3)] == [False, False, True]


def test_maybe_flush_takes_the_active_segment_when_flush_ms_has_passed(directory: Path) -> None:
    clock = SimClock(T0)
    log = open_local_log(directory, config=TopicConfig(flush_ms=100), clock=clock)
    append(log)
    log.maybe_flush(T0 + 99)
    assert log.recovery_point == 0
    log.maybe_flush(T0 + 100)
    assert log.recovery_point == 1


def test_closed_log_answers_nothing_more(directory: Path) -> None:
    log = open_local_log(directory)
    append(log)
    log.close()
    log.close()
    for call in (
        lambda: append(log),
        lambda: log.read(0, 100),
        log.roll,
        log.flush,
        lambda: log.delete_old_segments(T0),
    ):
        with pytest.raises(NotLeaderOrFollowerError, match="closed"):
            call()


def test_disk_error_takes_the_directory_offline_for_all_calls(directory: Path) -> None:
    log = open_local_log(directory, config=SMALL)
    append(log)

    class FullDisk:
        def write_at(self, position: int, data: bytes) -> None:
            raise OSError(28, "No space left on device")

    log.segments()[0]._file = FullDisk()  # type: ignore[assignment]
    with pytest.raises(LogDirFailedError, match="action=append") as caught:
        append(log)
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(LogDirFailedError, match="offline"):
        log.read(0, 100)
    assert not log.log_dir.is_online


class Guarded(threading.Thread):
    """A thread that keeps its failure, so that the test can fail with it."""

    def __init__(self, work: Any) -> None:
        super().__init__()
        self._work = work
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.failure = error


def test_appends_reads_and_flushes_from_several_threads_agree(directory: Path) -> None:
    config = TopicConfig(internal_segment_bytes=5000, segment_index_bytes=1200, retention_ms=-1)
    log = open_local_log(directory, config=config)
    done = threading.Event()

    def flush() -> None:
        while not done.is_set():
            log.flush()

    def read() -> None:
        offset = 0
        while not (done.is_set() and offset == log.log_end_offset):
            for _, header in iterate_batches(log.read(offset, 700).records):
                assert header.base_offset == offset
                offset = header.next_offset

    def write() -> None:
        for _ in range(60):
            log.append_as_leader(records(3), 0, now_ms=T0)

    beside = [Guarded(flush), Guarded(read)]
    writers = [Guarded(write), Guarded(write)]
    for thread in writers:
        thread.join()
    done.set()
    for thread in beside:
        thread.join()
    assert [thread.failure for thread in beside + writers] == [None] * 4
    assert offsets_read(log) == list(range(360))
