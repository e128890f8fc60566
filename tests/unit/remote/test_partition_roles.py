"""The roles of partitions begin and end, and what meets waits; with threads, on a simulated
clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from isotherm.errors import (
    RemoteStorageNotReadyError,
)
from isotherm.log.fs import OsFileSystem
from isotherm.remote import partition_roles
from isotherm.remote.remote_log_manager import RemoteLogManager
from isotherm.remote.remote_tier_metrics import (
    LOCAL_RETENTION_SIZE,
    RETENTION_SIZE,
)
from isotherm.remote.tasks.pending_deletions import PendingDeletions
from isotherm.types import TopicIdPartition
from tests.support.faulty_store import Fault, Operation
from tests.support.managed_partition import WAIT_S, all_copied, published, read, run_after
from tests.support.tiered_partition import TieredPartition


def test_led_partition_is_copied_at_once_and_then_at_intervals(
    manager: RemoteLogManager, partition: TieredPartition
) -> None:
    manager.on_leadership_change([partition.log])
    run_after(partition, 1, lambda: all_copied(partition))
    for number in range(6):
        partition.append(b"more-%02d" % number)
    assert not all_copied(partition)
    run_after(partition, 30_001, lambda: all_copied(partition))


def test_log_that_is_not_tiered_is_left_alone(
    manager: RemoteLogManager, partition: TieredPartition
) -> None:
    partition.update_config(remote_storage_enable=False)
    manager.on_leadership_change([partition.log])
    manager.run_tasks()
    assert partition.metadata_topic.records() == []


def test_run_tasks_copies_and_expires_in_the_callers_thread(
    manager: RemoteLogManager, partition: TieredPartition
) -> None:
    manager.on_leadership_change([partition.log])
    run_after(partition, 1, lambda: all_copied(partition))
    partition.update_config(retention_bytes=0)
    manager.run_tasks()
    assert partition.segments() == []


def test_stopped_partition_with_delete_remote_leaves_nothing_behind(
    manager: RemoteLogManager, partition: TieredPartition
) -> None:
    manager.on_leadership_change([partition.log])
    run_after(partition, 1, lambda: all_copied(partition))
    assert partition.object_names() != []
    partition.store.fail_next(Operation.DELETE, None, Fault.ERROR_AFTER, Fault.THROTTLED)
    stopped = manager.stop_partitions([partition.partition], delete_remote=True)
    run_after(partition, 1_000, stopped.done)
    assert partition.object_names() == []
    assert not partition.metadata.is_ready(partition.partition)
    partition.metadata.on_partition_leadership_changes([partition.partition], [])
    partition.metadata.poll()
    assert partition.segments() == []


def test_partition_never_led_here_is_deleted_too(
    manager: RemoteLogManager, partition: TieredPartition
) -> None:
    """As on a broker that restarts in the middle of a topic's deletion."""
    partition.copy_task.run()
    partition.metadata.on_stop_partitions([partition.partition])
    stopped = manager.stop_partitions([partition.partition], delete_remote=True)
    partition.metadata.poll()
    run_after(partition, 1_000, stopped.done)
    assert partition.object_names() == []


def test_stopped_partition_without_deletion_keeps_its_remote_segments(
    manager: RemoteLogManager, partition: TieredPartition
) -> None:
    manager.on_leadership_change([partition.log])
    run_after(partition, 1, lambda: all_copied(partition))
    names = partition.object_names()
    stopped = manager.stop_partitions([partition.partition], delete_remote=False)
    run_after(partition, 1_000, stopped.done)
    assert partition.object_names() == names
    with pytest.raises(Exception, match="not assigned"):
        partition.segments()
    lag = "kafka_server_brokertopicmetrics_remotelogsizebytes"
    assert partition.metrics.value(lag, topic="flights") == 0


def test_stop_of_no_partition_is_done_at_once(manager: RemoteLogManager) -> None:
    assert manager.stop_partitions([], delete_remote=True).done()


def test_share_of_retention_is_published_and_forgotten(
    manager: RemoteLogManager, partition: TieredPartition
) -> None:
    manager.on_leadership_change([partition.log])
    run_after(partition, 1, lambda: all_copied(partition))
    size = sum(segment.segment_size_in_bytes for segment in partition.segments())
    active = partition.log.segments()[-1].size_in_bytes
    partition.update_config(retention_bytes=10_000, local_retention_bytes=5_000)
    manager.run_tasks()
    labels = {"topic": "flights", "partition": "0"}
    value = partition.metrics.value
    assert value(RETENTION_SIZE, **labels) == (size + active) * 100 // 10_000
    assert value(LOCAL_RETENTION_SIZE, **labels) == partition.log.size_in_bytes * 100 // 5_000
    assert value(RETENTION_SIZE, **labels) > 0
    stopped = manager.stop_partitions([partition.partition], delete_remote=False)
    run_after(partition, 1_000, stopped.done)
    assert "retentionsizein_percent{" not in published(partition)


def test_partition_tiered_again_while_it_is_deleted_is_copied_when_that_is_done(
    manager: RemoteLogManager, partition: TieredPartition
) -> None:
    """KIP-950: tiering is turned off with remote.log.delete.on.disable, and on again at once.
    Copies made during the deletion would be deleted too, and local retention would delete their
    only other copy."""
    manager.on_leadership_change([partition.log])
    run_after(partition, 1, lambda: all_copied(partition))
    old = {segment.segment_id for segment in partition.segments()}
    partition.store.fail_always(Operation.DELETE, Fault.ERROR_BEFORE)
    partition.update_config(remote_storage_enable=False, remote_log_delete_on_disable=True)
    stopped = manager.stop_partitions([partition.partition], delete_remote=True)
    errors = "isotherm_remote_log_task_errors_total"
    run_after(
        partition, 100, lambda: partition.metrics.value(errors, task="partition-deletion") >= 1
    )
    partition.update_config(remote_storage_enable=True)
    manager.on_leadership_change([partition.log])
    assert partition.log.highest_offset_in_remote_storage == -1
    partition.delete_local_segments()
    assert partition.log.local_log_start_offset == 0, "nothing of it is copied any more"
    partition.store.heal()
    run_after(partition, 10_000, lambda: stopped.done() and all_copied(partition))
    assert not old & {segment.segment_id for segment in partition.segments()}
    partition.delete_local_segments()
    assert read(manager, partition, 0)[0] == b"record-00"


def test_deletion_that_a_restart_cut_off_is_resumed(
    open_manager: Callable[..., RemoteLogManager], partition: TieredPartition
) -> None:
    first = open_manager()
    first.on_leadership_change([partition.log])
    run_after(partition, 1, lambda: all_copied(partition))
    partition.store.fail_always(Operation.DELETE, Fault.ERROR_BEFORE)
    first.stop_partitions([partition.partition], delete_remote=True)
    errors = "isotherm_remote_log_task_errors_total"
    run_after(
        partition, 100, lambda: partition.metrics.value(errors, task="partition-deletion") >= 1
    )
    first.close()
    assert partition.object_names() != []
    partition.store.heal()
    partition.restart()
    second = open_manager()
    resumed = second.resume_deletions()
    run_after(partition, 1_000, resumed.done)
    assert partition.object_names() == []
    assert second.resume_deletions().done()


def test_partition_stopped_twice_is_deleted_when_the_second_stop_says_so(
    manager: RemoteLogManager, partition: TieredPartition
) -> None:
    manager.on_leadership_change([partition.log])
    run_after(partition, 1, lambda: all_copied(partition))
    first = manager.stop_partitions([partition.partition], delete_remote=False)
    second = manager.stop_partitions([partition.partition], delete_remote=True)
    run_after(partition, 1_000, lambda: first.done() and second.done())
    assert partition.object_names() == []


def test_upload_that_finishes_after_its_topic_was_deleted_leaves_nothing(
    manager: RemoteLogManager, partition: TieredPartition
) -> None:
    """The deletion waits for the upload in progress, and deletes its objects too."""
    began, hold = threading.Event(), threading.Event()
    copy = partition.store.copy_log_segment_data

    def held(*arguments: Any) -> bytes | None:
        began.set()
        assert hold.wait(WAIT_S)
        return copy(*arguments)

    partition.store.copy_log_segment_data = held  # type: ignore[method-assign]
    manager.on_leadership_change([partition.log])
    assert began.wait(WAIT_S)
    stopped = manager.stop_partitions([partition.partition], delete_remote=True)
    assert not stopped.done()
    hold.set()
    run_after(partition, 1_000, stopped.done)
    assert partition.object_names() == []
    assert partition.log.highest_offset_in_remote_storage == -1


def test_sizes_and_roles_are_those_of_led_partitions(
    manager: RemoteLogManager, partition: TieredPartition
) -> None:
    key = partition.partition.topic_partition
    assert manager.sizes() == {}
    assert not manager.leads(partition.partition)
    manager.on_leadership_change([partition.log])
    assert list(manager.sizes()) == [key]
    run_after(partition, 1, lambda: all_copied(partition))
    manager.run_tasks()
    assert manager.sizes() == {
        key: sum(segment.segment_size_in_bytes for segment in partition.segments())
    }
    assert manager.leads(partition.partition)
    assert manager.location == "FaultyStore"
    stopped = manager.stop_partitions([partition.partition], delete_remote=False)
    run_after(partition, 1_000, stopped.done)
    assert manager.sizes() == {}
    assert not manager.leads(partition.partition)


def test_partitions_that_were_removed_meanwhile_are_deleted_at_the_start(
    manager: RemoteLogManager, partition: TieredPartition
) -> None:
    """The process before this one may not have noticed the removal."""
    partition.copy_task.run()
    partition.topic_exists = False
    partition.metadata.on_stop_partitions([partition.partition])
    resumed = manager.resume_deletions([partition.partition])
    partition.metadata.poll()
    run_after(partition, 1_000, resumed.done)
    assert partition.object_names() == []


def test_deletion_that_cannot_be_struck_off_the_list_is_tried_again(
    manager: RemoteLogManager, partition: TieredPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition.copy_task.run()
    remove, failures = PendingDeletions.remove, [OSError("no space left on device")]

    def fails_once(pending: PendingDeletions, struck: TopicIdPartition) -> None:
        if failures:
            raise failures.pop()
        remove(pending, struck)

    monkeypatch.setattr(PendingDeletions, "remove", fails_once)
    stopped = manager.stop_partitions([partition.partition], delete_remote=True)
    run_after(partition, 10_000, stopped.done)
    assert not failures
    assert partition.object_names() == []
    pending = PendingDeletions(partition.log.directory.parent, OsFileSystem())
    assert pending.partitions() == []


def test_deletion_waits_until_the_metadata_is_read(
    manager: RemoteLogManager, partition: TieredPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition.copy_task.run()
    is_ready, looks = partition.metadata.is_ready, []

    def not_at_first(asked: TopicIdPartition) -> bool:
        looks.append(asked)
        return len(looks) > 2 and is_ready(asked)

    monkeypatch.setattr(partition.metadata, "is_ready", not_at_first)
    stopped = manager.stop_partitions([partition.partition], delete_remote=True)
    run_after(partition, 1_000, stopped.done)
    assert partition.object_names() == []


def test_deletion_that_is_asked_for_while_a_stop_ends_is_carried_out(
    manager: RemoteLogManager, partition: TieredPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition.copy_task.run()
    on_stop, deletions = partition.metadata.on_stop_partitions, []

    def deletes_at_first(stopped: list[TopicIdPartition]) -> None:
        if not deletions:
            deletions.append(manager.stop_partitions(stopped, delete_remote=True))
        on_stop(stopped)

    monkeypatch.setattr(partition.metadata, "on_stop_partitions", deletes_at_first)
    stopped = manager.stop_partitions([partition.partition], delete_remote=False)
    run_after(partition, 1_000, lambda: stopped.done() and deletions[0].done())
    assert partition.object_names() == []


def test_role_of_the_last_call_counts_although_a_stop_ends_meanwhile(
    manager: RemoteLogManager, partition: TieredPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.on_leadership_change([partition.log])
    run_after(partition, 1, lambda: all_copied(partition))
    go, follows, ended = threading.Event(), [], threading.Event()
    on_stop = partition.metadata.on_stop_partitions

    def held(stopped: list[TopicIdPartition]) -> None:
        assert go.wait(WAIT_S)
        on_stop(stopped)

    class Ending(Future[None]):
        def set_result(self, result: None) -> None:
            is_first = not follows
            if is_first:
                follows.append(True)
                manager.on_leadership_change((), [partition.log])
            super().set_result(result)
            if is_first:
                ended.set()  # every callback has run

    monkeypatch.setattr(partition.metadata, "on_stop_partitions", held)
    monkeypatch.setattr(partition_roles, "Future", Ending)
    stopped = manager.stop_partitions([partition.partition], delete_remote=False)
    manager.on_leadership_change([partition.log])  # begins to lead when the stop is done
    go.set()
    run_after(partition, 1_000, lambda: stopped.done() and ended.is_set())
    assert not manager.leads(partition.partition)
    partition.log._highest_offset_in_remote_storage = -1
    run_after(partition, 1_000, lambda: all_copied(partition))  # by the task of a follower


@pytest.mark.parametrize("delete_remote", [False, True])
def test_closed_manager_leaves_a_stop_to_the_next_process(
    manager: RemoteLogManager, partition: TieredPartition, delete_remote: bool
) -> None:
    manager.on_leadership_change([partition.log])
    manager.close()
    stopped = manager.stop_partitions([partition.partition], delete_remote=delete_remote)
    with pytest.raises(RemoteStorageNotReadyError, match="is closed"):
        stopped.result(0)


def test_closed_manager_leaves_stops_that_meet_to_the_next_process(
    manager: RemoteLogManager, partition: TieredPartition
) -> None:
    """Both deletions wait for metadata that are never read."""
    other = replace_partition(partition, 1)
    stops = [manager.stop_partitions([other], delete_remote=True) for _ in range(2)]
    manager.close()
    for stopped in stops:
        with pytest.raises(RemoteStorageNotReadyError, match="is closed"):
            stopped.result(0)


def replace_partition(partition: TieredPartition, number: int) -> TopicIdPartition:
    return TopicIdPartition(partition.partition.topic_id, partition.partition.topic, number)


def test_stop_of_several_partitions_has_the_first_error(
    manager: RemoteLogManager, partition: TieredPartition
) -> None:
    """Both deletions wait for metadata that are never read."""
    others = [replace_partition(partition, number) for number in (1, 2)]
    stopped = manager.stop_partitions(others, delete_remote=True)
    assert not stopped.done()
    manager.close()
    with pytest.raises(RemoteStorageNotReadyError, match="is closed"):
        stopped.result(0)
