"""Reads the partitions of a fetch request from both tiers, within one byte budget (Kafka:
ReplicaManager).

    read_partitions ──> answered at once if min.bytes are available
          │               else DelayedFetch waits in the purgatory, then everything is read again
          └─ a partition whose offset lies below the local log start has a request to the remote
             tier (`PartitionRead.remote`): `read_from_memory` completes it if its bytes were read
             ahead, else `read_remote` does in other threads, in parallel with other partitions,
             for at most remote.fetch.max.wait.ms

Budget (KIP-74): partitions are read in the order of the request. Each is read up to its own limit
and to the remaining limit of the request. The first batch found is returned even if it exceeds both
limits, so that a consumer always makes progress.

The local log is read on the event loop, up to LOCAL_READ_SIZE_MAX for a request. Remote reads, in
threads, have the request's limits alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.error_mapping import error_code
from isotherm.broker.metadata.image import NO_LEADER
from isotherm.broker.partitions.fetch_target import FetchTarget
from isotherm.broker.partitions.offset_lookup import fetchable_end
from isotherm.broker.partitions.partition import Partition
from isotherm.broker.partitions.replica_selection import ConsumerRack, preferred_replica
from isotherm.errors import IsothermError, NotLeaderOrFollowerError, OffsetOutOfRangeError
from isotherm.log.log_read import EMPTY_RECORDS, FetchIsolation, LogRead
from isotherm.protocol.fetch import (
    NO_REPLICA,
    EpochEndOffset,
    FetchPartition,
    FetchPartitionResponse,
)
from isotherm.remote.reading.read_request import ReadRequest, RemoteRead
from isotherm.remote.reading.read_wait import ReadWait
from isotherm.segment.transaction_index import AbortedTransaction
from isotherm.types import (
    NO_LEADER_EPOCH,
    BrokerId,
    Offset,
    ProducerId,
    TimestampMs,
)

if TYPE_CHECKING:
    from isotherm.broker.partitions.replication.replication_quota import ReplicationQuota
    from isotherm.remote.quota import RemoteQuota
    from isotherm.remote.reading.reader_pool import RemoteReaderPool

logger = logging.getLogger(__name__)

# Local bytes of one answer, beside a first batch that is larger. A read of this size takes 4 ms of
# the loop, less than a round of requests; one of 50 MiB takes 27 (docs/decisions/0260).
LOCAL_READ_SIZE_MAX = 8 * 1024 * 1024


class PartitionRead(NamedTuple):
    """The result for one partition.

    `size` counts towards min.bytes. `remote` is the request that the remote tier must answer yet;
    then `size` is the expected size. `is_at_end`: the fetch offset was at the end of the readable
    records, so the result stays the same until the partition changes. `is_tail`: in a read replica,
    the leader must answer yet.
    """

    response: FetchPartitionResponse
    size: int = 0
    remote: ReadRequest | None = None
    is_at_end: bool = False
    is_tail: bool = False

    @property
    def must_be_answered(self) -> bool:
        """Whether the request must be answered at once: waiting does not change this result."""
        response = self.response
        return (
            bool(response.error_code)
            or response.diverging_epoch is not None
            or response.preferred_read_replica != NO_REPLICA
        )


@dataclass(slots=True)
class FetchReads:
    """The results for `targets`, in their order.

    `is_decided`: the request does not wait for min.bytes, because a result must be answered at once
    or a remote read is pending (`needs_remote`), or the leader's answer (`needs_tail`).
    """

    targets: Sequence[FetchTarget]
    reads: list[PartitionRead]
    size: int = 0
    is_decided: bool = False
    needs_remote: bool = False
    needs_tail: bool = False

    def read_from_memory(self, readers: RemoteReaderPool) -> None:
        """Complete the remote reads whose bytes are in memory."""
        # Bytes in memory count for the fetch quota too, so no read begins while it is exceeded
        # (KIP-956).
        if readers.fetch_quota.throttle_s() > 0:
            return
        self.needs_remote = False
        for index, read in enumerate(self.reads):
            if read.remote is None:
                continue
            remote_reads = readers.read_now(read.remote)
            if isinstance(remote_reads, ReadRequest):
                self.reads[index] = read._replace(remote=remote_reads)
                self.needs_remote = True
            else:
                self.reads[index] = _answered_read(read, remote_reads)

    async def read_remote(self, readers: RemoteReaderPool, wait_s_max: float) -> None:
        """Complete the remote reads in parallel.

        A read that takes longer than `wait_s_max` returns no records and no error. The client
        retries while the fetch from the bucket continues. The result is the same if the fetch quota
        blocks the start. A disconnect of the client cancels this call, and with it the fetches that
        no other read waits for.
        """
        pending = {
            index: read.remote for index, read in enumerate(self.reads) if read.remote is not None
        }
        if await self._are_held_up(readers.fetch_quota, wait_s_max):
            for index in pending:
                self.reads[index] = PartitionRead(self.reads[index].response)
            return
        futures: dict[int, asyncio.Future[RemoteRead]] = {}
        wait = ReadWait()
        for index, request in pending.items():
            try:
                futures[index] = asyncio.wrap_future(readers.read(request._replace(wait=wait)))
            except IsothermError as error:
                self.reads[index] = _failed_read(self.reads[index], error)
        # Stays True if the call is cancelled because the client has disconnected: the fetches for
        # it end then. After a timeout they continue, because the client asks again.
        has_left = True
        try:
            if futures:
                _, late = await asyncio.wait(futures.values(), timeout=wait_s_max)
                if late:
                    readers.expirations.count_fetch()
            for index, future in futures.items():
                self.reads[index] = _finished_read(self.reads[index], future)
            has_left = False
        finally:
            for future in futures.values():
                future.cancel()
            wait.stop(has_left=has_left)

    async def _are_held_up(self, quota: RemoteQuota, wait_s_max: float) -> bool:
        """Whether the fetch quota (KIP-956) blocks remote reads now.

        Waits for the quota first, unless there are local records to return: after an empty response
        the client would retry at once.
        """
        throttle_s = quota.throttle_s()
        if throttle_s == 0:
            return False
        has_records = any(read.size and read.remote is None for read in self.reads)
        wait_s = 0.0 if has_records else min(throttle_s, wait_s_max)
        quota.note_throttled(wait_s)
        await asyncio.sleep(wait_s)  # noqa: TID251 - the loop must not block, and a Clock would block it
        return quota.throttle_s() > 0


class FollowerFetch(NamedTuple):
    """The follower that fetches.

    `broker_epoch` is the epoch of its registration, from the request. `now_ms` is the time of the
    request. `quota` limits the bytes that this broker sends to out-of-sync replicas.
    """

    broker_id: BrokerId
    broker_epoch: int
    now_ms: TimestampMs
    quota: ReplicationQuota | None = None

    def is_held_back(self, partition: Partition) -> bool:
        """Whether the quota withholds records from the follower now. It never does from a member of
        the ISR, which would fall out of the ISR."""
        return (
            self.quota is not None
            and self.broker_id not in partition.isr
            and self.quota.holds_back(partition.topic_partition)
        )


class FetchReader(NamedTuple):
    """The settings for the reads of one request.

    A `follower` reads uncommitted records. It builds its own state of the remote tier and does not
    read remote records through the leader. `leader_only` refuses partitions that this broker
    follows. A consumer with a `rack` is directed to a replica in its rack, if there is one.
    """

    isolation: FetchIsolation
    follower: FollowerFetch | None = None
    leader_only: bool = False
    rack: ConsumerRack | None = None

    def read_partitions(
        self, targets: Sequence[FetchTarget], max_bytes: int, *, is_first: bool = True
    ) -> FetchReads:
        """Read every target, in order. Errors are returned per partition.

        `is_first` is False for the second read, after a wait. Only the first read updates the
        follower's state: later its fetch offsets are old.
        """
        reads = FetchReads(targets, [])
        min_one_message = True
        local_max_bytes = LOCAL_READ_SIZE_MAX
        for target in targets:
            request, partition = target.request, target.partition
            if partition is None:
                reads.reads.append(_error_read(request, target.error))
                reads.is_decided = True
                continue
            # Noted before the read: a change during the read then counts as news and is not missed.
            # Followers see uncommitted records too, so all appended bytes count for them.
            target.leader_epoch = partition.leader_epoch
            if self.follower is None:
                target.size_before = partition.visible_size
            else:
                target.size_before = partition.appended_size
            limit = max(0, min(max_bytes, request.partition_max_bytes))
            try:
                read = self._read(
                    partition, request, limit, local_max_bytes, min_one_message, is_first=is_first
                )
            except IsothermError as error:
                read = _error_read(request, error_code(error))
            size = target.read_size = read.size
            if self.isolation is FetchIsolation.TXN_COMMITTED:
                target.hidden_from = _hidden_from(read)
            reads.reads.append(read)
            if size:
                reads.size += size
                # May fall below 0, by a first batch above the limit. The limits of the next reads
                # are then 0.
                max_bytes -= size
                min_one_message = False
                if read.remote is not None:
                    reads.needs_remote = reads.is_decided = True
                else:
                    local_max_bytes = local_max_bytes - size if size < local_max_bytes else 0
            elif read.must_be_answered or read.is_tail:
                reads.is_decided = True
                reads.needs_tail = reads.needs_tail or read.is_tail
        return reads

    def awaits_appends(self, targets: Sequence[FetchTarget]) -> bool:
        """Whether all targets are at the end of what a consumer may read, so that `read_partitions`
        would find nothing, and nothing that must be answered at once. Then they are as after it.

        Most readers that keep up come back before the next append. False if that is not sure.
        """
        if self.follower is not None or self.rack is not None:
            return False
        for target in targets:
            request, partition = target.request, target.partition
            if partition is None:
                return False
            # Noted first, as in `read_partitions`. A partition that is gone is not led.
            target.leader_epoch, target.size_before = partition.leader_epoch, partition.visible_size
            if (
                not partition.is_leader
                or partition.goes_on_at is not None
                or request.current_leader_epoch not in (NO_LEADER_EPOCH, target.leader_epoch)
                or request.last_fetched_epoch != NO_LEADER_EPOCH
                or not partition.log.ends_for_consumers(request.fetch_offset)
            ):
                return False
            target.read_size, target.hidden_from = 0, None
        return True

    def _read(
        self,
        partition: Partition,
        request: FetchPartition,
        max_bytes: int,
        local_max_bytes: int,
        min_one_message: bool,
        *,
        is_first: bool,
    ) -> PartitionRead:
        # The epoch is checked first, as in Kafka: with stale metadata the offset may be of another
        # lineage. Each check is called only if a comparison shows that it may matter: the calls of
        # a fetch have a budget (docs/decisions/0136).
        if request.current_leader_epoch not in (NO_LEADER_EPOCH, partition.leader_epoch):
            partition.check_leader_epoch(request.current_leader_epoch)
        if self.leader_only and not partition.is_leader:
            partition.check_is_leader()
        follower = self.follower
        if follower is not None:
            partition.check_follower(follower.broker_id, request.current_leader_epoch)
        goes_on_at = partition.goes_on_at
        if goes_on_at is not None and request.fetch_offset >= fetchable_end(
            partition.log, self.isolation
        ):
            return _sent_on(partition, request, goes_on_at, leader_only=self.leader_only)
        if self.rack is not None or request.last_fetched_epoch != NO_LEADER_EPOCH:
            elsewhere = _elsewhere(partition, request, self.rack)
            if elsewhere is not None:
                # A diverging follower's fetch is not recorded: its offset is of another history.
                return elsewhere
        read = partition.log.read_local(
            request.fetch_offset,
            min(local_max_bytes, max_bytes),
            isolation=self.isolation,
            min_one_message=min_one_message,
        )
        if read is None and follower is not None:
            return _moved_read(partition, request)
        if read is None:
            return self._remote_read(partition, request, max_bytes, min_one_message)
        if follower is not None:
            # After the read, as in Kafka: an offset that cannot be read does not show which
            # records the follower has.
            read = _follower_read(follower, partition, request, read, is_first=is_first)
        size, transactions = len(read.records), read.aborted_transactions
        response = FetchPartitionResponse(
            request.partition,
            0,
            read.high_watermark,
            read.last_stable_offset,
            read.log_start_offset,
            None if transactions is None else _aborted(transactions),
            (read.records,) if size else (),
        )
        return PartitionRead(response, size, None, request.fetch_offset >= read.end_offset)

    def _remote_read(
        self, partition: Partition, request: FetchPartition, max_bytes: int, min_one_message: bool
    ) -> PartitionRead:
        """A pending remote read. Its expected size is the partition's limit, as in Kafka."""
        response = _response(partition, request)
        if max_bytes == 0 and not min_one_message:
            return PartitionRead(response)
        # Only in the log of a read replica: others copy what lies below the last stable offset.
        if (
            self.isolation is FetchIsolation.TXN_COMMITTED
            and request.fetch_offset >= response.last_stable_offset
        ):
            return PartitionRead(response)
        remote = ReadRequest(
            partition.log,
            partition.topic_id_partition,
            request.fetch_offset,
            max_bytes,
            self.isolation,
            min_one_message,
        )
        # At least 1, so that it counts as data even if no budget is left.
        return PartitionRead(response, max(1, max_bytes), remote)


def _hidden_from(read: PartitionRead) -> Offset | None:
    """The offset from which open transactions hide records from read_committed;

    None if they hide none.
    """
    response = read.response
    stable = response.last_stable_offset
    return stable if stable < response.high_watermark else None


def _sent_on(
    partition: Partition, request: FetchPartition, leader: BrokerId, *, leader_only: bool
) -> PartitionRead:
    """The answer of a read replica at the end of the remote tier: the real leader goes on
    (docs/decisions/0274)."""
    if partition.is_passed_on:
        return PartitionRead(_response(partition, request), is_tail=True)
    # Before version 11 an answer names no other broker.
    if leader_only or leader == NO_LEADER:
        raise NotLeaderOrFollowerError(
            "the records behind the remote tier are at the partition's leader"
            f" partition={partition.topic_partition} leader={leader}"
        )
    response = _response(partition, request)
    return PartitionRead(response._replace(preferred_read_replica=leader))


def _elsewhere(
    partition: Partition, request: FetchPartition, rack: ConsumerRack | None
) -> PartitionRead | None:
    """The answer without records: a preferred replica for a consumer in another rack, or the
    diverging epoch for a follower whose log diverges. None if this log must be read."""
    if rack is not None:
        preferred = preferred_replica(partition, request.fetch_offset, rack)
        if preferred is not None:
            response = _response(partition, request)
            return PartitionRead(response._replace(preferred_read_replica=preferred))
    if request.last_fetched_epoch != NO_LEADER_EPOCH:
        diverging = _diverging_epoch(partition, request)
        if diverging is not None:
            response = _response(partition, request)
            return PartitionRead(response._replace(diverging_epoch=diverging))
    return None


def _diverging_epoch(partition: Partition, request: FetchPartition) -> EpochEndOffset | None:
    """The epoch and end offset at which the follower's log diverges from this one (KIP-595); None
    if it does not diverge."""
    log = partition.log
    epoch, end_offset = log.leader_epochs.end_offset_for(
        request.last_fetched_epoch, log.log_end_offset
    )
    if epoch == NO_LEADER_EPOCH:
        raise OffsetOutOfRangeError(
            f"epoch is not known partition={partition.topic_partition}"
            f" last_fetched_epoch={request.last_fetched_epoch}"
        )
    # Before the comparison of epochs, as in Kafka's Partition.readRecords: a follower below the
    # log start begins anew. A truncation would not bring it into the log.
    if request.fetch_offset < log.log_start_offset:
        raise OffsetOutOfRangeError(
            f"offset is below the log start partition={partition.topic_partition}"
            f" offset={request.fetch_offset} log_start_offset={log.log_start_offset}"
        )
    if epoch < request.last_fetched_epoch or end_offset < request.fetch_offset:
        return EpochEndOffset(epoch, end_offset)
    return None


def _response(partition: Partition, request: FetchPartition) -> FetchPartitionResponse:
    log = partition.log
    return FetchPartitionResponse(
        partition=request.partition,
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        log_start_offset=log.log_start_offset,
    )


def _error_read(request: FetchPartition, code: ErrorCode) -> PartitionRead:
    return PartitionRead(FetchPartitionResponse(request.partition, error_code=code))


def _follower_read(
    follower: FollowerFetch,
    partition: Partition,
    request: FetchPartition,
    read: LogRead,
    *,
    is_first: bool,
) -> LogRead:
    """Record the follower's fetch, and return `read`, without records while the quota withholds
    them.
    """
    if is_first:
        partition.update_follower(
            follower.broker_id,
            leader_epoch=request.current_leader_epoch,
            fetch_offset=request.fetch_offset,
            log_start_offset=request.log_start_offset,
            broker_epoch=follower.broker_epoch,
            leader_end_offset=read.log_end_offset,
            now_ms=follower.now_ms,
        )
    if follower.is_held_back(partition):
        return read._replace(records=EMPTY_RECORDS)
    return read


def _moved_read(partition: Partition, request: FetchPartition) -> PartitionRead:
    """The answer to a follower whose offset is only in the remote tier, with the offsets to
    restart from.
    """
    return PartitionRead(
        _response(partition, request)._replace(
            error_code=ErrorCode.offset_moved_to_tiered_storage, last_stable_offset=-1
        )
    )


def _aborted(transactions: Sequence[AbortedTransaction]) -> list[tuple[ProducerId, Offset]]:
    return [(transaction.producer_id, transaction.first_offset) for transaction in transactions]


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
        # A bug. It fails this partition alone; the others are answered.
        logger.error(
            "remote read met an unexpected error partition=%s",
            read.response.partition,
            exc_info=error,
        )
    return _failed_read(read, error)


def _answered_read(read: PartitionRead, remote: RemoteRead) -> PartitionRead:
    aborted = remote.aborted_transactions
    response = read.response._replace(
        records=remote.records,
        aborted_transactions=None if aborted is None else _aborted(aborted),
    )
    return PartitionRead(response, remote.size)
