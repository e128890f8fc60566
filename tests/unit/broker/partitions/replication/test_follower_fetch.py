"""The follower's decisions on a fetch response. The cases are those of Kafka's
AbstractFetcherThreadTest and AbstractFetcherThread."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from isotherm.broker.partitions.replication.follower_fetch import (
    FetchState,
    Reaction,
    Reset,
    ResetAct,
    first_fetch,
    may_restart_inside_batch,
    plan_reset,
    react,
    truncation_offset,
)
from isotherm.log.leader_epoch_cache import UNDEFINED_EPOCH_END
from isotherm.log.leader_epoch_cache import EpochEndOffset as LocalEpochEnd
from isotherm.protocol.fetch import EpochEndOffset, FetchPartition, FetchPartitionResponse

NOW = 1_000_000
STATE = FetchState(leader_epoch=5, fetch_offset=30, last_fetched_epoch=4, lag=7)
ASKED = STATE.request(0, log_start_offset=2, max_bytes=1000)


def answer(error: int = 0, **more: Any) -> FetchPartitionResponse:
    return FetchPartitionResponse(0, error, 40, 40, 2, **more)


def test_request_has_offset_epochs_and_log_start() -> None:
    assert FetchPartition(0, 30, 1000, 5, 4, 2) == ASKED


@pytest.mark.parametrize(
    ("latest_epoch", "state", "truncate_to"),
    [
        (3, FetchState(5, 30, 3), None),
        # Kafka truncates a log without epochs to the high watermark.
        (None, FetchState(5, 20, -1), 20),
    ],
)
def test_first_fetch_of_an_epoch(
    latest_epoch: int | None, state: FetchState, truncate_to: int | None
) -> None:
    first = first_fetch(5, log_end_offset=30, high_watermark=20, latest_epoch=latest_epoch)
    assert first == (state, truncate_to)
    assert state.is_ready(0)
    assert not state.is_in_sync


def test_empty_log_is_fetched_from_its_end_without_an_epoch() -> None:
    first = first_fetch(0, log_end_offset=0, high_watermark=0, latest_epoch=None)
    assert first == (FetchState(0, 0, -1), None)


ERRORS = {
    ErrorCode.offset_out_of_range: Reaction.RESET,
    ErrorCode.offset_moved_to_tiered_storage: Reaction.BUILD_FROM_TIER,
    ErrorCode.fenced_leader_epoch: Reaction.FAIL,
    ErrorCode.unknown_leader_epoch: Reaction.BACK_OFF,
    ErrorCode.not_leader_or_follower: Reaction.BACK_OFF,
    ErrorCode.unknown_topic_or_partition: Reaction.BACK_OFF,
    ErrorCode.unknown_topic_id: Reaction.BACK_OFF,
    ErrorCode.inconsistent_topic_id: Reaction.BACK_OFF,
    ErrorCode.kafka_storage_error: Reaction.BACK_OFF,
    ErrorCode.unknown_server_error: Reaction.BACK_OFF,
    ErrorCode.cluster_authorization_failed: Reaction.BACK_OFF,
    ErrorCode.none: Reaction.APPEND,
}


@pytest.mark.parametrize(("error", "reaction"), [*ERRORS.items(), (9999, Reaction.BACK_OFF)])
def test_reaction_to_each_error(error: int, reaction: Reaction) -> None:
    assert react(STATE, ASKED, answer(error), NOW) is reaction


def test_diverging_epoch_truncates_and_its_default_does_not() -> None:
    diverging = answer(diverging_epoch=EpochEndOffset(3, 20))
    assert react(STATE, ASKED, diverging, NOW) is Reaction.TRUNCATE
    default = answer(diverging_epoch=EpochEndOffset(-1, -1))
    assert react(STATE, ASKED, default, NOW) is Reaction.APPEND


@pytest.mark.parametrize(
    ("state", "asked"),
    [
        (None, ASKED),
        (STATE, None),
        (STATE._replace(fetch_offset=31), ASKED),
        (STATE._replace(leader_epoch=6), ASKED),
        (STATE._replace(delayed_until_ms=NOW + 1), ASKED),
    ],
    ids=["removed", "not asked", "other offset", "other epoch", "delayed"],
)
@pytest.mark.parametrize("error", [ErrorCode.none, ErrorCode.fenced_leader_epoch])
def test_answer_for_another_state_is_ignored(
    state: FetchState | None, asked: FetchPartition | None, error: ErrorCode
) -> None:
    assert react(state, asked, answer(error), NOW) is Reaction.IGNORE


def test_back_off_is_not_prolonged_by_another() -> None:
    delayed = STATE.delayed(NOW, 1000)
    assert delayed == STATE._replace(delayed_until_ms=NOW + 1000)
    assert delayed.delayed(NOW + 400, 1000) == delayed
    assert not delayed.is_ready(NOW + 999)
    assert delayed.is_ready(NOW + 1000)


@pytest.mark.parametrize(
    ("end", "last_epoch", "high_watermark", "state", "in_sync"),
    [
        (35, 5, 40, FetchState(5, 35, 5, 5), False),
        (40, 5, 40, FetchState(5, 40, 5, 0), True),
        (41, 5, 40, FetchState(5, 41, 5, 0), True),
        (30, -1, 30, FetchState(5, 30, 4, 0), True),
    ],
    ids=["behind", "at the end", "beyond", "nothing"],
)
def test_append_moves_the_offset_and_ends_a_back_off(
    end: int, last_epoch: int, high_watermark: int, state: FetchState, in_sync: bool
) -> None:
    found = STATE._replace(delayed_until_ms=3).appended(end, last_epoch, high_watermark)
    assert (found, found.is_in_sync) == (state, in_sync)


def epochs(*entries: tuple[int, int], end: int) -> Any:
    """A follower's `end_offset_for`, written from the definition of an epoch cache."""

    def end_offset_for(epoch: int) -> LocalEpochEnd:
        known = [entry for entry in entries if entry[0] <= epoch]
        later = [entry for entry in entries if entry[0] > epoch]
        if not entries or epoch > entries[-1][0]:
            return UNDEFINED_EPOCH_END
        found = known[-1][0] if known else epoch
        return LocalEpochEnd(found, later[0][1] if later else end)

    return end_offset_for


@pytest.mark.parametrize(
    ("own", "leader", "expected"),
    [
        # Both have the epoch: the lower end.
        ([(0, 0), (2, 10)], (2, 15), 15),
        ([(0, 0), (2, 10)], (2, 40), 30),
        ([(0, 0), (2, 10), (4, 20)], (2, 15), 15),
        ([(0, 0), (2, 10), (4, 20)], (2, 25), 20),
        # The follower lacks the leader's epoch: truncate to the end of its own next lower one, and
        # ask again.
        ([(0, 0), (2, 10), (4, 20)], (3, 18), 20),
        ([(0, 0), (4, 12)], (2, 18), 12),
        # The leader's epoch is above all of the follower's.
        ([(0, 0), (2, 10)], (3, 18), 18),
        ([(0, 0), (2, 10)], (3, 99), 30),
        ([], (3, 18), 18),
        # The leader gives no offset: the fetch offset.
        ([(0, 0), (2, 10)], (2, -1), 30),
    ],
)
def test_truncation_offset(
    own: list[tuple[int, int]], leader: tuple[int, int], expected: int
) -> None:
    found = truncation_offset(
        EpochEndOffset(*leader), epochs(*own, end=30), log_end_offset=30, fetch_offset=30
    )
    assert found == expected


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """The record epochs of a follower and of its leader, which have a common prefix."""
    shared = sorted(draw(st.lists(st.integers(0, 4), max_size=6)))
    lowest = shared[-1] if shared else 0
    own = sorted(draw(st.lists(st.sampled_from([lowest, 5, 7, 9]), max_size=6)))
    # No two leaders have the same epoch, so the logs have no common epoch behind the prefix.
    leader = sorted(draw(st.lists(st.sampled_from([6, 8, 10]), max_size=6)))
    return shared + own, shared + leader


@given(histories())
def test_rounds_of_truncation_end_where_the_histories_part(
    logs: tuple[list[int], list[int]],
) -> None:
    """Each round asks with the follower's last epoch and truncates, until the leader finds no
    divergence."""
    own, leader = logs
    for _ in range(20):
        end = len(own)
        if not own:
            break
        found = end_of(leader, own[-1])
        if found is None or (found.epoch == own[-1] and found.end_offset >= end):
            break
        starts = [(e, own.index(e)) for e in sorted(set(own))]
        offset = truncation_offset(
            found, epochs(*starts, end=end), log_end_offset=end, fetch_offset=end
        )
        assert offset < end
        own = own[:offset]
    found = end_of(leader, own[-1]) if own else None
    if found is not None:
        assert own == leader[: len(own)]


def end_of(log: list[int], epoch: int) -> EpochEndOffset | None:
    """The answer of a leader with these records. None if the epoch is above all of its own."""
    if not log or epoch > log[-1]:
        return None
    below = [each for each in log if each <= epoch]
    return EpochEndOffset(below[-1] if below else epoch, len(below))


@pytest.mark.parametrize(
    ("leader_end", "leader_start", "own_end", "expected"),
    [
        (20, None, 30, Reset(ResetAct.TRUNCATE, 20, 0)),
        (20, 25, 30, Reset(ResetAct.TRUNCATE, 20, 0)),
        (50, None, 30, None),
        (50, 40, 30, Reset(ResetAct.BEGIN_ANEW, 40, 10)),
        (50, 30, 30, Reset(ResetAct.GO_ON, 30, 20)),
        (50, 10, 30, Reset(ResetAct.GO_ON, 30, 20)),
        (30, 10, 30, Reset(ResetAct.GO_ON, 30, 0)),
    ],
)
def test_reset_after_out_of_range(
    leader_end: int, leader_start: int | None, own_end: int, expected: Reset | None
) -> None:
    assert plan_reset(leader_end, leader_start, own_end) == expected


@pytest.mark.parametrize(
    ("first", "last", "start", "end", "expected"),
    [
        (3, 9, 5, 5, True),
        (3, 5, 5, 5, True),
        (3, 4, 5, 5, False),
        (3, 3, 5, 5, False),
        (5, 9, 5, 5, False),
        (3, 9, 4, 5, False),
    ],
)
def test_only_an_empty_log_begins_anew_within_a_batch(
    first: int, last: int, start: int, end: int, expected: bool
) -> None:
    assert expected is may_restart_inside_batch(
        first_offset=first, last_offset=last, log_start_offset=start, log_end_offset=end
    )
