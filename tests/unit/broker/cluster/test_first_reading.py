"""The order in which a replica reads the partitions of a bucket, and what a store that is away does
to it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Executor

import pytest

from isotherm.broker.cluster.first_reading import (
    ASKED_MANIFESTS_MAX,
    OTHER_MANIFESTS_MAX,
    READ_PARTITIONS_MAX,
    FirstReading,
)
from isotherm.clock import SystemClock
from isotherm.errors import RemoteStorageError
from isotherm.remote.metadata.manifest_metadata import ManifestReader, ReadPace
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.types import TopicIdPartition
from tests.support.conditions import wait_until

TIMEOUT_S = 300
PLACES = [TopicIdPartition(uuid.UUID(int=7), "t", number) for number in range(40)]


class Bucket(ManifestReader):
    """Reads partitions without segments. Those in `held` wait for their events."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.paces: dict[int, ReadPace] = {}
        self.held: dict[int, threading.Event] = {}
        self.failures: dict[int, Exception] = {}

    def read_partition(
        self, partition: TopicIdPartition, pool: Executor, pace: ReadPace
    ) -> tuple[RemoteLogSegmentMetadata, ...]:
        number = partition.partition
        self.paces[number] = pace
        self.begun.append(number)
        if number in self.held:
            assert self.held[number].wait(TIMEOUT_S)
        if number in self.failures:
            raise self.failures.pop(number)
        return ()


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def begin(bucket: Bucket) -> Iterator[Callable[[int], FirstReading]]:
    started: list[FirstReading] = []

    def begin(count: int) -> FirstReading:
        started.append(FirstReading(bucket, PLACES[:count], SystemClock()))
        started[-1].start()
        return started[-1]

    yield begin
    for event in bucket.held.values():
        event.set()
    for reading in started:
        reading.stop()


def take_all(reading: FirstReading) -> list[int]:
    taken = []
    while read := reading.take():
        taken += [each.partition.partition for each in read]
    return taken


def test_each_partition_is_read_once(bucket: Bucket, begin: Callable[[int], FirstReading]) -> None:
    taken = take_all(begin(40))
    assert sorted(taken) == sorted(bucket.begun) == list(range(40))


def test_a_partition_that_is_asked_for_does_not_wait_for_the_others(
    bucket: Bucket, begin: Callable[[int], FirstReading]
) -> None:
    bucket.held[0] = threading.Event()
    reading = begin(40)
    wait_until(lambda: bucket.begun == [0])
    reading.ask([PLACES[30]])
    (read,) = reading.take()
    assert read.partition == PLACES[30]
    assert bucket.begun == [0, 30]
    assert bucket.paces[30].pending_max == ASKED_MANIFESTS_MAX


def test_a_partition_that_is_being_read_is_read_faster_once_it_is_asked_for(
    bucket: Bucket, begin: Callable[[int], FirstReading]
) -> None:
    bucket.held[0] = threading.Event()
    reading = begin(40)
    wait_until(lambda: bucket.begun == [0])
    assert bucket.paces[0].pending_max == OTHER_MANIFESTS_MAX
    reading.ask(PLACES[:1])
    assert bucket.paces[0].pending_max == ASKED_MANIFESTS_MAX


def test_what_nobody_takes_is_bounded(bucket: Bucket, begin: Callable[[int], FirstReading]) -> None:
    reading = begin(40)
    wait_until(lambda: len(bucket.begun) == READ_PARTITIONS_MAX)
    assert len(reading.take()) == READ_PARTITIONS_MAX
    assert len(take_all(reading)) == 40 - READ_PARTITIONS_MAX


def test_a_partition_that_cannot_be_read_is_tried_again(
    bucket: Bucket, begin: Callable[[int], FirstReading], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    bucket.failures = {1: RemoteStorageError("the store is away"), 2: ValueError("a fault")}
    taken = take_all(begin(4))
    assert sorted(taken) == [0, 1, 2, 3]
    assert sorted(bucket.begun) == [0, 1, 1, 2, 2, 3]
    assert "the store is away" in caplog.text
    assert "a fault" in caplog.text


def test_a_stop_ends_a_take_that_waits(
    bucket: Bucket, begin: Callable[[int], FirstReading]
) -> None:
    bucket.held[0] = threading.Event()
    reading = begin(1)
    taken: list[object] = []
    taker = threading.Thread(target=lambda: taken.append(reading.take()))
    taker.start()
    wait_until(lambda: bucket.begun == [0])
    stopper = threading.Thread(target=reading.stop)
    stopper.start()
    taker.join(TIMEOUT_S)
    assert taken == [[]]
    # The partition that was being read when the stop came is not read again.
    bucket.failures = {0: RemoteStorageError("the store is away")}
    bucket.held[0].set()
    stopper.join(TIMEOUT_S)
    assert not stopper.is_alive()
    assert bucket.begun == [0]
