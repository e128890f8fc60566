"""Which versions of which APIs the active controller serves: a client may ask for no others of what is
passed on to it. Source: Kafka ForwardingManager.controllerApiVersions.
"""

from __future__ import annotations

from collections.abc import Mapping

from isotherm.broker.peers.peer_connection import PeerConnection
from isotherm.protocol.api_keys import ApiKey, VersionRange, request_class
from isotherm.protocol.entities import entity_of

# Every controller of KRaft serves it.
_VERSION = 2


class ControllerVersions:
    """Learnt when requests are first passed on, and again after each change of the controller."""

    def __init__(self) -> None:
        self.known: Mapping[int, VersionRange] | None = None
        """By API key. None before the first connection. Replaced as a whole, on any thread."""

    def learn(self, connection: PeerConnection) -> None:
        """Raises as `PeerConnection.send` does."""
        response = connection.send(entity_of(request_class(ApiKey.API_VERSIONS, _VERSION), {}))
        self.known = {
            int(each.api_key): VersionRange(int(each.min_version), int(each.max_version))
            for each in response.api_keys
        }
