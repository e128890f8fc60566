"""A tiered partition under a RemoteLogManager: reads of it, and the passing of time."""

from __future__ import annotations

import threading
from collections.abc import Callable

from prometheus_client import generate_latest

from isotherm.log.log_read import FetchIsolation
from isotherm.remote.reading.read_request import ReadRequest
from isotherm.remote.reading.read_wait import ReadWait
from isotherm.remote.remote_log_manager import RemoteLogManager
from tests.support.tiered_partition import TieredPartition, records_of

# Ends a test that hangs, on a machine however slow. The time of the tasks is the simulated clock's.
WAIT_S = 300
T0 = 1_700_000_000_000


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


def published(partition: TieredPartition) -> str:
    return generate_latest(partition.metrics.registry).decode()
