"""Sends requests that librdkafka lacks to the brokers of any Kafka cluster: blocking, one at a time
for each broker.

Each broker is asked once for the API versions that it serves. A request has the newest version that
both sides know.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from isotherm.client.broker_probe import check_brokers
from isotherm.client.node_address import NodeAddress, bootstrap_addresses
from isotherm.client.node_connection import NodeConnection
from isotherm.client.node_security import node_security
from isotherm.config.client_security import librdkafka_properties
from isotherm.errors import BrokerUnreachableError, RetriableError, UnsupportedVersionError
from isotherm.protocol.api_keys import ApiKey, VersionRange, api_name, request_class
from isotherm.protocol.entities import entity_of

CONNECT_TIMEOUT_S = 30.0
REQUEST_TIMEOUT_S = 60.0
RESPONSE_BYTES_MAX = 64 * 1024 * 1024


class _Node:
    """A connection, which `lock` gives to one thread at a time. `served` are its broker's API
    versions, None before they are known."""

    def __init__(self, connection: NodeConnection) -> None:
        self.connection = connection
        self.lock = threading.Lock()
        self.served: dict[int, VersionRange] | None = None


class ClusterClient:
    """A client of one cluster. Thread-safe: requests to the same broker wait for one another."""

    def __init__(self, properties: Mapping[str, Any], *, client_id: str = "isotherm") -> None:
        """`properties` are Kafka's or librdkafka's client properties, including
        `bootstrap.servers`.

        Raises BrokerUnreachableError if no broker answers, and ConfigError.
        """
        translated = librdkafka_properties(properties)
        check_brokers(translated)
        self._client_id = client_id
        self._security = node_security(translated)
        self._bootstrap = bootstrap_addresses(translated["bootstrap.servers"])
        self._nodes: dict[NodeAddress, _Node] = {}
        self._guard = threading.Lock()

    def ask(
        self,
        address: NodeAddress,
        key: ApiKey,
        fields: Mapping[str, Any],
        *,
        newest: int,
        oldest: int = 0,
    ) -> Any:
        """The response to a request of the newest version that the broker serves, from `oldest` to
        `newest`.

        Raises PeerDisconnectedError, PeerTimeoutError, and UnsupportedVersionError if the broker
        serves none of these versions.
        """
        node = self._node(address)
        with node.lock:
            try:
                if node.served is None:
                    node.served = _served(node.connection)
                version = _version(node.served, key, VersionRange(oldest, newest), address)
                return node.connection.send(entity_of(request_class(key, version), fields))
            except RetriableError:
                # After a restart the broker may be of another release: ask for its versions again.
                node.served = None
                raise

    def ask_any(
        self, key: ApiKey, fields: Mapping[str, Any], *, newest: int, oldest: int = 0
    ) -> Any:
        """The response of the first broker that answers. Brokers that answered before are tried
        first. A broker that was lost may have processed the request.

        Raises BrokerUnreachableError, which names the reason of each broker, and
        UnsupportedVersionError as `ask`.
        """
        with self._guard:
            known = [address for address, node in self._nodes.items() if node.served is not None]
        reasons = []
        for address in dict.fromkeys([*known, *self._bootstrap]):
            try:
                return self.ask(address, key, fields, newest=newest, oldest=oldest)
            except RetriableError as error:
                reasons.append(str(error))
        raise BrokerUnreachableError(f"no broker answers: {'; '.join(reasons)}")

    def close(self) -> None:
        """Close the connections, which ends the requests on them."""
        with self._guard:
            nodes = tuple(self._nodes.values())
        for node in nodes:
            node.connection.close()

    def _node(self, address: NodeAddress) -> _Node:
        with self._guard:
            if address not in self._nodes:
                self._nodes[address] = _Node(
                    NodeConnection(
                        address,
                        client_id=self._client_id,
                        connect_timeout_s=CONNECT_TIMEOUT_S,
                        request_timeout_s=REQUEST_TIMEOUT_S,
                        response_bytes_max=RESPONSE_BYTES_MAX,
                        security=self._security,
                    )
                )
            return self._nodes[address]


def _served(connection: NodeConnection) -> dict[int, VersionRange]:
    answer = connection.send(request_class(ApiKey.API_VERSIONS, 0)())
    return {
        int(each.api_key): VersionRange(int(each.min_version), int(each.max_version))
        for each in answer.api_keys
    }


def _version(
    served: Mapping[int, VersionRange], key: ApiKey, wanted: VersionRange, address: NodeAddress
) -> int:
    found = served.get(key)
    if found is None or found.min > wanted.max or found.max < wanted.min:
        shown = "none" if found is None else f"{found.min}-{found.max}"
        raise UnsupportedVersionError(
            f"a broker does not support a required API peer={address} api={api_name(key)}"
            f" versions={wanted.min}-{wanted.max} served={shown}"
        )
    return min(wanted.max, found.max)
