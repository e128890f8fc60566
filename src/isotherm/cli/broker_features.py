"""Reads and sets features of a cluster.

It uses its own connection, because librdkafka has no call for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeAlias

from kio.schema.errors import ErrorCode

from isotherm.client.cluster_client import ClusterClient
from isotherm.errors import InvalidUpdateVersionError, UnsupportedVersionError
from isotherm.protocol.api_keys import ApiKey
from isotherm.protocol.code_names import code_name

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
    properties = {"bootstrap.servers": bootstrap_server, **client}
    with closing(ClusterClient(properties)) as cluster:
        try:
            return cluster.ask_any(api_key, fields, newest=version, oldest=version)
        except UnsupportedVersionError:
            return None
