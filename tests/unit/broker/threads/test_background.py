"""The background tasks of the logs run at the intervals that their keys set."""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from isotherm.broker.threads.background import PeriodicTask, start_log_tasks
from isotherm.config.broker import BrokerConfig
from isotherm.config.topic import TopicConfig
from isotherm.errors import RemoteStorageError
from isotherm.log.log_manager import LogManager
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import build_batch
from isotherm.record.validation import AppendOrigin
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicPartition
from tests.support.faulty_fs import FaultyFileSystem

TASK_COUNT = 4


class Tasks:
    """The background tasks over one log, with a clock that the test moves."""

    def __init__(self, directory: Path) -> None:
        self.fs, self.clock = FaultyFileSystem(), SimClock()
        self.directory = directory
        self._stops: list[object] = []

    def start(self, topic: TopicConfig, **settings: int) -> PartitionLog:
        config = BrokerConfig(
            log_dirs=(self.directory,),
            log_initial_task_delay_ms=0,
            topic_defaults=topic,
            **settings,
        )
        self.manager = LogManager(
            config.log_dirs,
            config=config,
            topic_config_for=lambda _: topic,
            clock=self.clock,
            fs=self.fs,
            rng=random.Random(0),
        )
        self.manager.startup()
        log = self.manager.create_log(TopicPartition("t", 0), uuid.UUID(int=1), topic)
        self.tasks = start_log_tasks(config, self.manager, self.clock)
        self.clock.await_waiters(TASK_COUNT)
        return log

    def append(self, log: PartitionLog) -> None:
        batch = build_batch([(self.clock.now_ms(), None, b"v", ())])
        log.append_as_leader(batch, 0, now_ms=self.clock.now_ms(), origin=AppendOrigin.COORDINATOR)

    def syncs_after(self, log: PartitionLog, duration_ms: int) -> int:
        for _ in range(duration_ms // 1000):
            self.clock.advance(1000)
            self.clock.await_waiters(TASK_COUNT)
        return self.fs.sync_counts[log.segments()[-1].log_path]

    def stop(self) -> None:
        for task in self.tasks:
            task.stop()
        self.manager.shutdown()


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[Tasks]:
    made = Tasks(tmp_path)
    yield made
    made.stop()


def test_log_is_flushed_once_flush_ms_have_passed(tasks: Tasks) -> None:
    log = tasks.start(TopicConfig(flush_ms=5000))
    tasks.append(log)
    assert tasks.syncs_after(log, 4000) == 0
    assert log.recovery_point == 0
    assert tasks.syncs_after(log, 2000) == 1
    assert log.recovery_point == 1
    # Nothing was appended, so nothing is flushed.
    assert tasks.syncs_after(log, 20_000) == 1
    tasks.append(log)
    assert tasks.syncs_after(log, 6000) == 2


def test_flush_scheduler_interval_may_be_shorter(tasks: Tasks) -> None:
    log = tasks.start(TopicConfig(flush_ms=100), log_flush_scheduler_interval_ms=200)
    tasks.append(log)
    tasks.clock.advance(200)
    tasks.clock.await_waiters(TASK_COUNT)
    assert log.recovery_point == 1


def test_log_without_flush_settings_is_left_to_the_operating_system(tasks: Tasks) -> None:
    log = tasks.start(TopicConfig())
    tasks.append(log)
    assert tasks.syncs_after(log, 120_000) == 0


def test_failure_that_lasts_has_one_line(caplog: pytest.LogCaptureFixture) -> None:
    gone = RemoteStorageError("the bucket is away")
    results: list[Exception | None] = [gone, gone, gone, None, ValueError("a defect"), gone, None]
    clock, left = SimClock(), iter(results)

    def tick() -> None:
        if (error := next(left, None)) is not None:
            raise error

    caplog.set_level(logging.INFO)
    task = PeriodicTask("upkeep", tick, clock, initial_delay_s=0, interval_s=1)
    task.start()
    for _ in results:
        clock.await_waiters(1)
        clock.advance(1000)
    clock.await_waiters(1)
    task.stop()
    assert [record.getMessage() for record in caplog.records] == [
        "background task failed task=upkeep: the bucket is away",
        "background task works again task=upkeep",
        "background task failed task=upkeep: a defect",
        "background task works again task=upkeep",
    ]
    # The store is away for a moment; the defect is for people.
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO", "ERROR", "INFO"]
    assert "ValueError: a defect" in caplog.text
