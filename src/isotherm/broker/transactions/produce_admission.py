"""Admission of a Produce request's transactional batches.

Alone, this broker coordinates everything and admits batch by batch, without waiting. In a cluster the
coordinators are asked for all batches of a request first (`start_admissions`), and the batches are
appended in the turn of the loop in which the last answer arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from isotherm.broker.partitions.partition import Partition
from isotherm.broker.transactions.admission import ClientAbility, PendingAdmission, admit_records
from isotherm.broker.transactions.transaction_state import ProducerIdAndEpoch
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
    HEADER_SIZE,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    read_attributes,
    read_batch_header,
)
from isotherm.types import TopicPartition

if TYPE_CHECKING:
    from isotherm.broker.requests.context import RequestContext
    from isotherm.protocol.produce import ProduceRequest

FIRST_ABORTABLE_VERSION = 11
FIRST_ADDING_VERSION = 12

Verdicts: TypeAlias = Mapping[TopicPartition, IsothermError | None]
"""The coordinators' answers: None for an admitted batch, else why it is refused."""

NO_VERDICTS: Verdicts = {}


def start_admissions(
    context: RequestContext, request: ProduceRequest
) -> dict[TopicPartition, PendingAdmission]:
    """Ask for the transactional batches; what is to be awaited, by partition.

    A batch that is refused at once is left to `admit_batch`, which refuses it again.
    """
    waiting = {}
    for topic in request.topics:
        for produced in topic.partitions:
            records = produced.records
            if records is None or len(records) < HEADER_SIZE:
                continue
            if not read_attributes(records) & TRANSACTIONAL_FLAG:
                continue
            try:
                partition = context.services.replica_manager.find_partition(
                    topic.name, topic.topic_id, produced.partition
                )
                asked = _admit(context, request, partition, read_batch_header(records))
            except IsothermError:
                continue
            if asked is not None:
                waiting[partition.topic_partition] = asked
    return waiting


async def await_admissions(waiting: Mapping[TopicPartition, PendingAdmission]) -> Verdicts:
    """The verdicts, once all are known. They hold for this turn of the loop."""
    refusals = await asyncio.gather(*(each.wait() for each in waiting.values()))
    verdicts: dict[TopicPartition, IsothermError | None] = {}
    for (partition, pending), refusal in zip(waiting.items(), refusals, strict=True):
        verdicts[partition] = None
        try:
            pending.settle(refusal)
        except IsothermError as error:
            verdicts[partition] = error
    return verdicts


def admit_batch(
    context: RequestContext,
    request: ProduceRequest,
    partition: Partition,
    header: BatchHeader,
    verdicts: Verdicts,
) -> None:
    """Return if the batch may be appended, else raise; see `admit_records`.

    NotEnoughReplicasError stands for the errors of a coordinator that can go by: producers do not
    expect a coordinator's code from a leader, and on this one they try again without asking for
    metadata first. Kafka answers it for the same reason.
    """
    if not request.transactional_id:
        raise TransactionalIdAuthorizationError(
            f"transactional records without a transactional id"
            f" partition={partition.topic_partition} producer_id={header.producer_id}"
        )
    ability = _ability(context)
    if ability is None:
        return
    try:
        if partition.topic_partition in verdicts:
            verdict = verdicts[partition.topic_partition]
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


def _ability(context: RequestContext) -> ClientAbility | None:
    """None if the batches of such a client are not verified."""
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
        # It was admitted at once when the other batches of its request were asked for. The
        # coordinator has changed since, and the client tries again.
        waiting.drop()
        raise CoordinatorLoadInProgressError(
            f"the coordinator has to be asked again partition={partition.topic_partition}"
        )


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
