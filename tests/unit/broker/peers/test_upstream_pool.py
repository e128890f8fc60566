"""What the clients of a read replica make it ask of its cluster: bounds, and where it begins."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from isotherm.broker.apis import upstream_groups
from isotherm.broker.peers import tail_reader, upstream_client
from isotherm.broker.peers.upstream_client import UpstreamClient, UpstreamPool
from isotherm.client.cluster_client import ClusterClient
from isotherm.protocol.api_keys import ApiKey
from tests.support.scripted_peer import ScriptedPeer


class _Client:
    """In place of ClusterClient: it connects to nothing."""

    made = 0

    def __init__(self, properties: object, *, client_id: str, request_timeout_s: float) -> None:
        type(self).made += 1
        self.closed = False

    def close(self) -> None:
        self.closed = True


class _Upstream:
    def properties_now(self) -> dict[str, str]:
        return {}


def test_requests_above_the_bound_wait_and_clients_are_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upstream_client, "ClusterClient", _Client)
    monkeypatch.setattr(_Client, "made", 0)
    pool = UpstreamPool(_Upstream(), "test", 2)  # type: ignore[arg-type]
    at_once, most = 0, 0
    guard, both = threading.Lock(), threading.Barrier(2)

    def ask(client: object) -> object:
        nonlocal at_once, most
        with guard:
            at_once += 1
            most = max(most, at_once)
        # Two are asked at the same time, and no third one.
        both.wait(300)
        with guard:
            at_once -= 1
        return client

    async def all_of_them() -> list[object]:
        return await asyncio.gather(*(pool.run(ask) for _ in range(6)))

    clients = asyncio.run(all_of_them())
    pool.close()
    assert most == 2
    assert _Client.made == len(set(clients)) == 2
    assert all(each.closed for each in clients if isinstance(each, _Client))


def test_a_new_client_begins_at_a_broker_that_is_there() -> None:
    def answer(request: Any) -> Mapping[str, Any]:
        if request.__api_key__ == ApiKey.API_VERSIONS:
            row = {"api_key": ApiKey.METADATA, "min_version": 4, "max_version": 4}
            return {"api_keys": [row]}
        return {"cluster_id": "c"}

    def ask(client: ClusterClient) -> str:
        fields = {"topics": (), "allow_auto_topic_creation": False}
        return str(client.ask_any(ApiKey.METADATA, fields, newest=4).cluster_id)

    named, other = ScriptedPeer(answer), ScriptedPeer(answer)
    upstream = UpstreamClient({"bootstrap.servers": str(named.address)})
    upstream.addresses = {1: named.address, 2: other.address}
    pool = UpstreamPool(upstream, "test", 1)
    named.stop()
    try:
        assert asyncio.run(pool.run(ask)) == "c"
    finally:
        pool.close()
        other.stop()


def test_bounds_are_those_of_the_page() -> None:
    assert (tail_reader.TAIL_FETCHES_MAX, tail_reader.TAIL_BYTES_MAX) == (64, 8 * 1024 * 1024)
    assert (upstream_groups.JOINS_MAX, upstream_groups.REQUESTS_MAX) == (256, 32)
    assert upstream_groups.COORDINATORS_MAX == 10_000
