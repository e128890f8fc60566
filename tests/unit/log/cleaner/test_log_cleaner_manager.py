"""The states of logs between cleaner threads and other users. Source of the cases: Kafka
LogCleanerManagerTest."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from isotherm.config.topic import TopicConfig
from isotherm.errors import LogCleaningAbortedError, LogDirFailedError
from isotherm.log.checkpoints import read_offset_checkpoint
from isotherm.log.cleaner.log_cleaner_manager import Cleaning, LogCleanerManager
from isotherm.log.fs import OsFileSystem
from isotherm.log.partition_log import PartitionLog
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicPartition

COMPACTED = TopicConfig(
    cleanup_policy=("compact",),
    internal_segment_bytes=400,
    segment_index_bytes=1200,
    min_cleanable_dirty_ratio=0.1,
    retention_ms=-1,
    file_delete_delay_ms=0,
)
DELETED = replace(COMPACTED, cleanup_policy=("delete",))


@pytest.fixture
def manager(logs: Any) -> LogCleanerManager:
    found: LogCleanerManager = logs.manager.cleaner_manager
    return found


def begin(manager: LogCleanerManager) -> Cleaning:
    cleaning = manager.begin_filthiest()
    assert cleaning is not None
    return cleaning


def checkpoint_file(log: PartitionLog) -> dict[TopicPartition, int]:
    path = log.log_dir.path / "cleaner-offset-checkpoint"
    return read_offset_checkpoint(path.read_bytes()) if path.exists() else {}


def test_filthiest_log_is_begun_first_and_each_one_once(
    logs: Any, manager: LogCleanerManager
) -> None:
    tidy, filthy = logs.filled("tidy", records=10), logs.filled("filthy", records=10)
    assert (manager.max_dirty_ratio, manager.compaction_delay_ms_max) == (0, 0)
    manager.done_cleaning(begin(manager), 0)
    with manager._lock:
        manager._save_checkpoint(tidy, 4)
        manager._save_checkpoint(filthy, 2)
    assert [begin(manager).log, begin(manager).log] == [filthy, tidy]
    assert manager.begin_filthiest() is None


def test_log_below_the_ratio_is_begun_once_it_is_overdue(
    logs: Any, clock: SimClock, manager: LogCleanerManager
) -> None:
    config = replace(COMPACTED, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=1000)
    log = logs.filled("a", records=10, config=config)
    clock.advance(1000)
    assert manager.begin_filthiest() is None
    assert manager.max_dirty_ratio == 1.0
    clock.advance(1)
    assert begin(manager).log is log
    assert manager.compaction_delay_ms_max == 1


@pytest.mark.parametrize(
    "config", [DELETED, replace(COMPACTED, cleanup_policy=())], ids=["delete", "neither"]
)
def test_log_that_is_not_compacted_is_never_begun(
    logs: Any, manager: LogCleanerManager, config: TopicConfig
) -> None:
    logs.filled("a", records=10, config=config)
    assert manager.begin_filthiest() is None


def test_log_without_closed_segments_is_not_begun(logs: Any, manager: LogCleanerManager) -> None:
    logs.filled("a", records=1)
    assert manager.begin_filthiest() is None


def test_done_cleaning_writes_the_checkpoint_of_the_directory(
    logs: Any, manager: LogCleanerManager
) -> None:
    first, second = logs.filled("a", records=10), logs.filled("b", records=10)
    assert first.log_dir is not second.log_dir
    for _ in range(2):
        cleaning = begin(manager)
        manager.done_cleaning(cleaning, cleaning.to_clean.first_uncleanable_offset)
    assert checkpoint_file(first) == {first.topic_partition: first.segments()[-1].base_offset}
    assert checkpoint_file(second) == {second.topic_partition: second.segments()[-1].base_offset}
    assert manager.begin_filthiest() is None


def test_checkpoint_survives_a_restart(logs: Any, manager: LogCleanerManager) -> None:
    log = logs.filled("a", records=10)
    manager.done_cleaning(begin(manager), 6)
    logs.manager.shutdown()
    reopened = logs.open()
    log = reopened.log(log.topic_partition)
    assert reopened.cleaner_manager.cleaner_checkpoint(log) == 6
    logs.append(log, 20)
    assert begin(reopened.cleaner_manager).to_clean.first_dirty_offset == 6


@pytest.mark.parametrize("text", ["nonsense", "0\n2\na 0 6\n"])
def test_checkpoint_that_cannot_be_read_counts_as_none(
    logs: Any, manager: LogCleanerManager, text: str
) -> None:
    log = logs.filled("a", records=10)
    (log.log_dir.path / "cleaner-offset-checkpoint").write_text(text)
    assert begin(manager).to_clean.first_dirty_offset == 0


@pytest.mark.parametrize("checkpoint", [3, 99], ids=["below the start", "above the end"])
def test_checkpoint_outside_the_log_is_replaced_by_the_start(
    logs: Any, manager: LogCleanerManager, checkpoint: int
) -> None:
    log = logs.filled("a", records=10)
    with manager._lock:
        manager._save_checkpoint(log, checkpoint)
    log.maybe_increment_log_start_offset(5)
    assert begin(manager).to_clean.first_dirty_offset == 5
    assert checkpoint_file(log) == {log.topic_partition: 5}


def test_checkpoint_of_a_deleted_log_goes_with_it(logs: Any, manager: LogCleanerManager) -> None:
    log, other = logs.filled("a", records=10), logs.filled("b", records=10)
    for _ in range(2):
        manager.done_cleaning(begin(manager), 6)
    logs.manager.delete_log(log.topic_partition)
    assert checkpoint_file(log) == {}
    assert checkpoint_file(other) == {other.topic_partition: 6}


def test_entries_of_logs_that_do_not_exist_go_with_the_next_write(
    logs: Any, manager: LogCleanerManager
) -> None:
    log = logs.filled("a", records=10)
    (log.log_dir.path / "cleaner-offset-checkpoint").write_text("0\n1\ngone 0 5\n")
    manager.done_cleaning(begin(manager), 6)
    assert checkpoint_file(log) == {log.topic_partition: 6}


def test_truncation_takes_the_checkpoint_down_to_the_active_segment(
    logs: Any, manager: LogCleanerManager
) -> None:
    log = logs.filled("a", records=10)
    manager.done_cleaning(begin(manager), 8)
    logs.manager.truncate_log(log, 5)
    assert checkpoint_file(log) == {log.topic_partition: log.segments()[-1].base_offset}
    assert manager.cleaner_checkpoint(log) == 4


def test_truncation_above_the_checkpoint_leaves_it(logs: Any, manager: LogCleanerManager) -> None:
    log = logs.filled("a", records=10)
    manager.done_cleaning(begin(manager), 2)
    logs.manager.truncate_log(log, 9)
    assert checkpoint_file(log) == {log.topic_partition: 2}


def test_checkpoint_moves_with_its_log_to_another_directory(
    logs: Any, manager: LogCleanerManager
) -> None:
    log, other = logs.filled("a", records=10), logs.filled("b", records=10)
    assert log.log_dir is not other.log_dir
    moved = SimpleNamespace(log_dir=other.log_dir, topic_partition=log.topic_partition)
    manager.move_checkpoint(log, moved)
    assert (checkpoint_file(log), checkpoint_file(other)) == ({}, {})
    manager.done_cleaning(begin(manager), 6)
    manager.done_cleaning(begin(manager), 4)
    of_log = manager.cleaner_checkpoint(log)
    assert of_log is not None
    manager.move_checkpoint(log, moved)
    assert checkpoint_file(log) == {}
    assert checkpoint_file(other)[log.topic_partition] == of_log
    assert set(checkpoint_file(other)) == {log.topic_partition, other.topic_partition}


# Pausing


def in_thread(action: Any) -> threading.Thread:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


def until_aborted(cleaning: Cleaning) -> None:
    assert cleaning.aborted.wait(300)
    with pytest.raises(LogCleaningAbortedError, match="partition=a-0"):
        cleaning.check_abort()


def test_deletion_aborts_the_cleaning_and_waits_for_its_end(
    logs: Any, manager: LogCleanerManager
) -> None:
    log = logs.filled("a", records=10)
    cleaning = begin(manager)
    cleaning.check_abort()
    deletion = in_thread(lambda: logs.manager.delete_log(log.topic_partition))
    until_aborted(cleaning)
    assert logs.manager.log(log.topic_partition) is log
    manager.done_cleaning(cleaning, 6)
    deletion.join(300)
    assert logs.manager.log(log.topic_partition) is None
    assert checkpoint_file(log) == {}


def test_aborted_round_leaves_the_checkpoint_and_the_log_may_be_begun_again(
    logs: Any, manager: LogCleanerManager
) -> None:
    log = logs.filled("a", records=10)
    cleaning = begin(manager)
    abort = in_thread(lambda: manager.abort(log.topic_partition))
    until_aborted(cleaning)
    assert manager.begin_filthiest() is None
    manager.done_cleaning(cleaning, 6)
    abort.join(300)
    assert not abort.is_alive()
    assert checkpoint_file(log) == {}
    assert begin(manager).log is log


def test_log_that_was_paused_twice_is_begun_after_two_resumes(
    logs: Any, manager: LogCleanerManager
) -> None:
    log = logs.filled("a", records=10)
    with manager.paused(log.topic_partition):
        with manager.paused(log.topic_partition):
            assert manager.begin_filthiest() is None
        assert manager.begin_filthiest() is None
    assert begin(manager).log is log


def test_two_threads_that_abort_the_same_round_both_go_on(
    logs: Any, manager: LogCleanerManager
) -> None:
    """Differs from Kafka, where a second abort raises IllegalStateException."""
    log = logs.filled("a", records=10)
    cleaning = begin(manager)
    aborts = [in_thread(lambda: manager.abort(log.topic_partition)) for _ in range(2)]
    until_aborted(cleaning)
    manager.done_cleaning(cleaning, 6)
    for abort in aborts:
        abort.join(300)
        assert not abort.is_alive()


def test_topic_that_is_no_longer_compacted_aborts_its_round(
    logs: Any, manager: LogCleanerManager
) -> None:
    log = logs.filled("a", records=10)
    cleaning = begin(manager)
    change = in_thread(lambda: logs.manager.update_log_config(log, DELETED))
    until_aborted(cleaning)
    manager.done_cleaning(cleaning, 6)
    change.join(300)
    assert manager.begin_filthiest() is None


def test_change_of_another_setting_aborts_nothing(logs: Any, manager: LogCleanerManager) -> None:
    log = logs.filled("a", records=10)
    cleaning = begin(manager)
    logs.manager.update_log_config(log, replace(COMPACTED, delete_retention_ms=1))
    cleaning.check_abort()


def test_stopped_manager_aborts_every_round_and_begins_none_until_allowed(
    logs: Any, manager: LogCleanerManager
) -> None:
    log = logs.filled("a", records=10)
    cleaning = begin(manager)
    manager.stop()
    until_aborted(cleaning)
    manager.done_cleaning(cleaning, 6)
    assert manager.begin_filthiest() is None
    manager.allow()
    assert begin(manager).log is log


# Retention


def test_retention_leaves_compacted_logs_to_the_cleaner(
    logs: Any, clock: SimClock, manager: LogCleanerManager
) -> None:
    both = replace(COMPACTED, cleanup_policy=("compact", "delete"), retention_ms=1000)
    log = logs.filled("both", records=10, config=both)
    deleted = logs.filled("deleted", records=10, config=replace(DELETED, retention_ms=1000))
    clock.advance(2000)
    assert list(logs.manager.delete_expired_segments()) == [deleted.topic_partition]
    with manager.deletable_logs() as deletable:
        assert deletable == [log]
        log.delete_old_segments(clock.now_ms())
    assert log.log_start_offset == 10


def test_log_is_not_begun_while_it_is_reserved_for_retention(
    logs: Any, manager: LogCleanerManager
) -> None:
    log = logs.filled("a", records=10)
    with manager.deletable_logs() as deletable:
        assert deletable == [log]
        assert manager.begin_filthiest() is None
        with manager.deletable_logs() as others:
            assert others == []
    cleaning = begin(manager)
    with manager.deletable_logs() as deletable:
        assert deletable == []
    manager.done_cleaning(cleaning, 0)


def test_log_under_retention_is_not_begun_though_it_becomes_compacted(
    logs: Any, manager: LogCleanerManager
) -> None:
    log = logs.filled("a", records=10, config=DELETED)
    with manager.logs_for_retention([log]) as retained:
        assert retained == [log]
        logs.manager.update_log_config(log, COMPACTED)
        assert manager.begin_filthiest() is None
    assert begin(manager).log is log


# Failures


def test_uncleanable_log_is_left_alone_and_counted(logs: Any, manager: LogCleanerManager) -> None:
    log, other = logs.filled("a", records=10), logs.filled("b", records=10)
    manager.mark_uncleanable(log)
    assert begin(manager).log is other
    assert manager.begin_filthiest() is None
    assert manager.uncleanable_logs(log.log_dir) == [log]
    assert manager.uncleanable_logs(other.log_dir) == []
    assert manager.uncleanable_size(log.log_dir) == sum(
        segment.size_in_bytes for segment in log.segments()[:-1]
    )
    with manager.deletable_logs() as deletable:
        assert deletable == []


def test_uncleanable_log_that_is_being_deleted_is_not_looked_at(
    logs: Any, manager: LogCleanerManager
) -> None:
    log = logs.filled("a", records=10)
    manager.mark_uncleanable(log)
    with manager.paused(log.topic_partition):
        log.directory.rename(log.directory.with_name("gone"))
        assert manager.uncleanable_size(log.log_dir) == 0
        assert log.log_dir.is_online
        log.directory.with_name("gone").rename(log.directory)
    assert manager.uncleanable_size(log.log_dir) > 0


def test_topic_made_again_is_cleanable_again(logs: Any, manager: LogCleanerManager) -> None:
    log = logs.filled("a", records=10)
    manager.mark_uncleanable(log)
    logs.manager.delete_log(log.topic_partition)
    assert manager.uncleanable_size(log.log_dir) == 0
    again = logs.filled("a", records=10)
    assert begin(manager).log is again


def test_logs_of_a_failed_directory_are_not_begun(logs: Any, manager: LogCleanerManager) -> None:
    log, other = logs.filled("a", records=10), logs.filled("b", records=10)
    cleaning = begin(manager)
    failed = cleaning.log.log_dir
    failed.fail(OSError("gone"), "test")
    manager.done_cleaning(cleaning, 6)
    sound = ({log, other} - {cleaning.log}).pop()
    with manager.deletable_logs() as deletable:
        assert deletable == [sound]
    assert begin(manager).log is sound
    assert manager.begin_filthiest() is None


class UnwritableCheckpoints(OsFileSystem):
    def write_atomically(self, path: Any, data: Any) -> None:
        if path.name == "cleaner-offset-checkpoint":
            raise OSError(28, "No space left on device")
        super().write_atomically(path, data)


def test_checkpoint_that_cannot_be_written_takes_the_directory_offline(
    logs: Any, caplog: pytest.LogCaptureFixture
) -> None:
    logs.manager.shutdown()
    manager = logs.open(UnwritableCheckpoints()).cleaner_manager
    log = logs.filled("a", records=10)
    manager.done_cleaning(begin(manager), 6)
    with pytest.raises(LogDirFailedError):
        log.log_dir.check_online()
    assert "checkpoint the cleaner" in caplog.text
    assert manager.begin_filthiest() is None


def test_time_since_the_last_look_is_reported(
    logs: Any, clock: SimClock, manager: LogCleanerManager
) -> None:
    clock.advance(500)
    assert manager.ms_since_last_run(clock.now_ms()) == 500
    manager.begin_filthiest()
    assert manager.ms_since_last_run(clock.now_ms()) == 0
