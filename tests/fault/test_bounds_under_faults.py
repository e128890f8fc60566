"""The remote tier's use of memory, threads and files stays bounded while the store is faulty."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from isotherm.errors import CorruptDataError, OffsetOutOfRangeError, RetriableError
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from tests.support.copy_memory import memory_can_be_measured, peak_growth_of_a_copy_kib
from tests.support.s3_stub import S3Stub, WireFault
from tests.support.tiered_partition import TieredPartition

pytestmark = pytest.mark.skipif(not memory_can_be_measured(), reason="/proc is asked")

SEGMENT_MIB = 128
MEMORY_MAX_KIB = 64 * 1024
ROUNDS = 3
FAULTS = [
    WireFault.RESET_BEFORE,
    WireFault.RESET_MIDWAY,
    WireFault.RESET_UNSTORED,
    WireFault.LOST_REPLY,
    WireFault.SLOW_DOWN,
    WireFault.REDIRECTED,
    WireFault.SHORT_BODY,
    WireFault.RESET_MID_BODY,
    WireFault.WRONG_RANGE,
    WireFault.BIT_FLIP,
]
SLACK = 4
"""Allows for connections that the store's client keeps open, and for their ends in the stub."""


@pytest.fixture
def stub() -> Iterator[S3Stub]:
    with S3Stub() as running:
        yield running


def test_copy_of_a_large_segment_to_a_sick_store_stays_below_64_mib(
    tmp_path: Path, stub: S3Stub
) -> None:
    """Every part is late, and every third one is sent again."""
    for number in range(0, SEGMENT_MIB // 5, 3):
        fault = (WireFault.RESET_MIDWAY, WireFault.INTERNAL_ERROR)[number % 2]
        stub.fail(fault, "PUT", query="partNumber", skipped=number, times=1)
    stub.fail(WireFault.SLOW, "PUT", query="partNumber")
    config = {**stub.config, "retries": "10"}
    grown_kib = peak_growth_of_a_copy_kib(tmp_path, config, segment_mib=SEGMENT_MIB)
    (log,) = (len(body) for key, body in stub.objects().items() if key.endswith(".log"))
    assert log == SEGMENT_MIB * 1024 * 1024
    assert sum(fault is not WireFault.SLOW for fault, _, _ in stub.faults) > 5
    assert grown_kib < MEMORY_MAX_KIB, f"peak grew by {grown_kib / 1024:.0f} MiB"


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def work_under(fault: WireFault, partition: TieredPartition, stub: S3Stub) -> None:
    """Run all tasks and a read while the first two requests of each method fail."""
    for method in ("PUT", "GET", "DELETE"):
        stub.fail(fault, method, times=2)
    for _ in range(4):
        partition.append(b"record")
    works: list[Callable[[], object]] = [
        partition.copy_task.run,
        partition.delete_local_segments,
        lambda: partition.read_values(partition.log.log_start_offset, 500),
        partition.expiration_task.run,
    ]
    for work in works:
        with contextlib.suppress(RetriableError, CorruptDataError, OffsetOutOfRangeError):
            work()
    stub.heal()


def test_faults_leave_no_open_files_and_no_threads_behind(tmp_path: Path, stub: S3Stub) -> None:
    settings = ObjectStoreSettings.from_config({**stub.config, "request.timeout.ms": "400"})
    partition = TieredPartition(
        tmp_path / "p", storage=ObjectStoreRemoteStorageManager(settings), retention_bytes=2000
    )
    partition.damage_declared = "the work ends in the middle of the faults"
    counts = []
    for _ in range(ROUNDS):
        for fault in FAULTS:
            work_under(fault, partition, stub)
        counts.append((open_files(), threading.active_count()))
    assert len(stub.faults) > ROUNDS * len(FAULTS) * 2
    (first_files, first_threads), *later = counts
    assert all(files <= first_files + SLACK for files, _ in later), counts
    assert all(threads <= first_threads + SLACK for _, threads in later), counts
