"""Admission of transactional records to a partition (KIP-890).

A partition gets an end-transaction marker only if the coordinator knows that the partition is part
of the transaction. So transactional records are accepted only for partitions that were added. With
transaction version 2 the records themselves add the partition. The coordinator is asked for every
batch: a late batch of a transaction that is being ended is refused, which Kafka may miss.
Source: Kafka AddPartitionsToTxnManager, TransactionSupportedOperation.
"""

from __future__ import annotations

import enum

from isotherm.broker.transactions.transaction_coordinator import TransactionCoordinator
from isotherm.broker.transactions.transaction_state import TRANSACTION_V2, ProducerIdAndEpoch
from isotherm.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    ProducerFencedError,
    TransactionAbortableError,
)
from isotherm.types import TopicPartition


class ClientAbility(enum.Enum):
    """What the client supports, as its request's version shows."""

    NEITHER = "neither"
    KNOWS_ABORTABLE_ERROR = "knows abortable error"
    ADDS_BY_WRITING = "adds by writing"


def admit_records(
    coordinator: TransactionCoordinator,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    partition: TopicPartition,
    ability: ClientAbility,
) -> None:
    """Return if records of `producer` may be written to `partition`, else raise.

    Raises InvalidTxnStateError when the partition is not part of the transaction
    (TransactionAbortableError if the client supports it), InvalidProducerEpochError for a fenced
    producer, InvalidProducerIdMappingError, ConcurrentTransactionsError while the transaction is
    being ended, and CoordinatorLoadInProgressError.
    """
    try:
        if ability is ClientAbility.ADDS_BY_WRITING:
            coordinator.add_partitions(
                transactional_id, producer, [partition], client_version=TRANSACTION_V2
            )
        else:
            coordinator.check_partition_added(transactional_id, producer, partition)
    except ProducerFencedError as error:
        # Kafka answers Produce with the older code, which producers expect there.
        raise InvalidProducerEpochError(str(error)) from error
    except TransactionAbortableError as error:
        if ability is ClientAbility.NEITHER:
            raise InvalidTxnStateError(str(error)) from error
        raise
