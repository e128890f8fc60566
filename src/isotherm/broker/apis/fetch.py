"""Fetch (key 1).

Versions  4-18. 5 log start offset · 7 fetch sessions · 9 leader epoch checks · 11 rack (not used)
          · 12 flexible, diverging epoch · 13 topic ids · 14 OFFSET_MOVED_TO_TIERED_STORAGE for
          followers · 15 replica state · 16-18 fields for replicas, not used
Behaviour Answers at once when min bytes are there, when a partition has an error or is read from
          the remote tier, when nothing is asked for or max wait is 0; otherwise waits for appends, at most max wait. Offsets below
          the local log start are read from the remote tier (see isotherm.broker.partitions.fetch). The answer
          is bounded by the request's max bytes and by fetch.max.bytes.
          Fetch sessions: see isotherm.broker.partitions.fetch_sessions.
Not done  Reading from the nearest replica (KIP-392).
KIPs      74 max bytes · 98 read_committed · 227 fetch sessions · 320 leader epochs ·
          405 remote reads · 516 topic ids
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

from kio.schema.errors import ErrorCode

from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.partitions.fetch import (
    DelayedFetch,
    FetchReader,
    FetchTarget,
    PartitionRead,
    read_from_memory,
    read_remote,
)
from isotherm.broker.partitions.fetch_sessions import FetchContext, PartitionKey
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.requests.context import RequestContext
from isotherm.broker.requests.served_api import Api, Charge
from isotherm.errors import IsothermError
from isotherm.log.log_read import FetchIsolation
from isotherm.metrics.broker_traffic import TopicTraffic
from isotherm.protocol.api_keys import ApiKey, VersionRange
from isotherm.protocol.fetch import (
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
)

READ_COMMITTED = 1

# Kafka (ReplicaManager.readFromLog) has no meter for these: they are no fault of the broker's.
NOT_COUNTED_AS_FAILED = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.replica_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.offset_out_of_range,
    }
)


def handle(
    context: RequestContext, request: FetchRequest
) -> FetchResponse | Awaitable[FetchResponse]:
    services = context.services
    reader = _reader(request)
    fetch = services.fetch_sessions.context(
        request, context.header.api_version, services.clock.now_ms()
    )
    targets = [_target(services.replica_manager, *item) for item in fetch.asked.items()]
    max_bytes = _max_bytes(context, request)
    appended_sizes = [
        0 if target.partition is None else target.partition.appended_size for target in targets
    ]
    reads = reader.read_partitions(targets, max_bytes)
    min_bytes = min(request.min_bytes, max_bytes)
    if not _may_wait(request.max_wait_ms, min_bytes, reads):
        reads = _read_from_memory(context, reader, reads)
        if all(read.remote is None for read in reads):
            return _respond(context, fetch, targets, reads)
        return _finish(context, fetch, reader, targets, reads)
    delayed = DelayedFetch(
        targets, reads, appended_sizes, reader, min_bytes, asyncio.get_running_loop()
    )
    services.replica_manager.fetch_purgatory.watch(
        delayed, delayed.keys, request.max_wait_ms / 1000
    )
    return _answer_later(context, request, fetch, reader, targets, delayed)


async def _answer_later(
    context: RequestContext,
    request: FetchRequest,
    fetch: FetchContext,
    reader: FetchReader,
    targets: Sequence[FetchTarget],
    delayed: DelayedFetch,
) -> FetchResponse:
    await delayed.future
    reads = reader.read_partitions(targets, _max_bytes(context, request))
    reads = _read_from_memory(context, reader, reads)
    return await _finish(context, fetch, reader, targets, reads)


def _read_from_memory(
    context: RequestContext, reader: FetchReader, reads: list[PartitionRead]
) -> list[PartitionRead]:
    remote_log_manager = context.services.remote_log_manager
    if remote_log_manager is None or all(read.remote is None for read in reads):
        return reads
    return read_from_memory(reads, reader.isolation, remote_log_manager)


async def _finish(
    context: RequestContext,
    fetch: FetchContext,
    reader: FetchReader,
    targets: Sequence[FetchTarget],
    reads: Sequence[PartitionRead],
) -> FetchResponse:
    """The response, once the remote tier has been read for the partitions that need it."""
    remote_log_manager = context.services.remote_log_manager
    if remote_log_manager is not None:
        wait_s_max = context.services.config.remote.remote_fetch_max_wait_ms / 1000
        reads = await read_remote(reads, reader.isolation, remote_log_manager, wait_s_max)
    return _respond(context, fetch, targets, reads)


def _respond(
    context: RequestContext,
    fetch: FetchContext,
    targets: Sequence[FetchTarget],
    reads: Sequence[PartitionRead],
) -> FetchResponse:
    for target, read in zip(targets, reads, strict=True):
        if target.partition is not None:
            topic = target.partition.topic_partition.topic
            _mark(context.services.traffic.of(topic), read.response)
    return fetch.respond([read.response for read in reads], context.services.clock.now_ms())


def _mark(traffic: TopicTraffic, response: FetchPartitionResponse) -> None:
    traffic.total_fetch_requests += 1
    for records in response.records:
        traffic.bytes_out += len(records)
    if response.error_code and response.error_code not in NOT_COUNTED_AS_FAILED:
        traffic.failed_fetch_requests += 1


def _max_bytes(context: RequestContext, request: FetchRequest) -> int:
    return min(request.max_bytes, context.services.config.fetch_max_bytes)


def _reader(request: FetchRequest) -> FetchReader:
    if request.replica_id >= 0:
        return FetchReader(FetchIsolation.LOG_END, is_follower=True)
    if request.isolation_level == READ_COMMITTED:
        return FetchReader(FetchIsolation.TXN_COMMITTED)
    return FetchReader(FetchIsolation.HIGH_WATERMARK)


def _target(
    replica_manager: ReplicaManager, key: PartitionKey, asked: FetchPartition
) -> FetchTarget:
    try:
        return FetchTarget(asked, replica_manager.find_partition(*key))
    except IsothermError as error:
        return FetchTarget(asked, None, code_of(error))


def _may_wait(max_wait_ms: int, min_bytes: int, reads: Sequence[PartitionRead]) -> bool:
    if max_wait_ms <= 0 or not reads:
        return False
    found_size = sum(read.size for read in reads)
    return found_size < min_bytes and not any(
        read.must_be_answered or read.remote is not None for read in reads
    )


def _refuse(context: RequestContext, request: FetchRequest, error_code: ErrorCode) -> FetchResponse:
    """Every partition answered with `error_code`; from version 7 on the whole request, too."""
    topics = [
        FetchTopicResponse(
            topic.name,
            topic.topic_id,
            [
                FetchPartitionResponse(asked.partition, error_code=error_code)
                for asked in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return FetchResponse(topics, error_code=error_code)


API = Api(ApiKey.FETCH, VersionRange(4, 18), handle, charge=Charge.FETCHED_BYTES, refuse_by=_refuse)
