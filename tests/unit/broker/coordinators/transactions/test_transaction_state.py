"""Transitions of a transaction, as tables. The oracle is Kafka's TransactionCoordinator."""

from __future__ import annotations

from typing import Any

import pytest

from isotherm.broker.coordinators.transactions.transaction_records import TransactionLogValue
from isotherm.broker.coordinators.transactions.transaction_snapshot import (
    transaction_of_value,
    transaction_value,
)
from isotherm.broker.coordinators.transactions.transaction_state import (
    EPOCH_EXHAUSTED,
    EPOCH_MAX,
    TRANSACTION_V0,
    TRANSACTION_V2,
    ProducerIdAndEpoch,
    TransactionMetadata,
    TransactionState,
    add_partitions,
    begin_producer,
    check_partition_added,
    complete_transaction,
    end_transaction,
    fence,
    new_transaction_metadata,
)
from isotherm.errors import (
    ConcurrentTransactionsError,
    CorruptMetadataError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    IsothermError,
    ProducerFencedError,
    TransactionAbortableError,
)
from isotherm.types import TopicPartition

S = TransactionState
PID, FRESH = 7, 8
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
PREPARED = [S.PREPARE_COMMIT, S.PREPARE_ABORT]
AT_REST = [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT]


def metadata(state: TransactionState, epoch: int = 3, **fields: Any) -> TransactionMetadata:
    has_partitions = state is S.ONGOING or state in PREPARED
    return TransactionMetadata(
        **{
            "transactional_id": "tx",
            "producer_id": PID,
            "producer_epoch": epoch,
            "timeout_ms": 100,
            "state": state,
            "partitions": frozenset({P0}) if has_partitions else frozenset(),
            "start_ms": -1 if state is S.EMPTY else 10,
            "last_update_ms": 20,
            "previous_producer_id": PID,
            **fields,
        }
    )


def begin(known: TransactionMetadata, expected: tuple[int, int] | None = None, **fields: Any):
    return begin_producer(
        known,
        timeout_ms=fields.get("timeout_ms", 100),
        expected=None if expected is None else ProducerIdAndEpoch(*expected),
        fresh_producer_id=FRESH,
        now_ms=30,
    )


def end(known: TransactionMetadata, epoch: int = 3, pid: int = PID, **fields: Any):
    return end_transaction(
        known,
        ProducerIdAndEpoch(pid, epoch),
        30,
        commit=fields.get("commit", True),
        client_version=fields.get("version", TRANSACTION_V0),
        fresh_producer_id=FRESH,
    )


# ---- a producer begins


def test_first_producer_of_an_id_gets_epoch_0() -> None:
    begun = begin(new_transaction_metadata("tx", PID, 100, 5))
    assert begun.producer == (PID, 0)
    assert (begun.state, begun.start_ms, begun.previous_producer_id) == (S.EMPTY, -1, PID)


@pytest.mark.parametrize("state", AT_REST)
def test_next_producer_gets_the_next_epoch_and_its_own_timeout(state: TransactionState) -> None:
    begun = begin(metadata(state), timeout_ms=999)
    assert begun.producer == (PID, 4)
    assert (begun.state, begun.timeout_ms, begun.start_ms) == (S.EMPTY, 999, -1)


def test_producer_that_begins_in_a_transaction_has_it_aborted_under_a_higher_epoch() -> None:
    fenced = begin(metadata(S.ONGOING))
    assert (fenced.state, fenced.producer_epoch, fenced.partitions) == (S.PREPARE_ABORT, 4, {P0})
    completed = complete_transaction(fenced, 40)
    assert completed.state is S.COMPLETE_ABORT
    assert begin(completed).producer == (PID, 5)


@pytest.mark.parametrize("state", PREPARED)
def test_producer_cannot_begin_while_a_transaction_is_being_ended(state: TransactionState) -> None:
    with pytest.raises(ConcurrentTransactionsError):
        begin(metadata(state))


@pytest.mark.parametrize(
    ("expected", "result"),
    [
        ((PID, 3), (PID, 4)),  # the present epoch, which is raised
        ((PID, 2), ProducerFencedError),  # an older epoch
        ((PID, 4), ProducerFencedError),  # an epoch that no producer was given
        ((PID + 9, 3), ProducerFencedError),  # another producer's id
    ],
)
def test_producer_that_names_its_epoch(expected: tuple[int, int], result: Any) -> None:
    known = metadata(S.COMPLETE_ABORT)
    if isinstance(result, tuple):
        assert begin(known, expected).producer == result
    else:
        with pytest.raises(result):
            begin(known, expected)


def test_retry_of_a_raised_epoch_gets_the_same_one_until_another_producer_begins() -> None:
    raised = begin(metadata(S.EMPTY), (PID, 3))
    assert begin(raised, (PID, 3)).producer == raised.producer == (PID, 4)
    other = begin(raised)
    with pytest.raises(ProducerFencedError):
        begin(other, (PID, 3))


@pytest.mark.parametrize("epoch", [EPOCH_EXHAUSTED, EPOCH_MAX])
def test_exhausted_epoch_gives_a_new_producer_id(epoch: int) -> None:
    rotated = begin(metadata(S.COMPLETE_COMMIT, epoch))
    assert rotated.producer == (FRESH, 0)
    assert rotated.previous_producer_id == PID


def test_retry_of_a_rotation_gets_the_same_producer_id() -> None:
    rotated = begin(metadata(S.EMPTY, EPOCH_EXHAUSTED), (PID, EPOCH_EXHAUSTED))
    again = begin(rotated, (PID, EPOCH_EXHAUSTED))
    assert again.producer == rotated.producer == (FRESH, 0)


def test_last_epoch_is_kept_to_fence_with() -> None:
    fenced = begin(metadata(S.ONGOING, EPOCH_EXHAUSTED))
    assert fenced.producer == (PID, EPOCH_MAX)
    # The abort already assigned the fresh id. No producer got its epoch 0, so the next one gets 1.
    assert begin(complete_transaction(fenced, 40)).producer == (FRESH, 1)


# ---- adding partitions


@pytest.mark.parametrize("state", AT_REST)
def test_first_partition_begins_a_transaction(state: TransactionState) -> None:
    added = add_partitions(metadata(state), ProducerIdAndEpoch(PID, 3), [P1], 30)
    assert (added.state, added.partitions, added.start_ms) == (S.ONGOING, {P1}, 30)
    assert added.deadline_ms == 130


def test_later_partition_joins_it() -> None:
    added = add_partitions(metadata(S.ONGOING), ProducerIdAndEpoch(PID, 3), [P1], 30)
    assert (added.partitions, added.start_ms, added.last_update_ms) == ({P0, P1}, 10, 30)


def test_partition_that_is_part_already_changes_nothing() -> None:
    known = metadata(S.ONGOING)
    assert add_partitions(known, ProducerIdAndEpoch(PID, 3), [P0], 30) is known


@pytest.mark.parametrize(
    ("state", "producer", "error"),
    [
        (S.ONGOING, (PID + 1, 3), InvalidProducerIdMappingError),
        (S.ONGOING, (PID, 2), ProducerFencedError),
        (S.ONGOING, (PID, 4), ProducerFencedError),
        (S.PREPARE_COMMIT, (PID, 3), ConcurrentTransactionsError),
        (S.PREPARE_ABORT, (PID, 3), ConcurrentTransactionsError),
    ],
)
def test_wrong_producer_or_time(
    state: TransactionState, producer: tuple[int, int], error: type[IsothermError]
) -> None:
    with pytest.raises(error):
        add_partitions(metadata(state), ProducerIdAndEpoch(*producer), [P1], 30)
    with pytest.raises(error):
        check_partition_added(metadata(state), ProducerIdAndEpoch(*producer), P0)


def test_records_are_taken_for_added_partitions_alone() -> None:
    producer = ProducerIdAndEpoch(PID, 3)
    check_partition_added(metadata(S.ONGOING), producer, P0)
    with pytest.raises(TransactionAbortableError):
        check_partition_added(metadata(S.ONGOING), producer, P1)
    for state in AT_REST:
        with pytest.raises(TransactionAbortableError):
            check_partition_added(metadata(state), producer, P0)


# ---- ending

DONE, BUSY, WRONG = "done", ConcurrentTransactionsError, InvalidTxnStateError


@pytest.mark.parametrize(
    ("state", "commit", "result"),
    [
        (S.EMPTY, True, WRONG),
        (S.EMPTY, False, WRONG),
        (S.ONGOING, True, S.PREPARE_COMMIT),
        (S.ONGOING, False, S.PREPARE_ABORT),
        (S.PREPARE_COMMIT, True, BUSY),
        (S.PREPARE_COMMIT, False, BUSY),
        (S.PREPARE_ABORT, True, BUSY),
        (S.PREPARE_ABORT, False, BUSY),
        (S.COMPLETE_COMMIT, True, DONE),
        (S.COMPLETE_COMMIT, False, WRONG),
        (S.COMPLETE_ABORT, True, WRONG),
        (S.COMPLETE_ABORT, False, DONE),
    ],
)
def test_end_by_a_client_of_version_0(state: TransactionState, commit: bool, result: Any) -> None:
    known = metadata(state)
    if isinstance(result, TransactionState):
        ended = end(known, commit=commit)
        assert ended.metadata is not None
        assert (ended.metadata.state, ended.metadata.partitions) == (result, {P0})
        assert ended.metadata.producer == ended.producer == (PID, 3)
    elif result is DONE:
        assert end(known, commit=commit) == (None, (PID, 3))
    else:
        with pytest.raises(result):
            end(known, commit=commit)


# The last end raised the epoch from 3 to 4 when it was decided.
@pytest.mark.parametrize(
    ("state", "epoch", "commit", "result"),
    [
        (S.PREPARE_COMMIT, 3, True, BUSY),
        (S.PREPARE_COMMIT, 3, False, BUSY),
        (S.PREPARE_COMMIT, 4, False, BUSY),  # of the next transaction, which cannot begin yet
        (S.PREPARE_ABORT, 3, False, BUSY),
        (S.COMPLETE_COMMIT, 3, True, DONE),
        (S.COMPLETE_COMMIT, 3, False, WRONG),
        (S.COMPLETE_COMMIT, 4, True, WRONG),
        (S.COMPLETE_COMMIT, 4, False, S.PREPARE_ABORT),  # a transaction to which nothing was added
        (S.COMPLETE_ABORT, 3, False, DONE),
        (S.COMPLETE_ABORT, 3, True, WRONG),
        (S.COMPLETE_ABORT, 4, False, S.PREPARE_ABORT),
        (S.COMPLETE_ABORT, 4, True, WRONG),
        (S.COMPLETE_ABORT, 2, False, ProducerFencedError),
        (S.EMPTY, 4, False, S.PREPARE_ABORT),
        (S.EMPTY, 3, False, ProducerFencedError),
        (S.EMPTY, 4, True, WRONG),
        (S.ONGOING, 4, True, S.PREPARE_COMMIT),
        (S.ONGOING, 3, True, ProducerFencedError),
    ],
)
def test_end_by_a_client_of_version_2(
    state: TransactionState, epoch: int, commit: bool, result: Any
) -> None:
    known = metadata(state, epoch=4, client_transaction_version=TRANSACTION_V2)
    if isinstance(result, TransactionState):
        ended = end(known, epoch, commit=commit, version=TRANSACTION_V2)
        assert ended.metadata is not None
        assert ended.metadata.state is result
        assert ended.metadata.producer == ended.producer == (PID, 5)
    elif result is DONE:
        ended = end(known, epoch, commit=commit, version=TRANSACTION_V2)
        assert ended == (None, (PID, 4))
    else:
        with pytest.raises(result):
            end(known, epoch, commit=commit, version=TRANSACTION_V2)


def test_end_with_the_last_epoch_gives_a_new_producer_id_and_knows_its_retry() -> None:
    known = metadata(S.ONGOING, EPOCH_EXHAUSTED, client_transaction_version=TRANSACTION_V2)
    ended = end(known, EPOCH_EXHAUSTED, version=TRANSACTION_V2)
    assert ended.metadata is not None
    # The marker is written under the old id and the highest epoch.
    assert ended.metadata.producer == (PID, EPOCH_MAX)
    assert ended.producer == (FRESH, 0)
    completed = complete_transaction(ended.metadata, 40)
    assert completed.producer == (FRESH, 0)
    assert end(completed, EPOCH_EXHAUSTED, version=TRANSACTION_V2) == (None, (FRESH, 0))


def test_fenced_producer_may_go_on_while_no_other_has_begun() -> None:
    """Kafka 4.3.1 answers the same after a transaction timed out."""
    known = metadata(S.ONGOING)
    fenced = complete_transaction(fence(known, 30, None), 40)
    assert end(fenced, 3, commit=False, version=TRANSACTION_V2) == (None, (PID, 4))
    with pytest.raises(InvalidTxnStateError):
        end(fenced, 3, commit=True, version=TRANSACTION_V2)
    for commit in (True, False):
        with pytest.raises(ProducerFencedError):
            end(fenced, 3, commit=commit, version=TRANSACTION_V0)
    assert begin(fenced, expected=(PID, 3)).producer == (PID, 4)
    taken_over = begin(fenced)
    assert taken_over.producer == (PID, 5)
    with pytest.raises(ProducerFencedError):
        begin(taken_over, expected=(PID, 3))
    with pytest.raises(ProducerFencedError):
        end(taken_over, 3, commit=False, version=TRANSACTION_V2)


@pytest.mark.parametrize("state", list(S)[:6])
def test_end_by_another_producer(state: TransactionState) -> None:
    with pytest.raises(InvalidProducerIdMappingError):
        end(metadata(state), pid=PID + 1)
    for epoch in (2, 4):
        with pytest.raises(ProducerFencedError):
            end(metadata(state), epoch)


@pytest.mark.parametrize(
    ("prepared", "completed"),
    [(S.PREPARE_COMMIT, S.COMPLETE_COMMIT), (S.PREPARE_ABORT, S.COMPLETE_ABORT)],
)
def test_completed_transaction_has_no_partitions(
    prepared: TransactionState, completed: TransactionState
) -> None:
    done = complete_transaction(metadata(prepared), 40)
    assert (done.state, done.partitions) == (completed, frozenset())
    assert (done.start_ms, done.last_update_ms, done.producer) == (10, 40, (PID, 3))


# ---- forgetting


@pytest.mark.parametrize("state", list(S)[:6])
def test_only_an_id_without_a_transaction_expires(state: TransactionState) -> None:
    known = metadata(state)
    assert not known.is_expired(119, 100)
    assert known.is_expired(120, 100) == (state in AT_REST)


# ---- the stored form


@pytest.mark.parametrize("state", list(S)[:6])
def test_stored_form_holds_everything_but_the_retried_epoch(state: TransactionState) -> None:
    known = metadata(state, next_producer_id=9, client_transaction_version=2)
    value = transaction_value(known)
    assert transaction_of_value("tx", value) == known
    assert (value.transaction_partitions is None) == (state is S.EMPTY)


def test_unknown_state_is_corrupt() -> None:
    value = TransactionLogValue(
        producer_id=1,
        producer_epoch=0,
        transaction_timeout_ms=1,
        transaction_status=99,
        transaction_last_update_timestamp_ms=1,
    )
    with pytest.raises(CorruptMetadataError, match="status=99"):
        transaction_of_value("tx", value)


@pytest.mark.parametrize(
    ("state", "name"),
    [(S.EMPTY, "Empty"), (S.PREPARE_COMMIT, "PrepareCommit"), (S.COMPLETE_ABORT, "CompleteAbort")],
)
def test_states_have_kafkas_names(state: TransactionState, name: str) -> None:
    assert state.kafka_name == name
