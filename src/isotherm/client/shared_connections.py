"""One connection to each node, which the threads of a process share."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

from isotherm.client.node_address import NodeAddress
from isotherm.client.node_connection import NodeConnection
from isotherm.client.node_security import PLAINTEXT, NodeSecurity
from isotherm.protocol.api_keys import VersionRange

CONNECT_TIMEOUT_S = 30.0
RESPONSE_BYTES_MAX = 64 * 1024 * 1024

Node = TypeVar("Node", bound=Hashable)


class SharedConnection:
    """A connection. `lock` is held during a request, as only one can be in flight."""

    def __init__(self, connection: NodeConnection) -> None:
        self.connection = connection
        self.lock = threading.Lock()
        self.versions: Mapping[int, VersionRange] | None = None
        """The node's API versions by key; None before a user of the connection has set them."""


class SharedConnections(Generic[Node]):
    """Thread-safe. Requests to different nodes do not wait for each other."""

    def __init__(
        self, *, client_id: str, request_timeout_s: float, security: NodeSecurity = PLAINTEXT
    ) -> None:
        self._client_id = client_id
        self._request_timeout_s = request_timeout_s
        self._security = security
        self._by_node: dict[Node, SharedConnection] = {}
        self._guard = threading.Lock()
        self._is_closed = False

    @property
    def all(self) -> tuple[SharedConnection, ...]:
        """The connections so far, in the order of the nodes' first use."""
        with self._guard:
            return tuple(self._by_node.values())

    def to(self, node: Node, address: NodeAddress) -> SharedConnection:
        """The node's connection, which opens at its first request. If the node has another address
        now, requests to the old one fail with PeerDisconnectedError."""
        with self._guard:
            shared = self._by_node.get(node)
            if shared is not None and shared.connection.address == address:
                return shared
            if shared is not None:
                shared.connection.close()
            connection = NodeConnection(
                address,
                client_id=self._client_id,
                connect_timeout_s=CONNECT_TIMEOUT_S,
                request_timeout_s=self._request_timeout_s,
                response_bytes_max=RESPONSE_BYTES_MAX,
                security=self._security,
            )
            if self._is_closed:
                connection.close()
            shared = self._by_node[node] = SharedConnection(connection)
            return shared

    def close(self) -> None:
        """End the requests in flight, and refuse later ones, with PeerDisconnectedError."""
        with self._guard:
            self._is_closed = True
            connections = tuple(self._by_node.values())
        # Without their locks: a request in flight holds its lock until this ends it.
        for connection in connections:
            connection.connection.close()
