"""A log that moves to another directory of its broker stays the same log, wherever a crash
happens."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from isotherm.config.broker import BrokerConfig
from isotherm.config.topic import TopicConfig
from isotherm.errors import LogDirFailedError, NotLeaderOrFollowerError
from isotherm.log.log_copy import MOVED_MARK, LogCopy
from isotherm.log.log_dir import LogDir, PartitionDirectory
from isotherm.log.log_manager import LogManager
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import build_batch
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicPartition
from tests.support.faulty_fs import FaultyFileSystem

T0 = 1_700_000_000_000
PLACE = TopicPartition("moved", 0)
TOPIC_ID = uuid.UUID(int=7)
CONFIG = TopicConfig(
    internal_segment_bytes=1000, segment_index_bytes=1200, retention_ms=-1, file_delete_delay_ms=50
)

Open = Callable[[], LogManager]


@pytest.fixture
def fs() -> FaultyFileSystem:
    return FaultyFileSystem()


@pytest.fixture
def open_manager(tmp_path: Path, fs: FaultyFileSystem) -> Iterator[Open]:
    """A function that starts a manager over <tmp>/one, <tmp>/two and <tmp>/three. All are shut down
    at the end."""
    opened: list[LogManager] = []
    dirs = tuple(tmp_path / name for name in ("one", "two", "three"))

    def open_one() -> LogManager:
        manager = LogManager(
            dirs,
            config=BrokerConfig(log_dirs=dirs, topic_defaults=CONFIG),
            topic_config_for=lambda topic: CONFIG,
            clock=SimClock(T0),
            fs=fs,
            rng=random.Random(len(opened)),
        )
        opened.append(manager)
        manager.startup()
        return manager

    yield open_one
    for manager in opened:
        manager.shutdown()


def append(log: PartitionLog, count: int, epoch: int = 0) -> None:
    """Append idempotent batches whose sequence is their offset, so that an append fails without the
    producer's state."""
    for _ in range(count):
        sequence = log.log_end_offset
        records = [(T0 + sequence, b"k%d" % sequence, b"v" * 100, ())]
        batch = build_batch(records, producer_id=77, producer_epoch=0, base_sequence=sequence)
        log.append_as_leader(batch, epoch, now_ms=T0)
    log.update_high_watermark(log.log_end_offset)


def crash(manager: LogManager) -> None:
    """Leave the files as `kill -9` does. The lock goes with the process."""
    for locked in manager._locked:
        locked.lock.release()
    manager._locked._locked.clear()
    manager._locked._loaded.clear()
    manager._logs = {}


def filled(manager: LogManager, count: int = 40) -> PartitionLog:
    log = manager.create_log(PLACE, TOPIC_ID, CONFIG)
    append(log, count - 10)
    append(log, 10, epoch=3)
    return log


def copied(manager: LogManager, log: PartitionLog) -> LogCopy:
    return copied_to(manager, log, manager.log_dirs()[1])


def copied_to(manager: LogManager, log: PartitionLog, log_dir: LogDir) -> LogCopy:
    copy = manager.begin_copy(log, log_dir)
    while copy.copy_some(300):
        pass
    return copy


def state(log: PartitionLog) -> object:
    """The log's own view of itself, and its bytes."""
    view = log.view()
    return (
        view._replace(segments=tuple(segment.base_offset for segment in view.segments)),
        log.leader_epochs.entries,
        log.producers.snapshot_entries(),
        b"".join(segment.log_path.read_bytes() for segment in log.segments()),
    )


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir() if each.is_dir())


def test_moved_log_is_the_same_and_goes_on(open_manager: Open, tmp_path: Path) -> None:
    manager = open_manager()
    log = filled(manager)
    copy = copied(manager, log)
    assert copy.end_offset == 40
    assert copy.size_in_bytes == log.size_in_bytes
    (future,) = names(tmp_path / "two")
    assert future.startswith("moved-0.")
    assert future.endswith("-future")
    # These records come after the copy, in segments of their own.
    append(log, 15, epoch=4)
    expected = state(log)
    moved = manager.move_log(copy)
    assert moved.directory == tmp_path / "two" / "moved-0"
    assert manager.log(PLACE) is moved
    assert state(moved) == expected
    with pytest.raises(NotLeaderOrFollowerError):
        append(log, 1)
    append(moved, 5, epoch=4)
    assert not (moved.directory / MOVED_MARK).exists()
    assert all(name.endswith("-delete") for name in names(tmp_path / "one"))

    expected = state(moved)
    manager.shutdown()
    again = open_manager().log(PLACE)
    assert again is not None
    assert state(again) == expected


def test_what_is_dropped_meanwhile_is_not_in_the_copy(open_manager: Open) -> None:
    manager = open_manager()
    log = filled(manager)
    copy = copied(manager, log)
    # Another leader's records replace the last ones. They have the same sizes.
    manager.truncate_log(log, 20)
    append(log, 20, epoch=9)
    # Retention deletes the first segments.
    log.maybe_increment_log_start_offset(15)
    assert log.delete_old_segments(T0)
    expected = state(log)
    assert state(manager.move_log(copy)) == expected


def test_copy_begins_anew_after_a_truncation_while_it_is_made(open_manager: Open) -> None:
    manager = open_manager()
    log = filled(manager)
    copy = copied(manager, log)
    manager.truncate_log(log, 0)
    append(log, 3, epoch=9)
    assert copy.copy_some(100) > 0
    assert copy.end_offset < 3
    while copy.copy_some(1000):
        pass
    assert (copy.end_offset, copy.size_in_bytes) == (3, log.size_in_bytes)


def test_interrupted_move_is_noted_and_its_copy_removed(open_manager: Open, tmp_path: Path) -> None:
    manager = open_manager()
    log = filled(manager)
    copied(manager, log)
    expected = state(log)
    crash(manager)
    again = open_manager()
    two = again.log_dirs()[1]
    assert again.interrupted_moves == {PLACE: two}
    found = again.log(PLACE)
    assert found is not None
    found.update_high_watermark(40)
    assert state(found) == expected
    again.delete_marked_files()
    assert names(tmp_path / "two") == []


def test_crash_before_the_old_directory_is_gone_leaves_the_new_one(
    open_manager: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = open_manager()
    copy = copied(manager, filled(manager))
    monkeypatch.setattr(manager, "_leave_behind", lambda copy, log: None)
    moved = manager.move_log(copy)
    append(moved, 5, epoch=4)
    expected = state(moved)
    crash(manager)
    assert names(tmp_path / "one") == names(tmp_path / "two") == ["moved-0"]

    again = open_manager()
    found = again.log(PLACE)
    assert found is not None
    assert found.directory == tmp_path / "two" / "moved-0"
    found.update_high_watermark(45)
    assert state(found) == expected
    # Move it back, although the mark of the first move may still be there.
    back = copied_to(again, found, again.log_dirs()[0])
    assert state(again.move_log(back)) == expected
    assert again.log_dirs()[0] is again.logs()[0].log_dir


def fail_as_it_is_retired(
    manager: LogManager, fs: FaultyFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of an old directory fails at the moment when it is to be retired."""
    retire = manager._retired.retire

    def fail(directory: PartitionDirectory, delay_ms: int) -> None:
        fs.fail(directory.log_dir.path)
        retire(directory, delay_ms)

    monkeypatch.setattr(manager._retired, "retire", fail)


def test_old_directory_whose_disk_fails_in_the_move_and_returns_is_not_the_log(
    open_manager: Open, tmp_path: Path, fs: FaultyFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = open_manager()
    copy = copied(manager, filled(manager))
    fail_as_it_is_retired(manager, fs, monkeypatch)
    moved = manager.move_log(copy)
    append(moved, 5, epoch=4)
    expected = state(moved)
    manager.shutdown()
    fs.heal()
    assert names(tmp_path / "one") == names(tmp_path / "two") == ["moved-0"]
    found = open_manager().log(PLACE)
    assert found is not None
    assert found.directory == tmp_path / "two" / "moved-0"
    assert state(found) == expected
    assert all(name.endswith("-delete") for name in names(tmp_path / "one"))


def test_old_directory_that_returns_after_the_next_move_is_not_the_log(
    open_manager: Open, tmp_path: Path, fs: FaultyFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = open_manager()
    copy = copied(manager, filled(manager))
    with monkeypatch.context() as patched:
        fail_as_it_is_retired(manager, fs, patched)
        moved = manager.move_log(copy)
    moved = manager.move_log(copied_to(manager, moved, manager.log_dirs()[2]))
    append(moved, 5, epoch=4)
    expected = state(moved)
    manager.shutdown()
    fs.heal()
    found = open_manager().log(PLACE)
    assert found is not None
    assert found.directory == tmp_path / "three" / "moved-0"
    assert state(found) == expected


def test_log_stays_where_it_is_if_the_new_directory_fails(
    open_manager: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = open_manager()
    log = filled(manager)
    copy = copied(manager, log)
    append(log, 3, epoch=4)
    expected = state(log)
    two = manager.log_dirs()[1]

    def fail() -> None:
        two.fail(OSError(5, "Input/output error"), "test")
        raise LogDirFailedError("test")

    monkeypatch.setattr(copy, "complete", fail)
    kept = manager.move_log(copy)
    assert kept.log_dir is manager.log_dirs()[0]
    assert state(kept) == expected
    append(kept, 1, epoch=4)


def test_copy_whose_log_is_gone_is_left_alone(open_manager: Open, tmp_path: Path) -> None:
    """The log may be in a directory that is offline and returns later."""
    manager = open_manager()
    copied(manager, filled(manager))
    crash(manager)
    (tmp_path / "one" / "moved-0").rename(tmp_path / "elsewhere")
    again = open_manager()
    again.delete_marked_files()
    assert again.interrupted_moves == {}
    (future,) = names(tmp_path / "two")
    assert future.endswith("-future")
