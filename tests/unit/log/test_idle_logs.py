"""What the background tasks do for logs that nothing happens to, and what ends their idleness."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from isotherm.config.broker import BrokerConfig
from isotherm.config.topic import TopicConfig
from isotherm.log.checkpoints import read_offset_checkpoint
from isotherm.log.due_logs import DueLogs
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_manager import LogManager
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import build_batch
from isotherm.testing.sim_clock import SimClock
from isotherm.types import NO_SEQUENCE, TopicPartition
from tests.support.executed_code import count_instructions

T0 = 1_700_000_000_000
TOPIC_ID = uuid.UUID(int=7)
CONFIG = TopicConfig(
    internal_segment_bytes=1000, retention_ms=60_000, flush_ms=5_000, file_delete_delay_ms=50
)
A = TopicPartition("a", 0)

Tick = Callable[[LogManager], object]
TICKS: tuple[Tick, ...] = (
    LogManager.delete_expired_segments,
    LogManager.flush_dirty_logs,
    LogManager.flush_closed_segments,
    LogManager.delete_marked_files,
    LogManager.checkpoint_changes,
    LogManager.checkpoint_high_watermarks,
)

Open = Callable[..., LogManager]


@pytest.fixture
def clock() -> SimClock:
    return SimClock(T0)


@pytest.fixture
def open_manager(tmp_path: Path, clock: SimClock) -> Iterator[Open]:
    opened: list[LogManager] = []

    def open_one(name: str, config: TopicConfig = CONFIG) -> LogManager:
        log_dirs = (tmp_path / name,)
        manager = LogManager(
            log_dirs,
            config=BrokerConfig(log_dirs=log_dirs, topic_defaults=config),
            topic_config_for=lambda topic: config,
            clock=clock,
            fs=OsFileSystem(),
            rng=random.Random(0),
        )
        opened.append(manager)
        manager.startup()
        return manager

    yield open_one
    for manager in opened:
        manager.shutdown()


def new_log(manager: LogManager, config: TopicConfig = CONFIG, partition: int = 0) -> PartitionLog:
    return manager.create_log(TopicPartition("a", partition), TOPIC_ID, config)


def append(log: PartitionLog, count: int = 1, producer_id: int = -1) -> None:
    for number in range(count):
        batch = build_batch(
            [(T0, b"k", b"v" * 100, ())],
            producer_id=producer_id,
            producer_epoch=-1 if producer_id < 0 else 0,
            base_sequence=NO_SEQUENCE if producer_id < 0 else number,
        )
        log.append_as_leader(batch, 0, now_ms=T0)
    log.update_high_watermark(log.log_end_offset)


def settle(manager: LogManager) -> None:
    """Run every task until none has work."""
    for _ in range(3):
        for tick in TICKS:
            tick(manager)


@pytest.mark.parametrize("tick", TICKS, ids=lambda tick: tick.__name__)
def test_tick_of_many_idle_logs_does_as_much_as_that_of_few(open_manager: Open, tick: Tick) -> None:
    counts = []
    for count in (3, 40):
        manager = open_manager(f"of-{count}")
        for number in range(count):
            append(new_log(manager, partition=number), 2, producer_id=number)
        settle(manager)
        counts.append(count_instructions(lambda manager=manager: tick(manager)))
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("tick", TICKS, ids=lambda tick: tick.__name__)
def test_time_that_makes_nothing_due_ends_no_idleness(
    open_manager: Open, clock: SimClock, tick: Tick
) -> None:
    manager = open_manager("one")
    for number in range(20):
        append(new_log(manager, partition=number))
    manager.flush_dirty_logs()
    clock.advance(5_000)
    settle(manager)
    before = count_instructions(lambda: tick(manager))
    clock.advance(50_000)
    assert count_instructions(lambda: tick(manager)) == before


def test_segment_of_an_idle_log_expires_in_time(open_manager: Open, clock: SimClock) -> None:
    manager = open_manager("one")
    log = new_log(manager)
    append(log, 20)
    settle(manager)
    clock.advance(60_000)
    assert manager.delete_expired_segments() == {}
    clock.advance(1)
    assert list(manager.delete_expired_segments()) == [A]
    assert log.log_start_offset == 20
    settle(manager)
    names = {path.name for path in log.directory.iterdir()}
    assert any(name.endswith(".deleted") for name in names)
    clock.advance(50)
    manager.delete_marked_files()
    assert not any(path.name.endswith(".deleted") for path in log.directory.iterdir())


def test_records_of_an_idle_log_are_flushed_after_flush_ms(
    open_manager: Open, clock: SimClock
) -> None:
    manager = open_manager("one")
    log = new_log(manager)
    settle(manager)
    append(log)
    settle(manager)
    clock.advance(4_999)
    manager.flush_dirty_logs()
    assert log.recovery_point == 0
    clock.advance(1)
    manager.flush_dirty_logs()
    assert log.recovery_point == 1


def test_producer_of_an_idle_log_expires(open_manager: Open, clock: SimClock) -> None:
    manager = open_manager("one", replace(CONFIG, retention_ms=-1))
    log = new_log(manager, replace(CONFIG, retention_ms=-1))
    append(log, producer_id=5)
    settle(manager)
    clock.advance(86_399_999)
    manager.delete_expired_segments()
    assert log.last_records_of_producers()
    clock.advance(1)
    manager.delete_expired_segments()
    assert not log.last_records_of_producers()


def test_segments_that_wait_for_the_high_watermark_are_deleted_once_it_passes_them(
    open_manager: Open, clock: SimClock
) -> None:
    manager = open_manager("one")
    log = new_log(manager)
    append(log, 20)
    log.append_as_leader(build_batch([(T0, b"k", b"v" * 100, ())]), 0, now_ms=T0)
    clock.advance(60_001)
    settle(manager)
    assert log.log_start_offset == 20
    log.update_high_watermark(21)
    assert list(manager.delete_expired_segments()) == [A]
    assert log.log_start_offset == 21


def test_configuration_and_growth_make_retention_due(open_manager: Open) -> None:
    manager = open_manager("one", replace(CONFIG, retention_ms=-1))
    log = new_log(manager, replace(CONFIG, retention_ms=-1))
    append(log, 20)
    settle(manager)
    limited = replace(CONFIG, retention_ms=-1, retention_bytes=2_000)
    manager.update_log_config(log, limited)
    assert list(manager.delete_expired_segments()) == [A]
    settle(manager)
    start = log.log_start_offset
    append(log, 20)
    assert list(manager.delete_expired_segments()) == [A]
    assert log.log_start_offset > start


def test_log_start_that_was_raised_makes_retention_due(open_manager: Open) -> None:
    manager = open_manager("one")
    log = new_log(manager)
    append(log, 20)
    settle(manager)
    log.maybe_increment_log_start_offset(20)
    assert list(manager.delete_expired_segments()) == [A]


def test_checkpoints_are_written_after_a_change_and_a_deletion(
    open_manager: Open, tmp_path: Path
) -> None:
    manager = open_manager("one")
    log = new_log(manager)
    other = new_log(manager, partition=1)
    settle(manager)
    path = tmp_path / "one" / "replication-offset-checkpoint"
    points = tmp_path / "one" / "recovery-point-offset-checkpoint"
    append(log)
    manager.checkpoint_high_watermarks()
    assert read_offset_checkpoint(path.read_bytes())[A] == 1
    log.flush()
    manager.checkpoint_changes()
    assert read_offset_checkpoint(points.read_bytes())[A] == 1
    manager.delete_log(other.topic_partition)
    manager.checkpoint_changes()
    assert read_offset_checkpoint(points.read_bytes()) == {A: 1}


def test_log_that_fails_is_looked_at_again(
    open_manager: Open, clock: SimClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = open_manager("one")
    log = new_log(manager)
    append(log, 20)
    settle(manager)
    clock.advance(60_001)

    def fail(*_: object) -> None:
        raise ValueError("the first attempt")

    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "delete_old_segments", fail)
        with pytest.raises(ValueError, match="the first attempt"):
            manager.delete_expired_segments()
    assert list(manager.delete_expired_segments()) == [A]


def test_due_logs_hold_one_time_for_each_log() -> None:
    due, b = DueLogs(), TopicPartition("b", 0)
    for due_ms in range(20_000, 10_000, -1):
        due.note(A, due_ms)
    due.note(b, 15_000)
    due.note(A, 12_000)
    assert len(due._queue) < 200
    assert due.take(10_000) == []
    assert due.take(10_001) == [A]
    assert due.take(14_999) == []
    assert due.take(20_000) == [b]
    due.note(A, 5)
    due.note(A)
    assert due.take(0) == [A]
    assert due.take(100) == []
