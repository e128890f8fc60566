"""The task of a follower, and the cancellation that all tasks of a partition share."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from isotherm.remote.tasks.cancellation import Cancellation
from isotherm.remote.tasks.follow import FollowTask
from tests.support.tiered_partition import TieredPartition

# Ends a test that hangs. No assertion depends on it.
WAIT_S = 300


@pytest.fixture
def copied(tiered: TieredPartition) -> TieredPartition:
    """The log does not know yet that its segments are copied."""
    for number in range(12):
        tiered.append(b"%d" % number)
    tiered.copy_task.run()
    tiered.log._highest_offset_in_remote_storage = -1
    return tiered


@pytest.fixture
def asked(copied: TieredPartition, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The leader epochs for which the metadata are asked."""
    epochs: list[object] = []
    find = copied.metadata.highest_offset_for_epoch

    def noted(partition: Any, epoch: int) -> Any:
        epochs.append(epoch)
        return find(partition, epoch)

    monkeypatch.setattr(copied.metadata, "highest_offset_for_epoch", noted)
    return epochs


def task_of(tiered: TieredPartition) -> FollowTask:
    return FollowTask(tiered.log, tiered.partition, tiered.tier)


def test_follower_reports_the_end_of_the_remote_tier(
    copied: TieredPartition, asked: list[object]
) -> None:
    task_of(copied).run()
    last = copied.segments()[-1].end_offset_inclusive
    assert copied.log.highest_offset_in_remote_storage == last
    assert asked == [0]


@pytest.mark.parametrize("reason", ["cancelled", "not tiered", "not ready"])
def test_follower_asks_for_nothing_while_it_may_not_report(
    copied: TieredPartition, asked: list[object], reason: str
) -> None:
    task = task_of(copied)
    if reason == "cancelled":
        task.cancel()
    elif reason == "not tiered":
        copied.update_config(remote_storage_enable=False)
    else:
        copied.metadata.on_stop_partitions([copied.partition])
    task.run()
    assert asked == []
    assert copied.log.highest_offset_in_remote_storage == -1


def test_task_that_is_cancelled_during_its_run_reports_nothing(
    copied: TieredPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of(copied)
    find = copied.metadata.highest_offset_for_epoch

    def cancel_then_find(*arguments: Any) -> Any:
        task.cancel()
        return find(*arguments)

    monkeypatch.setattr(copied.metadata, "highest_offset_for_epoch", cancel_then_find)
    task.run()
    assert copied.log.highest_offset_in_remote_storage == -1


def test_cancellation_waits_for_the_report_that_has_begun(copied: TieredPartition) -> None:
    cancellation = Cancellation()
    begun, go = threading.Event(), threading.Event()
    reported: list[int] = []

    class SlowLog:
        def update_highest_offset_in_remote_storage(self, offset: int) -> None:
            begun.set()
            assert go.wait(WAIT_S)
            assert not cancellation.is_set
            reported.append(offset)

    with ThreadPoolExecutor(2) as pool:
        report = pool.submit(cancellation.report_copied, SlowLog(), 5)  # type: ignore[arg-type]
        assert begun.wait(WAIT_S)
        cancelled = pool.submit(cancellation.cancel)
        go.set()
        report.result(WAIT_S)
        cancelled.result(WAIT_S)
    cancellation.report_copied(SlowLog(), 6)  # type: ignore[arg-type]
    assert reported == [5]
    assert cancellation.is_set
    assert cancellation.event.is_set()
