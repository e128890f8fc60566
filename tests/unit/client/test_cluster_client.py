"""Which brokers are asked for what any of them can answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from isotherm.client.cluster_client import ClusterClient
from isotherm.errors import BrokerUnreachableError, PeerDisconnectedError
from isotherm.protocol.api_keys import ApiKey
from tests.support.scripted_peer import ScriptedPeer

METADATA_ROW = {"api_key": ApiKey.METADATA, "min_version": 4, "max_version": 4}
ABOUT_BROKERS = {"topics": (), "allow_auto_topic_creation": False}


class Broker:
    """A broker that closes connections while it is not `well`."""

    def __init__(self, cluster_id: str) -> None:
        self.well = True
        self._cluster_id = cluster_id
        self._peer = ScriptedPeer(self._answer)
        self.address = self._peer.address
        self.stop: Callable[[], None] = self._peer.stop

    def _answer(self, request: Any) -> Mapping[str, Any] | None:
        if not self.well:
            return None
        if request.__api_key__ == ApiKey.API_VERSIONS:
            return {"api_keys": [METADATA_ROW]}
        return {"cluster_id": self._cluster_id}


@pytest.fixture
def brokers() -> Iterator[tuple[Broker, Broker]]:
    both = Broker("named"), Broker("found")
    yield both
    for broker in both:
        broker.stop()


def test_a_broker_that_was_found_is_asked_again_after_an_error(
    brokers: tuple[Broker, Broker],
) -> None:
    named, found = brokers
    client = ClusterClient({"bootstrap.servers": str(named.address)})

    def ask_any() -> str:
        return str(client.ask_any(ApiKey.METADATA, ABOUT_BROKERS, newest=4).cluster_id)

    assert ask_any() == "named"
    client.ask(found.address, ApiKey.METADATA, ABOUT_BROKERS, newest=4)
    named.well = False
    assert ask_any() == "found"
    found.well = False
    with pytest.raises(BrokerUnreachableError, match=str(found.address)):
        ask_any()
    with pytest.raises(PeerDisconnectedError):
        client.ask(found.address, ApiKey.METADATA, ABOUT_BROKERS, newest=4)
    found.well = True
    assert ask_any() == "found"
    client.close()
