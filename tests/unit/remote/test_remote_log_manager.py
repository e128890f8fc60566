"""RemoteLogManager with its threads, on a simulated clock."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from isotherm.clock import Clock
from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.errors import (
    RemoteStorageError,
    RemoteStorageNotReadyError,
)
from isotherm.log.log_read import FetchIsolation
from isotherm.remote.indexes.index_cache import DIRECTORY_NAME
from isotherm.remote.reading.read_ahead import AHEAD_AT_ONCE
from isotherm.remote.reading.read_request import ReadRequest
from isotherm.remote.reading.read_wait import ReadWait
from isotherm.remote.reading.reader_pool import READ_AHEAD_POOL
from isotherm.remote.remote_log_manager import RemoteLogManager
from isotherm.remote.remote_tier_metrics import (
    COPIERS_IDLE,
    READ_TIME,
    READER_QUEUE,
    READERS_IDLE,
)
from isotherm.remote.segment_metadata import RemoteLogSegmentState
from isotherm.remote.tasks import retried_work
from isotherm.remote.threads import SystemThreads
from tests.support.faulty_store import Fault, Operation
from tests.support.managed_partition import WAIT_S, all_copied, published, read, run_after
from tests.support.tiered_partition import TieredPartition


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
        remote_log_reader_threads=15,
        remote_log_manager_copier_thread_pool_size=3,
        remote_log_manager_expiration_thread_pool_size=4,
    )
    before = dict(threads.counts)
    changed = replace(
        RemoteLogManagerConfig(),
        remote_log_reader_threads=20,
        remote_log_manager_copier_thread_pool_size=1,
        remote_log_manager_expiration_thread_pool_size=2,
    )
    manager.update_config(changed)
    pools = {
        "remote-log-reader": (15, 20),
        READ_AHEAD_POOL: (15 + AHEAD_AT_ONCE, 20 + AHEAD_AT_ONCE),
        "remote-log-copy": (3, 1),
        "remote-log-expiration": (4, 2),
    }
    assert before == {name: old for name, (old, _) in pools.items()}
    assert threads.counts == {name: new for name, (_, new) in pools.items()}
    threads.counts.clear()
    manager.update_config(changed)
    assert threads.counts == {}, "a pool of the right size is kept"


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


class Failures(logging.Handler):
    """Notes the waits of failed tasks, and when they failed. The thread of a task logs its failure
    before it waits, and this test's thread sets the clock forward meanwhile."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(logging.DEBUG)
        self._clock = clock
        self.waits: list[str] = []
        self.times_ms: list[int] = []

    def emit(self, record: logging.LogRecord) -> None:
        wait = record.getMessage().partition("retry_s=")[2]
        if wait:
            self.times_ms.append(self._clock.now_ms())
            self.waits.append(wait)


def test_failed_copies_wait_as_the_retry_keys_say(
    open_manager: Callable[..., RemoteLogManager],
    partition: TieredPartition,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, retried_work.__name__)
    failures = Failures(partition.clock)
    logger = logging.getLogger(retried_work.__name__)
    logger.addHandler(failures)
    try:
        open_manager(
            remote_log_manager_task_interval_ms=1_000,
            remote_log_manager_task_retry_backoff_ms=70_000,
            remote_log_manager_task_retry_backoff_max_ms=150_000,
            remote_log_manager_task_retry_jitter=0.0,
        ).on_leadership_change([partition.log])
        partition.store.fail_always(Operation.COPY, Fault.ERROR_BEFORE)
        run_after(partition, 5_000, lambda: len(failures.waits) >= 4)
    finally:
        logger.removeHandler(failures)
    assert failures.waits[:3] == ["70.0", "140.0", "150.0"]
    steps = [later - earlier for earlier, later in pairwise(failures.times_ms[:4])]
    assert all(step >= wait for step, wait in zip(steps, (70_000, 140_000, 150_000), strict=True))


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


def test_close_waits_for_its_time_and_leaves_work_as_a_crash_does(
    manager: RemoteLogManager, partition: TieredPartition, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
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
