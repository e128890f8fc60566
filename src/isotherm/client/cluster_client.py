"""Sends requests that librdkafka lacks to the brokers of any Kafka cluster: blocking, one at a time
for each broker.

Each broker is asked once for the API versions that it serves. A request has the newest version that
both sides know.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from isotherm.client.broker_probe import check_brokers
from isotherm.client.node_address import NodeAddress, bootstrap_addresses
from isotherm.client.node_connection import served_versions
from isotherm.client.node_security import node_security
from isotherm.client.shared_connections import SharedConnections
from isotherm.config.client_security import librdkafka_properties
from isotherm.errors import BrokerUnreachableError, RetriableError, UnsupportedVersionError
from isotherm.protocol.api_keys import ApiKey, VersionRange, api_name, request_class
from isotherm.protocol.entities import entity_of

REQUEST_TIMEOUT_S = 60.0


class ClusterClient:
    """A client of one cluster. Thread-safe: requests to the same broker wait for one another."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        *,
        client_id: str = "isotherm",
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        """`properties` are Kafka's or librdkafka's client properties, including
        `bootstrap.servers`.

        Raises BrokerUnreachableError if no broker answers, and ConfigError.
        """
        translated = librdkafka_properties(properties)
        check_brokers(translated)
        self._bootstrap = bootstrap_addresses(translated["bootstrap.servers"])
        self._connections = SharedConnections[NodeAddress](
            client_id=client_id,
            request_timeout_s=request_timeout_s,
            security=node_security(translated),
        )

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
        shared = self._connections.to(address, address)
        with shared.lock:
            try:
                if shared.versions is None:
                    shared.versions = served_versions(shared.connection)
                version = _version(shared.versions, key, VersionRange(oldest, newest), address)
                return shared.connection.send(entity_of(request_class(key, version), fields))
            except RetriableError:
                # After a restart the broker may be of another release: ask for its versions again.
                shared.versions = None
                raise

    def pass_on(self, address: NodeAddress, request: Any) -> Any:
        """The response to a request of another client, in its version. Raises as `ask`."""
        key, version = request.__api_key__, request.__version__
        return self.ask(address, ApiKey(key), _fields_of(request), newest=version, oldest=version)

    def pass_on_to_any(self, request: Any) -> Any:
        """As `pass_on`, to the first broker that answers. Raises as `ask_any`."""
        key, version = request.__api_key__, request.__version__
        return self.ask_any(ApiKey(key), _fields_of(request), newest=version, oldest=version)

    def ask_any(
        self, key: ApiKey, fields: Mapping[str, Any], *, newest: int, oldest: int = 0
    ) -> Any:
        """The response of the first broker that answers. Brokers that answered before are tried
        first, and those that were lost since are tried last. A broker that was lost may have
        processed the request.

        Raises BrokerUnreachableError, which names the reason of each broker, and
        UnsupportedVersionError as `ask`.
        """
        clients = self._connections.all
        answered = [client.connection.address for client in clients if client.versions is not None]
        # The bootstrap servers may be gone for good while the others come back.
        lost = [client.connection.address for client in clients if client.versions is None]
        reasons = []
        for address in dict.fromkeys([*answered, *self._bootstrap, *lost]):
            try:
                return self.ask(address, key, fields, newest=newest, oldest=oldest)
            except RetriableError as error:
                reasons.append(str(error))
        raise BrokerUnreachableError(f"no broker answers: {'; '.join(reasons)}")

    def close(self) -> None:
        """Close the connections, which ends the requests on them."""
        self._connections.close()


def _fields_of(request: Any) -> dict[str, Any]:
    return {field.name: getattr(request, field.name) for field in dataclasses.fields(request)}


def _version(
    served: Mapping[int, VersionRange], key: ApiKey, supported: VersionRange, address: NodeAddress
) -> int:
    offered = served.get(key)
    if offered is None or offered.min > supported.max or offered.max < supported.min:
        shown = "none" if offered is None else f"{offered.min}-{offered.max}"
        raise UnsupportedVersionError(
            f"a broker does not support a required API peer={address} api={api_name(key)}"
            f" versions={supported.min}-{supported.max} served={shown}"
        )
    return min(supported.max, offered.max)
