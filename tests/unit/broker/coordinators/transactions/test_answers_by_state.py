"""The answer to each request about a transaction, by the transaction's state and the producer's id
and epoch.

The oracle is Kafka 4.3.1: each cell follows from its TransactionCoordinator and
TransactionMetadata. There, a prepared state always has a pending state, also after a load, so code
below the check of the pending state is not reached. Where Isotherm differs on purpose, the table
has its answer, with a star.

    -    done, nothing to write          PF   PRODUCER_FENCED
    add  written as ONGOING              CT   CONCURRENT_TRANSACTIONS
    end  a new end is decided            ITS  INVALID_TXN_STATE
    new  a higher epoch                  IPM  INVALID_PRODUCER_ID_MAPPING
    same the present epoch again         TA   TRANSACTION_ABORTABLE
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from isotherm.broker.coordinators.transactions.transaction_snapshot import (
    transaction_of_value,
    transaction_value,
)
from isotherm.broker.coordinators.transactions.transaction_state import (
    EPOCH_EXHAUSTED,
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
)
from isotherm.errors import (
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    IsothermError,
    ProducerFencedError,
    TransactionAbortableError,
)
from isotherm.types import NO_PRODUCER_EPOCH, TopicPartition

S = TransactionState
PID, FRESH, OTHER = 7, 8, 9
ADDED, MORE = TopicPartition("t", 0), TopicPartition("t", 1)
STATES = list(S)[:6]
# The names compare the producer's id and epoch with those of the transaction.
PRODUCERS = {
    "the same": ProducerIdAndEpoch(PID, 5),
    "one below": ProducerIdAndEpoch(PID, 4),
    "two below": ProducerIdAndEpoch(PID, 3),
    "one above": ProducerIdAndEpoch(PID, 6),
    "other id": ProducerIdAndEpoch(OTHER, 5),
}
CODES = {
    ProducerFencedError: "PF",
    ConcurrentTransactionsError: "CT",
    InvalidTxnStateError: "ITS",
    InvalidProducerIdMappingError: "IPM",
    TransactionAbortableError: "TA",
}

Request = Callable[[TransactionMetadata, Any], str]


def adding(partition: TopicPartition) -> Request:
    def request(known: TransactionMetadata, producer: ProducerIdAndEpoch) -> str:
        added = add_partitions(known, producer, [partition], 30, client_version=TRANSACTION_V2)
        return "-" if added is known else "add"

    return request


def verifying(partition: TopicPartition) -> Request:
    def request(known: TransactionMetadata, producer: ProducerIdAndEpoch) -> str:
        check_partition_added(known, producer, partition)
        return "-"

    return request


def ending(version: int, *, commit: bool) -> Request:
    def request(known: TransactionMetadata, producer: ProducerIdAndEpoch) -> str:
        ended = end_transaction(
            known,
            producer,
            30,
            commit=commit,
            client_version=version,
            fresh_producer_id=FRESH,
        )
        if ended.metadata is None:
            assert ended.producer == known.producer
            return "-"
        assert ended.metadata.state is (S.PREPARE_COMMIT if commit else S.PREPARE_ABORT)
        return "end"

    return request


def beginning(known: TransactionMetadata, producer: ProducerIdAndEpoch | None) -> str:
    begun = begin_producer(
        known, timeout_ms=100, expected=producer, fresh_producer_id=FRESH, now_ms=30
    )
    if begun.state is S.PREPARE_ABORT:
        assert begun.producer_epoch == known.producer_epoch + 1
        return "CT"  # once the abort is decided; `init_producer_id`
    assert begun.state is S.EMPTY
    if begun.producer_id != known.producer_id:
        assert begun.producer == (FRESH, 0)
        return "new"
    return "same" if begun.producer_epoch == known.producer_epoch else "new"


REQUESTS: dict[str, Request] = {
    "AddPartitionsToTxn": adding(MORE),
    "AddPartitionsToTxn of what is added": adding(ADDED),
    "AddPartitionsToTxn to verify": verifying(ADDED),
    "AddPartitionsToTxn to verify what is not added": verifying(MORE),
    "EndTxn 0-4, commit": ending(TRANSACTION_V0, commit=True),
    "EndTxn 0-4, abort": ending(TRANSACTION_V0, commit=False),
    "EndTxn 5, commit": ending(TRANSACTION_V2, commit=True),
    "EndTxn 5, abort": ending(TRANSACTION_V2, commit=False),
    "InitProducerId": beginning,
}

# The last end was of version 2 and raised the epoch from 4 to 5.
TABLES = {
    "AddPartitionsToTxn": """
                  EMPTY  ONGOING  PREPARE_COMMIT  PREPARE_ABORT  COMPLETE_COMMIT  COMPLETE_ABORT
        the same  add    add      CT              CT             add              add
        one below PF     PF       CT              CT             PF               PF
        two below PF     PF       CT              CT             PF               PF
        one above PF     PF       CT              CT             PF               PF
        other id  IPM    IPM      CT              CT             IPM              IPM
    """,
    "AddPartitionsToTxn of what is added": """
                  EMPTY  ONGOING  PREPARE_COMMIT  PREPARE_ABORT  COMPLETE_COMMIT  COMPLETE_ABORT
        the same  add    -        CT              CT             add              add
        one below PF     PF       CT              CT             PF               PF
        two below PF     PF       CT              CT             PF               PF
        one above PF     PF       CT              CT             PF               PF
        other id  IPM    IPM      CT              CT             IPM              IPM
    """,
    "AddPartitionsToTxn to verify": """
                  EMPTY  ONGOING  PREPARE_COMMIT  PREPARE_ABORT  COMPLETE_COMMIT  COMPLETE_ABORT
        the same  TA     -        CT              CT             TA               TA
        one below PF     PF       PF              PF             PF               PF
        two below PF     PF       PF              PF             PF               PF
        one above PF     PF       PF              PF             PF               PF
        other id  IPM    IPM      IPM             IPM            IPM              IPM
    """,
    "AddPartitionsToTxn to verify what is not added": """
                  EMPTY  ONGOING  PREPARE_COMMIT  PREPARE_ABORT  COMPLETE_COMMIT  COMPLETE_ABORT
        the same  TA     TA       CT              CT             TA               TA
        one below PF     PF       PF              PF             PF               PF
        two below PF     PF       PF              PF             PF               PF
        one above PF     PF       PF              PF             PF               PF
        other id  IPM    IPM      IPM             IPM            IPM              IPM
    """,
    "EndTxn 0-4, commit": """
                  EMPTY  ONGOING  PREPARE_COMMIT  PREPARE_ABORT  COMPLETE_COMMIT  COMPLETE_ABORT
        the same  ITS    end      CT              CT             -                ITS
        one below PF     PF       PF              PF             PF               PF
        two below PF     PF       PF              PF             PF               PF
        one above PF     PF       PF              PF             PF               PF
        other id  IPM    IPM      IPM             IPM            IPM              IPM
    """,
    "EndTxn 0-4, abort": """
                  EMPTY  ONGOING  PREPARE_COMMIT  PREPARE_ABORT  COMPLETE_COMMIT  COMPLETE_ABORT
        the same  ITS    end      CT              CT             ITS              -
        one below PF     PF       PF              PF             PF               PF
        two below PF     PF       PF              PF             PF               PF
        one above PF     PF       PF              PF             PF               PF
        other id  IPM    IPM      IPM             IPM            IPM              IPM
    """,
    "EndTxn 5, commit": """
                  EMPTY  ONGOING  PREPARE_COMMIT  PREPARE_ABORT  COMPLETE_COMMIT  COMPLETE_ABORT
        the same  ITS    end      CT              CT             ITS              ITS
        one below PF     PF       CT              CT             -                ITS
        two below PF     PF       CT              CT             PF               PF
        one above PF     PF       CT              CT             PF               PF
        other id  IPM    IPM      CT              CT             IPM              IPM
    """,
    "EndTxn 5, abort": """
                  EMPTY  ONGOING  PREPARE_COMMIT  PREPARE_ABORT  COMPLETE_COMMIT  COMPLETE_ABORT
        the same  end    end      CT              CT             end              end
        one below PF     PF       CT              CT             ITS              -
        two below PF     PF       CT              CT             PF               PF
        one above PF     PF       CT              CT             PF               PF
        other id  IPM    IPM      CT              CT             IPM              IPM
    """,
    "InitProducerId": """
                  EMPTY  ONGOING  PREPARE_COMMIT  PREPARE_ABORT  COMPLETE_COMMIT  COMPLETE_ABORT
        no id     new    CT       CT              CT             new              new
        the same  new    CT       CT              CT             new              new
        one below same   CT       CT              CT             same             same
        two below PF     CT       CT              CT             PF               PF
        one above PF     CT       CT              CT             PF               PF
        other id  PF     PF       CT              CT             PF               PF
    """,
}

# A record lacks the epoch before the last one, so a retried InitProducerId is not recognized after
# a load.
AFTER_A_LOAD = TABLES | {
    "InitProducerId": TABLES["InitProducerId"].replace(
        "one below same   CT       CT              CT             same             same",
        "one below PF     CT       CT              CT             PF               PF",
    )
}

# The last end was of an older client and kept the epoch. Kafka answers the cells with a star as
# after an end of version 2, and so confirms a commit to a producer that was fenced before it.
AFTER_AN_OLDER_CLIENT = {
    "EndTxn 5, commit": TABLES["EndTxn 5, commit"].replace(
        "one below PF     PF       CT              CT             -                ITS",
        "one below PF     PF       CT              CT             PF*              PF*",
    ),
    "EndTxn 5, abort": TABLES["EndTxn 5, abort"].replace(
        "one below PF     PF       CT              CT             ITS              -",
        "one below PF     PF       CT              CT             PF*              PF*",
    ),
}


def known_in(state: TransactionState, *, version: int = TRANSACTION_V2) -> TransactionMetadata:
    has_partitions = state in (S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT)
    return TransactionMetadata(
        transactional_id="tx",
        producer_id=PID,
        producer_epoch=5,
        last_producer_epoch=4,
        timeout_ms=100,
        state=state,
        partitions=frozenset({ADDED}) if has_partitions else frozenset(),
        start_ms=-1 if state is S.EMPTY else 10,
        last_update_ms=20,
        previous_producer_id=PID,
        client_transaction_version=version,
    )


def loaded(known: TransactionMetadata) -> TransactionMetadata:
    again = transaction_of_value("tx", transaction_value(known))
    assert again == replace(known, last_producer_epoch=NO_PRODUCER_EPOCH)
    return again


def answer(
    request: Request, known: TransactionMetadata, producer: ProducerIdAndEpoch | None
) -> str:
    try:
        return request(known, producer)
    except IsothermError as error:
        return CODES[type(error)]


def cells(table: str) -> dict[tuple[str, str], str]:
    head, *rows = [line.split() for line in table.strip().splitlines()]
    assert head == [state.name for state in STATES]
    return {
        (" ".join(row[:2]), state): code.rstrip("*")
        for row in rows
        for state, code in zip(head, row[2:], strict=True)
    }


def answers(request: str, known_in: Callable[[TransactionState], TransactionMetadata]) -> object:
    producers: dict[str, ProducerIdAndEpoch | None] = dict(PRODUCERS)
    if request == "InitProducerId":
        producers["no id"] = None
    return {
        (name, state.name): answer(REQUESTS[request], known_in(state), producer)
        for name, producer in producers.items()
        for state in STATES
    }


@pytest.mark.parametrize("request_name", list(TABLES))
def test_answers_are_kafkas(request_name: str) -> None:
    assert answers(request_name, known_in) == cells(TABLES[request_name])


@pytest.mark.parametrize("request_name", list(TABLES))
def test_answers_after_a_restart_are_kafkas(request_name: str) -> None:
    found = answers(request_name, lambda state: loaded(known_in(state)))
    assert found == cells(AFTER_A_LOAD[request_name])


@pytest.mark.parametrize("request_name", list(TABLES))
def test_answers_after_an_older_client(request_name: str) -> None:
    found = answers(request_name, lambda state: known_in(state, version=TRANSACTION_V0))
    assert found == cells(AFTER_AN_OLDER_CLIENT.get(request_name, TABLES[request_name]))


# ---- epochs run out: the client gets its new id before the markers under the old one are written

RAN_OUT = ProducerIdAndEpoch(PID, EPOCH_EXHAUSTED)
NEXT = ProducerIdAndEpoch(FRESH, 0)


def ran_out() -> TransactionMetadata:
    return replace(known_in(S.ONGOING), producer_epoch=EPOCH_EXHAUSTED)


def ended_for_good(*, commit: bool) -> TransactionMetadata:
    ended = end_transaction(
        ran_out(),
        RAN_OUT,
        30,
        commit=commit,
        client_version=TRANSACTION_V2,
        fresh_producer_id=FRESH,
    )
    assert ended.metadata is not None
    assert ended.producer == NEXT
    return ended.metadata


@pytest.mark.parametrize("is_fenced", [True, False])
@pytest.mark.parametrize("producer", [NEXT, RAN_OUT])
def test_new_id_waits_for_the_markers_of_the_old_one(
    is_fenced: bool, producer: ProducerIdAndEpoch
) -> None:
    prepared = fence(ran_out(), 30, FRESH) if is_fenced else ended_for_good(commit=True)
    for known in (prepared, loaded(prepared)):
        for name in ("AddPartitionsToTxn", "EndTxn 5, commit", "EndTxn 5, abort", "InitProducerId"):
            assert answer(REQUESTS[name], known, producer) == "CT"


@pytest.mark.parametrize("commit", [True, False])
def test_retry_of_the_end_with_the_last_epoch(commit: bool) -> None:
    done = loaded(complete_transaction(ended_for_good(commit=commit), 40))
    assert done.producer == NEXT
    assert answer(ending(TRANSACTION_V2, commit=commit), done, RAN_OUT) == "-"
    assert answer(ending(TRANSACTION_V2, commit=not commit), done, RAN_OUT) == "ITS"
    assert answer(ending(TRANSACTION_V0, commit=commit), done, RAN_OUT) == "IPM"
    used = add_partitions(done, NEXT, [MORE], 50, client_version=TRANSACTION_V2)
    assert answer(ending(TRANSACTION_V2, commit=commit), used, RAN_OUT) == "IPM"


def test_old_id_is_fenced_once_a_producer_has_begun_under_the_new_one() -> None:
    known = replace(ran_out(), state=S.COMPLETE_COMMIT, partitions=frozenset())
    begun = begin_producer(
        known, timeout_ms=100, expected=RAN_OUT, fresh_producer_id=FRESH, now_ms=30
    )
    assert begun.producer == NEXT
    for name in ("EndTxn 5, commit", "EndTxn 5, abort"):
        assert answer(REQUESTS[name], begun, RAN_OUT) == "PF"
    for name in ("EndTxn 0-4, commit", "AddPartitionsToTxn"):
        assert answer(REQUESTS[name], begun, RAN_OUT) == "IPM"


def test_no_producer_gets_the_epoch_that_is_kept_for_fencing() -> None:
    """What a producer may do after its transaction timed out under the last epoch."""
    done = complete_transaction(fence(ran_out(), 30, FRESH), 40)
    assert done.producer == NEXT
    assert answer(ending(TRANSACTION_V2, commit=False), done, RAN_OUT) == "-"
    assert answer(ending(TRANSACTION_V2, commit=True), done, RAN_OUT) == "ITS"

    def begun(expected: ProducerIdAndEpoch | None) -> ProducerIdAndEpoch:
        return begin_producer(
            done, timeout_ms=100, expected=expected, fresh_producer_id=None, now_ms=50
        ).producer

    assert begun(RAN_OUT) == NEXT
    assert begun(None) == (FRESH, 1)
    for other in (PID - 1, PID + 2):
        stranger = ProducerIdAndEpoch(other, EPOCH_EXHAUSTED)
        assert answer(beginning, done, stranger) == "PF"


def test_record_of_an_older_version_under_the_last_epoch_of_all() -> None:
    """An older version ended a transaction that timed out under the last epoch without a new id."""
    last = EPOCH_EXHAUSTED + 1
    fenced = replace(known_in(S.COMPLETE_ABORT), producer_epoch=last)
    fenced = replace(fenced, last_producer_epoch=EPOCH_EXHAUSTED)
    for name in ("EndTxn 5, commit", "EndTxn 5, abort", "InitProducerId"):
        assert answer(REQUESTS[name], fenced, RAN_OUT) == "PF"
    assert answer(beginning, fenced, None) == "new"
    # A producer was given this epoch, and writes under it.
    aborted = fence(replace(known_in(S.ONGOING), producer_epoch=last), 30, FRESH)
    assert aborted.producer == (PID, last)
    assert complete_transaction(aborted, 40).producer == NEXT
