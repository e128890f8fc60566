"""Fetch (key 1).

Versions  4-18. 5 log start offset · 7 fetch sessions · 9 leader epoch checks · 11 rack, followers
          serve consumers · 12 flexible, diverging epoch · 13 topic ids · 14
          OFFSET_MOVED_TO_TIERED_STORAGE for followers · 15 replica state · 16 current leader · 17-18
          fields of the controllers' quorum, not used
Behaviour Answers at once when min bytes are there, when a partition has an error or is read from
          the remote tier, when nothing is asked for or max wait is 0; otherwise waits for appends, at most max wait. Offsets below
          the local log start are read from the remote tier (see isotherm.broker.partitions.fetch). The answer
          is bounded by the request's max bytes and by fetch.max.bytes.
          Fetch sessions: see isotherm.broker.partitions.fetch_sessions.
          A follower (replica id >= 0) reads up to the log end, tells by its offset what it has, and
          is checked as a replica first: see isotherm.broker.partitions.fetch. Outside the ISR it is
          held back by leader.replication.throttled.rate. A partition that another
          broker leads is read by consumers from version 11 on, up to its high watermark here.
Not done  -
KIPs      74 max bytes · 98 read_committed · 227 fetch sessions · 320 leader epochs · 392 nearest
          replica · 405 remote reads · 516 topic ids · 951 current leader
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

from kio.schema.errors import ErrorCode

from isotherm.broker.access.acls import Operation, ResourceType
from isotherm.broker.access.authorizer import Authorizer
from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.partitions.delayed_fetch import DelayedFetch
from isotherm.broker.partitions.fetch import (
    FetchReader,
    FetchTarget,
    FollowerFetch,
    PartitionRead,
    read_from_memory,
    read_remote,
)
from isotherm.broker.partitions.fetch_sessions import FetchContext, PartitionKey
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.partitions.replica_selection import ConsumerRack
from isotherm.broker.requests.context import RequestContext
from isotherm.broker.requests.current_leader import LEADER_ERRORS, current_leader
from isotherm.broker.requests.later_response import LaterResponse
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
FIRST_RACK_VERSION = 11
FIRST_CURRENT_LEADER_VERSION = 16

# What most requests are read with.
_CONSUMER = FetchReader(FetchIsolation.HIGH_WATERMARK)
_COMMITTED_CONSUMER = FetchReader(FetchIsolation.TXN_COMMITTED)

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
    reader = _reader(context, request)
    fetch = services.fetch_sessions.context(
        request, context.header.api_version, services.clock.now_ms()
    )
    targets = [_target(services.replica_manager, *item) for item in fetch.asked.items()]
    if services.authorizer is not None:
        targets = _allowed(
            services.authorizer, context, fetch, targets, is_follower=reader.follower is not None
        )
    max_bytes = _max_bytes(context, request)
    sizes = [
        0
        if target.partition is None
        else target.partition.visible_size
        if reader.follower is None
        else target.partition.appended_size
        for target in targets
    ]
    reads = reader.read_partitions(targets, max_bytes)
    min_bytes = min(request.min_bytes, max_bytes)
    if not _may_wait(request.max_wait_ms, min_bytes, reads):
        reads = _read_from_memory(context, reader, reads)
        return _finish(context, fetch, reader, targets, reads)
    delayed = DelayedFetch(targets, reads, sizes, reader, min_bytes, asyncio.get_running_loop())
    services.replica_manager.purgatory.watch(delayed, delayed.keys, request.max_wait_ms / 1000)

    def respond() -> FetchResponse | Awaitable[FetchResponse]:
        found = reader.read_partitions(targets, _max_bytes(context, request), is_first=False)
        found = _read_from_memory(context, reader, found)
        return _finish(context, fetch, reader, targets, found)

    return LaterResponse(delayed.future, respond)


def _read_from_memory(
    context: RequestContext, reader: FetchReader, reads: list[PartitionRead]
) -> list[PartitionRead]:
    remote_log_manager = context.services.remote_log_manager
    if remote_log_manager is None or all(read.remote is None for read in reads):
        return reads
    return read_from_memory(reads, reader.isolation, remote_log_manager)


def _finish(
    context: RequestContext,
    fetch: FetchContext,
    reader: FetchReader,
    targets: Sequence[FetchTarget],
    reads: Sequence[PartitionRead],
) -> FetchResponse | Awaitable[FetchResponse]:
    """The response, once the remote tier has been read for the partitions that need it."""
    if context.services.remote_log_manager is None or all(read.remote is None for read in reads):
        return _respond(context, fetch, reader, targets, reads)
    return _respond_with_remote(context, fetch, reader, targets, reads)


async def _respond_with_remote(
    context: RequestContext,
    fetch: FetchContext,
    reader: FetchReader,
    targets: Sequence[FetchTarget],
    reads: Sequence[PartitionRead],
) -> FetchResponse:
    remote_log_manager = context.services.remote_log_manager
    assert remote_log_manager is not None
    wait_s_max = context.services.config.remote.remote_fetch_max_wait_ms / 1000
    reads = await read_remote(reads, reader.isolation, remote_log_manager, wait_s_max)
    return _respond(context, fetch, reader, targets, reads)


def _respond(
    context: RequestContext,
    fetch: FetchContext,
    reader: FetchReader,
    targets: Sequence[FetchTarget],
    reads: Sequence[PartitionRead],
) -> FetchResponse:
    for target, read in zip(targets, reads, strict=True):
        if target.partition is not None:
            topic = target.partition.topic_partition.topic
            _mark(context.services.traffic.of(topic), read.response, reader)
            if reader.follower is not None and reader.follower.quota is not None:
                reader.follower.quota.record(target.partition.topic_partition, read.size)
    now_ms = context.services.clock.now_ms()
    for read in reads:
        if read.response.error_code and context.header.api_version >= FIRST_CURRENT_LEADER_VERSION:
            return _respond_with_leaders(context, fetch, reader, reads, now_ms)
    return fetch.respond([read.response for read in reads], now_ms)


def _respond_with_leaders(
    context: RequestContext,
    fetch: FetchContext,
    reader: FetchReader,
    reads: Sequence[PartitionRead],
    now_ms: int,
) -> FetchResponse:
    """The response that names the leader where the client asked another broker (KIP-951)."""
    responses, endpoints = [], {}
    for key, read in zip(fetch.asked, reads, strict=True):
        response = read.response
        if response.error_code in LEADER_ERRORS:
            found = current_leader(context, key.name, key.topic_id, key.partition)
            response = response._replace(current_leader=found.leader)
            if found.endpoint is not None and reader.follower is None:
                endpoints[found.endpoint.node_id] = found.endpoint
        responses.append(response)
    answer = fetch.respond(responses, now_ms)
    return answer._replace(node_endpoints=tuple(endpoints.values()))


def _mark(traffic: TopicTraffic, response: FetchPartitionResponse, reader: FetchReader) -> None:
    traffic.total_fetch_requests += 1
    size = 0
    for records in response.records:
        size += len(records)
    if reader.follower is None:
        traffic.bytes_out += size
    else:
        traffic.replication_bytes_out += size
    if response.error_code and response.error_code not in NOT_COUNTED_AS_FAILED:
        traffic.failed_fetch_requests += 1


def _max_bytes(context: RequestContext, request: FetchRequest) -> int:
    return min(request.max_bytes, context.services.config.fetch_max_bytes)


def _reader(context: RequestContext, request: FetchRequest) -> FetchReader:
    services = context.services
    if request.replica_id >= 0:
        follower = FollowerFetch(
            request.replica_id,
            request.replica_epoch,
            services.clock.now_ms(),
            services.leader_quota,
        )
        return FetchReader(FetchIsolation.LOG_END, follower, leader_only=True)
    reader = _COMMITTED_CONSUMER if request.isolation_level == READ_COMMITTED else _CONSUMER
    if context.header.api_version < FIRST_RACK_VERSION:
        return reader._replace(leader_only=True)
    if request.rack_id and services.config.replication.replica_selector_class is not None:
        return reader._replace(
            rack=ConsumerRack(
                request.rack_id,
                context.listener_name,
                services.config.node_id,
                services.metadata.image.brokers.get,
            )
        )
    return reader


def _target(
    replica_manager: ReplicaManager, key: PartitionKey, asked: FetchPartition
) -> FetchTarget:
    try:
        return FetchTarget(asked, replica_manager.find_partition(*key))
    except IsothermError as error:
        return FetchTarget(asked, None, code_of(error))


def _allowed(
    authorizer: Authorizer,
    context: RequestContext,
    fetch: FetchContext,
    targets: list[FetchTarget],
    *,
    is_follower: bool,
) -> list[FetchTarget]:
    """The targets, with an error for each that may not be read: a consumer needs READ on the topic, a
    follower CLUSTER_ACTION. Checked for all partitions of a session, at each fetch."""
    names = [_topic_name(context, key) for key in fetch.asked]
    if is_follower:
        is_allowed = authorizer.allows_cluster(context, Operation.CLUSTER_ACTION)
        allowed = {name for name in names if name is not None and is_allowed}
    else:
        allowed = authorizer.allowed(
            context,
            Operation.READ,
            ResourceType.TOPIC,
            (each for each in names if each is not None),
        )
    return [
        target
        if name is None or name in allowed
        else FetchTarget(target.asked, None, ErrorCode.topic_authorization_failed)
        for name, target in zip(names, targets, strict=True)
    ]


def _topic_name(context: RequestContext, key: PartitionKey) -> str | None:
    if key.topic_id is None:
        return key.name
    topic = context.services.metadata.image.topics_by_id.get(key.topic_id)
    return None if topic is None else topic.name


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
