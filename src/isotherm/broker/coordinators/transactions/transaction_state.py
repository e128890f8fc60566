"""The state machine of a transactional id. Pure functions.

                  add partitions              end                  every marker is written
    EMPTY ──────────────────────> ONGOING ─────────> PREPARE_x ───────────────────────> COMPLETE_x
      ^                              ^                                                      │  │
      │                              └──────────────────────────────────────────────────────┘  │
      └────────────────────────────── a producer starts (InitProducerId) ─────────────────────┘

Each function takes the current metadata and returns the changed metadata, or raises an error if it
may not change. The change takes effect once it is in the log; nothing is modified in place.
PREPARE_x is the point of no return: the markers follow in any case. x is COMMIT or ABORT.

Fencing: a producer is identified by its id and epoch. A new producer with the same transactional id
gets a higher epoch (or another id, before epochs run out), and requests of the old producer are
refused. A producer whose own state is uncertain gets a new epoch when it sends its current one
(KIP-360). Clients of transaction version 2 (KIP-890) get a new epoch with every transaction.

Kafka's pending states are not needed, because a change and its append are one step of the event
loop here. DEAD and PREPARE_EPOCH_FENCE are such states. They exist only for their numbers and
names.
Source: Kafka TransactionMetadata, TransactionState, TransactionCoordinator.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from isotherm.errors import (
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
    TransactionAbortableError,
)
from isotherm.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
)

EPOCH_MAX: ProducerEpoch = 2**15 - 1
EPOCH_EXHAUSTED: ProducerEpoch = EPOCH_MAX - 1
"""The last epoch that a producer gets. One more is reserved for fencing it."""

TRANSACTION_V0 = 0
TRANSACTION_V2 = 2


class TransactionState(enum.IntEnum):
    """The numbers are those in the log. `kafka_name` is the name that ListTransactions returns."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def kafka_name(self) -> str:
        return self.name.title().replace("_", "")


S = TransactionState
_PREPARED = frozenset({S.PREPARE_COMMIT, S.PREPARE_ABORT})
_AT_REST = frozenset({S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT})


class ProducerIdAndEpoch(NamedTuple):
    producer_id: ProducerId
    epoch: ProducerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMetadata:
    """`last_producer_epoch` is the epoch that a retried request may have; it is not in the log."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    timeout_ms: int
    state: TransactionState = S.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: TimestampMs = NO_TIMESTAMP
    last_update_ms: TimestampMs
    previous_producer_id: ProducerId = NO_PRODUCER_ID
    next_producer_id: ProducerId = NO_PRODUCER_ID
    last_producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    client_transaction_version: int = TRANSACTION_V0

    @property
    def producer(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)

    @property
    def is_epoch_exhausted(self) -> bool:
        return self.producer_epoch >= EPOCH_EXHAUSTED

    @property
    def is_prepared(self) -> bool:
        return self.state in _PREPARED

    @property
    def is_commit(self) -> bool:
        """Whether the transaction that is being ended is committed."""
        return self.state is S.PREPARE_COMMIT

    @property
    def deadline_ms(self) -> TimestampMs:
        """The time at which an ongoing transaction is aborted."""
        return self.start_ms + self.timeout_ms

    def is_expired(self, now_ms: TimestampMs, expiration_ms: int) -> bool:
        """Whether the id has been unused for `expiration_ms`, so that it may be removed."""
        return self.state in _AT_REST and now_ms - self.last_update_ms >= expiration_ms

    def _moved(self, state: TransactionState, now_ms: TimestampMs) -> TransactionMetadata:
        return replace(
            self, state=state, last_update_ms=now_ms, previous_producer_id=self.producer_id
        )


# ---- a producer starts


def new_transaction_metadata(
    transactional_id: str, producer_id: ProducerId, timeout_ms: int, now_ms: TimestampMs
) -> TransactionMetadata:
    """The metadata of a new transactional id. It has no epoch before `begin_producer`."""
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=producer_id,
        timeout_ms=timeout_ms,
        last_update_ms=now_ms,
    )


def begin_producer(
    metadata: TransactionMetadata,
    *,
    timeout_ms: int,
    expected: ProducerIdAndEpoch | None,
    fresh_producer_id: ProducerId | None,
    now_ms: TimestampMs,
) -> TransactionMetadata:
    """Start a producer with this transactional id. It gets the result's producer id and epoch.

    `expected` is the current id and epoch of a producer that wants a new epoch but must not fence a
    newer producer. `fresh_producer_id` is needed if the epoch is exhausted. An ongoing transaction
    is aborted first: the result is then PREPARE_ABORT with an epoch that no producer gets, and the
    producer has to retry.

    Raises ConcurrentTransactionsError while a transaction ends, and ProducerFencedError.
    """
    if metadata.is_prepared:
        raise _is_being_ended(metadata)
    # As in Kafka the epoch is not compared before an ongoing transaction is aborted. It
    # is when the client retries.
    _check_expected(metadata, expected)
    if metadata.state is S.ONGOING:
        return fence(metadata, now_ms, fresh_producer_id)
    names_current = expected is None or expected.epoch == metadata.producer_epoch
    if metadata.is_epoch_exhausted and names_current:
        assert fresh_producer_id is not None
        last_epoch = NO_PRODUCER_EPOCH if expected is None else metadata.producer_epoch
        producer = ProducerIdAndEpoch(fresh_producer_id, 0)
    else:
        epoch, last_epoch = _next_epoch(metadata, expected)
        producer = ProducerIdAndEpoch(metadata.producer_id, epoch)
    return replace(
        metadata._moved(S.EMPTY, now_ms),
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        last_producer_epoch=last_epoch,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        start_ms=NO_TIMESTAMP,
    )


def _check_expected(metadata: TransactionMetadata, expected: ProducerIdAndEpoch | None) -> None:
    """Check that the producer's id is the current one.

    The previous id is accepted if its epochs ran out, since the answer with the new id may have
    been lost.
    """
    if expected is None or metadata.producer_epoch == NO_PRODUCER_EPOCH:
        return
    is_retry = (
        expected.producer_id == metadata.previous_producer_id and expected.epoch >= EPOCH_EXHAUSTED
    )
    if expected.producer_id != metadata.producer_id and not is_retry:
        raise _fenced(metadata, expected)


def _next_epoch(
    metadata: TransactionMetadata, expected: ProducerIdAndEpoch | None
) -> tuple[ProducerEpoch, ProducerEpoch]:
    """The next epoch, and the epoch that a retry of this request would have."""
    current = metadata.producer_epoch
    if expected is None:
        return current + 1, NO_PRODUCER_EPOCH
    if current in (NO_PRODUCER_EPOCH, expected.epoch):
        return current + 1, current
    # A retry. The answer with the current epoch was lost, so the same epoch is returned again.
    if expected.epoch == metadata.last_producer_epoch and current < EPOCH_MAX:
        return current, metadata.last_producer_epoch
    raise _fenced(metadata, expected)


def fence(
    metadata: TransactionMetadata, now_ms: TimestampMs, fresh_producer_id: ProducerId | None
) -> TransactionMetadata:
    """Abort the ongoing transaction under a higher epoch, which fences its producer.

    `fresh_producer_id` is needed if the epoch is exhausted. Until another producer starts, the
    fenced producer may get the higher epoch or the fresh id: by sending its current one (KIP-360),
    or with version 2 by aborting the transaction itself.
    """
    assert metadata.state is S.ONGOING
    fenced = replace(
        metadata._moved(S.PREPARE_ABORT, now_ms), client_transaction_version=TRANSACTION_V2
    )
    return _with_next_epoch(fenced, fresh_producer_id)


# ---- a transaction


def add_partitions(
    metadata: TransactionMetadata,
    producer: ProducerIdAndEpoch,
    partitions: Iterable[TopicPartition],
    now_ms: TimestampMs,
    *,
    client_version: int = TRANSACTION_V0,
) -> TransactionMetadata:
    """Add partitions to the transaction; it begins if there is none.

    Returns the same object if the transaction already has the partitions, so that nothing has to be
    written.

    Raises InvalidProducerIdMappingError, ProducerFencedError, and ConcurrentTransactionsError while
    a transaction ends. The last is checked first, because a client whose epochs ran out has its
    next id before the markers of the old one are written.
    """
    if metadata.is_prepared:
        raise _is_being_ended(metadata)
    _check_producer(metadata, producer)
    added = frozenset(partitions)
    is_ongoing = metadata.state is S.ONGOING
    if is_ongoing and added <= metadata.partitions:
        return metadata
    return replace(
        metadata._moved(S.ONGOING, now_ms),
        partitions=metadata.partitions | added,
        # Adding partitions must not extend the timeout.
        start_ms=metadata.start_ms if is_ongoing else now_ms,
        client_transaction_version=client_version,
    )


def check_partition_added(
    metadata: TransactionMetadata, producer: ProducerIdAndEpoch, partition: TopicPartition
) -> None:
    """Check that the partition will get a marker (KIP-890).

    Raises TransactionAbortableError if it is not part of the transaction, and what `add_partitions`
    raises. Errors about another producer come first here.
    """
    _check_producer(metadata, producer)
    if metadata.is_prepared:
        raise _is_being_ended(metadata)
    if metadata.state is not S.ONGOING or partition not in metadata.partitions:
        raise TransactionAbortableError(
            f"partition was not added to the transaction partition={partition}"
            f" transactional_id={metadata.transactional_id} state={metadata.state.kafka_name}"
        )


def _check_producer(metadata: TransactionMetadata, producer: ProducerIdAndEpoch) -> None:
    if metadata.producer_id != producer.producer_id:
        raise _wrong_id(metadata, producer)
    if metadata.producer_epoch != producer.epoch:
        raise _fenced(metadata, producer)


# ---- the end of a transaction


class EndedTransaction(NamedTuple):
    """`metadata` is None for a retry of a complete end. `producer` is the id and epoch for the
    client's next transaction."""

    metadata: TransactionMetadata | None
    producer: ProducerIdAndEpoch


def end_transaction(
    metadata: TransactionMetadata,
    producer: ProducerIdAndEpoch,
    now_ms: TimestampMs,
    *,
    commit: bool,
    client_version: int,
    fresh_producer_id: ProducerId | None,
) -> EndedTransaction:
    """End the producer's transaction.

    `fresh_producer_id` is needed for version 2 if the epoch is exhausted. Raises
    InvalidProducerIdMappingError, ProducerFencedError, ConcurrentTransactionsError while any end is
    in progress, and InvalidTxnStateError if there is no such transaction to end.
    """
    is_v2 = client_version >= TRANSACTION_V2
    if metadata.is_prepared and is_v2:
        # Checked first, for the same reason as in `add_partitions`.
        raise _is_being_ended(metadata)
    is_retry = is_v2 and _is_retried_end(metadata, producer)
    had_old_id = is_v2 and _is_before_new_id(metadata, producer)
    if metadata.producer_id != producer.producer_id and not had_old_id:
        raise _wrong_id(metadata, producer)
    if metadata.producer != producer and not is_retry:
        raise _fenced(metadata, producer)
    if metadata.is_prepared:
        raise _is_being_ended(metadata)
    if metadata.state is S.ONGOING:
        return _prepared_end(
            metadata,
            now_ms,
            commit=commit,
            client_version=client_version,
            fresh_producer_id=fresh_producer_id,
        )
    ended_so = metadata.state is (S.COMPLETE_COMMIT if commit else S.COMPLETE_ABORT)
    if ended_so and (is_retry or not is_v2):
        # The answer was lost. A client before version 2 cannot show that it retries.
        return EndedTransaction(None, metadata.producer)
    if is_v2 and not commit and not is_retry:
        # The abort of a transaction without partitions. It bumps the epoch nevertheless, so that a
        # late batch of this transaction cannot become part of the next one.
        return _prepared_end(
            replace(metadata, start_ms=now_ms),
            now_ms,
            commit=False,
            client_version=client_version,
            fresh_producer_id=fresh_producer_id,
        )
    raise _cannot_end(metadata, commit=commit)


def _is_retried_end(metadata: TransactionMetadata, producer: ProducerIdAndEpoch) -> bool:
    """Whether a client of version 2 retries an end that has already bumped its epoch.

    After the end of a client of an older version, Kafka takes any producer with the epoch before
    for such a client. A fenced producer may then believe that its transaction was committed. Here
    it is fenced.
    """
    if metadata.client_transaction_version < TRANSACTION_V2:
        return False
    if metadata.state not in (S.COMPLETE_COMMIT, S.COMPLETE_ABORT):
        return False
    if metadata.producer_id == producer.producer_id:
        return metadata.producer_epoch == producer.epoch + 1 < EPOCH_MAX
    return _is_before_new_id(metadata, producer)


def _is_before_new_id(metadata: TransactionMetadata, producer: ProducerIdAndEpoch) -> bool:
    """Whether the producer sends the id and epoch that were current before the epochs ran out."""
    return (
        metadata.previous_producer_id == producer.producer_id
        and producer.epoch == EPOCH_EXHAUSTED
        and metadata.producer_epoch == 0
    )


def _prepared_end(
    metadata: TransactionMetadata,
    now_ms: TimestampMs,
    *,
    commit: bool,
    client_version: int,
    fresh_producer_id: ProducerId | None,
) -> EndedTransaction:
    prepared = replace(
        metadata._moved(S.PREPARE_COMMIT if commit else S.PREPARE_ABORT, now_ms),
        client_transaction_version=client_version,
    )
    if client_version < TRANSACTION_V2:
        return EndedTransaction(prepared, metadata.producer)
    prepared = _with_next_epoch(prepared, fresh_producer_id)
    if prepared.next_producer_id != NO_PRODUCER_ID:
        return EndedTransaction(prepared, ProducerIdAndEpoch(prepared.next_producer_id, 0))
    return EndedTransaction(prepared, prepared.producer)


def _with_next_epoch(
    metadata: TransactionMetadata, fresh_producer_id: ProducerId | None
) -> TransactionMetadata:
    """The prepared end under the next epoch. After the last epoch, the fresh id becomes the next
    id.

    The next id takes effect with COMPLETE, since the markers must have the old id. Their epoch is
    then the one that is reserved for fencing.
    """
    epoch = metadata.producer_epoch
    raised = replace(
        metadata,
        # A log of an older version may have a transaction under the maximum epoch.
        producer_epoch=min(epoch + 1, EPOCH_MAX),
        last_producer_epoch=epoch,
    )
    if not metadata.is_epoch_exhausted:
        return raised
    assert fresh_producer_id is not None
    return replace(raised, next_producer_id=fresh_producer_id)


def complete_transaction(metadata: TransactionMetadata, now_ms: TimestampMs) -> TransactionMetadata:
    """Complete a prepared transaction, after all its markers are written."""
    assert metadata.is_prepared
    completed = replace(
        metadata._moved(S.COMPLETE_COMMIT if metadata.is_commit else S.COMPLETE_ABORT, now_ms),
        partitions=frozenset(),
    )
    if metadata.next_producer_id == NO_PRODUCER_ID:
        return completed
    return replace(
        completed,
        producer_id=metadata.next_producer_id,
        producer_epoch=0,
        next_producer_id=NO_PRODUCER_ID,
    )


# ---- errors


def _fenced(metadata: TransactionMetadata, producer: ProducerIdAndEpoch) -> ProducerFencedError:
    return ProducerFencedError(
        f"a newer producer uses the transactional id transactional_id={metadata.transactional_id}"
        f" producer_id={producer.producer_id} epoch={producer.epoch}"
        f" current_producer_id={metadata.producer_id} current_epoch={metadata.producer_epoch}"
    )


def _wrong_id(
    metadata: TransactionMetadata, producer: ProducerIdAndEpoch
) -> InvalidProducerIdMappingError:
    return InvalidProducerIdMappingError(
        f"the transactional id has another producer id"
        f" transactional_id={metadata.transactional_id}"
        f" producer_id={producer.producer_id} current_producer_id={metadata.producer_id}"
    )


def _is_being_ended(metadata: TransactionMetadata) -> ConcurrentTransactionsError:
    return ConcurrentTransactionsError(
        f"the transaction is being ended transactional_id={metadata.transactional_id}"
        f" state={metadata.state.kafka_name}"
    )


def _cannot_end(metadata: TransactionMetadata, *, commit: bool) -> InvalidTxnStateError:
    return InvalidTxnStateError(
        f"the transaction cannot be {'committed' if commit else 'aborted'}"
        f" transactional_id={metadata.transactional_id} state={metadata.state.kafka_name}"
    )
