"""Produce (key 0).

Versions  3-13, shown as 0-13 (see isotherm.protocol.api_versions). 5 log start offset · 7 zstd
          allowed · 8 error message · 9 flexible · 10 current leader · 11 TRANSACTION_ABORTABLE ·
          12 transactions of version 2 · 13 topic ids
Behaviour Partitions are appended one after the other; each has its own error. acks=1 and acks=all
          are the same with one replica: answered after the append. acks=0 has no answer, and an
          error closes the connection, as in Kafka: the client would not learn of it otherwise.
          The broker's own topics take no records from clients: one that cannot be decoded would
          stop every reader of it.
          Transactional records are taken for partitions that are part of the transaction; from
          version 12 on they make them so.
Not done  -
KIPs      98 idempotence, transactions · 467 error message · 516 topic ids · 890 · 951 current
          leader
"""

from __future__ import annotations

import logging

from kio.schema.errors import ErrorCode

from isotherm.broker.context import HangUpError, RequestContext
from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.error_mapping import error_message
from isotherm.broker.partition import ACKS_ALL, Partition
from isotherm.broker.transactions.admission import ClientAbility, admit_records
from isotherm.broker.transactions.transaction_state import ProducerIdAndEpoch
from isotherm.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CorruptMessageError,
    InvalidRecordError,
    InvalidTopicError,
    IsothermError,
    NotEnoughReplicasError,
    TransactionalIdAuthorizationError,
    UnsupportedCompressionTypeError,
)
from isotherm.protocol.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    ProduceTopicResponse,
)
from isotherm.record.batch import (
    HEADER_SIZE,
    MAGIC,
    BatchHeader,
    CompressionType,
    read_batch_header,
    read_magic,
)
from isotherm.types import REMOTE_LOG_METADATA_TOPICS

logger = logging.getLogger(__name__)

ACKS_NONE = 0
ACKS_LEADER = 1
FIRST_ZSTD_VERSION = 7
FIRST_ABORTABLE_VERSION = 11
FIRST_ADDING_VERSION = 12
WRITTEN_BY_BROKER_ALONE = frozenset(
    {*REMOTE_LOG_METADATA_TOPICS, "__consumer_offsets", "__transaction_state"}
)


def handle(context: RequestContext, request: ProduceRequest) -> ProduceResponse | None:
    if request.acks not in (ACKS_ALL, ACKS_NONE, ACKS_LEADER):
        return error_response(context, request, ErrorCode.invalid_required_acks)
    topics = [
        ProduceTopicResponse(
            topic.name,
            topic.topic_id,
            [_produce(context, request, topic, partition) for partition in topic.partitions],
        )
        for topic in request.topics
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
) -> ProducePartitionResponse:
    replica_manager = context.services.replica_manager
    try:
        partition = replica_manager.find_partition(topic.name, topic.topic_id, produced.partition)
        records = _checked_records(context, request, partition, produced)
        info = partition.append(
            records, required_acks=request.acks, now_ms=context.services.clock.now_ms()
        )
    except IsothermError as error:
        logger.debug("produce refused topic=%s partition=%d", topic.name, produced.partition)
        return ProducePartitionResponse(
            partition=produced.partition,
            error_code=code_of(error),
            error_message=error_message(error),
        )
    return ProducePartitionResponse(
        partition=produced.partition,
        base_offset=info.first_offset,
        log_append_time_ms=info.log_append_time_ms,
        log_start_offset=info.log_start_offset,
    )


def _read_header(records: memoryview, partition: Partition) -> BatchHeader:
    """The errors are Kafka's: what is no whole batch of magic 2 is no record batch to it."""
    where = f"partition={partition.topic_partition}"
    if not records:
        raise InvalidRecordError(f"no record batch {where}")
    if len(records) < HEADER_SIZE:
        raise InvalidRecordError(f"a record batch is cut short {where} size={len(records)}")
    magic = read_magic(records)
    if magic > MAGIC:
        raise CorruptMessageError(f"no such magic {where} magic={magic}")
    if magic < MAGIC:
        raise InvalidRecordError(
            f"only record batches of magic {MAGIC} may be produced {where} magic={magic}"
        )
    header = read_batch_header(records)
    if header.size_in_bytes > len(records):
        raise InvalidRecordError(
            f"a record batch is cut short {where} size={len(records)}"
            f" announced={header.size_in_bytes}"
        )
    return header


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
    header = _read_header(records, partition)
    api_version = context.header.api_version
    if header.is_transactional:
        _admit_transactional(context, request, partition, header)
    if header.compression_type is CompressionType.ZSTD and api_version < FIRST_ZSTD_VERSION:
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
    except (ConcurrentTransactionsError, CoordinatorLoadInProgressError) as error:
        if ability is ClientAbility.ADDS_BY_WRITING and isinstance(
            error, ConcurrentTransactionsError
        ):
            raise
        # Producers do not expect a coordinator's code from a leader; on this one they try again
        # without asking for metadata first. Kafka answers it for the same reason.
        raise NotEnoughReplicasError(str(error)) from error


def error_response(
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
