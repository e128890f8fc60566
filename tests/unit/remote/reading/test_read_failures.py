"""A store that cannot be reached gets one line in the log per partition and minute, not one for
each retry of a consumer."""

from __future__ import annotations

import uuid

import pytest

from isotherm.errors import (
    CorruptDataError,
    IsothermError,
    RemoteStorageError,
    RemoteStorageNotReadyError,
)
from isotherm.remote.reading.reader_pool import ReadFailures
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicIdPartition

PARTITIONS = [TopicIdPartition(uuid.UUID(int=1), "t", number) for number in range(2)]
DENIED = RemoteStorageError("access denied")


def test_partition_has_a_line_in_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = SimClock()
    failures = ReadFailures(clock)
    for _ in range(3):
        for partition in PARTITIONS:
            failures.note(partition, 7, DENIED)
        clock.advance(10_000)
    assert [record.getMessage() for record in caplog.records] == [
        f"remote read failed partition={partition} offset=7: access denied"
        for partition in PARTITIONS
    ]
    clock.advance(30_000)
    failures.note(PARTITIONS[1], 8, DENIED)
    assert len(caplog.records) == 3


@pytest.mark.parametrize("error", [CorruptDataError("x"), RemoteStorageNotReadyError("x")])
def test_what_is_logged_elsewhere_or_passes_has_no_line(
    error: IsothermError, caplog: pytest.LogCaptureFixture
) -> None:
    ReadFailures(SimClock()).note(PARTITIONS[0], 7, error)
    assert not caplog.records


def test_partitions_that_failed_long_ago_are_forgotten() -> None:
    clock = SimClock()
    failures = ReadFailures(clock)
    for number in range(100):
        failures.note(TopicIdPartition(uuid.UUID(int=2), "t", number), 7, DENIED)
        clock.advance(1_000)
    assert len(failures._logged_s) <= 60
