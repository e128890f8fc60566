"""Reading for a fetch request: both tiers, within one budget of bytes (Kafka: ReplicaManager).

    read_partitions ──> answered now, if enough is there
          │               else DelayedFetch waits in the purgatory, and everything is read again
          └─ a partition whose offset lies below the local log start is read from the remote tier:
             from memory if it was fetched ahead, else all such partitions at once in other
             threads, for at most remote.fetch.max.wait.ms

Budget (KIP-74): partitions are read in the order asked, each up to its own limit and what is left
of the request's. The first batch found is given even when it is larger than both, so that a
consumer always gets on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.error_mapping import error_code
from isotherm.broker.partition import Partition
from isotherm.errors import IsothermError, OffsetOutOfRangeError
from isotherm.log.log_read import FetchIsolation, LogRead
from isotherm.protocol.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchPartitionResponse,
)
from isotherm.remote.read_patience import ReadPatience
from isotherm.segment.transaction_index import AbortedTransaction
from isotherm.types import NO_LEADER_EPOCH, Offset, ProducerId, TopicPartition

if TYPE_CHECKING:
    from isotherm.remote.quota import RemoteQuota
    from isotherm.remote.remote_log_manager import RemoteLogManager
    from isotherm.remote.remote_log_reader import RemoteRead

logger = logging.getLogger(__name__)


class FetchTarget(NamedTuple):
    """A partition asked for; without a `partition`, `error` says why."""

    asked: FetchPartition
    partition: Partition | None
    error: ErrorCode = ErrorCode.none


class RemoteNeed(NamedTuple):
    """What has to be read from the remote tier for one target."""

    partition: Partition
    offset: Offset
    max_bytes: int
    min_one_message: bool


class PartitionRead(NamedTuple):
    """`size` is what the answer counts against min bytes: expected, for a remote read."""

    response: FetchPartitionResponse
    size: int = 0
    remote: RemoteNeed | None = None

    @property
    def must_be_answered(self) -> bool:
        """There is something to tell that waiting does not change."""
        response = self.response
        return bool(response.error_code) or response.diverging_epoch is not None


@dataclass(slots=True)
class FetchBudget:
    """Bytes left for the rest of a request."""

    max_bytes: int
    min_one_message: bool = field(default=True)

    def limit(self, partition_max_bytes: int) -> int:
        return max(0, min(self.max_bytes, partition_max_bytes))

    def spend(self, size: int) -> None:
        self.max_bytes -= size
        if size > 0:
            self.min_one_message = False


class FetchReader(NamedTuple):
    """How a request wants to be read. `is_follower`: a replica reads uncommitted records, and
    builds its own remote state instead of reading the remote tier through its leader."""

    isolation: FetchIsolation
    is_follower: bool = False

    def read_partitions(
        self, targets: Sequence[FetchTarget], max_bytes: int
    ) -> list[PartitionRead]:
        """Read every target, in order. Errors are part of the answer, per partition."""
        budget = FetchBudget(max_bytes)
        reads = []
        for target in targets:
            read = self._read_target(target, budget)
            budget.spend(read.size)
            reads.append(read)
        return reads

    def _read_target(self, target: FetchTarget, budget: FetchBudget) -> PartitionRead:
        asked, partition = target.asked, target.partition
        if partition is None:
            return _error_read(asked, target.error)
        try:
            return self._read(partition, asked, budget)
        except IsothermError as error:
            return _error_read(asked, error_code(error))

    def _read(
        self, partition: Partition, asked: FetchPartition, budget: FetchBudget
    ) -> PartitionRead:
        partition.check_leader_epoch(asked.current_leader_epoch)
        diverging = _diverging_epoch(partition, asked)
        if diverging is not None:
            return PartitionRead(_response(partition, asked)._replace(diverging_epoch=diverging))
        limit = budget.limit(asked.partition_max_bytes)
        try:
            read = partition.log.read(
                asked.fetch_offset,
                limit,
                isolation=self.isolation,
                min_one_message=budget.min_one_message,
            )
        except OffsetOutOfRangeError:
            if not is_remote_offset(partition, asked.fetch_offset):
                raise
            if self.is_follower:
                return _error_read(asked, ErrorCode.offset_moved_to_tiered_storage)
            need = RemoteNeed(partition, asked.fetch_offset, limit, budget.min_one_message)
            return _remote_read(need, asked)
        return _local_read(asked, read)


def is_remote_offset(partition: Partition, offset: Offset) -> bool:
    """Whether only the remote tier holds `offset`."""
    log = partition.log
    return log.remote_log_enabled and log.log_start_offset <= offset < log.local_log_start_offset


def _diverging_epoch(partition: Partition, asked: FetchPartition) -> EpochEndOffset | None:
    """Where the fetcher's history leaves this log's (KIP-595); None while it is the same."""
    if asked.last_fetched_epoch == NO_LEADER_EPOCH:
        return None
    log = partition.log
    epoch, end_offset = log.leader_epochs.end_offset_for(
        asked.last_fetched_epoch, log.log_end_offset
    )
    if epoch == NO_LEADER_EPOCH:
        raise OffsetOutOfRangeError(
            f"epoch is not known partition={partition.topic_partition}"
            f" last_fetched_epoch={asked.last_fetched_epoch}"
        )
    if asked.fetch_offset < log.log_start_offset:
        raise OffsetOutOfRangeError(
            f"offset is below the log start partition={partition.topic_partition}"
            f" offset={asked.fetch_offset} log_start_offset={log.log_start_offset}"
        )
    if epoch < asked.last_fetched_epoch or end_offset < asked.fetch_offset:
        return EpochEndOffset(epoch, end_offset)
    return None


def _response(partition: Partition, asked: FetchPartition) -> FetchPartitionResponse:
    log = partition.log
    return FetchPartitionResponse(
        partition=asked.partition,
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        log_start_offset=log.log_start_offset,
    )


def _error_read(asked: FetchPartition, code: ErrorCode) -> PartitionRead:
    return PartitionRead(FetchPartitionResponse(asked.partition, error_code=code))


def _local_read(asked: FetchPartition, read: LogRead) -> PartitionRead:
    size = len(read.records)
    response = FetchPartitionResponse(
        asked.partition,
        0,
        read.high_watermark,
        read.last_stable_offset,
        read.log_start_offset,
        _aborted(read.aborted_transactions),
        (read.records,) if size else (),
    )
    return PartitionRead(response, size)


def _aborted(
    transactions: Sequence[AbortedTransaction] | None,
) -> list[tuple[ProducerId, Offset]] | None:
    if transactions is None:
        return None
    return [(transaction.producer_id, transaction.first_offset) for transaction in transactions]


def _remote_read(need: RemoteNeed, asked: FetchPartition) -> PartitionRead:
    """A read still to be done; it is taken to fill the partition's whole limit, as in Kafka."""
    response = _response(need.partition, asked)
    if need.max_bytes == 0 and not need.min_one_message:
        return PartitionRead(response)
    return PartitionRead(response, max(1, need.max_bytes), need)


def read_from_memory(
    reads: Sequence[PartitionRead],
    isolation: FetchIsolation,
    remote_log_manager: RemoteLogManager,
) -> list[PartitionRead]:
    """`reads` with those remote needs read that nobody has to wait for."""
    if remote_log_manager.fetch_quota.throttle_s() > 0:
        return list(reads)
    answered = list(reads)
    for index, read in enumerate(reads):
        need = read.remote
        if need is None:
            continue
        found = remote_log_manager.read_now(
            need.partition.log,
            need.partition.topic_id_partition,
            need.offset,
            need.max_bytes,
            isolation=isolation,
            min_one_message=need.min_one_message,
        )
        if found is not None:
            answered[index] = _answered_read(read, found)
    return answered


async def read_remote(
    reads: Sequence[PartitionRead],
    isolation: FetchIsolation,
    remote_log_manager: RemoteLogManager,
    wait_s_max: float,
) -> list[PartitionRead]:
    """`reads` with their remote needs read, in parallel.

    A read that does not end in time gives no records and no error, and is given up: the client
    asks again, and what was being fetched for it goes on. So does a client that the fetch quota
    lets not begin in that time. When the client has left, which cancels this, the fetches that
    nobody else waits for end too.
    """
    futures: dict[int, asyncio.Future[RemoteRead]] = {}
    answered = list(reads)
    if await _held_up_by_quota(reads, remote_log_manager.fetch_quota, wait_s_max):
        return [PartitionRead(each.response) if each.remote else each for each in reads]
    patience = ReadPatience()
    for index, read in enumerate(reads):
        if read.remote is None:
            continue
        try:
            futures[index] = asyncio.wrap_future(
                remote_log_manager.read(
                    read.remote.partition.log,
                    read.remote.partition.topic_id_partition,
                    read.remote.offset,
                    read.remote.max_bytes,
                    isolation=isolation,
                    min_one_message=read.remote.min_one_message,
                    patience=patience,
                )
            )
        except IsothermError as error:
            answered[index] = _failed_read(read, error)
    has_left = True
    try:
        if futures:
            _, late = await asyncio.wait(futures.values(), timeout=wait_s_max)
            if late:
                remote_log_manager.expirations.count_fetch()
        for index, future in futures.items():
            answered[index] = _finished_read(reads[index], future)
        has_left = False
    finally:
        for future in futures.values():
            future.cancel()
        patience.stop(has_left=has_left)
    return answered


async def _held_up_by_quota(
    reads: Sequence[PartitionRead], quota: RemoteQuota, wait_s_max: float
) -> bool:
    """Whether the quota of KIP-956 lets no remote read begin now.

    Waits for it first, unless there are local records to answer with: an empty answer would bring
    the client back at once.
    """
    throttle_s = quota.throttle_s() if any(read.remote for read in reads) else 0.0
    if throttle_s == 0:
        return False
    has_records = any(read.size and read.remote is None for read in reads)
    wait_s = 0.0 if has_records else min(throttle_s, wait_s_max)
    quota.note_throttled(wait_s)
    await asyncio.wait((asyncio.get_running_loop().create_future(),), timeout=wait_s)
    return quota.throttle_s() > 0


def _failed_read(read: PartitionRead, error: BaseException) -> PartitionRead:
    response = FetchPartitionResponse(read.response.partition, error_code=error_code(error))
    return PartitionRead(response)


def _finished_read(read: PartitionRead, future: asyncio.Future[RemoteRead]) -> PartitionRead:
    if not future.done():
        return PartitionRead(read.response)
    error = future.exception()
    if error is None:
        return _answered_read(read, future.result())
    if not isinstance(error, IsothermError):
        # Our own fault, and this partition's alone: the others are answered.
        logger.error(
            "remote read met an unexpected error partition=%s",
            read.response.partition,
            exc_info=error,
        )
    return _failed_read(read, error)


def _answered_read(read: PartitionRead, remote: RemoteRead) -> PartitionRead:
    response = read.response._replace(
        records=remote.records, aborted_transactions=_aborted(remote.aborted_transactions)
    )
    return PartitionRead(response, remote.size)


class DelayedFetch:
    """A fetch that found less than its min bytes (Kafka: DelayedFetch).

    It counts what is appended to its partitions, as far as each may still add to the answer, and
    completes once that makes up the rest; then everything is read again. A partition that goes
    away completes it too. Its future's result says nothing: read again.
    """

    def __init__(
        self,
        targets: Sequence[FetchTarget],
        reads: Sequence[PartitionRead],
        appended_sizes: Sequence[int],
        reader: FetchReader,
        min_bytes: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`appended_sizes`: each partition's, taken before it was read."""
        self.future: asyncio.Future[object] = loop.create_future()
        self._isolation = reader.isolation
        self._min_bytes = min_bytes
        self._watched = [
            _WatchedPartition(
                target.partition,
                read.size,
                appended,
                target.asked,
                _hidden_from(target.partition, reader.isolation),
            )
            for target, read, appended in zip(targets, reads, appended_sizes, strict=True)
            if target.partition is not None
        ]

    @property
    def keys(self) -> list[TopicPartition]:
        return [watched.partition.topic_partition for watched in self._watched]

    def try_complete(self, key: TopicPartition) -> bool:
        if any(watched.partition.is_gone for watched in self._watched):
            self.expire()
            return True
        expected = sum(watched.expected_size(self._isolation) for watched in self._watched)
        if expected >= self._min_bytes:
            self.expire()
        return self.future.done()

    def expire(self) -> None:
        self.future.set_result(None)


def _hidden_from(partition: Partition, isolation: FetchIsolation) -> Offset | None:
    """From where on open transactions hide records that are there already."""
    log = partition.log
    stable = log.last_stable_offset
    is_hiding = isolation is FetchIsolation.TXN_COMMITTED and stable < log.high_watermark
    return stable if is_hiding else None


class _WatchedPartition(NamedTuple):
    partition: Partition
    read_size: int
    appended_before: int
    asked: FetchPartition
    hidden_from: Offset | None

    def expected_size(self, isolation: FetchIsolation) -> int:
        """Bytes that a read would give now, by what was appended since the last one."""
        if isolation is FetchIsolation.TXN_COMMITTED:
            stable = self.partition.log.last_stable_offset
            if stable <= self.asked.fetch_offset:
                return self.read_size
            if self.hidden_from is not None and stable > self.hidden_from:
                # What a transaction's end has uncovered was appended before, and not counted.
                return self.asked.partition_max_bytes
        size = self.read_size + self.partition.appended_size - self.appended_before
        return min(size, self.asked.partition_max_bytes)
