"""Reads the configuration of a topic or a broker with one DescribeConfigs request, with the sources
that `kafka-configs.sh --describe --all` shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.client.cluster_client import ClusterClient
from isotherm.client.node_address import NodeAddress
from isotherm.errors import RejectedError
from isotherm.protocol.api_keys import ApiKey
from isotherm.protocol.code_names import code_name

_CONFIGS_VERSION = 4
_OLDEST_VERSION = 1  # the first with sources
# Kafka's ConfigEntry.ConfigSource, as DescribeConfigsResponse numbers them.
_SOURCES = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
    7: "CLIENT_METRICS_CONFIG",
    8: "GROUP_CONFIG",
}
DEFAULT_SOURCE = "DEFAULT_CONFIG"


class ResourceType(IntEnum):
    """Kafka's ConfigResource.Type."""

    TOPIC = 2
    BROKER = 4


@dataclass(frozen=True, slots=True)
class Setting:
    """A key of a configuration. `value` is None if it is sensitive or has no value. `default_value`
    is what holds without the setting; None if it is unknown."""

    name: str
    value: str | None
    source: str
    default_value: str | None
    is_sensitive: bool
    is_read_only: bool

    @property
    def is_default(self) -> bool:
        return self.source == DEFAULT_SOURCE


def read_settings(
    client: ClusterClient, kind: ResourceType, name: str, address: NodeAddress | None = None
) -> list[Setting]:
    """The configuration of a resource: what was set for it alone first, then what was set for the
    brokers, and the defaults last.

    A broker's configuration is asked of the broker itself, at `address`. Raises as
    `ClusterClient.ask`, and RejectedError if the broker refuses.
    """
    fields = {
        "resources": [{"resource_type": kind, "resource_name": name, "configuration_keys": None}],
        "include_synonyms": True,
    }
    versions = {"newest": _CONFIGS_VERSION, "oldest": _OLDEST_VERSION}
    key = ApiKey.DESCRIBE_CONFIGS
    answer = (
        client.ask_any(key, fields, **versions)
        if address is None
        else client.ask(address, key, fields, **versions)
    )
    (result,) = answer.results
    if result.error_code is not ErrorCode.none:
        raise RejectedError(
            f"a broker does not show a configuration {kind.name.lower()}={name}"
            f" reason={code_name(result.error_code)} message={result.error_message or ''!r}"
        )
    return sorted(
        map(_setting, result.configs), key=lambda setting: (_rank(setting.source), setting.name)
    )


def _rank(source: str) -> int:
    """The place of a source in Kafka's order of precedence. Sources that this module does not know
    come before the defaults."""
    order = list(_SOURCES.values())
    order.remove(DEFAULT_SOURCE)
    return len(order) + 1 if source == DEFAULT_SOURCE else [*order, source].index(source)


def _setting(entry: Any) -> Setting:
    return Setting(
        name=entry.name,
        # Kafka sends null for sensitive values; another server may not.
        value=None if entry.is_sensitive else entry.value,
        source=_SOURCES.get(entry.config_source, "UNKNOWN"),
        default_value=None if entry.is_sensitive else _below(entry.synonyms),
        is_sensitive=entry.is_sensitive,
        is_read_only=entry.read_only,
    )


def _below(synonyms: Iterable[Any]) -> str | None:
    """The default among the synonyms of a key, which are all its values in the order of their
    precedence."""
    defaults = [
        synonym.value for synonym in synonyms if _SOURCES.get(synonym.source) == DEFAULT_SOURCE
    ]
    return defaults[-1] if defaults else None
