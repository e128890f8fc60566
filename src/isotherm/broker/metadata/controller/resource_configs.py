"""The rules for settings of groups and of client metrics subscriptions. Pure.

The error codes are Kafka's. Source: KIP-848, KIP-714; Kafka ConfigurationControlManager,
GroupConfig.validate, ClientMetricsConfigs.validate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isotherm.broker.metadata.controller.config_changes import ConfigChange, changed_texts
from isotherm.broker.metadata.image import ConfigResource
from isotherm.broker.metadata.metadata_records import CLIENT_METRICS_RESOURCE, GROUP_RESOURCE
from isotherm.config.client_metrics import ClientMetricsConfig
from isotherm.config.definition import config_keys
from isotherm.config.groups import GroupConfig, GroupLevelConfig
from isotherm.errors import ConfigError, InvalidRequestError

_CLASSES: Mapping[int, type] = {
    GROUP_RESOURCE: GroupLevelConfig,
    CLIENT_METRICS_RESOURCE: ClientMetricsConfig,
}


def changed_resource(
    resource: ConfigResource,
    current: Mapping[str, str],
    changes: Sequence[ConfigChange],
    broker: GroupConfig,
) -> dict[str, str | None]:
    """The changed keys with their new texts; None for a key that returns to its default."""
    if not resource.name:
        raise InvalidRequestError(f"a resource has no name resource_type={resource.resource_type}")
    keys = config_keys(_CLASSES[resource.resource_type])

    def list_in_effect(name: str) -> str | None:
        declared = keys[name][1] if name in keys else None
        is_list = declared is not None and declared.type.name == "LIST"
        return current.get(name, "") if is_list else None

    changed = changed_texts(current, changes, list_in_effect)
    _check({key: text for key, text in {**current, **changed}.items() if text}, resource, broker)
    return {key: text for key, text in changed.items() if current.get(key) != text}


def _check(texts: Mapping[str, str], resource: ConfigResource, broker: GroupConfig) -> None:
    if resource.resource_type == GROUP_RESOURCE:
        GroupLevelConfig.parse(texts, broker).check(broker, texts)
        return
    try:
        ClientMetricsConfig.parse(texts)
    except ConfigError as error:
        # Kafka answers INVALID_CONFIG for an illegal pattern, and INVALID_REQUEST for
        # any other illegal setting.
        if "match" in texts and "configuration match:" in str(error):
            raise
        raise InvalidRequestError(str(error)) from error
