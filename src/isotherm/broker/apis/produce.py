"""Produce (key 0).

Versions  3-13, shown as 0-13 (see API below). 5 log start offset · 7 zstd
          allowed · 8 error message · 9 flexible · 10 current leader · 11 TRANSACTION_ABORTABLE ·
          12 transactions of version 2 · 13 topic ids
Behaviour Partitions are appended one after the other; each has its own error. acks=1 and acks=all
          are the same with one replica: answered after the append, or where flush.messages asks
          for it after a flush, which other requests do not wait for. acks=0 has no answer, and an
          error closes the connection, as in Kafka: the client would not learn of it otherwise.
          Records that may not be here are named one by one, as Kafka names them (KIP-467): the
          first RECORD_FAULTS_MAX of them.
          The broker's own topics take no records from clients: one that cannot be decoded would
          stop every reader of it.
          Transactional records are taken for partitions that are part of the transaction; from
          version 12 on they make them so.
Not done  -
KIPs      98 idempotence, transactions · 467 error message, record errors · 516 topic ids · 890 · 951 current
          leader
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.error_mapping import error_message
from isotherm.broker.partitions.partition import ACKS_ALL, ACKS_LEADER, Partition
from isotherm.broker.requests.context import HangUpError, RequestContext
from isotherm.broker.requests.refusals import Items
from isotherm.broker.requests.served_api import Api, Charge
from isotherm.broker.transactions.admission import ClientAbility, admit_records
from isotherm.broker.transactions.transaction_state import ProducerIdAndEpoch
from isotherm.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CorruptMessageError,
    InvalidRecordError,
    InvalidTopicError,
    IsothermError,
    LogDirFailedError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OutOfOrderSequenceError,
    RecordListTooLargeError,
    RecordTooLargeError,
    RefusedRecordsError,
    TransactionalIdAuthorizationError,
    UnsupportedCompressionTypeError,
)
from isotherm.metrics.broker_traffic import TopicTraffic
from isotherm.protocol.api_keys import ApiKey, VersionRange
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
    MAGIC,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    read_attributes,
    read_batch_header,
    read_batch_size,
    read_magic,
)
from isotherm.record.compression import CompressionType
from isotherm.record.few_records import FEW_RECORDS_MAX
from isotherm.record.validation import AppendOrigin, count_without_kernels
from isotherm.types import REMOTE_LOG_METADATA_TOPICS

logger = logging.getLogger(__name__)

ACKS_NONE = 0
FIRST_ZSTD_VERSION = 7
FIRST_ABORTABLE_VERSION = 11
FIRST_ADDING_VERSION = 12
WRITTEN_BY_BROKER_ALONE = frozenset(
    {*REMOTE_LOG_METADATA_TOPICS, "__consumer_offsets", "__transaction_state"}
)

# Kafka (ReplicaManager.appendToLocalLog) has no meter for these: they are no fault of the broker's.
# It does not tell the log's start either.
NOT_COUNTED_AS_FAILED = (
    LogDirFailedError,
    NotLeaderOrFollowerError,
    RecordTooLargeError,
    RecordListTooLargeError,
    CorruptMessageError,
)


class _Appended(NamedTuple):
    """One partition's answer; it is true once `unflushed` is flushed."""

    response: ProducePartitionResponse
    unflushed: Partition | None = None


def handle(
    context: RequestContext, request: ProduceRequest
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    if request.acks not in (ACKS_ALL, ACKS_NONE, ACKS_LEADER):
        return _refuse(context, request, ErrorCode.invalid_required_acks)
    kernels = context.services.kernels
    if kernels.is_ready:
        return _append_now(context, request)
    if _needs_kernels(context, request):
        return _append_later(context, request)
    kernels.begin_soon()
    return _append_now(context, request, AppendOrigin.CLIENT_BEFORE_KERNELS)


def _needs_kernels(context: RequestContext, request: ProduceRequest) -> bool:
    """False for few records that are surely right; what is refused may ask for kernels."""
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


def _append_now(
    context: RequestContext, request: ProduceRequest, origin: AppendOrigin = AppendOrigin.CLIENT
) -> ProduceResponse | Awaitable[ProduceResponse | None] | None:
    appended = [
        [_produce(context, request, topic, produced, origin) for produced in topic.partitions]
        for topic in request.topics
    ]
    for partitions in appended:
        for each in partitions:
            if each.unflushed is not None:
                return _answer_once_flushed(context, request, appended)
    return _answer(request, appended)


async def _answer_once_flushed(
    context: RequestContext, request: ProduceRequest, appended: list[list[_Appended]]
) -> ProduceResponse | None:
    loop, executor = asyncio.get_running_loop(), context.services.flush_executor

    async def flushed(each: _Appended) -> _Appended:
        if each.unflushed is None:
            return each
        try:
            await loop.run_in_executor(executor, each.unflushed.log.flush)
        except IsothermError as error:
            return _refused(each.response.partition, error, each.unflushed)
        return each

    return _answer(
        request,
        [await asyncio.gather(*(flushed(each) for each in topic)) for topic in appended],
    )


def _answer(request: ProduceRequest, appended: list[list[_Appended]]) -> ProduceResponse | None:
    topics = [
        ProduceTopicResponse(topic.name, topic.topic_id, [each.response for each in partitions])
        for topic, partitions in zip(request.topics, appended, strict=True)
    ]
    if request.acks != ACKS_NONE:
        return ProduceResponse(topics)
    for topic in topics:
        for partition in topic.partitions:
            if partition.error_code:
                raise HangUpError(
                    f"produce without acks failed topic={topic.name or topic.topic_id}"
                    f" partition={partition.partition} error={ErrorCode(partition.error_code).name}"
                )
    return None


def _produce(
    context: RequestContext,
    request: ProduceRequest,
    topic: ProduceTopic,
    produced: ProducePartition,
    origin: AppendOrigin,
) -> _Appended:
    services = context.services
    partition, traffic = None, None
    try:
        partition = services.replica_manager.find_partition(
            topic.name, topic.topic_id, produced.partition
        )
        traffic = services.traffic.of(partition.topic_partition.topic)
        traffic.total_produce_requests += 1
        records = _checked_records(context, request, partition, produced)
        info = partition.append(
            records,
            required_acks=request.acks,
            now_ms=services.clock.now_ms(),
            origin=origin,
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
    return _Appended(response, partition if info.needs_flush else None)


def _refused(number: int, error: IsothermError, partition: Partition | None) -> _Appended:
    tells_log_start = partition is not None and not isinstance(error, NOT_COUNTED_AS_FAILED)
    return _Appended(
        ProducePartitionResponse(
            partition=number,
            error_code=code_of(error),
            log_start_offset=partition.log.log_start_offset
            if partition and tells_log_start
            else -1,
            record_errors=error.faults if isinstance(error, RefusedRecordsError) else (),
            error_message=error_message(error),
        )
    )


def _mark_refused(traffic: TopicTraffic, error: IsothermError, size: int) -> None:
    if isinstance(error, RecordTooLargeError):
        traffic.bytes_rejected += size
    if not isinstance(error, NOT_COUNTED_AS_FAILED):
        traffic.failed_produce_requests += 1


def _check_shape(records: memoryview) -> None:
    """The errors are Kafka's: what is no whole batch of magic 2 is no record batch to it."""
    if not records:
        raise InvalidRecordError("no record batch")
    if len(records) < HEADER_SIZE:
        raise InvalidRecordError(f"a record batch is cut short size={len(records)}")
    magic = read_magic(records)
    if magic > MAGIC:
        raise CorruptMessageError(f"no such magic magic={magic}")
    if magic < MAGIC:
        raise InvalidRecordError(
            f"only record batches of magic {MAGIC} may be produced magic={magic}"
        )
    size = read_batch_size(records)
    if size > len(records):
        raise InvalidRecordError(
            f"a record batch is cut short size={len(records)} announced={size}"
        )


def _checked_records(
    context: RequestContext,
    request: ProduceRequest,
    partition: Partition,
    produced: ProducePartition,
) -> memoryview:
    """What only the request tells of a batch; the rest is checked by the log."""
    if partition.topic_partition.topic in WRITTEN_BY_BROKER_ALONE:
        raise InvalidTopicError(
            f"topic is written by the broker alone topic={partition.topic_partition.topic}"
        )
    records = produced.records or memoryview(b"")
    _check_shape(records)
    attributes, api_version = read_attributes(records), context.header.api_version
    if attributes & TRANSACTIONAL_FLAG:
        _admit_transactional(context, request, partition, read_batch_header(records))
    if attributes & CODEC_MASK == CompressionType.ZSTD and api_version < FIRST_ZSTD_VERSION:
        raise UnsupportedCompressionTypeError(
            f"zstd is not allowed below version {FIRST_ZSTD_VERSION} api_version={api_version}"
        )
    return records


def _admit_transactional(
    context: RequestContext, request: ProduceRequest, partition: Partition, header: BatchHeader
) -> None:
    services, version = context.services, context.header.api_version
    if not request.transactional_id:
        raise TransactionalIdAuthorizationError(
            f"transactional records without a transactional id"
            f" partition={partition.topic_partition} producer_id={header.producer_id}"
        )
    ability = ClientAbility.NEITHER
    if version >= FIRST_ADDING_VERSION:
        ability = ClientAbility.ADDS_BY_WRITING
    elif not services.config.transactions.transaction_partition_verification_enable:
        return
    elif version >= FIRST_ABORTABLE_VERSION:
        ability = ClientAbility.KNOWS_ABORTABLE_ERROR
    try:
        admit_records(
            services.transaction_coordinator,
            request.transactional_id,
            ProducerIdAndEpoch(header.producer_id, header.producer_epoch),
            partition.topic_partition,
            ability,
        )
        if ability is ClientAbility.ADDS_BY_WRITING:
            _check_first_sequence(partition, header)
    except (ConcurrentTransactionsError, CoordinatorLoadInProgressError) as error:
        if ability is ClientAbility.ADDS_BY_WRITING and isinstance(
            error, ConcurrentTransactionsError
        ):
            raise
        # Producers do not expect a coordinator's code from a leader; on this one they try again
        # without asking for metadata first. Kafka answers it for the same reason.
        raise NotEnoughReplicasError(str(error)) from error


def _check_first_sequence(partition: Partition, header: BatchHeader) -> None:
    """With version 2 each transaction has an epoch of its own, so what comes first in it is the
    first of all: an earlier batch, refused or not here yet, is not overtaken."""
    known = partition.log.producers.producer(header.producer_id)
    if header.base_sequence != 0 and (known is None or not known.batches):
        raise OutOfOrderSequenceError(
            f"the first batch of a transaction has sequence 0"
            f" partition={partition.topic_partition} producer_id={header.producer_id}"
            f" epoch={header.producer_epoch} base_sequence={header.base_sequence}"
        )


def _refuse(
    context: RequestContext, request: ProduceRequest, error_code: ErrorCode
) -> ProduceResponse | None:
    """Every partition answered with `error_code`."""
    if request.acks == ACKS_NONE:
        raise HangUpError(f"produce without acks failed error={error_code.name}")
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
    items=(Items(("topics", "partitions"), ("topics", "partitions")),),
    shown_from=0,
    carries_records=True,
    charge=Charge.PRODUCED_BYTES,
    refuse_by=_refuse,
)
