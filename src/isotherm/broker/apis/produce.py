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
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.apis.batch_checks import (
    NO_CHECKS,
    WRITTEN_BY_BROKER_ALONE,
    BatchChecks,
    check_batches,
    check_writer,
    check_zstd,
    misshapen,
    needs_kernels,
    needs_thread,
)
from isotherm.broker.apis.produce_admission import (
    NO_VERDICTS,
    AdmissionKey,
    Verdicts,
    admit_batch,
    await_admissions,
    start_admissions,
)
from isotherm.broker.apis.repeated_produce import remember, repeat
from isotherm.broker.apis.transaction_admission import PendingAdmission
from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.error_mapping import error_message
from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.partitions.delayed_produce import AwaitedAppend, DelayedProduce
from isotherm.broker.partitions.partition import ACKS_ALL, ACKS_LEADER, Partition
from isotherm.broker.server.requests.access_checks import Check, on_topics
from isotherm.broker.server.requests.context import HangUpError, RequestContext
from isotherm.broker.server.requests.current_leader import current_leader
from isotherm.broker.server.requests.guarding import refusals_of_items, topic_name
from isotherm.broker.server.requests.item_refusal import handle_allowed
from isotherm.broker.server.requests.later_response import LaterResponse
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api, Charge, Repetition
from isotherm.errors import (
    CorruptMessageError,
    IsothermError,
    LogDirFailedError,
    NotLeaderOrFollowerError,
    RecordListTooLargeError,
    RecordTooLargeError,
    RefusedRecordsError,
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
from isotherm.record.batch_header import CODEC_MASK, LOG_OVERHEAD, MAGIC, TRANSACTIONAL_FLAG
from isotherm.record.compression import CompressionType
from isotherm.record.conditional_batch import take_condition
from isotherm.record.validation import AppendOrigin, CheckedBatch
from isotherm.types import REMOTE_LOG_METADATA_TOPICS

logger = logging.getLogger(__name__)

ACKS_NONE = 0
FIRST_CURRENT_LEADER_VERSION = 10

# Kafka (ReplicaManager.appendToLocalLog) does not meter these errors, which are not failures of the
# broker, and answers them without the log start offset.
NOT_COUNTED_AS_FAILED = (
    LogDirFailedError,
    NotLeaderOrFollowerError,
    RecordTooLargeError,
    RecordListTooLargeError,
    CorruptMessageError,
)


class _UnsafeAppend(NamedTuple):
    """An append that may not be acknowledged yet.

    Its response, at `place` of `responses`, holds once the log is flushed, if `needs_flush`, and
    `awaited` is decided. An error replaces it.
    """

    responses: list[ProducePartitionResponse]
    place: int
    partition: Partition
    needs_flush: bool
    awaited: AwaitedAppend | None


def handle(
    context: RequestContext, request: ProduceRequest
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    if request.acks not in (ACKS_ALL, ACKS_NONE, ACKS_LEADER):
        return _refuse(context, request, ErrorCode.invalid_required_acks)
    kernels, origin = context.services.kernels, AppendOrigin.CLIENT
    if needs_thread(request, context.services.config.message_decompressed_max_bytes):
        return _append_once_checked(context, request)
    if not kernels.is_ready:
        if needs_kernels(context, request):
            return _append_once_loaded(context, request)
        kernels.begin_soon()
        origin = AppendOrigin.CLIENT_BEFORE_KERNELS
    if request.transactional_id and (waiting := start_admissions(context, request)):
        return _append_once_admitted(context, request, origin, NO_CHECKS, waiting)
    return _append(context, request, origin, NO_CHECKS, NO_VERDICTS)


async def _append_once_loaded(
    context: RequestContext, request: ProduceRequest
) -> ProduceResponse | None:
    await context.services.kernels.wait()
    waiting = start_admissions(context, request)
    return await _append_once_admitted(context, request, AppendOrigin.CLIENT, NO_CHECKS, waiting)


async def _append_once_checked(
    context: RequestContext, request: ProduceRequest
) -> ProduceResponse | None:
    """Append batches whose checks would hold up the event loop."""
    await context.services.kernels.wait()
    checks = await check_batches(context, request)
    waiting = start_admissions(context, request)
    return await _append_once_admitted(context, request, AppendOrigin.CLIENT, checks, waiting)


async def _append_once_admitted(
    context: RequestContext,
    request: ProduceRequest,
    origin: AppendOrigin,
    checks: BatchChecks,
    waiting: Mapping[AdmissionKey, PendingAdmission],
) -> ProduceResponse | None:
    """Append, once the transaction coordinator has answered for all partitions of `waiting`."""
    verdicts = await await_admissions(waiting) if waiting else NO_VERDICTS
    answer = _append(context, request, origin, checks, verdicts)
    return await answer if isinstance(answer, Awaitable) else answer


def _append(
    context: RequestContext,
    request: ProduceRequest,
    origin: AppendOrigin,
    checks: BatchChecks,
    verdicts: Verdicts,
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    topics: list[ProduceTopicResponse] = []
    unsafe: list[_UnsafeAppend] = []
    has_errors = False
    for topic in request.topics:
        responses: list[ProducePartitionResponse] = []
        topics.append(ProduceTopicResponse(topic.name, topic.topic_id, responses))
        for produced in topic.partitions:
            check = checks.get(id(produced)) if checks else None
            response = _append_to_partition(
                context, request, topic, produced, origin, check, verdicts, responses, unsafe
            )
            responses.append(response)
            if response.error_code:
                has_errors = True
    answer = ProduceResponse(topics)
    if unsafe:
        return _answer_once_safe(context, request, answer, unsafe)
    # Without errors no partition has a leader elsewhere, and no connection is closed. So most
    # requests are answered here: their calls have a budget (docs/decisions/0136).
    if has_errors or request.acks == ACKS_NONE:
        return _settled(context, request, answer)
    return answer


def _append_to_partition(
    context: RequestContext,
    request: ProduceRequest,
    topic: ProduceTopic,
    produced: ProducePartition,
    origin: AppendOrigin,
    check: CheckedBatch | IsothermError | None,
    verdicts: Verdicts,
    responses: list[ProducePartitionResponse],
    unsafe: list[_UnsafeAppend],
) -> ProducePartitionResponse:
    """The response, which comes next in `responses`. An append that is not safe yet is added to
    `unsafe`."""
    services, records, header = context.services, produced.records, produced.header
    partition, traffic = None, None
    try:
        partition = services.replica_manager.find_partition(
            topic.name, topic.topic_id, produced.partition
        )
        name = partition.topic_partition.topic
        traffic = services.traffic.topics[name]
        traffic.total_produce_requests += 1
        # The checks that depend on the request. The log makes the others.
        if name in WRITTEN_BY_BROKER_ALONE:
            check_writer(context, name)
        if (
            records is None
            or header is None
            or header.magic != MAGIC
            or header.length + LOG_OVERHEAD > len(records)
        ):
            raise misshapen(records, header)
        if header.attributes & TRANSACTIONAL_FLAG:
            admit_batch(context, request, partition, header, verdicts)
        if header.attributes & CODEC_MASK == CompressionType.ZSTD:
            check_zstd(context.header.api_version)
        if isinstance(check, IsothermError):
            raise check
        # Read before the append: if this broker stops leading in between, the append must not be
        # acknowledged.
        term = partition.term
        info = partition.append(
            records,
            required_acks=request.acks,
            now_ms=services.clock.now_ms(),
            origin=origin,
            expected_end=take_condition(records) if name in REMOTE_LOG_METADATA_TOPICS else None,
            header=header,
            checked=check,
        )
    except IsothermError as error:
        # It has this frame, whose `check` may be the error: a cycle that would keep the request.
        error.__traceback__ = None
        logger.debug("produce refused topic=%s partition=%d", topic.name, produced.partition)
        _mark_refused(traffic, error, len(records or b""))
        return _refused(produced.partition, error, partition)
    if not info.duplicate:
        traffic.messages_in += info.last_offset - info.first_offset + 1
        traffic.bytes_in += len(records)
    awaited = None
    if request.acks == ACKS_ALL and not partition.is_alone:
        awaited = AwaitedAppend(partition, info.last_offset + 1, term)
    if info.needs_flush or awaited is not None:
        unsafe.append(
            _UnsafeAppend(responses, len(responses), partition, info.needs_flush, awaited)
        )
    return ProducePartitionResponse(
        produced.partition, 0, info.first_offset, info.log_append_time_ms, info.log_start_offset
    )


def _refused(
    number: int, error: IsothermError, partition: Partition | None
) -> ProducePartitionResponse:
    has_log_start = partition is not None and not isinstance(error, NOT_COUNTED_AS_FAILED)
    return ProducePartitionResponse(
        partition=number,
        error_code=code_of(error),
        log_start_offset=partition.log.log_start_offset if partition and has_log_start else -1,
        record_errors=error.faults if isinstance(error, RefusedRecordsError) else (),
        error_message=error_message(error),
    )


def _mark_refused(traffic: TopicTraffic | None, error: IsothermError, size: int) -> None:
    if traffic is None:
        return
    if isinstance(error, RecordTooLargeError):
        traffic.bytes_rejected += size
    if not isinstance(error, NOT_COUNTED_AS_FAILED):
        traffic.failed_produce_requests += 1


def _answer_once_safe(
    context: RequestContext,
    request: ProduceRequest,
    answer: ProduceResponse,
    unsafe: Sequence[_UnsafeAppend],
) -> Awaitable[ProduceResponse | None]:
    """The answer, once the appends are flushed where required and are on the in-sync replicas."""
    awaited = [append.awaited for append in unsafe if append.awaited is not None]
    delayed = DelayedProduce(awaited, asyncio.get_running_loop())
    # Watched before the first await, so that no change is missed.
    if not delayed.try_complete(None):
        context.services.replica_manager.purgatory.watch(
            delayed, delayed.keys, max(0, request.timeout_ms) / 1000
        )
    if any(append.needs_flush for append in unsafe):
        return _answer_once_flushed(context, request, answer, unsafe, delayed)

    def respond() -> ProduceResponse | None:
        _note_outcomes(unsafe, delayed.outcomes)
        return _settled(context, request, answer)

    return LaterResponse(delayed.future, respond, is_done_but_for_answer=True)


async def _answer_once_flushed(
    context: RequestContext,
    request: ProduceRequest,
    answer: ProduceResponse,
    unsafe: Sequence[_UnsafeAppend],
    delayed: DelayedProduce,
) -> ProduceResponse | None:
    loop, executor = asyncio.get_running_loop(), context.services.flush_executor

    async def flush(append: _UnsafeAppend) -> None:
        try:
            await loop.run_in_executor(executor, append.partition.log.flush)
        except IsothermError as error:
            number = append.responses[append.place].partition
            append.responses[append.place] = _refused(number, error, append.partition)

    await asyncio.gather(
        *(flush(unsafe_append) for unsafe_append in unsafe if unsafe_append.needs_flush)
    )
    await delayed.future
    _note_outcomes(unsafe, delayed.outcomes)
    return _settled(context, request, answer)


def _note_outcomes(unsafe: Sequence[_UnsafeAppend], outcomes: Sequence[ErrorCode]) -> None:
    """Replace the responses of appends that have failed since.

    `outcomes` has one for each append that waited for in-sync replicas. An error of its flush takes
    precedence.
    """
    left = iter(outcomes)
    for responses, place, partition, _, awaited in unsafe:
        outcome = ErrorCode.none if awaited is None else next(left)
        if outcome is ErrorCode.none or responses[place].error_code:
            continue
        responses[place] = ProducePartitionResponse(
            partition=responses[place].partition,
            error_code=outcome,
            error_message="records are not on all in-sync replicas"
            f" partition={partition.topic_partition} error={code_name(outcome)}",
        )


def _settled(
    context: RequestContext, request: ProduceRequest, answer: ProduceResponse
) -> ProduceResponse | None:
    """The answer to send, with the current leader of each partition that another broker leads
    (KIP-951). Without acks there is none: raises HangUpError if an append has failed."""
    if request.acks == ACKS_NONE:
        _check_success(answer)
        return None
    if context.header.api_version < FIRST_CURRENT_LEADER_VERSION:
        return answer
    topics, endpoints = [], {}
    for topic in answer.topics:
        responses = list(topic.partitions)
        for index, response in enumerate(responses):
            if response.error_code == ErrorCode.not_leader_or_follower:
                leader = current_leader(context, topic.name, topic.topic_id, response.partition)
                responses[index] = response._replace(current_leader=leader.leader)
                if leader.endpoint is not None:
                    endpoints[leader.endpoint.node_id] = leader.endpoint
        topics.append(topic._replace(partitions=responses))
    return answer._replace(topics=topics, node_endpoints=tuple(endpoints.values()))


def _check_success(answer: ProduceResponse) -> None:
    for topic in answer.topics:
        for response in topic.partitions:
            if response.error_code:
                raise HangUpError(
                    f"produce without acks failed topic={topic.name or topic.topic_id}"
                    f" partition={response.partition} error={code_name(response.error_code)}"
                )


_TRANSACTION = Check(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, ["transactional_id"])
_TOPICS = on_topics(
    Operation.WRITE,
    ["topic_data/name", "topic_data/topic_id"],
    shows=["responses/name", "responses/topic_id"],
)


def _guard(
    authorizer: Authorizer, api: Api, context: RequestContext, request: ProduceRequest
) -> Any:
    """The transactional id is checked if a batch is transactional."""
    if _is_transactional(request):
        transactional_id = request.transactional_id
        if transactional_id is None or not authorizer.allows(
            context, _TRANSACTION.operation, ResourceType.TRANSACTIONAL_ID, transactional_id
        ):
            code = ErrorCode.transactional_id_authorization_failed
            return api.refuse(context, request, code)
    granted = authorizer.granted_topics(context, Operation.WRITE)
    for topic in request.topics:
        if (topic.topic_id or topic.name) not in granted:
            break
    else:
        return api.handle(context, request)
    refusal_of = refusals_of_items(authorizer, context, request, _TOPICS, request.topics)
    if refusal_of is not None:
        return handle_allowed(api, context, request, refusal_of)
    named = [topic for topic in request.topics if topic_name(context, topic) is not None]
    authorizer.grant(granted, [topic.topic_id or topic.name for topic in named])
    return api.handle(context, request)


def _is_transactional(request: ProduceRequest) -> bool:
    # Loops instead of a generator, each step of which is a call: every produce request comes here.
    for topic in request.topics:
        for produced in topic.partitions:
            header = produced.header
            if header is not None and header.attributes & TRANSACTIONAL_FLAG:
                return True
    return False


ACCESS = Access([_TRANSACTION, _TOPICS], guard=_guard)


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
    repetition=Repetition(remember, repeat),
)
