"""Fetches that wait until enough bytes are readable. Source: Kafka DelayedFetch."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

from isotherm.broker.partitions.fetch_reads import FetchReader
from isotherm.broker.partitions.fetch_sessions import FetchContext
from isotherm.broker.partitions.fetch_target import FetchTarget
from isotherm.log.log_read import FetchIsolation


class DelayedFetch:
    """A fetch that found less than min.bytes.

    It adds up the bytes that became readable in its partitions, each limited to what it may add to
    the response, and completes when the sum reaches min.bytes. The caller then reads everything
    again. It also completes if a partition is deleted, goes offline or gets a new leader epoch. The
    result of `future` has no meaning.
    """

    def __init__(
        self,
        fetch: FetchContext,
        reader: FetchReader,
        min_bytes: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`reader` has read the targets of `fetch`."""
        self.future: asyncio.Future[object] = loop.create_future()
        self._fetch = fetch
        self._reader = reader
        self._min_bytes = min_bytes

    def try_complete(self, key: Hashable | None) -> bool:
        expected = 0
        for target in self._fetch.changeable():
            if target.partition is None:
                continue
            if target.partition.is_gone or target.partition.leader_epoch != target.leader_epoch:
                # Waiting does not help: the second read returns an error or reads another lineage.
                expected = self._min_bytes
                break
            expected += expected_size(target, self._reader)
        if expected >= self._min_bytes:
            self.expire()
        return self.future.done()

    def expire(self) -> None:
        self.future.set_result(None)


def expected_size(target: FetchTarget, reader: FetchReader) -> int:
    """Estimate the bytes that a read would return now, from the bytes that became readable since
    the last read. The log is not read."""
    partition, request, isolation = target.partition, target.request, reader.isolation
    assert partition is not None
    if (
        # With other replicas bytes may become visible below the fetch offset. They are not for
        # this reader. Without others the high watermark is the log end, and never below it.
        isolation is not FetchIsolation.LOG_END
        and not partition.is_alone
        and partition.log.high_watermark <= request.fetch_offset
    ):
        return target.read_size
    if reader.follower is not None and reader.follower.is_held_back(partition):
        # A read would return no records. Without this the fetch would wake, find nothing, and wait
        # again with each append, as in Kafka's DelayedFetch.
        return target.read_size
    if isolation is FetchIsolation.TXN_COMMITTED:
        stable = partition.log.last_stable_offset
        if stable <= request.fetch_offset:
            return target.read_size
        if target.hidden_from is not None and stable > target.hidden_from:
            # The end of a transaction makes records readable that were below the high watermark
            # before, so the counter of visible bytes does not show them.
            return request.partition_max_bytes
    is_of_follower = isolation is FetchIsolation.LOG_END
    readable = partition.appended_size if is_of_follower else partition.visible_size
    return min(target.read_size + readable - target.size_before, request.partition_max_bytes)
