"""Each anomaly, planted in a history that is clean without it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from isotherm.types import TopicPartition
from tests.support.correctness.checker import check, check_copies
from tests.support.correctness.history import (
    UNREADABLE_VALUE,
    Isolation,
    Kind,
    MicroOperation,
    Operation,
    Outcome,
    Poll,
    Read,
    Send,
)

P0 = TopicPartition("events", 0)
P1 = TopicPartition("events", 1)
OK, FAIL, UNKNOWN = Outcome.OK, Outcome.FAIL, Outcome.UNKNOWN
UNCOMMITTED = Isolation.READ_UNCOMMITTED
WRITER, READER, OTHER = 1, 2, 3


def send(*sends: Send, outcome: Outcome = OK, process: int = WRITER) -> Operation:
    return Operation(process, Kind.SEND, outcome, sends)


def txn(
    *steps: MicroOperation,
    outcome: Outcome = OK,
    process: int = WRITER,
    commit_invoked_s: float | None = None,
) -> Operation:
    return Operation(process, Kind.TXN, outcome, steps, commit_invoked_s=commit_invoked_s)


def reads(*found: tuple[int, int], partition: TopicPartition = P0) -> Poll:
    """A poll of (offset, value) pairs."""
    return Poll(tuple(Read(partition, offset, value) for offset, value in found))


def poll(
    *polls: Poll,
    process: int = READER,
    isolation: Isolation = Isolation.READ_COMMITTED,
    completed_s: float = 0.0,
) -> Operation:
    return Operation(process, Kind.POLL, OK, polls, isolation=isolation, completed_s=completed_s)


def assign(positions: Mapping[TopicPartition, int], process: int = READER) -> Operation:
    return Operation(process, Kind.ASSIGN, OK, positions=positions)


def subscribe(process: int = READER) -> Operation:
    return Operation(process, Kind.SUBSCRIBE, OK)


def names(*operations: Operation) -> list[str]:
    return sorted({anomaly.name for anomaly in check(operations)})


THREE_SENDS = (send(Send(P0, 10, 0), Send(P0, 11, 1)), send(Send(P0, 12, 2)))


def test_clean_history_has_no_anomaly() -> None:
    assert (
        names(
            *THREE_SENDS,
            txn(Send(P0, 13, 3), Send(P1, 14, 0), outcome=FAIL),
            # Offset 4 of P0 and offset 1 of P1 hold the markers of the abort.
            txn(Send(P0, 15, 5), Send(P1, 16, 2)),
            send(Send(P1, 17), outcome=UNKNOWN),
            assign({P0: 0, P1: 0}),
            poll(reads((0, 10), (1, 11))),
            poll(reads((2, 12), (5, 15)), reads((2, 16), (4, 17), partition=P1)),
            assign({P0: 0}, OTHER),
            poll(
                reads((0, 10), (1, 11), (2, 12), (3, 13), (5, 15)),
                process=OTHER,
                isolation=UNCOMMITTED,
            ),
        )
        == []
    )


def test_two_values_at_one_offset() -> None:
    operations = (*THREE_SENDS, poll(reads((0, 10), (1, 11), (2, 12))))
    wrong = poll(reads((0, 10), (1, 11), (2, 11)), process=OTHER)
    assert names(*operations) == []
    assert "inconsistent-offsets" in names(*operations, wrong)


def test_value_at_two_offsets_is_a_duplicate() -> None:
    assert names(*THREE_SENDS, poll(reads((0, 10), (1, 11), (2, 12), (3, 12)))) == ["duplicate"]


def test_value_read_elsewhere_than_acknowledged_is_a_duplicate() -> None:
    assert "duplicate" in names(send(Send(P0, 10, 0)), poll(reads((1, 10))))


def test_copy_written_again_after_an_abort_is_no_duplicate() -> None:
    operations = [
        txn(Send(P0, 10, 0), outcome=FAIL),
        txn(Send(P0, 10, 2)),
        poll(reads((2, 10))),
        poll(reads((0, 10), (2, 10)), process=OTHER, isolation=UNCOMMITTED),
    ]
    assert names(*operations) == []
    assert "G1a" in names(*operations, poll(reads((0, 10)), process=4))
    assert "duplicate" in names(*operations, poll(reads((2, 10), (4, 10)), process=4))


def test_acknowledged_write_that_others_read_past_is_lost() -> None:
    assert names(*THREE_SENDS, poll(reads((0, 10))), poll(reads((2, 12)))) == [
        "lost-write",
        "poll-skip",
    ]


def test_acknowledged_write_that_nobody_reached_is_unseen() -> None:
    assert names(*THREE_SENDS, poll(reads((0, 10), (1, 11)))) == ["unseen"]


def test_committed_write_seen_by_read_uncommitted_alone_is_lost() -> None:
    operations = [txn(Send(P0, 10, 0)), send(Send(P0, 11, 2)), poll(reads((2, 11)))]
    dirty = poll(reads((0, 10), (2, 11)), process=OTHER, isolation=UNCOMMITTED)
    assert "lost-write" in names(*operations, dirty)


def test_transaction_of_unknown_end_that_tears_loses_a_write() -> None:
    torn = txn(Send(P0, 10, 0), Send(P1, 11, 0), outcome=UNKNOWN)
    after = send(Send(P1, 12, 1))
    assert names(torn, after, poll(reads((1, 12), partition=P1))) == []
    assert "lost-write" in names(torn, after, poll(reads((0, 10)), reads((1, 12), partition=P1)))


@pytest.mark.parametrize("isolation", Isolation)
def test_refused_record_that_is_read_is_an_aborted_read(isolation: Isolation) -> None:
    refused = send(Send(P0, 10), outcome=FAIL)
    assert names(refused, poll(reads((0, 10)), isolation=isolation)) == ["G1a"]


def test_aborted_record_is_for_read_uncommitted_alone() -> None:
    aborted = txn(Send(P0, 10, 0), outcome=FAIL)
    assert names(aborted, poll(reads((0, 10)), isolation=UNCOMMITTED)) == []
    assert names(aborted, poll(reads((0, 10)))) == ["G1a"]


def test_transaction_that_reads_its_own_write() -> None:
    assert names(txn(Send(P0, 10, 0), reads((0, 10)))) == ["precommitted-read"]


def test_record_read_before_its_commit_was_asked_for() -> None:
    committed = txn(Send(P0, 10, 0), commit_invoked_s=5.0)
    assert names(committed, poll(reads((0, 10)), completed_s=6.0)) == []
    assert names(committed, poll(reads((0, 10)), completed_s=4.0)) == ["early-read"]


def test_value_that_nobody_wrote() -> None:
    assert names(poll(reads((0, 99)))) == ["unwritten-read"]
    assert "unwritten-read" in names(
        *THREE_SENDS,
        poll(reads((3, UNREADABLE_VALUE))),
        poll(reads((0, 10), (1, 11), (2, 12)), process=OTHER),
    )


SEEN = poll(reads((0, 10), (1, 11), (2, 12)), process=9)


@pytest.mark.parametrize("first", [assign({P0: 0}), subscribe()])
def test_skip_inside_a_poll(first: Operation) -> None:
    skipping = poll(reads((0, 10), (2, 12)))
    assert names(*THREE_SENDS, SEEN, first, skipping) == ["int-poll-skip"]


@pytest.mark.parametrize("first", [assign({P0: 0}), subscribe()])
@pytest.mark.parametrize("second", [0, 1])
def test_step_back_inside_a_poll(first: Operation, second: int) -> None:
    back = poll(reads((0, 10), (1, 11)), reads((second, 10 + second), (2, 12)))
    found = names(*THREE_SENDS, SEEN, first, back)
    assert "int-nonmonotonic-poll" in found


def test_skip_between_polls_is_for_subscribed_consumers_alone() -> None:
    polls = [poll(reads((0, 10))), poll(reads((2, 12)))]
    assert names(*THREE_SENDS, SEEN, subscribe(), *polls) == []
    assert names(*THREE_SENDS, SEEN, assign({P0: 0}), *polls) == ["poll-skip"]


def test_step_back_between_polls_is_for_subscribed_consumers_alone() -> None:
    polls = [poll(reads((0, 10), (1, 11))), poll(reads((1, 11), (2, 12)))]
    assert names(*THREE_SENDS, SEEN, subscribe(), *polls) == []
    assert names(*THREE_SENDS, SEEN, assign({P0: 0}), *polls) == ["nonmonotonic-poll"]


def test_first_poll_is_held_against_the_assigned_position() -> None:
    late, early = assign({P0: 2}), assign({P0: 0})
    assert names(*THREE_SENDS, SEEN, late, poll(reads((2, 12)))) == []
    assert names(*THREE_SENDS, SEEN, early, poll(reads((2, 12)))) == ["poll-skip"]
    assert names(*THREE_SENDS, SEEN, late, poll(reads((1, 11), (2, 12)))) == ["nonmonotonic-poll"]


def test_read_committed_may_skip_what_was_not_committed() -> None:
    aborted = txn(Send(P0, 13, 3), outcome=FAIL)
    rest = send(Send(P0, 14, 5), process=OTHER)
    polls = [poll(reads((0, 10), (1, 11), (2, 12))), poll(reads((5, 14)))]
    everything = poll(reads((3, 13)), process=9, isolation=UNCOMMITTED)
    assert names(*THREE_SENDS, aborted, rest, *polls, assign({P0: 3}, 9), everything) == []


def test_read_uncommitted_may_not_skip_an_aborted_record_that_others_read() -> None:
    aborted = txn(Send(P0, 13, 1), outcome=FAIL)
    around = [send(Send(P0, 10, 0), process=OTHER), send(Send(P0, 14, 3), process=OTHER)]
    one = poll(reads((0, 10), (1, 13), (3, 14)), process=8, isolation=UNCOMMITTED)
    two = poll(reads((0, 10), (3, 14)), process=9, isolation=UNCOMMITTED)
    assert names(aborted, *around, one) == []
    assert names(aborted, *around, one, two) == ["int-poll-skip"]


def test_later_send_of_an_operation_with_a_lower_offset() -> None:
    wrong = send(Send(P0, 10, 1), Send(P0, 11, 0))
    assert names(wrong, poll(reads((0, 11), (1, 10)))) == ["int-nonmonotonic-send"]


def test_later_operation_with_a_lower_offset() -> None:
    first, second = send(Send(P0, 10, 1)), send(Send(P0, 11, 0))
    seen = poll(reads((0, 11), (1, 10)))
    assert names(first, second, seen) == ["nonmonotonic-send"]
    assert names(first, send(Send(P0, 11, 0), process=OTHER), seen) == []


def test_record_left_out_of_the_copies() -> None:
    copies = TopicPartition("copies", 0)
    operations = [
        *THREE_SENDS,
        SEEN,
        txn(Send(copies, 10, 0), Send(copies, 11, 1)),
        poll(reads((0, 10), (1, 11), partition=copies)),
        poll(reads((4, 12), partition=copies), process=OTHER, isolation=UNCOMMITTED),
    ]
    assert [found.detail for found in check_copies(operations, "events", "copies")] == [
        "value=12 from=events to=copies"
    ]
    assert (
        check_copies([*operations, poll(reads((6, 12), partition=copies))], "events", "copies")
        == []
    )


def test_offset_that_is_not_in_the_log_is_reported_once() -> None:
    lost = Operation(READER, Kind.POLL, OK, out_of_range=((P0, 1),))
    again = Operation(OTHER, Kind.POLL, OK, out_of_range=((P0, 1),))
    assert [each for each in check([lost, again]) if each.name == "out-of-range"] == [
        ("out-of-range", "events-0@1")
    ]


def test_what_expired_on_purpose_is_not_lost() -> None:
    history = [*THREE_SENDS, assign({P0: 2}), poll(reads((2, 12)))]
    assert {each.name for each in check(history)} == {"lost-write"}
    assert check(history, {P0: 2}) == []
    assert {each.name for each in check(history, {P0: 1})} == {"lost-write"}


def test_erased_record_may_be_missed_and_no_other() -> None:
    operations = (*THREE_SENDS, assign({P0: 0}), poll(reads((0, 10), (2, 12))))
    assert names(*operations) == ["int-poll-skip", "lost-write"]
    assert check(operations, erased={P0: {1: 11}}) == []
    assert {each.name for each in check(operations, erased={P0: {2: 12}, P1: {1: 11}})} == {
        "int-poll-skip"
    }
