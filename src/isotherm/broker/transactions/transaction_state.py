"""What the coordinator knows of a transactional id, and what may happen to it next. Pure.

                  add partitions              end                  every marker is written
    EMPTY ──────────────────────> ONGOING ─────────> PREPARE_x ───────────────────────> COMPLETE_x
      ^                              ^                                                      │  │
      │                              └──────────────────────────────────────────────────────┘  │
      └────────────────────────────── a producer begins (InitProducerId) ──────────────────────┘

Each function takes the metadata as it is and returns what it is to become, or raises why not. The
new metadata is in force once it is in the log; nothing here changes in place. PREPARE_x is the
point of no return: whatever happens, the markers follow. x is COMMIT or ABORT.

Fencing: a producer is known by its id and epoch. A new producer under the same transactional id
gets a higher epoch (or another id, before epochs run out), and what the old one sends is refused.
A producer that has found its own state uncertain asks for a new epoch by naming the one it has
(KIP-360). Clients of transaction version 2 (KIP-890) get a new epoch with every transaction.

Kafka's pending states do not appear: here a change and its append are one step of the event loop.
DEAD and PREPARE_EPOCH_FENCE are such states, kept for their numbers and names.
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
"""The last epoch a producer is given: one more is kept to fence it with."""

TRANSACTION_V0 = 0
TRANSACTION_V2 = 2


class TransactionState(enum.IntEnum):
    """Numbers as stored; `kafka_name` as shown by ListTransactions."""

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
    """`last_producer_epoch` is what a retried request may still name; it is not in the log."""

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
        """Whether the transaction being ended is to be committed."""
        return self.state is S.PREPARE_COMMIT

    @property
    def deadline_ms(self) -> TimestampMs:
        """When an ongoing transaction is aborted."""
        return self.start_ms + self.timeout_ms

    def is_expired(self, now_ms: TimestampMs, expiration_ms: int) -> bool:
        """Whether the id has been without a transaction so long that it is forgotten."""
        return self.state in _AT_REST and now_ms - self.last_update_ms >= expiration_ms

    def _moved(self, state: TransactionState, now_ms: TimestampMs) -> TransactionMetadata:
        return replace(
            self, state=state, last_update_ms=now_ms, previous_producer_id=self.producer_id
        )


# ---- a producer begins


def new_transaction_metadata(
    transactional_id: str, producer_id: ProducerId, timeout_ms: int, now_ms: TimestampMs
) -> TransactionMetadata:
    """Of an id that nobody has used yet; it has no epoch before `begin_producer`."""
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
    """A producer begins under this transactional id: it gets the id and epoch of the result.

    With `expected` it is a producer that knows who it was and wants a new epoch, and not to
    fence a newer one. `fresh_producer_id` is needed when the epoch is exhausted. An ongoing
    transaction is aborted first: then the result is PREPARE_ABORT under an epoch that no producer
    gets, and the producer has to come again.

    Raises ConcurrentTransactionsError while a transaction is being ended, and ProducerFencedError.
    """
    _check_expected(metadata, expected)
    if metadata.is_prepared:
        raise _is_being_ended(metadata)
    if metadata.state is S.ONGOING:
        return fence(metadata, now_ms)
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
    """The id named has to be the present one, or the one before it if that ran out of epochs: the
    answer with the new one may have been lost."""
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
    """The epoch to give out, and the one that a retry of this request would name."""
    current = metadata.producer_epoch
    if expected is None:
        return current + 1, NO_PRODUCER_EPOCH
    if current in (NO_PRODUCER_EPOCH, expected.epoch):
        return current + 1, current
    if expected.epoch == metadata.last_producer_epoch:
        return current, metadata.last_producer_epoch
    raise _fenced(metadata, expected)


def fence(metadata: TransactionMetadata, now_ms: TimestampMs) -> TransactionMetadata:
    """Abort the ongoing transaction under a higher epoch, which shuts its producer out.

    While no other has begun, that producer gets the higher epoch when it asks for it: by naming
    the one it had (KIP-360), or, in version 2, by aborting the transaction itself.
    """
    assert metadata.state is S.ONGOING
    assert metadata.producer_epoch < EPOCH_MAX
    return replace(
        metadata._moved(S.PREPARE_ABORT, now_ms),
        producer_epoch=metadata.producer_epoch + 1,
        last_producer_epoch=metadata.producer_epoch,
        client_transaction_version=TRANSACTION_V2,
    )


# ---- a transaction


def add_partitions(
    metadata: TransactionMetadata,
    producer: ProducerIdAndEpoch,
    partitions: Iterable[TopicPartition],
    now_ms: TimestampMs,
    *,
    client_version: int = TRANSACTION_V0,
) -> TransactionMetadata:
    """The transaction, begun if there was none, with these partitions; the same object when it
    had them already.

    Raises InvalidProducerIdMappingError, ProducerFencedError, ConcurrentTransactionsError.
    """
    _check_producer(metadata, producer)
    added = frozenset(partitions)
    is_ongoing = metadata.state is S.ONGOING
    if is_ongoing and added <= metadata.partitions:
        return metadata
    return replace(
        metadata._moved(S.ONGOING, now_ms),
        partitions=metadata.partitions | added,
        start_ms=metadata.start_ms if is_ongoing else now_ms,
        client_transaction_version=client_version,
    )


def check_partition_added(
    metadata: TransactionMetadata, producer: ProducerIdAndEpoch, partition: TopicPartition
) -> None:
    """KIP-890: records are taken only for a partition that will get a marker.

    Raises TransactionAbortableError when it is not part of the transaction, and what
    `add_partitions` does.
    """
    _check_producer(metadata, producer)
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
    if metadata.is_prepared:
        raise _is_being_ended(metadata)


# ---- its end


class EndedTransaction(NamedTuple):
    """`metadata` is None when the request is a retry, and all is done already. `producer` is what
    the client goes on with."""

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
    """The producer ends its transaction.

    `fresh_producer_id` is needed for version 2 when the epoch is exhausted. Raises
    InvalidProducerIdMappingError, ProducerFencedError, ConcurrentTransactionsError while an end
    is under way, and InvalidTxnStateError when there is nothing to be ended so.
    """
    is_v2 = client_version >= TRANSACTION_V2
    is_retry = is_v2 and _is_retried_end(metadata, producer)
    if metadata.producer_id != producer.producer_id and not is_retry:
        raise _wrong_id(metadata, producer)
    if metadata.producer_epoch != producer.epoch and not is_retry:
        raise _fenced(metadata, producer)
    if metadata.is_prepared:
        # With a raised epoch and no retry it is the end of the client's next transaction.
        is_next = metadata.client_transaction_version >= TRANSACTION_V2 and not is_retry
        if metadata.is_commit == commit or is_next:
            raise _is_being_ended(metadata)
        raise _cannot_end(metadata, commit=commit)
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
        return EndedTransaction(None, metadata.producer)
    if is_v2 and not commit and not is_retry:
        # An abort of a transaction that got no partition: it has to raise the epoch all the same.
        return _prepared_end(
            replace(metadata, start_ms=now_ms),
            now_ms,
            commit=False,
            client_version=client_version,
            fresh_producer_id=fresh_producer_id,
        )
    raise _cannot_end(metadata, commit=commit)


def _is_retried_end(metadata: TransactionMetadata, producer: ProducerIdAndEpoch) -> bool:
    """Whether a client of version 2 sends an end again that has raised its epoch already."""
    if metadata.client_transaction_version < TRANSACTION_V2:
        return False
    if metadata.state not in (_PREPARED | {S.COMPLETE_COMMIT, S.COMPLETE_ABORT}):
        return False
    if metadata.producer_id == producer.producer_id:
        return metadata.producer_epoch == producer.epoch + 1
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
    prepared = replace(
        prepared,
        producer_epoch=metadata.producer_epoch + 1,
        last_producer_epoch=metadata.producer_epoch,
    )
    if metadata.is_epoch_exhausted:
        assert fresh_producer_id is not None
        prepared = replace(prepared, next_producer_id=fresh_producer_id)
        return EndedTransaction(prepared, ProducerIdAndEpoch(fresh_producer_id, 0))
    return EndedTransaction(prepared, prepared.producer)


def complete_transaction(metadata: TransactionMetadata, now_ms: TimestampMs) -> TransactionMetadata:
    """Every marker of a prepared transaction is written."""
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
