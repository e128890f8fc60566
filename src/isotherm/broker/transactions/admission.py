"""Whether records that a client sends belong to a transaction (KIP-890).

A partition whose records are in a transaction gets a marker at its end only if the coordinator
knows of it. So transactional records are taken only for partitions that were added; a client of
transaction version 2 need not add them, its records do. Here the coordinator is asked every time:
a late batch of a transaction that is being ended is refused, which Kafka does not always notice.
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
    """What a request's version says of its client."""

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
    """Returns when records of `producer` may be written to `partition`.

    Raises InvalidTxnStateError when the partition is not part of the transaction
    (TransactionAbortableError if the client knows it), InvalidProducerEpochError for a producer
    that was shut out, InvalidProducerIdMappingError, ConcurrentTransactionsError while the
    transaction is being ended, and CoordinatorLoadInProgressError.
    """
    try:
        if ability is ClientAbility.ADDS_BY_WRITING:
            coordinator.add_partitions(
                transactional_id, producer, [partition], client_version=TRANSACTION_V2
            )
        else:
            coordinator.check_partition_added(transactional_id, producer, partition)
    except ProducerFencedError as error:
        raise InvalidProducerEpochError(str(error)) from error
    except TransactionAbortableError as error:
        if ability is ClientAbility.NEITHER:
            raise InvalidTxnStateError(str(error)) from error
        raise
