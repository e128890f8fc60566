"""The broker's keys that can be changed while it runs, and the configuration they make.

A topic's key is set for all topics by its first synonym (log.retention.ms, as in Kafka, not
log.retention.hours). Keys and certificates are set for one listener of one broker, limits of connections
also for a listener of all brokers. Where a key is set in several places, that of one broker wins over that of
all brokers, and both win over the file. Source: KIP-226, Kafka DynamicBrokerConfig.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from isotherm.config.broker import BrokerConfig
from isotherm.config.cleaner import CleanerConfig
from isotherm.config.definition import ConfigKey, config_keys
from isotherm.config.groups import GroupConfig
from isotherm.config.listener_limits import LISTENER_LIMITS, split_listener_limit
from isotherm.config.quorum import QuorumConfig
from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.config.replication import ReplicationConfig
from isotherm.config.security import SecurityConfig, split_key_material
from isotherm.config.topic import TopicConfig
from isotherm.config.transactions import TransactionConfig
from isotherm.errors import ConfigError


class DynamicKey(NamedTuple):
    """Where a key's value is: `group` is the field of BrokerConfig, "" for its own keys. `listener` is the
    one that it is set for."""

    group: str
    field_name: str
    declared: ConfigKey
    listener: str | None = None


class DynamicKeys(Mapping[str, DynamicKey]):
    """Lists the keys of the whole broker, and knows those of any listener as well."""

    def __init__(self, keys: Mapping[str, DynamicKey]) -> None:
        self._keys = keys

    def __getitem__(self, name: str) -> DynamicKey:
        found = self._keys.get(name)
        if found is not None:
            return found
        for group, config_class, split_name in _KEYS_OF_LISTENERS:
            split = split_name(name)
            if split is not None:
                listener, base_name = split
                field_name, declared = config_keys(config_class)[base_name]
                return DynamicKey(group, field_name, replace(declared, name=name), listener)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


_KEYS_OF_LISTENERS: tuple[tuple[str, type, Callable[[str], tuple[str, str] | None]], ...] = (
    ("security", SecurityConfig, split_key_material),
    ("", BrokerConfig, split_listener_limit),
)

# The keys of BrokerConfig by its fields that hold groups of them; "" for its own.
CONFIG_GROUPS: Mapping[str, type] = {
    "": BrokerConfig,
    "remote": RemoteLogManagerConfig,
    "groups": GroupConfig,
    "transactions": TransactionConfig,
    "replication": ReplicationConfig,
    "cleaner": CleanerConfig,
    "quorum": QuorumConfig,
    "security": SecurityConfig,
}


@functools.cache
def dynamic_broker_keys() -> DynamicKeys:
    keys = {
        declared.name: DynamicKey(group, field_name, declared)
        for group, config_class in CONFIG_GROUPS.items()
        for field_name, declared in config_keys(config_class).values()
        if declared.dynamic
    }
    for field_name, declared in config_keys(TopicConfig).values():
        if declared.dynamic and declared.synonyms:
            keys[declared.synonyms[0].name] = DynamicKey("topic_defaults", field_name, declared)
    return DynamicKeys(keys)


def with_dynamic_texts(
    config: BrokerConfig, *, for_all: Mapping[str, str], for_this: Mapping[str, str]
) -> BrokerConfig:
    """The file's `config` with what was set for all brokers, and for this one, while running.

    Every key must be one of `dynamic_broker_keys`. ConfigError names the key that is wrong.
    """
    keys = dynamic_broker_keys()
    by_group: dict[str, dict[str, Any]] = {}
    for name, text in {**for_all, **for_this}.items():
        group, field_name, declared, listener = keys[name]
        value = declared.parse(text)
        # Those of listeners are looked up where they are used: BrokerConfig.security_of, limits_of.
        if listener is None:
            by_group.setdefault(group, {})[field_name] = value
    own = by_group.pop("", {})
    changed = {
        group: replace(getattr(config, group), **fields) for group, fields in by_group.items()
    }
    return replace(
        config,
        **own,
        **changed,
        dynamic_for_all=dict(for_all),
        dynamic_for_this=dict(for_this),
    )


def check_for_all(names: Iterable[str]) -> None:
    """ConfigError, in Kafka's words, for keys that are set for one broker alone."""
    of_listeners = sorted(name for name in names if split_key_material(name) is not None)
    if of_listeners:
        raise ConfigError(
            "Cannot update these configs at default cluster level, broker id must be specified:"
            f" {of_listeners}"
        )


def check_connection_limits(texts: Mapping[str, str | None]) -> None:
    """ConfigError, in Kafka's words, for a limit of connections that a file may have and a change may not."""
    for name, text in texts.items():
        _, base_name = split_listener_limit(name) or ("", name)
        if base_name in LISTENER_LIMITS and text is not None:
            value = dynamic_broker_keys()[name].declared.parse(text)
            if value <= 0:
                raise ConfigError(f"Invalid {base_name} {value}")


def check_thread_pools(running: BrokerConfig, changed: BrokerConfig) -> None:
    """ConfigError when a pool would shrink below half of what it is, or grow beyond double; in
    Kafka's words, which tools look for. Source: Kafka DynamicThreadPool, DynamicRemoteLogConfig."""
    for name, found in dynamic_broker_keys().items():
        if not found.declared.thread_pool:
            continue
        old, new = _value(running, found), _value(changed, found)
        refused = f"Dynamic thread count update validation failed for {name}={new}, value should"
        if new < old // 2:
            raise ConfigError(f"{refused} be at least half the current value {old}")
        if new > old * 2:
            raise ConfigError(f"{refused} not be greater than double the current value {old}")


def is_dynamic_listener_key(name: str) -> bool:
    """Whether the key is one that is set for a listener, and holds at once."""
    found = dynamic_broker_keys().get(name)
    return found is not None and found.listener is not None


def dynamic_text(config: BrokerConfig, name: str) -> str:
    """The text of the value that a dynamic key has in `config`."""
    found = dynamic_broker_keys()[name]
    return found.declared.format(_value(config, found))


def _value(config: BrokerConfig, found: DynamicKey) -> Any:
    if found.listener is not None:
        split = split_listener_limit(found.declared.name)
        if split is not None:
            return config.limits_of(found.listener)[split[1]]
        return getattr(config.security_of(found.listener), found.field_name)
    holder = getattr(config, found.group) if found.group else config
    return getattr(holder, found.field_name)
