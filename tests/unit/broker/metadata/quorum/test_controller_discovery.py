"""Discovery of the active controller.

The answers are those of a quorum of three Kafka 4.3.1 controllers while its leader was killed.
"""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.quorum.controller_discovery import (
    LeaderHint,
    QuorumLeader,
    Verdict,
    learn,
    next_to_ask,
)
from isotherm.client.node_address import NodeAddress
from isotherm.errors import CorruptMetadataError, InvalidRequestError

A, B = NodeAddress("a", 1), NodeAddress("b", 2)
UNKNOWN = QuorumLeader(0)
FIRST = QuorumLeader(1, 101, A)
NOT_LEADER = ErrorCode.not_leader_or_follower
FENCED, AHEAD = ErrorCode.fenced_leader_epoch, ErrorCode.unknown_leader_epoch


def hint(error: ErrorCode, leader_id: int, epoch: int, **addresses: NodeAddress) -> LeaderHint:
    return LeaderHint(
        error, leader_id, epoch, {int(name[1:]): address for name, address in addresses.items()}
    )


@pytest.mark.parametrize(
    ("known", "answer", "leader", "verdict"),
    [
        pytest.param(
            UNKNOWN, hint(FENCED, 101, 1, n101=A), FIRST, Verdict.ASK_AGAIN, id="first answer"
        ),
        pytest.param(
            FIRST, hint(NOT_LEADER, 101, 1, n101=A), FIRST, Verdict.ASK_AGAIN, id="not the leader"
        ),
        pytest.param(FIRST, hint(ErrorCode.none, 101, 1, n101=A), FIRST, Verdict.USE, id="data"),
        pytest.param(
            QuorumLeader(1),
            hint(ErrorCode.none, 101, 1, n101=A),
            FIRST,
            Verdict.USE,
            id="data with the leader",
        ),
        pytest.param(FIRST, hint(FENCED, -1, 2), QuorumLeader(2), Verdict.BACK_OFF, id="election"),
        pytest.param(
            QuorumLeader(2),
            hint(FENCED, 102, 3, n102=B),
            QuorumLeader(3, 102, B),
            Verdict.ASK_AGAIN,
            id="epoch left out",
        ),
        pytest.param(
            QuorumLeader(3, 102, B),
            hint(NOT_LEADER, 101, 1, n101=A),
            QuorumLeader(3, 102, B),
            Verdict.BACK_OFF,
            id="node that has not heard",
        ),
        pytest.param(
            QuorumLeader(9, 102, B),
            hint(AHEAD, 101, 1, n101=A),
            QuorumLeader(9, 102, B),
            Verdict.BACK_OFF,
            id="epoch too high",
        ),
        pytest.param(
            QuorumLeader(1),
            hint(NOT_LEADER, -1, 1),
            QuorumLeader(1),
            Verdict.BACK_OFF,
            id="still no leader",
        ),
        pytest.param(
            UNKNOWN,
            hint(ErrorCode.none, 101, 1),
            QuorumLeader(1, 101),
            Verdict.ASK_AGAIN,
            id="leader without an address",
        ),
        pytest.param(
            FIRST,
            hint(ErrorCode.broker_not_available, 101, 1),
            FIRST,
            Verdict.BACK_OFF,
            id="shutting down",
        ),
        pytest.param(
            FIRST,
            hint(ErrorCode.unknown_server_error, -1, -1),
            FIRST,
            Verdict.BACK_OFF,
            id="error of the whole request",
        ),
    ],
)
def test_answer_tells_the_leader(known, answer, leader, verdict):
    assert learn(known, answer) == (leader, verdict)


def test_address_of_a_voter_comes_from_the_configuration():
    hinted = hint(FENCED, 102, 3)
    assert learn(FIRST, hinted, {102: B}).leader == QuorumLeader(3, 102, B)


def test_two_leaders_of_one_epoch_are_an_error():
    with pytest.raises(CorruptMetadataError, match="leaders=101,102"):
        learn(FIRST, hint(ErrorCode.none, 102, 1, n102=B))


def test_request_that_is_invalid_is_a_bug():
    with pytest.raises(InvalidRequestError):
        learn(FIRST, hint(ErrorCode.invalid_request, 101, 1))


def test_leader_is_asked_or_any_of_the_bootstrap_servers(rng_of_choices):
    assert next_to_ask(FIRST, [B], rng_of_choices) == A
    assert next_to_ask(QuorumLeader(2, 102), [A, B], rng_of_choices) == B


@pytest.fixture
def rng_of_choices():
    class LastOne:
        def choice(self, items):
            return items[-1]

    return LastOne()
