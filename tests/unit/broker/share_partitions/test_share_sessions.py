"""Share sessions: epochs, what an answer has, and the bounds of the cache."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pytest

from isotherm.broker.coordinators.shares.share_state_records import SharePartitionKey
from isotherm.broker.share_partitions.share_sessions import (
    FINAL_EPOCH,
    MemberKey,
    ShareFetchContext,
    ShareSessionCache,
    next_epoch,
)
from isotherm.errors import (
    InvalidRequestError,
    InvalidShareSessionEpochError,
    ShareSessionLimitReachedError,
    ShareSessionNotFoundError,
)

MEMBER, OTHER = MemberKey("g", "m"), MemberKey("g", "o")
A, B, C = (SharePartitionKey("g", uuid.UUID(int=1), index) for index in range(3))


class Answer(NamedTuple):
    error_code: int = 0
    has_records: bool = False


def cache(sessions_max: int = 10, partitions_max: int = 100) -> ShareSessionCache:
    return ShareSessionCache(sessions_max=sessions_max, partitions_max=partitions_max)


def fetch(
    sessions: ShareSessionCache,
    epoch: int,
    *added: SharePartitionKey,
    member: MemberKey = MEMBER,
    forgotten: Iterable[SharePartitionKey] = (),
    connection: str = "connection",
    has_acknowledgements: bool = False,
) -> ShareFetchContext:
    return sessions.fetch(
        member,
        epoch,
        dict.fromkeys(added, "t"),
        forgotten,
        connection,
        has_acknowledgements=has_acknowledgements,
    )


def answered(
    context: ShareFetchContext, answers: Mapping[SharePartitionKey, Answer]
) -> list[SharePartitionKey]:
    return list(context.answered(answers))


def test_session_remembers_partitions_and_counts_epochs() -> None:
    sessions = cache()
    assert list(fetch(sessions, 0, A, B).partitions) == [A, B]
    assert list(fetch(sessions, 1).partitions) == [A, B]
    assert list(fetch(sessions, 2, C, forgotten=[A]).partitions) == [B, C]
    sessions.acknowledge(MEMBER, 3)
    assert list(fetch(sessions, 4).partitions) == [B, C]


def test_request_out_of_step_is_refused() -> None:
    sessions = cache()
    with pytest.raises(ShareSessionNotFoundError):
        fetch(sessions, 1)
    with pytest.raises(ShareSessionNotFoundError):
        fetch(sessions, FINAL_EPOCH)
    fetch(sessions, 0, A)
    for epoch in (2, 7):
        with pytest.raises(InvalidShareSessionEpochError):
            fetch(sessions, epoch)
        with pytest.raises(InvalidShareSessionEpochError):
            sessions.acknowledge(MEMBER, epoch)
    with pytest.raises(InvalidShareSessionEpochError):
        sessions.acknowledge(MEMBER, 0)
    with pytest.raises(InvalidRequestError):
        fetch(sessions, 0, A, has_acknowledgements=True)
    assert list(fetch(sessions, 1).partitions) == [A]


def test_answers_of_a_session_have_only_what_is_news() -> None:
    sessions = cache()
    first = fetch(sessions, 0, A, B)
    assert answered(first, {A: Answer(), B: Answer()}) == [A, B]
    second = fetch(sessions, 1, C)
    # C is new in the session.
    assert answered(second, dict.fromkeys((A, B, C), Answer())) == [C]
    third = fetch(sessions, 2)
    assert answered(third, {A: Answer(has_records=True), B: Answer(3), C: Answer()}) == [A, B]
    # A was read and comes last; the end of B's error is told.
    fourth = fetch(sessions, 3)
    assert list(fourth.partitions) == [B, C, A]
    assert answered(fourth, dict.fromkeys((A, B, C), Answer())) == [B]
    assert answered(fetch(sessions, 4), dict.fromkeys((A, B, C), Answer())) == []


def test_answer_to_an_overtaken_request_is_an_error() -> None:
    sessions = cache()
    fetch(sessions, 0, A)
    context = fetch(sessions, 1)
    fetch(sessions, 2)
    with pytest.raises(InvalidShareSessionEpochError):
        context.answered({A: Answer()})


def test_each_partition_is_first_in_turn() -> None:
    sessions = cache()
    assert fetch(sessions, 0, A, B, C).rotated() == [A, B, C]
    firsts = [fetch(sessions, epoch).rotated()[0] for epoch in range(1, 7)]
    assert firsts == [B, C, A] * 2


def test_cache_is_bounded_and_evicts_nobody() -> None:
    sessions = cache(sessions_max=1, partitions_max=2)
    fetch(sessions, 0, A)
    with pytest.raises(ShareSessionLimitReachedError):
        fetch(sessions, 0, B, member=OTHER)
    fetch(sessions, 0, A, B)  # the member's own session is replaced
    with pytest.raises(ShareSessionLimitReachedError):
        fetch(sessions, 1, C)
    assert (len(sessions), sessions.partition_count) == (0, 0)


def test_sessions_are_known_by_their_connection() -> None:
    sessions = cache()
    fetch(sessions, 0, A, connection="one")
    fetch(sessions, 0, B, member=OTHER, connection="one")
    assert set(sessions.of_connection("one")) == {MEMBER, OTHER}
    fetch(sessions, 0, A, connection="two")
    assert sessions.of_connection("one") == (OTHER,)
    assert tuple(sessions.remove(OTHER)) == (B,)
    assert sessions.of_connection("one") == ()
    assert sessions.has_members("g")
    sessions.remove(MEMBER)
    assert not sessions.has_members("g")
    assert sessions.partition_count == 0


def test_epochs_wrap_to_one() -> None:
    assert [next_epoch(epoch) for epoch in (0, 1, 2**31 - 1)] == [1, 2, 1]
