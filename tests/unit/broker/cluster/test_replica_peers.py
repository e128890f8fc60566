"""Which replica a partition belongs to."""

from __future__ import annotations

import uuid

import pytest

from isotherm.broker.cluster.replica_peers import Peer, owner_of, parse_peers
from isotherm.client.node_address import NodeAddress
from isotherm.errors import ConfigError
from isotherm.types import TopicIdPartition

PLACES = [TopicIdPartition(uuid.UUID(int=7), "t", number) for number in range(300)]


def test_a_replica_that_leaves_moves_its_own_partitions_alone() -> None:
    before = {place: owner_of(place, (1, 2, 3)) for place in PLACES}
    after = {place: owner_of(place, (3, 1)) for place in PLACES}
    assert all(after[place] == owner for place, owner in before.items() if owner != 2)
    assert {after[place] for place, owner in before.items() if owner == 2} == {1, 3}
    # A fair share is 100; a hash that prefers one replica gives it far more.
    shares = [list(before.values()).count(replica) for replica in (1, 2, 3)]
    assert min(shares) > 60


def test_owner_does_not_depend_on_the_order_of_replicas() -> None:
    assert [owner_of(e, (1, 2, 3)) for e in PLACES] == [owner_of(e, (3, 2, 1)) for e in PLACES]


def test_peers_are_parsed() -> None:
    assert parse_peers("1=a:9192, 2=[::1]:9193@east") == {
        1: Peer(NodeAddress("a", 9192)),
        2: Peer(NodeAddress("::1", 9193), "east"),
    }


@pytest.mark.parametrize("text", ["a:9192", "x=a:9192", "1=a:9192,1=b:9192", "1=a:0", "1=a:9192@"])
def test_wrong_peers_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_peers(text)
