"""Computes the settings after a change of a topic's or the broker's configuration. Pure.

Source: KIP-339; Kafka ConfigurationControlManager.incrementalAlterConfigResource and
LogConfig.validateRemoteStorageOnlyIfSystemEnabled.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from isotherm.broker.metadata.image import ConfigResource
from isotherm.broker.metadata.metadata_records import CLIENT_METRICS_RESOURCE, GROUP_RESOURCE
from isotherm.config.broker import BrokerConfig
from isotherm.config.client_metrics import ClientMetricsConfig
from isotherm.config.definition import config_keys
from isotherm.config.dynamic import dynamic_broker_keys, dynamic_text
from isotherm.config.groups import GroupConfig, GroupLevelConfig
from isotherm.config.server_properties import takes_effect_at_a_start
from isotherm.config.topic import TopicConfig
from isotherm.errors import ConfigError, InvalidRequestError


class ConfigOperation(enum.IntEnum):
    """Kafka's AlterConfigOp.OpType, with the numbers of the protocol."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    name: str
    operation: ConfigOperation
    value: str | None


def changed_texts(
    current: Mapping[str, str],
    changes: Sequence[ConfigChange],
    list_in_effect: Callable[[str], str | None],
) -> dict[str, str | None]:
    """The changed keys with their new texts; None for a key that returns to its default.

    `list_in_effect` returns the text that APPEND and SUBTRACT start from if the resource does not
    set the key; None if the key is not a list.
    """
    if len({change.name for change in changes}) != len(changes):
        raise InvalidRequestError("one key is changed twice in one request")
    return {change.name: _changed_text(current, change, list_in_effect) for change in changes}


def replacing_changes(
    current: Mapping[str, str], texts: Mapping[str, str | None]
) -> list[ConfigChange]:
    """The changes that leave a resource with exactly these settings (AlterConfigs)."""
    changes = [ConfigChange(name, ConfigOperation.SET, text) for name, text in texts.items()]
    return changes + [
        ConfigChange(name, ConfigOperation.DELETE, None) for name in current if name not in texts
    ]


def _changed_text(
    current: Mapping[str, str],
    change: ConfigChange,
    list_in_effect: Callable[[str], str | None],
) -> str | None:
    if change.operation is ConfigOperation.DELETE:
        return None
    if change.value is None:
        raise InvalidRequestError(f"a setting has no value key={change.name}")
    if change.operation is ConfigOperation.SET:
        return change.value
    in_effect = list_in_effect(change.name)
    if in_effect is None:
        raise ConfigError(f"only a list can be appended to or subtracted from key={change.name}")
    return _changed_list(current.get(change.name, in_effect), change)


def _changed_list(text: str, change: ConfigChange) -> str:
    items = [item for item in text.split(",") if item]
    named = [item.strip() for item in (change.value or "").split(",") if item.strip()]
    if change.operation is ConfigOperation.APPEND:
        items += [item for item in named if item not in items]
    else:
        items = [item for item in items if item not in named]
    return ",".join(items)


def topic_list_in_effect(name: str, config: TopicConfig) -> str | None:
    declared = config_keys(TopicConfig).get(name)
    if declared is None or declared[1].type.name != "LIST":
        return None
    field_name, key = declared
    return key.format(getattr(config, field_name))


def broker_list_in_effect(name: str, config: BrokerConfig) -> str | None:
    broker_key = dynamic_broker_keys().get(name)
    if broker_key is None or broker_key.declared.type.name != "LIST":
        return None
    return dynamic_text(config, name)


def check_are_dynamic(changes: Sequence[ConfigChange]) -> None:
    """Raise InvalidRequestError for keys to be set that take effect only at a start. Keys that no
    broker has are stored, as in Kafka: a tool that sets them goes on. Any key may be deleted:
    controllers take every key from a client that reaches them without a broker."""
    fixed = [
        change.name
        for change in changes
        if change.operation is not ConfigOperation.DELETE
        and change.name not in dynamic_broker_keys()
        and takes_effect_at_a_start(change.name)
    ]
    if fixed:
        raise InvalidRequestError(
            f"Cannot update these configs dynamically: [{', '.join(sorted(fixed))}]"
        )


def check_remote_storage_change(old: TopicConfig, new: TopicConfig, *, topic: str) -> None:
    """Refuse to turn tiering off if remote segments would stay without being visible (KIP-950)."""
    turned_off = old.remote_storage_enable and not new.remote_storage_enable
    if turned_off and not new.remote_log_delete_on_disable:
        raise ConfigError(
            "remote.storage.enable can be turned off only with remote.log.delete.on.disable=true"
            f" topic={topic}"
        )


_RESOURCE_CLASSES: Mapping[int, type] = {
    GROUP_RESOURCE: GroupLevelConfig,
    CLIENT_METRICS_RESOURCE: ClientMetricsConfig,
}


def changed_resource(
    resource: ConfigResource,
    current: Mapping[str, str],
    changes: Sequence[ConfigChange],
    broker: GroupConfig,
) -> dict[str, str | None]:
    """The changed keys of a group or a client metrics subscription with their new texts; None for
    a key that returns to its default.

    The error codes are Kafka's. Source: KIP-848, KIP-714; Kafka ConfigurationControlManager,
    GroupConfig.validate, ClientMetricsConfigs.validate.
    """
    if not resource.name:
        raise InvalidRequestError(f"a resource has no name resource_type={resource.resource_type}")
    keys = config_keys(_RESOURCE_CLASSES[resource.resource_type])

    def list_in_effect(name: str) -> str | None:
        declared = keys[name][1] if name in keys else None
        is_list = declared is not None and declared.type.name == "LIST"
        return current.get(name, "") if is_list else None

    changed = changed_texts(current, changes, list_in_effect)
    _check_resource(
        {key: text for key, text in {**current, **changed}.items() if text}, resource, broker
    )
    return {key: text for key, text in changed.items() if current.get(key) != text}


def _check_resource(
    texts: Mapping[str, str], resource: ConfigResource, broker: GroupConfig
) -> None:
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
