"""RemoteLogManager with its threads, on a simulated clock."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.errors import (
    NotEnoughMemoryError,
    OffsetOutOfRangeError,
    RemoteStorageError,
    RemoteStorageNotReadyError,
    RetriableError,
)
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_read import FetchIsolation
from isotherm.remote import partition_roles
from isotherm.remote.indexes.index_cache import DIRECTORY_NAME
from isotherm.remote.reading.read_ahead import AHEAD_AT_ONCE
from isotherm.remote.reading.read_request import ReadRequest
from isotherm.remote.reading.read_wait import ReadWait
from isotherm.remote.reading.reader_pool import READ_AHEAD_POOL
from isotherm.remote.remote_log_manager import RemoteLogManager
from isotherm.remote.remote_tier_metrics import (
    COPIERS_IDLE,
    LOCAL_RETENTION_SIZE,
    READ_TIME,
    READER_QUEUE,
    READERS_IDLE,
    RETENTION_SIZE,
)
from isotherm.remote.segment_metadata import RemoteLogSegmentState
from isotherm.remote.tasks.pending_deletions import PendingDeletions
from isotherm.remote.threads import SYSTEM_THREADS, SystemThreads, Threads
from isotherm.testing.faulty_store import Fault, Operation
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicIdPartition
from tests.support.tiered_partition import TieredPartition, records_of

# Ends a test that hangs. The time of the tasks is the simulated clock's.
WAIT_S = 20
T0 = 1_700_000_000_000


@pytest.fixture
def partition(tmp_path: Path) -> TieredPartition:
    tiered = TieredPartition(tmp_path / "p", clock=SimClock())
    for number in range(22):
        tiered.append(b"record-%02d" % number, timestamp_ms=T0 + number)
    return tiered


@pytest.fixture
def open_manager(partition: TieredPartition) -> Iterator[Callable[..., RemoteLogManager]]:
    """A function that starts a manager with a changed configuration. All are closed at the end."""
    opened: list[RemoteLogManager] = []

    def open_manager(threads: Threads = SYSTEM_THREADS, **config: object) -> RemoteLogManager:
        manager = RemoteLogManager(
            replace(RemoteLogManagerConfig(), **config),  # type: ignore[arg-type]
            broker_id=0,
            storage=partition.store,
            metadata=partition.metadata,
            index_cache=partition.index_cache,
            pending_deletions=PendingDeletions(partition.log.directory.parent, OsFileSystem()),
            leader_epoch_of=partition.leader_epoch_of,
            is_tiered=partition.is_tiered_again,
            clock=partition.clock,
            rng=random.Random(0),
            metrics=partition.metrics,
            threads=threads,
        )
        opened.append(manager)
        return manager

    yield open_manager
    for manager in opened:
        manager.close()


@pytest.fixture
def manager(open_manager: Callable[..., RemoteLogManager]) -> RemoteLogManager:
    return open_manager()


def read(manager: RemoteLogManager, partition: TieredPartition, offset: int) -> list[bytes | None]:
    future = manager.readers.read(
        ReadRequest(
            partition.log,
            partition.partition,
            offset,
            1 << 20,
            isolation=FetchIsolation.HIGH_WATERMARK,
            min_one_message=True,
            wait=ReadWait(),
        )
    )
    records = memoryview(b"".join(future.result(WAIT_S).records))
    return [record.value for record in records_of(records)]


def run_after(partition: TieredPartition, ms: int, until: Callable[[], bool]) -> None:
    """Advance the clock in steps of `ms` until the tasks have reached the condition."""
    pause = threading.Event()
    for _ in range(WAIT_S * 100):
        if until():
            return
        partition.metadata.poll()
        partition.clock.advance(ms)
        pause.wait(0.01)  # real time, in which the tasks work
    raise AssertionError("the tasks did not get there")


def all_copied(partition: TieredPartition) -> bool:
    return (
        partition.log.highest_offset_in_remote_storage
        == partition.log.segments()[-1].base_offset - 1
    )


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


def test_store_that_is_down_is_tried_again_with_back_off_and_keeps_local_data(
    manager: RemoteLogManager, partition: TieredPartition
) -> None:
    partition.store.fail_always(Operation.COPY, Fault.ERROR_BEFORE)
    manager.on_leadership_change([partition.log])
    errors = "isotherm_remote_log_task_errors_total"
    run_after(partition, 600, lambda: partition.metrics.value(errors, task="copy") >= 2)
    partition.delete_local_segments()
    assert partition.log.local_log_start_offset == 0
    partition.store.heal()
    run_after(partition, 10_000, lambda: all_copied(partition))


def test_read_and_look_up_by_time_span_both_tiers(
    manager: RemoteLogManager, partition: TieredPartition
) -> None:
    partition.copy_task.run()
    partition.delete_local_segments()
    local = partition.log.local_log_start_offset
    assert read(manager, partition, 3)[0] == b"record-03"
    for offset in (0, 5, local - 1, local, 21):
        future = manager.readers.offset_for_timestamp(
            partition.log, partition.partition, T0 + offset, 0
        )
        assert future.result(WAIT_S) == (T0 + offset, offset, 0)
    future = manager.readers.offset_for_timestamp(partition.log, partition.partition, T0 + 999, 0)
    assert future.result(WAIT_S) is None


def test_read_counts_requests_bytes_and_errors_as_kafka_does(
    manager: RemoteLogManager, partition: TieredPartition, caplog: pytest.LogCaptureFixture
) -> None:
    partition.copy_task.run()
    manager.tier.metrics.follow("flights", 0)
    prefix = "kafka_server_brokertopicmetrics_remotefetch"
    size = sum(segment.segment_size_in_bytes for segment in partition.segments())
    partition.delete_local_segments()
    assert len(read(manager, partition, 0)) == partition.log.local_log_start_offset
    with pytest.raises(OffsetOutOfRangeError):
        read(manager, partition, 1000)
    assert partition.metrics.value(f"{prefix}errors_total", topic="flights") == 0
    assert "remote read failed" not in caplog.text
    for segment in partition.segments():
        manager.readers._reader._read_ahead.forget(segment.segment_id)
    partition.store.fail_always(Operation.FETCH_LOG, Fault.THROTTLED)
    with pytest.raises(RemoteStorageError):
        read(manager, partition, 0)
    assert partition.metrics.value(f"{prefix}requests_total", topic="flights") == 3
    assert partition.metrics.value(f"{prefix}bytes_total", topic="flights") == size
    assert partition.metrics.value(f"{prefix}errors_total", topic="flights") == 1
    assert f"remote read failed partition={partition.partition} offset=0: " in caplog.text


def test_reads_beyond_the_queue_are_refused(
    open_manager: Callable[..., RemoteLogManager], partition: TieredPartition
) -> None:
    manager = open_manager(remote_log_reader_threads=1, remote_log_reader_max_pending_tasks=1)
    partition.copy_task.run()
    partition.delete_local_segments()
    go = threading.Event()
    find = partition.metadata.remote_log_segment_metadata

    def held(*args: object) -> object:
        assert go.wait(WAIT_S)
        return find(*args)  # type: ignore[arg-type]

    partition.metadata.remote_log_segment_metadata = held  # type: ignore
    asked = ReadRequest(
        partition.log,
        partition.partition,
        0,
        100,
        isolation=FetchIsolation.LOG_END,
        min_one_message=True,
        wait=ReadWait(),
    )
    first = manager.readers.read(asked)
    second = manager.readers.read(asked)
    with pytest.raises(NotEnoughMemoryError):
        manager.readers.read(asked)
    assert second.cancel()
    go.set()
    assert len(first.result(WAIT_S).records) > 0


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


def test_close_ends_what_waits_and_can_be_repeated(
    manager: RemoteLogManager, partition: TieredPartition
) -> None:
    manager.on_leadership_change([partition.log])
    run_after(partition, 1, lambda: all_copied(partition))
    partition.store.fail_always(Operation.DELETE, Fault.ERROR_BEFORE)
    stopped = manager.stop_partitions([partition.partition], delete_remote=True)
    errors = "isotherm_remote_log_task_errors_total"
    run_after(
        partition,
        100,
        lambda: partition.metrics.value(errors, task="partition-deletion") >= 1,
    )
    manager.close()
    manager.close()
    with pytest.raises(RemoteStorageNotReadyError):
        stopped.result(0)
    cache = partition.metadata._store.get(partition.partition)
    assert cache is not None
    assert {segment.state for segment in cache.segments()} == {
        RemoteLogSegmentState.DELETE_SEGMENT_STARTED
    }


def test_new_configuration_resizes_the_index_cache_and_the_readers(
    open_manager: Callable[..., RemoteLogManager], partition: TieredPartition
) -> None:
    manager = open_manager(remote_log_reader_threads=1, remote_log_reader_max_pending_tasks=1)
    manager.on_leadership_change([partition.log])
    manager.run_tasks()
    partition.index_cache.get(partition.segments()[0])
    assert partition.index_cache.entry_count == 1
    manager.update_config(
        replace(
            RemoteLogManagerConfig(),
            remote_log_index_file_cache_total_size_bytes=1,
            remote_log_reader_threads=2,
            remote_log_manager_copier_thread_pool_size=1,
            remote_log_manager_expiration_thread_pool_size=1,
        )
    )
    assert partition.index_cache.entry_count == 0


class CountingThreads(SystemThreads):
    """Notes the number of threads of each pool."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def pool(self, name: str, thread_count: int) -> Executor:
        self.counts[name] = thread_count
        return super().pool(name, thread_count)


def test_new_configuration_resizes_every_pool(
    open_manager: Callable[..., RemoteLogManager],
) -> None:
    """The read-ahead pool has a thread for each reader thread, and AHEAD_AT_ONCE more."""
    threads = CountingThreads()
    manager = open_manager(
        threads,
        remote_log_reader_threads=2,
        remote_log_manager_copier_thread_pool_size=3,
        remote_log_manager_expiration_thread_pool_size=4,
    )
    before = dict(threads.counts)
    manager.update_config(
        replace(
            RemoteLogManagerConfig(),
            remote_log_reader_threads=20,
            remote_log_manager_copier_thread_pool_size=30,
            remote_log_manager_expiration_thread_pool_size=40,
        )
    )
    pools = {
        "remote-log-reader": (2, 20),
        READ_AHEAD_POOL: (2 + AHEAD_AT_ONCE, 20 + AHEAD_AT_ONCE),
        "remote-log-copy": (3, 30),
        "remote-log-expiration": (4, 40),
    }
    assert before == {name: old for name, (old, _) in pools.items()}
    assert threads.counts == {name: new for name, (_, new) in pools.items()}


def published(partition: TieredPartition) -> str:
    return generate_latest(partition.metrics.registry).decode()


def test_quotas_of_the_configuration_hold_and_change_while_running(
    open_manager: Callable[..., RemoteLogManager], partition: TieredPartition
) -> None:
    config = replace(
        RemoteLogManagerConfig(),
        remote_log_manager_copy_max_bytes_per_second=1,
        remote_log_manager_fetch_max_bytes_per_second=10,
    )
    manager = open_manager(
        remote_log_manager_copy_max_bytes_per_second=1,
        remote_log_manager_fetch_max_bytes_per_second=10,
    )
    manager.on_leadership_change([partition.log])
    run_after(partition, 1, lambda: len(partition.segments()) == 1)
    partition.clock.await_waiters(1, within_s=1)
    assert not all_copied(partition)
    manager.update_config(replace(config, remote_log_manager_copy_max_bytes_per_second=1 << 30))
    run_after(partition, 1000, lambda: all_copied(partition))
    partition.delete_local_segments()
    assert manager.readers.fetch_quota.throttle_s() == 0
    read(manager, partition, 0)
    assert manager.readers.fetch_quota.throttle_s() > 1
    manager.update_config(replace(config, remote_log_manager_fetch_max_bytes_per_second=1 << 30))
    assert manager.readers.fetch_quota.throttle_s() < 0.001
    text = published(partition)
    for name in ("rlmcopy_byte_rate", "rlmfetch_byte_rate"):
        assert partition.metrics.value(f"kafka_server_{name}") > 0
    assert "kafka_server_remotelogmanager_remote_copy_throttle_time_avg " in text
    throttled = "kafka_server_remotelogmanager_remote_copy_throttle_time_max"
    assert partition.metrics.value(throttled) > 0
    manager.readers.fetch_quota.note_throttled(0.25)
    for kind in ("avg", "max"):
        name = f"kafka_server_remotelogmanager_remote_fetch_throttle_time_{kind}"
        assert partition.metrics.value(name) == 250


def test_copy_that_waits_for_its_quota_ends_with_the_manager(
    open_manager: Callable[..., RemoteLogManager], partition: TieredPartition
) -> None:
    manager = open_manager(remote_log_manager_copy_max_bytes_per_second=1)
    manager.on_leadership_change([partition.log])
    run_after(partition, 1, lambda: len(partition.segments()) == 1)
    partition.clock.await_waiters(1, within_s=1)
    manager.close()
    assert not all_copied(partition)


def test_pools_and_reads_are_published_as_kafka_names_them(
    open_manager: Callable[..., RemoteLogManager], partition: TieredPartition
) -> None:
    manager = open_manager(remote_log_reader_threads=2, remote_log_reader_max_pending_tasks=2)
    partition.copy_task.run()
    partition.delete_local_segments()
    began, hold = threading.Event(), threading.Event()
    fetch = partition.store.fetch_log_segment

    def held(*arguments: Any) -> memoryview:
        began.set()
        assert hold.wait(WAIT_S)
        return fetch(*arguments)

    partition.store.fetch_log_segment = held  # type: ignore[method-assign]
    value = partition.metrics.value
    assert (value(READERS_IDLE), value(READER_QUEUE), value(COPIERS_IDLE)) == (1, 0, 1)
    futures = [
        manager.readers.read(
            ReadRequest(
                partition.log,
                partition.partition,
                0,
                1,
                isolation=FetchIsolation.HIGH_WATERMARK,
                min_one_message=True,
                wait=ReadWait(),
            )
        )
        for _ in range(3)
    ]
    assert began.wait(WAIT_S)
    assert (value(READERS_IDLE), value(READER_QUEUE)) == (0, 1)
    partition.clock.advance(50)
    hold.set()
    for future in futures:
        future.result(WAIT_S)
    assert value(READ_TIME + "_count") == 3
    assert value(READ_TIME + "_sum") >= 50


def test_running_copy_makes_the_copiers_less_idle(
    open_manager: Callable[..., RemoteLogManager], partition: TieredPartition
) -> None:
    manager = open_manager(
        remote_log_manager_copier_thread_pool_size=4,
        remote_log_manager_copy_max_bytes_per_second=1,
    )
    manager.on_leadership_change([partition.log])
    run_after(partition, 1, lambda: len(partition.segments()) == 1)
    partition.clock.await_waiters(1, within_s=1)
    assert partition.metrics.value(COPIERS_IDLE) == 0.75


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


def test_failed_copies_wait_as_the_retry_keys_say(
    open_manager: Callable[..., RemoteLogManager],
    partition: TieredPartition,
    caplog: pytest.LogCaptureFixture,
) -> None:
    open_manager(
        remote_log_manager_task_interval_ms=1_000,
        remote_log_manager_task_retry_backoff_ms=70_000,
        remote_log_manager_task_retry_backoff_max_ms=150_000,
        remote_log_manager_task_retry_jitter=0.0,
    ).on_leadership_change([partition.log])
    partition.store.fail_always(Operation.COPY, Fault.ERROR_BEFORE)
    failed_ms: list[int] = []

    def four_failures() -> bool:
        count = int(partition.metrics.value("isotherm_remote_log_task_errors_total", task="copy"))
        failed_ms.extend([partition.clock.now_ms()] * (count - len(failed_ms)))
        return count == 4

    run_after(partition, 5_000, four_failures)
    waits = [line.rpartition("retry_s=")[2].partition(":")[0] for line in caplog.messages]
    assert [wait for wait in waits if wait][:3] == ["70.0", "140.0", "150.0"]
    steps = [later - earlier for earlier, later in pairwise(failed_ms)]
    # A failure is noticed up to some steps late, so the next one comes at its time or later.
    assert all(step >= wait for step, wait in zip(steps, (55_000, 125_000, 135_000), strict=True))


def test_unused_cached_indexes_are_swept(
    open_manager: Callable[..., RemoteLogManager], partition: TieredPartition
) -> None:
    partition.copy_task.run()
    cache = partition.index_cache
    cache._ttl_ms = 40_000
    open_manager(remote_log_manager_task_interval_ms=1_000).on_leadership_change([partition.log])
    cache.get(partition.segments()[0])
    began_ms = partition.clock.now_ms()
    run_after(partition, 1_000, lambda: cache.entry_count == 0)
    assert partition.clock.now_ms() - began_ms >= 40_000
    folder = partition.log.directory.parent / DIRECTORY_NAME
    run_after(partition, 1_000, lambda: list(folder.iterdir()) == [])


def test_limit_of_custom_metadata_is_the_configured_one_and_changes_with_it(
    open_manager: Callable[..., RemoteLogManager],
) -> None:
    manager = open_manager(remote_log_metadata_custom_metadata_max_bytes=70_000)
    assert manager.tier.custom_metadata_size_max() == 70_000
    config = replace(RemoteLogManagerConfig(), remote_log_metadata_custom_metadata_max_bytes=3)
    manager.update_config(config)
    assert manager.tier.custom_metadata_size_max() == 3


def test_close_closes_every_part_whatever_another_raises(
    open_manager: Callable[..., RemoteLogManager],
    partition: TieredPartition,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[str] = []

    def fail() -> None:
        closed.append("metadata")
        raise RemoteStorageError("no")

    manager = open_manager()
    with monkeypatch.context() as patch:
        patch.setattr(partition.index_cache, "close", lambda: closed.append("indexes"))
        patch.setattr(partition.metadata, "close", fail)
        patch.setattr(partition.store, "close", lambda: closed.append("storage"))
        with pytest.raises(RemoteStorageError):
            manager.close()
    assert closed == ["indexes", "metadata", "storage"]


def request(partition: TieredPartition, offset: int, wait: ReadWait | None = None) -> ReadRequest:
    return ReadRequest(
        partition.log,
        partition.partition,
        offset,
        1 << 20,
        isolation=FetchIsolation.HIGH_WATERMARK,
        min_one_message=True,
        wait=wait or ReadWait(),
    )


def test_read_now_answers_from_memory_alone(
    manager: RemoteLogManager, partition: TieredPartition
) -> None:
    partition.copy_task.run()
    partition.delete_local_segments()
    value = partition.metrics.value
    prefix = "kafka_server_brokertopicmetrics_remotefetch"
    manager.tier.metrics.follow("flights", 0)
    assert manager.readers.read_now(request(partition, 0)) is None
    assert value(f"{prefix}requests_total", topic="flights") == 0
    assert value(READ_TIME + "_count") == 0
    assert not [each for each in partition.store.trace if each.operation is Operation.FETCH_LOG]
    assert manager.readers.read_now(request(partition, 1000)) is None, "`read` will raise the error"
    first = manager.readers.read(request(partition, 0)).result(WAIT_S)
    found = manager.readers.read_now(request(partition, 0))
    assert found is not None
    assert b"".join(found.records)[:100] == b"".join(first.records)[:100]
    assert value(f"{prefix}requests_total", topic="flights") == 2
    assert value(f"{prefix}bytes_total", topic="flights") == first.size + found.size
    assert value(f"{prefix}errors_total", topic="flights") == 0
    assert value(READ_TIME + "_count") == 2


def test_read_that_was_given_up_is_no_failure_of_the_tier(
    manager: RemoteLogManager, partition: TieredPartition, caplog: pytest.LogCaptureFixture
) -> None:
    partition.copy_task.run()
    partition.delete_local_segments()
    manager.tier.metrics.follow("flights", 0)
    partition.store.fail_always(Operation.FETCH_LOG, Fault.THROTTLED)
    wait = ReadWait()
    wait.stop(has_left=False)
    with pytest.raises(RetriableError):
        manager.readers.read(request(partition, 0, wait)).result(WAIT_S)
    errors = "kafka_server_brokertopicmetrics_remotefetcherrors_total"
    assert partition.metrics.value(errors, topic="flights") == 0
    assert "remote read failed" not in caplog.text
    assert partition.metrics.value(READ_TIME + "_count") == 1


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
        key: sum(each.segment_size_in_bytes for each in partition.segments())
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


def test_closed_manager_starts_nothing(
    manager: RemoteLogManager, partition: TieredPartition
) -> None:
    manager.close()
    manager.on_leadership_change([partition.log])
    assert not manager.leads(partition.partition)
    manager.update_config(
        replace(RemoteLogManagerConfig(), remote_log_metadata_custom_metadata_max_bytes=3)
    )
    assert manager.tier.custom_metadata_size_max() != 3


@pytest.mark.parametrize("delete_remote", [False, True])
def test_closed_manager_leaves_a_stop_to_the_next_process(
    manager: RemoteLogManager, partition: TieredPartition, delete_remote: bool
) -> None:
    manager.on_leadership_change([partition.log])
    manager.close()
    stopped = manager.stop_partitions([partition.partition], delete_remote=delete_remote)
    with pytest.raises(RemoteStorageNotReadyError, match="is closed"):
        stopped.result(0)


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


def replace_partition(partition: TieredPartition, number: int) -> TopicIdPartition:
    return TopicIdPartition(partition.partition.topic_id, partition.partition.topic, number)


def test_close_waits_for_its_time_and_leaves_work_as_a_crash_does(
    manager: RemoteLogManager, partition: TieredPartition, caplog: pytest.LogCaptureFixture
) -> None:
    began, go = threading.Event(), threading.Event()
    copy = partition.store.copy_log_segment_data

    def held(*arguments: Any) -> bytes | None:
        began.set()
        assert go.wait(WAIT_S)
        return copy(*arguments)

    partition.store.copy_log_segment_data = held  # type: ignore[method-assign]
    manager.on_leadership_change([partition.log])
    assert began.wait(WAIT_S)
    stopped = manager.stop_partitions([partition.partition], delete_remote=False)
    try:
        manager.close(timeout_s=0.01)
        assert "remote work is left to the next start timeout_s=0.01" in caplog.text
        with pytest.raises(RemoteStorageNotReadyError):
            stopped.result(0)
    finally:
        go.set()
