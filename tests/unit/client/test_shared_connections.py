"""Threads share one connection to each node, which follows the node's address."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from isotherm.client.node_connection import served_versions
from isotherm.client.shared_connections import SharedConnection, SharedConnections
from isotherm.errors import PeerDisconnectedError
from isotherm.protocol.api_keys import ApiKey, VersionRange
from tests.support.scripted_peer import ScriptedPeer

GUARD_S = 300
FETCH_ROW = {"api_key": ApiKey.FETCH, "min_version": 4, "max_version": 17}

Answer = Callable[[Any], Mapping[str, Any] | None]
NewPeer = Callable[[Answer], ScriptedPeer]


def rows(request: Any) -> Mapping[str, Any]:
    del request
    return {"api_keys": [FETCH_ROW]}


@pytest.fixture
def new_peer() -> Iterator[NewPeer]:
    peers: list[ScriptedPeer] = []

    def start(answer: Answer) -> ScriptedPeer:
        peers.append(ScriptedPeer(answer))
        return peers[-1]

    yield start
    for peer in peers:
        peer.stop()


@pytest.fixture
def connections() -> Iterator[SharedConnections[str]]:
    opened = SharedConnections[str](client_id="test", request_timeout_s=GUARD_S)
    yield opened
    opened.close()


def versions(shared: SharedConnection) -> Mapping[int, VersionRange]:
    with shared.lock:
        return served_versions(shared.connection)


def test_node_at_the_same_address_keeps_its_connection(
    connections: SharedConnections[str], new_peer: NewPeer
) -> None:
    peer = new_peer(rows)
    shared = connections.to("one", peer.address)
    assert versions(shared) == {ApiKey.FETCH: VersionRange(4, 17)}
    assert connections.to("one", peer.address) is shared
    assert connections.all == (shared,)


def test_node_at_another_address_ends_the_request_to_the_old_one(
    connections: SharedConnections[str], new_peer: NewPeer
) -> None:
    is_asked, may_answer = threading.Event(), threading.Event()
    failures: list[Exception] = []

    def silent(request: Any) -> None:
        del request
        is_asked.set()
        assert may_answer.wait(GUARD_S)

    def ask() -> None:
        try:
            versions(old)
        except PeerDisconnectedError as error:
            failures.append(error)

    old = connections.to("one", new_peer(silent).address)
    other = connections.to("other", new_peer(rows).address)
    asking = threading.Thread(target=ask)
    asking.start()
    assert is_asked.wait(GUARD_S)
    assert versions(other), "a silent node delays no other"
    new = connections.to("one", new_peer(rows).address)
    asking.join(GUARD_S)
    may_answer.set()
    assert len(failures) == 1
    assert versions(new)
    assert connections.all == (new, other)


def test_close_ends_every_connection_and_refuses_new_ones(
    connections: SharedConnections[str], new_peer: NewPeer
) -> None:
    peer = new_peer(rows)
    before = connections.to("one", peer.address)
    assert versions(before)
    connections.close()
    for shared in (before, connections.to("another", peer.address)):
        with pytest.raises(PeerDisconnectedError):
            versions(shared)
    assert len(peer.requests) == 1
