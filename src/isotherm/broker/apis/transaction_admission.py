"""Admission of transactional records to a partition (KIP-890).

A partition gets an end-transaction marker only if the coordinator knows that the partition is part
of the transaction. So transactional records are accepted only for partitions that were added. With
transaction version 2 the records themselves add the partition. A coordinator in this broker is
asked for every batch, so that a late batch of an ending transaction is refused; Kafka may miss it.
A coordinator in another broker is asked for the first batch of a transaction (`remote_admission`).
Source: Kafka AddPartitionsToTxnManager, TransactionSupportedOperation.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from isotherm.broker.coordinators.transactions.transaction_state import (
    TRANSACTION_V2,
    ProducerIdAndEpoch,
)
from isotherm.broker.coordinators.transactions.verifications import Verifications
from isotherm.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    IsothermError,
    ProducerFencedError,
    TransactionAbortableError,
)
from isotherm.types import TopicPartition

if TYPE_CHECKING:
    from isotherm.broker.server.requests.context import BrokerServices


class ClientAbility(enum.Enum):
    """The features that the client supports, according to its request's version."""

    NEITHER = "neither"
    KNOWS_ABORTABLE_ERROR = "knows abortable error"
    ADDS_BY_WRITING = "adds by writing"


class PendingAdmission:
    """Records that wait for the coordinator's answer.

    Call `settle` once, in the loop iteration of the append.
    """

    def __init__(
        self,
        waiting: Coroutine[Any, Any, None],
        producer: ProducerIdAndEpoch,
        partition: TopicPartition,
        ability: ClientAbility,
        verifications: Verifications,
    ) -> None:
        self._waiting = waiting
        self._producer = producer
        self._partition = partition
        self._ability = ability
        self._verifications = verifications
        self._verification = verifications.begin(partition, producer.producer_id)

    async def wait(self) -> IsothermError | None:
        """The coordinator's refusal; None if it admits the records."""
        try:
            await self._waiting
        except asyncio.CancelledError:
            # The client has disconnected: nothing is appended, and `settle` is not called.
            self._finish()
            raise
        except IsothermError as error:
            return client_error(error, self._ability)
        return None

    def settle(self, refusal: IsothermError | None) -> None:
        """Raise `refusal`, or an error if the transaction was ended meanwhile."""
        holds = self._finish()
        if refusal is not None:
            raise refusal
        if not holds:
            late = TransactionAbortableError(
                f"the transaction was ended meanwhile partition={self._partition}"
                f" producer_id={self._producer.producer_id} epoch={self._producer.epoch}"
            )
            raise client_error(late, self._ability)

    def drop(self) -> None:
        """Give the admission up instead of calling `wait`."""
        self._waiting.close()
        self._finish()

    def _finish(self) -> bool:
        return self._verifications.finish(
            self._partition, self._producer.producer_id, self._verification
        )


def admit_records(
    services: BrokerServices,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    partition: TopicPartition,
    ability: ClientAbility,
) -> PendingAdmission | None:
    """Admit records of `producer` to `partition`. Returns None if they are admitted, else the
    admission to wait for.

    The caller appends the records in the same loop iteration, or in that of
    `PendingAdmission.settle`. This function or `settle` raises InvalidTxnStateError if the
    partition is not part of the transaction (TransactionAbortableError if the client supports it),
    InvalidProducerEpochError for a fenced producer, InvalidProducerIdMappingError,
    ConcurrentTransactionsError while the transaction ends, CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError, and NotCoordinatorError while the coordinator moves.
    """
    adds = ability is ClientAbility.ADDS_BY_WRITING
    remote = services.remote_admission
    if remote is not None and remote.is_elsewhere(transactional_id):
        if _has_open_transaction(services, producer, partition):
            return None
        waiting: Coroutine[Any, Any, None] | None = remote.ask(
            transactional_id, producer, partition, adds=adds
        )
    else:
        coordinator = services.transaction_coordinator
        try:
            if adds:
                coordinator.add_partitions(
                    transactional_id, producer, [partition], client_version=TRANSACTION_V2
                )
            else:
                coordinator.check_partition_added(transactional_id, producer, partition)
        except IsothermError as error:
            raise client_error(error, ability) from error
        # The records wait until the added partition is committed: a coordinator that lacks
        # it writes no marker there.
        waiting = coordinator.uncommitted(transactional_id)
    if waiting is None:
        return None
    verifications = services.transaction_markers.verifications
    return PendingAdmission(waiting, producer, partition, ability, verifications)


def _has_open_transaction(
    services: BrokerServices, producer: ProducerIdAndEpoch, partition: TopicPartition
) -> bool:
    """Whether the transaction already has records in the partition, so that the coordinator
    knows the partition.
    """
    topic, index = partition
    log = services.replica_manager.find_partition(topic, None, index).log
    producer_state = log.producers.producer(producer.producer_id)
    return (
        producer_state is not None
        and producer_state.epoch == producer.epoch
        and producer_state.transaction_first_offset is not None
    )


def client_error(error: IsothermError, ability: ClientAbility) -> IsothermError:
    """The error that a client with this ability expects."""
    if isinstance(error, ProducerFencedError):
        # Kafka answers Produce with the older code, which producers expect there.
        return InvalidProducerEpochError(str(error))
    if isinstance(error, TransactionAbortableError) and ability is ClientAbility.NEITHER:
        return InvalidTxnStateError(str(error))
    return error
