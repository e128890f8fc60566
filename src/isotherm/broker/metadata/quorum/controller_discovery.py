"""Learns the leader of the quorum from the answers to fetches of the metadata log. Pure.

Every answer names the leader that the answering node knows, with its epoch. The answering node may
be wrong; the highest epoch wins. Epochs may be skipped, and an epoch may have no leader for a
while.
Source: Kafka KafkaRaftClient.maybeHandleCommonResponse, RequestManager.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.client.node_address import NodeAddress
from isotherm.errors import CorruptMetadataError, InvalidRequestError


class QuorumLeader(NamedTuple):
    """`leader_id` is None while this node knows no leader of the epoch. `address` is None then, and
    also if no answer has named it."""

    epoch: int
    leader_id: int | None = None
    address: NodeAddress | None = None


class LeaderHint(NamedTuple):
    """The leader in an answer: its error, CurrentLeader (-1 for none), and NodeEndpoints by node
    id.
    """

    error: ErrorCode
    leader_id: int
    epoch: int
    addresses: Mapping[int, NodeAddress]


class Verdict(enum.Enum):
    USE = "the data of the answer counts"
    ASK_AGAIN = "the leader that is known now is asked"
    BACK_OFF = "the same again, but later"


class Learned(NamedTuple):
    leader: QuorumLeader
    verdict: Verdict


_OLDER_OR_OTHER = (ErrorCode.fenced_leader_epoch, ErrorCode.not_leader_or_follower)


def learn(
    current: QuorumLeader, hint: LeaderHint, voters: Mapping[int, NodeAddress] | None = None
) -> Learned:
    """The leader after an answer, and the use of the answer. `voters` has the addresses that
    controller.quorum.voters names.

    Raises InvalidRequestError if the answer calls the request invalid, which is a bug here, and
    CorruptMetadataError if an epoch has two leaders.
    """
    if hint.error == ErrorCode.invalid_request:
        raise InvalidRequestError("a controller rejects the fetch of the metadata log as invalid")
    if hint.error == ErrorCode.broker_not_available:
        return Learned(current, Verdict.BACK_OFF)
    if hint.epoch < current.epoch or hint.error == ErrorCode.unknown_leader_epoch:
        return Learned(current, Verdict.BACK_OFF)
    announced = _announced(hint, {**(voters or {}), **hint.addresses})
    if hint.epoch > current.epoch:
        return Learned(announced, _ask(announced))
    if announced.leader_id is None:
        return Learned(current, _verdict(hint, current))
    if current.leader_id not in (None, announced.leader_id):
        raise CorruptMetadataError(
            f"an epoch of the quorum has two leaders epoch={hint.epoch}"
            f" leaders={current.leader_id},{announced.leader_id}"
        )
    leader = announced if announced.address is not None or current.leader_id is None else current
    return Learned(leader, _verdict(hint, leader))


def _announced(hint: LeaderHint, addresses: Mapping[int, NodeAddress]) -> QuorumLeader:
    if hint.leader_id < 0:
        return QuorumLeader(hint.epoch)
    return QuorumLeader(hint.epoch, hint.leader_id, addresses.get(hint.leader_id))


def _verdict(hint: LeaderHint, leader: QuorumLeader) -> Verdict:
    if hint.error == ErrorCode.none:
        return Verdict.USE
    return _ask(leader) if hint.error in _OLDER_OR_OTHER else Verdict.BACK_OFF


def _ask(leader: QuorumLeader) -> Verdict:
    """Ask a known leader at once; back off while there is none, since an election takes time."""
    return Verdict.BACK_OFF if leader.leader_id is None else Verdict.ASK_AGAIN


def next_to_ask(
    leader: QuorumLeader, bootstrap: Sequence[NodeAddress], rng: random.Random
) -> NodeAddress:
    """The leader's address, or a random bootstrap controller while the leader is unknown."""
    return leader.address or rng.choice(bootstrap)
