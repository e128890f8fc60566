"""Tiered partitions that another broker leads: only their leader changes the remote tier."""

from __future__ import annotations

from isotherm.remote.remote_log_manager import RemoteLogManager
from tests.support.managed_partition import all_copied, run_after
from tests.support.tiered_partition import TieredPartition


def test_follower_copies_and_expires_nothing(
    manager: RemoteLogManager, partition: TieredPartition
) -> None:
    manager.on_leadership_change((), [partition.log])
    partition.update_config(retention_bytes=0)
    for _ in range(3):
        partition.metadata.poll()
        manager.run_tasks()
        partition.clock.advance(60_000)
    assert partition.objects() == {}
    assert partition.log.log_start_offset == 0
    assert not manager.leads(partition.partition)


def test_follower_learns_what_its_leader_has_copied(
    manager: RemoteLogManager, partition: TieredPartition
) -> None:
    manager.on_leadership_change([partition.log])
    run_after(partition, 1, lambda: all_copied(partition))
    assert manager.leads(partition.partition)
    copied = partition.object_names()
    partition.log._highest_offset_in_remote_storage = -1  # what a follower knows at first
    manager.on_leadership_change((), [partition.log])
    run_after(partition, 1000, lambda: all_copied(partition))
    # More segments to copy, and all of them over the retention. Only the leader may act on them.
    for number in range(12):
        partition.append(b"more-%02d" % number)
    partition.update_config(retention_bytes=0)
    for _ in range(3):
        partition.metadata.poll()
        manager.run_tasks()
        partition.clock.advance(60_000)
    assert partition.object_names() == copied
    assert not all_copied(partition)
    partition.update_config(retention_bytes=-1)
    manager.on_leadership_change([partition.log])
    run_after(partition, 1000, lambda: all_copied(partition))
    assert len(partition.object_names()) > len(copied)


def test_partition_that_leaves_while_its_role_changes_is_left_alone(
    manager: RemoteLogManager, partition: TieredPartition
) -> None:
    manager.on_leadership_change([partition.log])
    run_after(partition, 1, lambda: all_copied(partition))
    manager.on_leadership_change((), [partition.log])
    stopped = manager.stop_partitions([partition.partition], delete_remote=False)
    run_after(partition, 1000, stopped.done)
    partition.log._highest_offset_in_remote_storage = -1
    for _ in range(3):
        partition.metadata.poll()
        manager.run_tasks()
        partition.clock.advance(60_000)
    assert partition.log.highest_offset_in_remote_storage == -1
