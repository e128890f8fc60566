"""Reads and look-ups of the remote tier on the reader pool."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from isotherm.errors import (
    NotEnoughMemoryError,
    OffsetOutOfRangeError,
    RemoteStorageError,
    RetriableError,
)
from isotherm.log.log_read import FetchIsolation
from isotherm.remote.reading.read_request import ReadRequest, RemoteRead
from isotherm.remote.reading.read_wait import ReadWait
from isotherm.remote.remote_log_manager import RemoteLogManager
from isotherm.remote.remote_tier_metrics import (
    READ_TIME,
)
from tests.support.faulty_store import Fault, Operation
from tests.support.managed_partition import T0, WAIT_S, read, request
from tests.support.tiered_partition import TieredPartition


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


def test_read_now_answers_from_memory_alone(
    manager: RemoteLogManager, partition: TieredPartition
) -> None:
    partition.copy_task.run()
    partition.delete_local_segments()
    value = partition.metrics.value
    prefix = "kafka_server_brokertopicmetrics_remotefetch"
    manager.tier.metrics.follow("flights", 0)
    assert isinstance(manager.readers.read_now(request(partition, 0)), ReadRequest)
    assert value(f"{prefix}requests_total", topic="flights") == 0
    assert value(READ_TIME + "_count") == 0
    assert not [each for each in partition.store.trace if each.operation is Operation.FETCH_LOG]
    refused = manager.readers.read_now(request(partition, 1000))
    assert isinstance(refused, ReadRequest), "`read` will raise the error"
    first = manager.readers.read(request(partition, 0)).result(WAIT_S)
    found = manager.readers.read_now(request(partition, 0))
    assert isinstance(found, RemoteRead)
    assert b"".join(found.records)[:100] == b"".join(first.records)[:100]
    assert value(f"{prefix}requests_total", topic="flights") == 2
    assert value(f"{prefix}bytes_total", topic="flights") == first.size + found.size
    assert value(f"{prefix}errors_total", topic="flights") == 0
    assert value(READ_TIME + "_count") == 2


def test_read_of_bytes_that_are_not_in_memory_repeats_no_look_up(
    manager: RemoteLogManager, partition: TieredPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition.copy_task.run()
    partition.delete_local_segments()
    looked_up = []
    find = partition.metadata.remote_log_segment_metadata

    def noted(*args: Any) -> Any:
        looked_up.append(args[-1])
        return find(*args)

    monkeypatch.setattr(partition.metadata, "remote_log_segment_metadata", noted)
    asked = request(partition, 1)._replace(max_bytes=10)
    missed = manager.readers.read_now(asked)
    assert isinstance(missed, ReadRequest)
    assert looked_up == [1]
    found = manager.readers.read(missed._replace(wait=ReadWait())).result(WAIT_S)
    assert found.size > 0
    assert looked_up == [1]


def test_read_now_leaves_what_it_did_not_find_to_the_read(
    manager: RemoteLogManager, partition: TieredPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment may become known between the two."""
    partition.copy_task.run()
    partition.delete_local_segments()
    with monkeypatch.context() as patch:
        patch.setattr(partition.metadata, "remote_log_segment_metadata", lambda *_: None)
        missed = manager.readers.read_now(request(partition, 1))
    assert isinstance(missed, ReadRequest)
    assert manager.readers.read(missed._replace(wait=ReadWait())).result(WAIT_S).size > 0


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
