"""Produce (key 0).

Versions  3-13, shown as 0-13 (see API below). 5 log start offset · 7 zstd
          allowed · 8 error message · 9 flexible · 10 current leader · 11 TRANSACTION_ABORTABLE ·
          12 transactions of version 2 · 13 topic ids
Behaviour Appends to one partition after the other; each has its own error. acks=1 is answered after
          the append, or after a flush if flush.messages requires one; other requests do not wait
          for that flush. acks=all is answered when the in-sync replicas have the records too, or
          after the request's timeout; with one replica it is the same as acks=1. acks=0 has no
          answer. As in Kafka an error of it closes the connection, since the client would not
          notice it otherwise. Invalid records are listed one by one, as in Kafka (KIP-467), up to
          RECORD_FAULTS_MAX. Internal topics take no records from clients, because a record that
          cannot be decoded would stop every reader of the topic. In a cluster the brokers are
          clients of the metadata topic. Their batches may state the expected log end offset
          (conditional_batch.py); if the log ends elsewhere, the answer is OPERATION_NOT_ATTEMPTED.
          Transactional records are accepted for partitions that are part of the transaction; from
          version 12 on the request adds the partitions.
Not done  -
KIPs      98 idempotence, transactions · 467 error message, record errors · 516 topic ids · 890 ·
          951 current leader
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.apis.batch_checks import (
    NO_CHECKS,
    BatchChecks,
    check_batches,
    needs_thread,
)
from isotherm.broker.apis.produce_access import ACCESS
from isotherm.broker.apis.produce_admission import (
    NO_VERDICTS,
    Asked,
    Verdicts,
    admit_batch,
    await_admissions,
    start_admissions,
)
from isotherm.broker.apis.transaction_admission import PendingAdmission
from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.error_mapping import error_message
from isotherm.broker.partitions.delayed_produce import AwaitedAppend, DelayedProduce
from isotherm.broker.partitions.partition import ACKS_ALL, ACKS_LEADER, Partition
from isotherm.broker.server.requests.context import HangUpError, RequestContext
from isotherm.broker.server.requests.current_leader import current_leader
from isotherm.broker.server.requests.later_response import LaterResponse
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Api, Charge
from isotherm.errors import (
    CorruptMessageError,
    InvalidRecordError,
    InvalidTopicError,
    IsothermError,
    LogDirFailedError,
    NotLeaderOrFollowerError,
    RecordListTooLargeError,
    RecordTooLargeError,
    RefusedRecordsError,
    UnsupportedCompressionTypeError,
)
from isotherm.metrics.broker_traffic import TopicTraffic
from isotherm.protocol.api_keys import ApiKey, VersionRange
from isotherm.protocol.code_names import code_name
from isotherm.protocol.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    ProduceTopicResponse,
)
from isotherm.record.batch_header import (
    CODEC_MASK,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    SHAPE_LAYOUT,
    TRANSACTIONAL_FLAG,
    read_batch_header,
)
from isotherm.record.compression import CompressionType
from isotherm.record.conditional_batch import take_condition
from isotherm.record.few_records import FEW_RECORDS_MAX
from isotherm.record.validation import AppendOrigin, CheckedBatch, count_without_kernels
from isotherm.types import REMOTE_LOG_METADATA_TOPICS

logger = logging.getLogger(__name__)

ACKS_NONE = 0
FIRST_ZSTD_VERSION = 7
FIRST_CURRENT_LEADER_VERSION = 10
WRITTEN_BY_BROKER_ALONE = frozenset(
    {*REMOTE_LOG_METADATA_TOPICS, "__consumer_offsets", "__transaction_state"}
)

# Kafka (ReplicaManager.appendToLocalLog) does not meter these errors, which are not failures of the
# broker, and answers them without the log start offset.
NOT_COUNTED_AS_FAILED = (
    LogDirFailedError,
    NotLeaderOrFollowerError,
    RecordTooLargeError,
    RecordListTooLargeError,
    CorruptMessageError,
)


class _Appended(NamedTuple):
    """The answer for one partition.

    It holds once `unflushed` is flushed and `awaited` is decided.
    """

    response: ProducePartitionResponse
    unflushed: Partition | None = None
    awaited: AwaitedAppend | None = None


def handle(
    context: RequestContext, request: ProduceRequest
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    if request.acks not in (ACKS_ALL, ACKS_NONE, ACKS_LEADER):
        return _refuse(context, request, ErrorCode.invalid_required_acks)
    kernels = context.services.kernels
    if needs_thread(request):
        return _append_checked(context, request)
    if kernels.is_ready:
        if not request.transactional_id:
            return _append(context, request, AppendOrigin.CLIENT, NO_CHECKS, NO_VERDICTS)
        return _append_now(context, request)
    if _needs_kernels(context, request):
        return _append_later(context, request)
    kernels.begin_soon()
    return _append_now(context, request, AppendOrigin.CLIENT_BEFORE_KERNELS)


def _needs_kernels(context: RequestContext, request: ProduceRequest) -> bool:
    """Whether the records must be checked by the compiled kernels, which then have to be loaded
    first.

    False for a few records that the checks in Python accept. If they refuse any, the kernels give
    the exact error.
    """
    services, left = context.services, FEW_RECORDS_MAX
    for topic in request.topics:
        for produced in topic.partitions:
            try:
                partition = services.replica_manager.find_partition(
                    topic.name, topic.topic_id, produced.partition
                )
            except IsothermError:
                return True
            count = count_without_kernels(
                produced.records or memoryview(b""),
                partition.topic_partition,
                config=partition.log.config,
                now_ms=services.clock.now_ms(),
                count_max=left,
            )
            if count is None:
                return True
            left -= count
    return False


async def _append_later(context: RequestContext, request: ProduceRequest) -> ProduceResponse | None:
    await context.services.kernels.wait()
    answer = _append_now(context, request)
    return await answer if isinstance(answer, Awaitable) else answer


async def _append_checked(
    context: RequestContext, request: ProduceRequest
) -> ProduceResponse | None:
    """Append batches whose checks would hold up the event loop."""
    await context.services.kernels.wait()
    checks = await check_batches(context, request)
    answer = _append_now(context, request, checks=checks)
    return await answer if isinstance(answer, Awaitable) else answer


def _append_now(
    context: RequestContext,
    request: ProduceRequest,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    checks: BatchChecks = NO_CHECKS,
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    if request.transactional_id and context.services.remote_admission is not None:
        waiting = start_admissions(context, request)
        if waiting:
            return _append_once_admitted(context, request, origin, checks, waiting)
    return _append(context, request, origin, checks, NO_VERDICTS)


async def _append_once_admitted(
    context: RequestContext,
    request: ProduceRequest,
    origin: AppendOrigin,
    checks: BatchChecks,
    waiting: Mapping[Asked, PendingAdmission],
) -> ProduceResponse | None:
    """Append, once the transaction coordinator has answered for all partitions."""
    verdicts = await await_admissions(waiting)
    answer = _append(context, request, origin, checks, verdicts)
    return await answer if isinstance(answer, Awaitable) else answer


def _append(
    context: RequestContext,
    request: ProduceRequest,
    origin: AppendOrigin,
    checks: BatchChecks,
    verdicts: Verdicts,
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    # Loops instead of comprehensions, each of which costs a function call. The calls of a request
    # have a budget (docs/decisions/0136).
    appended: list[list[_Appended]] = []
    is_safe, has_errors = True, False
    for topic in request.topics:
        partitions: list[_Appended] = []
        appended.append(partitions)
        for produced in topic.partitions:
            check = checks.get(id(produced)) if checks else None
            each = _produce(context, request, topic, produced, origin, check, verdicts)
            partitions.append(each)
            if each.unflushed is not None or each.awaited is not None:
                is_safe = False
            if each.response.error_code:
                has_errors = True
    if not is_safe:
        return _answer_once_safe(context, request, appended)
    # Without errors no partition has a leader elsewhere, so most requests skip the look for
    # leaders.
    if has_errors:
        return _answer_with_leaders(context, request, appended)
    return _answer(request, appended)


def _answer_once_safe(
    context: RequestContext, request: ProduceRequest, appended: list[list[_Appended]]
) -> Awaitable[ProduceResponse | None]:
    """The answer, once the appends are flushed where required and are on the in-sync replicas."""
    awaited = [each.awaited for topic in appended for each in topic if each.awaited is not None]
    delayed = DelayedProduce(awaited, asyncio.get_running_loop())
    # Watched before the first await, so that no change is missed.
    if not delayed.try_complete(None):
        context.services.replica_manager.purgatory.watch(
            delayed, delayed.keys, max(0, request.timeout_ms) / 1000
        )
    if any(each.unflushed is not None for topic in appended for each in topic):
        return _answer_once_flushed(context, request, appended, delayed)
    return LaterResponse(
        delayed.future,
        lambda: _answer_with_leaders(context, request, _decided(appended, delayed.outcomes)),
        is_done_but_for_answer=True,
    )


async def _answer_once_flushed(
    context: RequestContext,
    request: ProduceRequest,
    appended: list[list[_Appended]],
    delayed: DelayedProduce,
) -> ProduceResponse | None:
    appended = await _flushed(context, appended)
    await delayed.future
    return _answer_with_leaders(context, request, _decided(appended, delayed.outcomes))


def _decided(
    appended: list[list[_Appended]], outcomes: Sequence[ErrorCode]
) -> list[list[_Appended]]:
    """The answers with their outcomes.

    `outcomes` has one for each append that waited for in-sync replicas.
    """
    left = iter(outcomes)
    return [
        [
            each if each.awaited is None else _settled(each, each.awaited, next(left))
            for each in topic
        ]
        for topic in appended
    ]


def _settled(appended: _Appended, awaited: AwaitedAppend, outcome: ErrorCode) -> _Appended:
    """The answer of an append with its outcome. An error of its flush takes precedence."""
    if outcome is ErrorCode.none or appended.response.error_code:
        return appended
    message = (
        f"records are not on all in-sync replicas partition={awaited.partition.topic_partition}"
        f" error={code_name(outcome)}"
    )
    return appended._replace(
        response=ProducePartitionResponse(
            partition=appended.response.partition, error_code=outcome, error_message=message
        )
    )


async def _flushed(
    context: RequestContext, appended: list[list[_Appended]]
) -> list[list[_Appended]]:
    loop, executor = asyncio.get_running_loop(), context.services.flush_executor

    async def flushed(each: _Appended) -> _Appended:
        if each.unflushed is None:
            return each
        try:
            await loop.run_in_executor(executor, each.unflushed.log.flush)
        except IsothermError as error:
            refused = _refused(each.response.partition, error, each.unflushed)
            return refused._replace(awaited=each.awaited)
        return each

    return [await asyncio.gather(*(flushed(each) for each in topic)) for topic in appended]


def _answer_with_leaders(
    context: RequestContext, request: ProduceRequest, appended: list[list[_Appended]]
) -> ProduceResponse | None:
    """The answer, with the current leader of each partition that another broker leads (KIP-951)."""
    answer = _answer(request, appended)
    if answer is None or context.header.api_version < FIRST_CURRENT_LEADER_VERSION:
        return answer
    endpoints = {}
    topics = []
    for topic in answer.topics:
        partitions = []
        for response in topic.partitions:
            if response.error_code == ErrorCode.not_leader_or_follower:
                found = current_leader(context, topic.name, topic.topic_id, response.partition)
                response = response._replace(current_leader=found.leader)
                if found.endpoint is not None:
                    endpoints[found.endpoint.node_id] = found.endpoint
            partitions.append(response)
        topics.append(topic._replace(partitions=partitions))
    return answer._replace(topics=topics, node_endpoints=tuple(endpoints.values()))


def _answer(request: ProduceRequest, appended: list[list[_Appended]]) -> ProduceResponse | None:
    topics = []
    for asked, partitions in zip(request.topics, appended, strict=True):
        responses = []
        for each in partitions:
            responses.append(each.response)  # noqa: PERF401 - a comprehension is a call
        topics.append(ProduceTopicResponse(asked.name, asked.topic_id, responses))
    if request.acks != ACKS_NONE:
        return ProduceResponse(topics)
    for topic in topics:
        for partition in topic.partitions:
            if partition.error_code:
                raise HangUpError(
                    f"produce without acks failed topic={topic.name or topic.topic_id}"
                    f" partition={partition.partition} error={code_name(partition.error_code)}"
                )
    return None


def _produce(
    context: RequestContext,
    request: ProduceRequest,
    topic: ProduceTopic,
    produced: ProducePartition,
    origin: AppendOrigin,
    check: CheckedBatch | IsothermError | None,
    verdicts: Verdicts,
) -> _Appended:
    services = context.services
    partition, traffic = None, None
    try:
        partition = services.replica_manager.find_partition(
            topic.name, topic.topic_id, produced.partition
        )
        traffic = services.traffic.topics[partition.topic_partition.topic]
        traffic.total_produce_requests += 1
        records = _checked_records(context, request, partition, produced, verdicts)
        if isinstance(check, IsothermError):
            raise check
        is_metadata = partition.topic_partition.topic in REMOTE_LOG_METADATA_TOPICS
        # Read before the append: if this broker stops leading in between, the append must not be
        # acknowledged.
        term = partition.term
        info = partition.append(
            records,
            required_acks=request.acks,
            now_ms=services.clock.now_ms(),
            origin=origin,
            expected_end=take_condition(records) if is_metadata else None,
            checked=check,
        )
    except IsothermError as error:
        logger.debug("produce refused topic=%s partition=%d", topic.name, produced.partition)
        if traffic is not None:
            _mark_refused(traffic, error, len(produced.records or b""))
        return _refused(produced.partition, error, partition)
    if not info.duplicate:
        traffic.messages_in += info.last_offset - info.first_offset + 1
        traffic.bytes_in += len(records)
    response = ProducePartitionResponse(
        partition=produced.partition,
        base_offset=info.first_offset,
        log_append_time_ms=info.log_append_time_ms,
        log_start_offset=info.log_start_offset,
    )
    awaited = None
    if request.acks == ACKS_ALL and not partition.is_alone:
        awaited = AwaitedAppend(partition, info.last_offset + 1, term)
    return _Appended(response, partition if info.needs_flush else None, awaited)


def _refused(number: int, error: IsothermError, partition: Partition | None) -> _Appended:
    has_log_start = partition is not None and not isinstance(error, NOT_COUNTED_AS_FAILED)
    return _Appended(
        ProducePartitionResponse(
            partition=number,
            error_code=code_of(error),
            log_start_offset=partition.log.log_start_offset if partition and has_log_start else -1,
            record_errors=error.faults if isinstance(error, RefusedRecordsError) else (),
            error_message=error_message(error),
        )
    )


def _mark_refused(traffic: TopicTraffic, error: IsothermError, size: int) -> None:
    if isinstance(error, RecordTooLargeError):
        traffic.bytes_rejected += size
    if not isinstance(error, NOT_COUNTED_AS_FAILED):
        traffic.failed_produce_requests += 1


def _misshapen(records: memoryview) -> IsothermError:
    """The error for records that do not begin with a whole batch of magic 2. Kafka does not accept
    them as a batch."""
    if not records:
        return InvalidRecordError("no record batch")
    if len(records) < HEADER_SIZE:
        return InvalidRecordError(f"a record batch is truncated size={len(records)}")
    length, magic, _ = SHAPE_LAYOUT.unpack_from(records)
    if magic > MAGIC:
        return CorruptMessageError(f"no such magic magic={magic}")
    if magic < MAGIC:
        return InvalidRecordError(
            f"only record batches of magic {MAGIC} may be produced magic={magic}"
        )
    return InvalidRecordError(
        f"a record batch is truncated size={len(records)} announced={length + LOG_OVERHEAD}"
    )


def _checked_records(
    context: RequestContext,
    request: ProduceRequest,
    partition: Partition,
    produced: ProducePartition,
    verdicts: Verdicts,
) -> memoryview:
    """Make the checks that depend on the request. The log makes the others."""
    topic = partition.topic_partition.topic
    # In a cluster each broker writes remote log metadata as a producer, to the leader of its
    # partition.
    is_of_brokers = (
        context.services.embedded_controller is None and topic in REMOTE_LOG_METADATA_TOPICS
    )
    if topic in WRITTEN_BY_BROKER_ALONE and not is_of_brokers:
        raise InvalidTopicError(f"only the broker may write to this topic topic={topic}")
    records = produced.records or memoryview(b"")
    if len(records) < HEADER_SIZE:
        raise _misshapen(records)
    # Three fields instead of a header: the log reads the whole header once.
    length, magic, attributes = SHAPE_LAYOUT.unpack_from(records)
    if magic != MAGIC or length + LOG_OVERHEAD > len(records):
        raise _misshapen(records)
    api_version = context.header.api_version
    if attributes & TRANSACTIONAL_FLAG:
        admit_batch(context, request, partition, read_batch_header(records), verdicts)
    if attributes & CODEC_MASK == CompressionType.ZSTD and api_version < FIRST_ZSTD_VERSION:
        raise UnsupportedCompressionTypeError(
            f"zstd is not allowed below version {FIRST_ZSTD_VERSION} api_version={api_version}"
        )
    return records


def _refuse(
    context: RequestContext, request: ProduceRequest, error_code: ErrorCode
) -> ProduceResponse | None:
    """Answer every partition with `error_code`."""
    if request.acks == ACKS_NONE:
        raise HangUpError(f"produce without acks failed error={code_name(error_code)}")
    return ProduceResponse(
        [
            ProduceTopicResponse(
                topic.name,
                topic.topic_id,
                [
                    ProducePartitionResponse(partition=produced.partition, error_code=error_code)
                    for produced in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


API = Api(
    ApiKey.PRODUCE,
    VersionRange(3, 13),
    handle,
    access=ACCESS,
    items=(Items(("topics", "partitions"), ("topics", "partitions")),),
    shown_from=0,
    carries_records=True,
    charge=Charge.PRODUCED_BYTES,
    refuse_by=_refuse,
)
