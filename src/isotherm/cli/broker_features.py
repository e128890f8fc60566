"""Reads and sets features of a cluster.

It uses its own connection, because librdkafka has no call for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from kio.schema.errors import ErrorCode

from isotherm.cli.client import REQUEST_TIMEOUT_S
from isotherm.client import node_exchange
from isotherm.client.broker_probe import check_brokers
from isotherm.client.node_address import bootstrap_addresses
from isotherm.client.node_exchange import UnsupportedApiVersionError, connected
from isotherm.client.node_security import node_security
from isotherm.config.client_security import librdkafka_properties
from isotherm.errors import BrokerUnreachableError, InvalidUpdateVersionError
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.code_names import code_name
from isotherm.protocol.entities import entity_of
from isotherm.protocol.errors import ProtocolError

Fields: TypeAlias = "Mapping[str, Any]"

# In older versions the response lacks features at level 0.
_API_VERSIONS_VERSION = 4
_UPDATE_FEATURES_VERSION = 1
_UPGRADE = 1


@dataclass(frozen=True, slots=True)
class Features:
    """The features of a broker:

    `supported` has the highest level of each, `levels` the active ones.
    """

    supported: Mapping[str, int]
    levels: Mapping[str, int]


def read_features(bootstrap_server: str, client: Mapping[str, str]) -> Features:
    """The features of the cluster. Empty if the broker does not support this version of the
    request. `client` has client properties. Raises BrokerUnreachableError."""
    answer = _ask(
        bootstrap_server,
        client,
        ApiKey.API_VERSIONS,
        _API_VERSIONS_VERSION,
        {"client_software_name": "isotherm", "client_software_version": "cli"},
    )
    if answer is None:
        return Features({}, {})
    return Features(
        {feature.name: feature.max_version for feature in answer.supported_features},
        {feature.name: feature.max_version_level for feature in answer.finalized_features},
    )


def raise_feature(bootstrap_server: str, client: Mapping[str, str], name: str, level: int) -> None:
    """Set a feature to a level, durably on return. Does nothing if the level is already set.

    Raises InvalidUpdateVersionError if the cluster refuses, and BrokerUnreachableError.
    """
    update = {"feature": name, "max_version_level": level, "upgrade_type": _UPGRADE}
    answer = _ask(
        bootstrap_server,
        client,
        ApiKey.UPDATE_FEATURES,
        _UPDATE_FEATURES_VERSION,
        {"feature_updates": [update], "validate_only": False},
    )
    code = ErrorCode.unsupported_version if answer is None else answer.error_code
    if code is not ErrorCode.none:
        message = "" if answer is None else answer.error_message
        raise InvalidUpdateVersionError(
            f"the cluster refuses the feature's level feature={name} level={level}"
            f" error={code_name(code)} message={message!r}"
        )


def _ask(
    bootstrap_server: str, client: Mapping[str, str], api_key: ApiKey, version: int, fields: Fields
) -> Any | None:
    """Send a request, and return the answer. None if the broker does not support this version."""
    properties = librdkafka_properties({"bootstrap.servers": bootstrap_server, **client})
    check_brokers(properties)
    request = entity_of(request_class(api_key, version), fields)
    address = bootstrap_addresses(bootstrap_server)[0]
    try:
        with connected(address, node_security(properties), REQUEST_TIMEOUT_S) as stream:
            return node_exchange.ask(stream, request)
    except UnsupportedApiVersionError:
        return None
    except (OSError, ProtocolError) as error:
        raise BrokerUnreachableError(
            f"the broker does not answer bootstrap-server={bootstrap_server} reason={str(error)!r}"
        ) from error
