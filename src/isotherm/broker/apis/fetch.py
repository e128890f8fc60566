"""Fetch (key 1).

Versions  4-18. 5 log start offset · 7 fetch sessions · 9 leader epoch checks · 11 rack, followers
          serve consumers · 12 flexible, diverging epoch · 13 topic ids · 14
          OFFSET_MOVED_TO_TIERED_STORAGE for followers · 15 replica state · 16 current leader ·
          17-18 fields of the controllers' quorum, not used
Behaviour Answers at once if min.bytes are available, if a partition has an error or must be read
          from the remote tier, if the request has no partitions, or if max.wait is 0. Otherwise it
          waits for appends, at most for max.wait. Offsets below the local log start are read from
          the remote tier (see isotherm.broker.partitions.fetch_reads). max.bytes of the request and
          fetch.max.bytes bound the answer, and LOCAL_READ_SIZE_MAX its bytes of the local log.
          Fetch sessions: see
          isotherm.broker.partitions.fetch_sessions. A follower (replica id >= 0) reads up to the
          log end. Its fetch offset is its log end offset, and the request is first checked to come
          from a replica. leader.replication.throttled.rate throttles a follower outside the ISR.
          From version 11 on a consumer may also read a partition that this broker follows, up to
          the high watermark here.
Not done  -
KIPs      74 max bytes · 98 read_committed · 227 fetch sessions · 320 leader epochs · 392 nearest
          replica · 405 remote reads · 516 topic ids · 951 current leader
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Hashable, Sequence

from kio.schema.errors import ErrorCode

from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.metadata.image import NO_LEADER
from isotherm.broker.partitions.delayed_fetch import DelayedFetch
from isotherm.broker.partitions.fetch_reads import (
    LOCAL_READ_SIZE_MAX,
    FetchReader,
    FetchReads,
    FollowerFetch,
    PartitionRead,
)
from isotherm.broker.partitions.fetch_sessions import FetchContext, FetchTerms
from isotherm.broker.partitions.fetch_target import FetchTarget, PartitionKey
from isotherm.broker.partitions.replica_selection import ConsumerRack
from isotherm.broker.peers.tail_reader import TailReader, TailRequest, TailTerms
from isotherm.broker.server.requests.access_checks import on_cluster, on_topics
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.current_leader import LEADER_ERRORS, current_leader
from isotherm.broker.server.requests.later_response import LaterResponse
from isotherm.broker.server.requests.served_api import Access, Api, Charge
from isotherm.errors import IsothermError
from isotherm.log.log_read import FetchIsolation
from isotherm.metrics.broker_traffic import TopicTraffic
from isotherm.protocol.api_keys import ApiKey, VersionRange
from isotherm.protocol.fetch import (
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
)
from isotherm.types import TimestampMs

READ_COMMITTED = 1
FIRST_RACK_VERSION = 11
FIRST_CURRENT_LEADER_VERSION = 16

# The readers of most requests, shared since they are immutable.
_CONSUMERS = {
    (is_committed, leader_only): FetchReader(
        FetchIsolation.TXN_COMMITTED if is_committed else FetchIsolation.HIGH_WATERMARK,
        leader_only=leader_only,
    )
    for is_committed, leader_only in itertools.product((False, True), repeat=2)
}

# Kafka (ReplicaManager.readFromLog) does not meter these errors, which are not failures of the
# broker.
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
    services, now_ms = context.services, context.services.clock.now_ms()
    reader = _reader(context, request, now_ms)
    fetch = services.fetch_sessions.context(
        request, context.header.api_version, now_ms, _terms(context, reader)
    )
    max_bytes = min(request.max_bytes, services.config.fetch_max_bytes)
    # The comparison saves the call: a request has a budget of them (docs/decisions/0136).
    if services.answers.used + max_bytes > services.answers.plenty:
        max_bytes = services.answers.room(max_bytes)
    # At least one, if the client asks for any: otherwise clients at the log end would ask without a
    # rest while answers use up the memory. No more than one answer may have of the local log.
    min_bytes = min(request.min_bytes, max(max_bytes, 1), LOCAL_READ_SIZE_MAX)
    may_wait = min_bytes > 0 and request.max_wait_ms > 0 and not fetch.is_empty
    reads = _read(context, fetch, reader, max_bytes, is_first=True, may_wait=may_wait)
    if reads.needs_remote or reads.needs_tail:
        return _respond_once_read(context, fetch, reader, reads, request)
    if not may_wait or reads.size >= min_bytes or reads.is_decided:
        return _respond(context, fetch, reader, reads)
    delayed = DelayedFetch(fetch, reader, min_bytes, asyncio.get_running_loop())
    services.replica_manager.purgatory.watch(delayed, fetch.wait_keys, request.max_wait_ms / 1000)

    def respond() -> FetchResponse | Awaitable[FetchResponse]:
        max_bytes = min(request.max_bytes, services.config.fetch_max_bytes)
        reads = _read(context, fetch, reader, services.answers.room(max_bytes), is_first=False)
        if reads.needs_remote or reads.needs_tail:
            return _respond_once_read(context, fetch, reader, reads, request)
        return _respond(context, fetch, reader, reads)

    return LaterResponse(delayed.future, respond)


def _reader(context: RequestContext, request: FetchRequest, now_ms: TimestampMs) -> FetchReader:
    services = context.services
    if request.replica_id >= 0:
        follower = FollowerFetch(
            request.replica_id, request.replica_epoch, now_ms, services.leader_quota
        )
        return FetchReader(FetchIsolation.LOG_END, follower, leader_only=True)
    leader_only = context.header.api_version < FIRST_RACK_VERSION
    reader = _CONSUMERS[request.isolation_level == READ_COMMITTED, leader_only]
    if leader_only:
        return reader
    selects_by_rack = services.config.replication.replica_selector_class is not None
    if request.rack_id and (selects_by_rack or services.is_replica):
        return reader._replace(
            rack=ConsumerRack(
                request.rack_id,
                context.listener_name,
                services.config.node_id,
                services.metadata.image.brokers.get,
            )
        )
    return reader


def _terms(context: RequestContext, reader: FetchReader) -> FetchTerms | None:
    """The terms of a session that reads only changed partitions; None if every answer needs all
    partitions.

    A follower proves with each fetch of a partition that it is caught up. The preferred replica
    depends on other brokers, whose changes mark no partition here, as what lies behind the remote
    tier does in a read replica.
    """
    if reader.follower is not None or reader.rack is not None or context.services.is_replica:
        return None
    authorizer = context.services.authorizer
    return FetchTerms(
        reader.isolation,
        reader.leader_only,
        context.principal,
        context.client_address,
        0 if authorizer is None else authorizer.acl_version,
    )


def _read(
    context: RequestContext,
    fetch: FetchContext,
    reader: FetchReader,
    max_bytes: int,
    *,
    is_first: bool,
    may_wait: bool = False,
) -> FetchReads:
    """The results of all partitions, with the bytes of both tiers that are there. If others have to
    be waited for, `needs_remote` is set. With `may_wait` nothing is read where nothing would be
    found; then there are no results."""
    services, targets = context.services, fetch.targets()
    for target in targets:
        # A partition that is lost while its request waits keeps its target, and answers with its
        # own error.
        if target.partition is None or (is_first and target.partition.is_gone):
            try:
                partition = services.replica_manager.find_partition(*target.key)
            except IsothermError as error:
                target.lose(code_of(error))
            else:
                target.find(partition, services.traffic.topics[partition.topic_partition.topic])
    if services.authorizer is not None:
        _refuse_denied(services.authorizer, context, targets, reader)
    if may_wait and reader.awaits_appends(targets):
        return FetchReads(targets, [])
    reads = reader.read_partitions(targets, max_bytes, is_first=is_first)
    if reads.needs_remote and services.remote_log_manager is not None:
        reads.read_from_memory(services.remote_log_manager.readers)
    return reads


def _refuse_denied(
    authorizer: Authorizer,
    context: RequestContext,
    targets: Sequence[FetchTarget],
    reader: FetchReader,
) -> None:
    """Give each target that may not be read an error. A consumer needs READ on the topic, a
    follower CLUSTER_ACTION."""
    if reader.follower is not None:
        if not authorizer.allows_cluster(context, Operation.CLUSTER_ACTION):
            # Whether an id is unknown is not shown either.
            for target in targets:
                target.lose(ErrorCode.topic_authorization_failed)
        return
    granted = authorizer.granted_topics(context, Operation.READ)
    unknown = []
    for target in targets:
        key = target.key
        if (key.topic_id or key.name) not in granted:
            unknown.append(target)
    if unknown:
        _check_targets(authorizer, context, unknown, granted)


def _check_targets(
    authorizer: Authorizer,
    context: RequestContext,
    targets: Sequence[FetchTarget],
    granted: set[Hashable],
) -> None:
    names = {target.key: _topic_name(context, target.key) for target in targets}
    topic_names = {name for name in names.values() if name is not None}
    allowed = authorizer.allowed(context, Operation.READ, ResourceType.TOPIC, topic_names)
    for target in targets:
        key, name = target.key, names[target.key]
        if name is None:
            continue
        if name in allowed:
            authorizer.grant(granted, (key.topic_id or key.name,))
        else:
            target.lose(ErrorCode.topic_authorization_failed)


def _topic_name(context: RequestContext, key: PartitionKey) -> str | None:
    if key.topic_id is None:
        return key.name
    topic = context.services.metadata.image.topics_by_id.get(key.topic_id)
    return None if topic is None else topic.name


async def _respond_once_read(
    context: RequestContext,
    fetch: FetchContext,
    reader: FetchReader,
    reads: FetchReads,
    request: FetchRequest,
) -> FetchResponse:
    """The response, after the reads of the remote tier that have to be waited for, and in a read
    replica after those of the leaders."""
    services = context.services
    if reads.needs_remote and services.remote_log_manager is not None:
        wait_s_max = services.config.remote.remote_fetch_max_wait_ms / 1000
        await reads.read_remote(services.remote_log_manager.readers, wait_s_max)
    if reads.needs_tail and services.tail is not None:
        await _read_tail(services.tail, reads, request)
    return _respond(context, fetch, reader, reads)


async def _read_tail(tail: TailReader, reads: FetchReads, request: FetchRequest) -> None:
    """Let the leaders answer for the partitions whose records lie behind the remote tier."""
    size = sum(read.size for read in reads.reads)
    waits = not size and all(read.is_tail for read in reads.reads)
    terms = TailTerms(
        request.max_wait_ms if waits else 0,
        request.min_bytes,
        max(1, request.max_bytes - size),
        request.isolation_level,
    )
    places = [index for index, read in enumerate(reads.reads) if read.is_tail]
    requests = []
    for index in places:
        target = reads.targets[index]
        assert target.partition is not None, "its log was read"
        leader = target.partition.goes_on_at
        requests.append(
            TailRequest(
                target.partition.topic_partition,
                NO_LEADER if leader is None else leader,
                target.request.fetch_offset,
                target.request.partition_max_bytes,
            )
        )
    for index, response in zip(places, await tail.read(requests, terms), strict=True):
        size = sum(map(len, response.records))
        reads.reads[index] = PartitionRead(response, size)


def _respond(
    context: RequestContext, fetch: FetchContext, reader: FetchReader, reads: FetchReads
) -> FetchResponse:
    has_errors = False
    for target, read in zip(reads.targets, reads.reads, strict=True):
        response, traffic = read.response, target.traffic
        if traffic is not None:
            traffic.total_fetch_requests += 1
            if reader.follower is None:
                traffic.bytes_out += sum(map(len, response.records))
            else:
                _count_replicated(traffic, reader.follower, target, read)
        if response.error_code:
            has_errors = True
            if traffic is not None and response.error_code not in NOT_COUNTED_AS_FAILED:
                traffic.failed_fetch_requests += 1
    now_ms = context.services.clock.now_ms()
    if has_errors and context.header.api_version >= FIRST_CURRENT_LEADER_VERSION:
        return _respond_with_leaders(context, fetch, reader, reads, now_ms)
    return fetch.respond(reads.targets, reads.reads, now_ms)


def _count_replicated(
    traffic: TopicTraffic, follower: FollowerFetch, target: FetchTarget, read: PartitionRead
) -> None:
    traffic.replication_bytes_out += sum(map(len, read.response.records))
    if follower.quota is not None and target.partition is not None:
        follower.quota.record(target.partition.topic_partition, read.size)


def _respond_with_leaders(
    context: RequestContext,
    fetch: FetchContext,
    reader: FetchReader,
    fetch_reads: FetchReads,
    now_ms: int,
) -> FetchResponse:
    """The response, with the current leader of each partition that another broker leads
    (KIP-951).
    """
    reads, endpoints = [], {}
    for target, read in zip(fetch_reads.targets, fetch_reads.reads, strict=True):
        if read.response.error_code in LEADER_ERRORS:
            hint = current_leader(context, *target.key)
            read = PartitionRead(read.response._replace(current_leader=hint.leader))
            if hint.endpoint is not None and reader.follower is None:
                endpoints[hint.endpoint.node_id] = hint.endpoint
        reads.append(read)
    answer = fetch.respond(fetch_reads.targets, reads, now_ms)
    return answer._replace(node_endpoints=tuple(endpoints.values()))


def _refuse(context: RequestContext, request: FetchRequest, error_code: ErrorCode) -> FetchResponse:
    """Answer every partition with `error_code`, and from version 7 on the whole request too."""
    topics = [
        FetchTopicResponse(
            topic.name,
            topic.topic_id,
            [
                FetchPartitionResponse(partition.partition, error_code=error_code)
                for partition in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return FetchResponse(topics, error_code=error_code)


API = Api(
    ApiKey.FETCH,
    VersionRange(4, 18),
    handle,
    access=Access(
        [
            on_topics(
                Operation.READ,
                [
                    "topics/topic",
                    "topics/topic_id",
                    "forgotten_topics_data/topic",
                    "forgotten_topics_data/topic_id",
                ],
                shows=["responses/topic", "responses/topic_id"],
            ),
            on_cluster(Operation.CLUSTER_ACTION, covers=["replica_id", "replica_state/replica_id"]),
        ],
        unchecked={"cluster_id": "only controllers read it"},
        no_guard="its handler checks: an incremental request names no partitions",
    ),
    charge=Charge.FETCHED_BYTES,
    refuse_by=_refuse,
)
