"""Fetches that wait for more to read. Source: Kafka DelayedFetch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from isotherm.broker.partitions.fetch import (
    FetchReader,
    FetchTarget,
    FollowerFetch,
    PartitionRead,
)
from isotherm.broker.partitions.partition import Partition
from isotherm.log.log_read import FetchIsolation
from isotherm.protocol.fetch import FetchPartition
from isotherm.types import LeaderEpoch, Offset, TopicPartition


class DelayedFetch:
    """A fetch that found less than its min bytes (Kafka: DelayedFetch).

    It counts the bytes that became readable in its partitions, up to what each may add to the
    response, and completes when they reach min bytes. Then everything is read again. It also
    completes if a partition is deleted, goes offline or gets a new leader epoch. The result of its
    future has no meaning.
    """

    def __init__(
        self,
        targets: Sequence[FetchTarget],
        reads: Sequence[PartitionRead],
        sizes: Sequence[int],
        reader: FetchReader,
        min_bytes: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`sizes` has the `readable_size` of each partition, taken before its read."""
        self.future: asyncio.Future[object] = loop.create_future()
        self._isolation = reader.isolation
        self._min_bytes = min_bytes
        self._watched = [
            _WatchedPartition(
                target.partition,
                read.size,
                size,
                target.partition.leader_epoch,
                reader.follower,
                target.asked,
                _hidden_from(target.partition, reader.isolation),
            )
            for target, read, size in zip(targets, reads, sizes, strict=True)
            if target.partition is not None
        ]

    @property
    def keys(self) -> list[TopicPartition]:
        return [watched.partition.topic_partition for watched in self._watched]

    def try_complete(self, key: TopicPartition | None) -> bool:
        if any(watched.is_over for watched in self._watched):
            self.expire()
            return True
        expected = sum(watched.expected_size(self._isolation) for watched in self._watched)
        if expected >= self._min_bytes:
            self.expire()
        return self.future.done()

    def expire(self) -> None:
        self.future.set_result(None)


def readable_size(partition: Partition, isolation: FetchIsolation) -> int:
    """A counter of the appended bytes that a reader can read. Compare two values."""
    if isolation is FetchIsolation.LOG_END:
        return partition.appended_size
    return partition.visible_size


def _hidden_from(partition: Partition, isolation: FetchIsolation) -> Offset | None:
    """The offset from which open transactions hide records that are in the log already."""
    log = partition.log
    stable = log.last_stable_offset
    is_hiding = isolation is FetchIsolation.TXN_COMMITTED and stable < log.high_watermark
    return stable if is_hiding else None


class _WatchedPartition(NamedTuple):
    partition: Partition
    read_size: int
    size_before: int
    leader_epoch: LeaderEpoch
    follower: FollowerFetch | None
    asked: FetchPartition
    hidden_from: Offset | None

    @property
    def is_over(self) -> bool:
        """Whether waiting changes nothing: there is an error to answer, or another lineage."""
        partition = self.partition
        return partition.is_gone or partition.leader_epoch != self.leader_epoch

    def expected_size(self, isolation: FetchIsolation) -> int:
        """An estimate of the bytes of a read now, from the bytes that became readable since the
        last read."""
        partition = self.partition
        if (
            isolation is not FetchIsolation.LOG_END
            and not partition.is_alone
            and partition.log.high_watermark <= self.asked.fetch_offset
        ):
            return self.read_size
        if self.follower is not None and self.follower.is_held_back(partition):
            return self.read_size
        if isolation is FetchIsolation.TXN_COMMITTED:
            stable = self.partition.log.last_stable_offset
            if stable <= self.asked.fetch_offset:
                return self.read_size
            if self.hidden_from is not None and stable > self.hidden_from:
                # The end of a transaction makes records visible that were appended, but not counted, before.
                return self.asked.partition_max_bytes
        size = self.read_size + readable_size(partition, isolation) - self.size_before
        return min(size, self.asked.partition_max_bytes)
