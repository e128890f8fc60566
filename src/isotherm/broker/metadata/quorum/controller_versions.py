"""The API versions that the active controller serves. They limit the versions of forwarded requests
that clients may use. Source: Kafka ForwardingManager.controllerApiVersions.
"""

from __future__ import annotations

from collections.abc import Mapping

from isotherm.client.node_connection import NodeConnection
from isotherm.protocol.api_keys import ApiKey, VersionRange, request_class
from isotherm.protocol.entities import entity_of

# Every KRaft controller serves this version.
_VERSION = 2


class ControllerVersions:
    """Learned on the first connection for forwarding, and on each later one: the controller may
    differ.
    """

    def __init__(self) -> None:
        self.known: Mapping[int, VersionRange] | None = None
        """Version ranges by API key; None before the first connection. `learn` replaces the
        mapping, so any thread may read it."""

    def learn(self, connection: NodeConnection) -> None:
        """Request the versions. Raises what `NodeConnection.send` raises."""
        response = connection.send(entity_of(request_class(ApiKey.API_VERSIONS, _VERSION), {}))
        self.known = {
            int(each.api_key): VersionRange(int(each.min_version), int(each.max_version))
            for each in response.api_keys
        }
