"""Applies a configuration that is read again while the broker runs.

Only keys that Kafka can change at run time take effect. The others keep their values from the
start, and are named, so that the operator knows the changes of the next start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from isotherm.config.broker import BrokerConfig
from isotherm.config.definition import ConfigKey, config_keys
from isotherm.config.dynamic import (
    CONFIG_GROUPS,
    dynamic_broker_keys,
    is_dynamic_listener_key,
)
from isotherm.config.security import is_listener_key
from isotherm.config.topic import TopicConfig


class ReloadedConfig(NamedTuple):
    """`config` is the running configuration with the keys `applied` changed. The keys
    `need_restart` differ too, but are not changed."""

    config: BrokerConfig
    applied: tuple[str, ...]
    need_restart: tuple[str, ...]


class _Changed(NamedTuple):
    """A key whose value differs. `name` is its broker-level name."""

    group: str
    field_name: str
    declared: ConfigKey
    name: str
    value: Any


def reload_config(running: BrokerConfig, reread: BrokerConfig) -> ReloadedConfig:
    """Compare two configurations, and apply the changes that may be. Both must be results of
    `parse_broker_config`, without values that were set while running."""
    changed = list(_changed_keys(running, reread))
    applied = [setting for setting in changed if setting.name in dynamic_broker_keys()]
    by_group: dict[str, dict[str, Any]] = {}
    for setting in applied:
        by_group.setdefault(setting.group, {})[setting.field_name] = setting.value
    own = by_group.pop("", {})
    groups = {
        group: replace(getattr(running, group), **fields) for group, fields in by_group.items()
    }
    explicit = _explicit_texts(running.explicit, reread.explicit, applied)
    of_listeners = _changed_listener_keys(running, reread)
    at_once = {name for name in of_listeners if is_dynamic_listener_key(name)}
    applied_names = tuple(sorted({setting.name for setting in applied} | at_once))
    unapplied = ({setting.name for setting in changed} | of_listeners) - set(applied_names)
    return ReloadedConfig(
        replace(running, **own, **groups, explicit=explicit),
        applied_names,
        tuple(sorted(unapplied | _changed_plugin_keys(running, reread))),
    )


def _changed_keys(running: BrokerConfig, reread: BrokerConfig) -> Iterator[_Changed]:
    for group, config_class in (*CONFIG_GROUPS.items(), ("topic_defaults", TopicConfig)):
        before = getattr(running, group) if group else running
        after = getattr(reread, group) if group else reread
        for field_name, declared in config_keys(config_class).values():
            value = getattr(after, field_name)
            if value != getattr(before, field_name):
                name = declared.name
                if config_class is TopicConfig and declared.synonyms:
                    name = declared.synonyms[0].name
                yield _Changed(group, field_name, declared, name, value)


def _changed_plugin_keys(running: BrokerConfig, reread: BrokerConfig) -> set[str]:
    """The changed keys of the remote tier's plug-ins. They need a restart, because a plug-in is
    configured only once."""
    changed: set[str] = set()
    for prefix, before, after in (
        (
            running.remote.remote_log_storage_manager_impl_prefix,
            running.remote.rsm_config,
            reread.remote.rsm_config,
        ),
        (
            running.remote.remote_log_metadata_manager_impl_prefix,
            running.remote.rlmm_config,
            reread.remote.rlmm_config,
        ),
    ):
        names = before.keys() | after.keys()
        changed |= {prefix + name for name in names if before.get(name) != after.get(name)}
    return changed


def _changed_listener_keys(running: BrokerConfig, reread: BrokerConfig) -> set[str]:
    before, after = running.explicit, reread.explicit
    return {
        name
        for name in before.keys() | after.keys()
        if (is_listener_key(name) or is_dynamic_listener_key(name))
        and before.get(name) != after.get(name)
    }


def _explicit_texts(
    running: Mapping[str, str], reread: Mapping[str, str], applied: list[_Changed]
) -> dict[str, str]:
    """The explicit texts of the result. Those of applied keys (by any of their names) and of
    dynamic keys of listeners are the new ones, all others the old ones."""
    names = {
        name
        for setting in applied
        for name in (
            setting.declared.name,
            *(synonym.name for synonym in setting.declared.synonyms),
        )
    }

    def is_applied(name: str) -> bool:
        return name in names or is_dynamic_listener_key(name)

    kept = {name: text for name, text in running.items() if not is_applied(name)}
    return kept | {name: text for name, text in reread.items() if is_applied(name)}
