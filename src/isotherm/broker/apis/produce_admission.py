"""Admits the transactional batches of a Produce request.

With the embedded controller this broker coordinates everything, and admits batch by batch without
waiting. In a cluster the coordinators are first asked for all batches of the request
(`start_admissions`). The batches are appended in the loop iteration in which the last answer
arrives, so that no marker can come in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from isotherm.broker.apis.transaction_admission import (
    ClientAbility,
    PendingAdmission,
    admit_records,
)
from isotherm.broker.coordinators.transactions.transaction_state import ProducerIdAndEpoch
from isotherm.broker.partitions.partition import Partition
from isotherm.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    IsothermError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    OutOfOrderSequenceError,
    TransactionalIdAuthorizationError,
)
from isotherm.record.batch_header import (
    TRANSACTIONAL_FLAG,
    BatchHeader,
    check_header,
)
from isotherm.types import TopicPartition

if TYPE_CHECKING:
    from isotherm.broker.server.requests.context import RequestContext
    from isotherm.protocol.produce import ProduceRequest

FIRST_ABORTABLE_VERSION = 11
FIRST_ADDING_VERSION = 12

# A request may have batches of several producers for one partition.
AdmissionKey: TypeAlias = tuple[TopicPartition, ProducerIdAndEpoch]

Verdicts: TypeAlias = Mapping[AdmissionKey, IsothermError | None]
"""The coordinators' answers: None for admitted batches, else the error that refuses them."""

NO_VERDICTS: Verdicts = {}


def start_admissions(
    context: RequestContext, request: ProduceRequest
) -> dict[AdmissionKey, PendingAdmission]:
    """Ask for the transactional batches; returns the admissions to wait for.

    They are none if this broker coordinates all transactions. A batch that is refused at once is
    left out here. `admit_batch` refuses it again.
    """
    waiting: dict[AdmissionKey, PendingAdmission] = {}
    if not request.transactional_id or context.services.remote_admission is None:
        return waiting
    for topic in request.topics:
        for produced in topic.partitions:
            header = produced.header
            if header is None or not header.attributes & TRANSACTIONAL_FLAG:
                continue
            try:
                partition = context.services.replica_manager.find_partition(
                    topic.name, topic.topic_id, produced.partition
                )
                check_header(header)
                key = _admission_key(partition, header)
                if key in waiting:
                    continue
                pending = _admit(context, request, partition, header)
            except IsothermError:
                continue
            if pending is not None:
                waiting[key] = pending
    return waiting


async def await_admissions(waiting: Mapping[AdmissionKey, PendingAdmission]) -> Verdicts:
    """The verdicts, once all are known. They hold until the end of this loop iteration."""
    refusals = await asyncio.gather(*(admission.wait() for admission in waiting.values()))
    verdicts: dict[AdmissionKey, IsothermError | None] = {}
    for (key, pending), refusal in zip(waiting.items(), refusals, strict=True):
        verdicts[key] = None
        try:
            pending.settle(refusal)
        except IsothermError as error:
            verdicts[key] = error
    return verdicts


def admit_batch(
    context: RequestContext,
    request: ProduceRequest,
    partition: Partition,
    header: BatchHeader,
    verdicts: Verdicts,
) -> None:
    """Return if the batch may be appended, else raise; see `admit_records` and `check_header`.

    NotEnoughReplicasError replaces temporary errors of the coordinator, as in Kafka: producers do
    not expect a coordinator's error code from a leader, and retry after this one without a metadata
    request.
    """
    check_header(header)
    if not request.transactional_id:
        raise TransactionalIdAuthorizationError(
            f"transactional records without a transactional id"
            f" partition={partition.topic_partition} producer_id={header.producer_id}"
        )
    ability = _ability(context)
    if ability is None:
        return
    try:
        key = _admission_key(partition, header)
        if key in verdicts:
            verdict = verdicts[key]
            if verdict is not None:
                raise verdict
        else:
            _admit_now(context, request, partition, header)
        if ability is ClientAbility.ADDS_BY_WRITING:
            _check_first_sequence(partition, header)
    except (
        ConcurrentTransactionsError,
        CoordinatorLoadInProgressError,
        CoordinatorNotAvailableError,
        NotCoordinatorError,
    ) as error:
        if ability is ClientAbility.ADDS_BY_WRITING and isinstance(
            error, ConcurrentTransactionsError
        ):
            raise
        raise NotEnoughReplicasError(str(error)) from error


def _admission_key(partition: Partition, header: BatchHeader) -> AdmissionKey:
    producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
    return partition.topic_partition, producer


def _ability(context: RequestContext) -> ClientAbility | None:
    """The client's ability; None if its batches are not verified."""
    version = context.header.api_version
    if version >= FIRST_ADDING_VERSION:
        return ClientAbility.ADDS_BY_WRITING
    if not context.services.config.transactions.transaction_partition_verification_enable:
        return None
    if version >= FIRST_ABORTABLE_VERSION:
        return ClientAbility.KNOWS_ABORTABLE_ERROR
    return ClientAbility.NEITHER


def _admit(
    context: RequestContext, request: ProduceRequest, partition: Partition, header: BatchHeader
) -> PendingAdmission | None:
    ability = _ability(context)
    if ability is None or not request.transactional_id:
        return None
    return admit_records(
        context.services,
        request.transactional_id,
        ProducerIdAndEpoch(header.producer_id, header.producer_epoch),
        partition.topic_partition,
        ability,
    )


def _admit_now(
    context: RequestContext, request: ProduceRequest, partition: Partition, header: BatchHeader
) -> None:
    waiting = _admit(context, request, partition, header)
    if waiting is not None:
        # The batch was admitted at once in `start_admissions`. The coordinator has changed since,
        # so the client must retry.
        waiting.drop()
        raise CoordinatorLoadInProgressError(
            "the coordinator must verify the transaction again"
            f" partition={partition.topic_partition}"
        )


def _check_first_sequence(partition: Partition, header: BatchHeader) -> None:
    """Check that a new epoch starts with sequence 0.

    With version 2 each transaction has its own epoch, so its first batch is the first of the epoch.
    The check keeps a batch from overtaking an earlier one that was refused or has not arrived.
    """
    producer = partition.log.producers.producer(header.producer_id)
    if header.base_sequence != 0 and (producer is None or not producer.batches):
        raise OutOfOrderSequenceError(
            "the first batch of a transaction must have sequence 0"
            f" partition={partition.topic_partition} producer_id={header.producer_id}"
            f" epoch={header.producer_epoch} base_sequence={header.base_sequence}"
        )
