"""Tasks of partitions that nothing happens to: they do not run, and each change wakes them."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from isotherm.errors import RemoteStorageError
from isotherm.remote.remote_log_manager import RemoteLogManager
from isotherm.remote.tasks.copy import CopyTask
from isotherm.remote.tasks.expiration import ExpirationTask
from isotherm.remote.tasks.follow import FollowTask
from isotherm.remote.tasks.tier import RemoteTierAccess
from tests.support.managed_partition import T0, all_copied
from tests.support.sim_threads import SimThreads
from tests.support.tiered_partition import TieredPartition

INTERVAL_S = 30
DAY_S = 86_400


class Runs:
    """Counts the runs of the tasks, and lets simulated time pass."""

    def __init__(self, partition: TieredPartition, patch: pytest.MonkeyPatch) -> None:
        self._clock = partition.clock
        self.threads = SimThreads(partition.clock, random.Random(0))
        self.counts: Counter[str] = Counter()
        for task in (CopyTask, ExpirationTask, FollowTask):
            self._count(task, patch)

    def _count(self, task: type[Any], patch: pytest.MonkeyPatch) -> None:
        run = task.run

        def counted(each: Any) -> object:
            self.counts[task.__name__] += 1
            return run(each)

        patch.setattr(task, "run", counted)

    def after(self, seconds: int) -> dict[str, int]:
        """The runs within this time from now on."""
        self.counts.clear()
        end_s = self._clock.monotonic_s() + seconds

        def wait() -> float | None:
            left_s = end_s - self._clock.monotonic_s()
            return left_s if left_s > 0 else None

        # A step of its own, so that time stops at the end though nothing else is due by then.
        self.threads.repeat("end", wait, threading.Event(), self._clock)
        while self._clock.monotonic_s() < end_s:
            self.threads.run_one()
        return dict(self.counts)


@pytest.fixture
def runs(partition: TieredPartition, monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(partition, monkeypatch)


@pytest.fixture
def idle(
    partition: TieredPartition, runs: Runs, open_manager: Callable[..., RemoteLogManager]
) -> RemoteLogManager:
    """The manager of a led partition that is copied, and has been left alone since."""
    manager = open_manager(runs.threads)
    partition.update_config(retention_ms=-1)
    manager.on_leadership_change([partition.log])
    partition.metadata.poll()
    runs.after(10 * INTERVAL_S)
    assert all_copied(partition)
    return manager


def test_tasks_of_an_idle_leader_do_not_run(idle: RemoteLogManager, runs: Runs) -> None:
    assert runs.after(DAY_S) == {}


def test_tasks_of_an_empty_partition_do_not_run(
    tmp_path: Any, runs: Runs, idle: RemoteLogManager, partition: TieredPartition
) -> None:
    partition.log.maybe_increment_log_start_offset(partition.log.high_watermark)
    partition.log.delete_old_segments(partition.clock.now_ms())
    runs.after(4 * INTERVAL_S)
    assert runs.after(DAY_S) == {}


def test_segment_that_is_rolled_is_copied_within_an_interval(
    idle: RemoteLogManager, runs: Runs, partition: TieredPartition
) -> None:
    for _ in range(3):
        runs.after(DAY_S)
        partition.log.roll()
        assert not all_copied(partition)
        assert runs.after(INTERVAL_S + 1)["CopyTask"] >= 1
        assert all_copied(partition)
        partition.append(b"one more")


def test_change_during_the_run_after_a_failure_brings_another_run(
    idle: RemoteLogManager, runs: Runs, partition: TieredPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []

    def run(task: CopyTask) -> None:
        ran.append(len(ran))
        if len(ran) == 1:
            raise RemoteStorageError("the first run")
        if len(ran) == 2:
            partition.append(b"a change in the middle of a run")

    monkeypatch.setattr(CopyTask, "run", run)
    monkeypatch.setattr(CopyTask, "due_ms", None)
    partition.log.roll()
    runs.after(10 * INTERVAL_S)
    assert len(ran) == 3


def test_busy_partition_is_looked_at_once_an_interval(
    idle: RemoteLogManager, runs: Runs, partition: TieredPartition
) -> None:
    counts: Counter[str] = Counter()
    for number in range(10 * INTERVAL_S):
        partition.append(b"record-%d" % number)
        counts.update(runs.after(1))
    assert 9 <= counts["CopyTask"] <= 11
    assert 9 <= counts["ExpirationTask"] <= 11


def test_idle_segments_expire_in_time(
    idle: RemoteLogManager, runs: Runs, partition: TieredPartition
) -> None:
    age_ms = partition.clock.now_ms() - T0
    partition.update_config(retention_ms=age_ms + 2 * DAY_S * 1000)
    runs.after(10 * INTERVAL_S)
    count = len(partition.segments())
    assert runs.after(DAY_S).get("ExpirationTask", 0) <= 24, "a long sleep ends once an hour"
    assert len(partition.segments()) == count
    runs.after(DAY_S)
    assert partition.segments() == []


def test_retention_that_is_lowered_wakes_the_expiration(
    idle: RemoteLogManager, runs: Runs, partition: TieredPartition
) -> None:
    partition.update_config(retention_bytes=0)
    runs.after(INTERVAL_S + 1)
    assert partition.segments() == []


def test_event_of_another_broker_wakes_the_follower(
    partition: TieredPartition, runs: Runs, open_manager: Callable[..., RemoteLogManager]
) -> None:
    manager = open_manager(runs.threads)
    manager.on_leadership_change((), [partition.log])
    partition.metadata.poll()
    runs.after(10 * INTERVAL_S)
    assert runs.after(DAY_S) == {}
    # Another broker copies: the events arrive with a poll.
    partition.copy_task.run()
    partition.log._highest_offset_in_remote_storage = -1
    partition.metadata.poll()
    assert runs.after(INTERVAL_S + 1)["FollowTask"] == 1
    assert all_copied(partition)
    runs.after(2 * INTERVAL_S)  # the log has changed: it knows the copied offset now
    assert runs.after(DAY_S) == {}


def test_tasks_run_at_each_interval_with_a_manager_that_tells_no_changes(
    partition: TieredPartition,
    runs: Runs,
    open_manager: Callable[..., RemoteLogManager],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RemoteTierAccess, "tells_changes", False)
    manager = open_manager(runs.threads)
    manager.on_leadership_change([partition.log])
    partition.metadata.poll()
    runs.after(10 * INTERVAL_S)
    assert all_copied(partition)
    assert 9 <= runs.after(10 * INTERVAL_S)["ExpirationTask"] <= 11
