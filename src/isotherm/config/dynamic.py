"""The broker's keys that can be changed while it runs, and the configuration that results.

The default of a topic's key is set by its first synonym (log.retention.ms, as in Kafka, not
log.retention.hours). Private keys and certificates are set for one listener of one broker.
Connection limits may also be set for a listener of all brokers. A value for one broker overrides
that for all brokers, and both override the file. Source: KIP-226, Kafka DynamicBrokerConfig.
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
from isotherm.config.inert import PER_BROKER, InertConfig
from isotherm.config.quorum import QuorumConfig
from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.config.replication import ReplicationConfig
from isotherm.config.security import (
    LISTENER_LIMITS,
    SecurityConfig,
    split_key_material,
    split_listener_limit,
)
from isotherm.config.share_coordinator import ShareCoordinatorConfig
from isotherm.config.topic import TopicConfig
from isotherm.config.transactions import TransactionConfig
from isotherm.errors import ConfigError


class DynamicKey(NamedTuple):
    """The place of a key's value. `group` is a field of BrokerConfig, or "" for its own keys.
    `listener` is the listener that the key is set for, or None for the whole broker."""

    group: str
    field_name: str
    declared: ConfigKey
    listener: str | None = None


class DynamicKeys(Mapping[str, DynamicKey]):
    """The dynamic keys by name. Iteration gives only keys of the whole broker. A look-up also finds
    the keys of any listener, whose names are not known in advance."""

    def __init__(self, keys: Mapping[str, DynamicKey]) -> None:
        self._keys = keys

    def __getitem__(self, name: str) -> DynamicKey:
        dynamic_key = self._keys.get(name)
        if dynamic_key is not None:
            return dynamic_key
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

# The classes of BrokerConfig's groups of keys, by field. "" stands for its own keys.
CONFIG_GROUPS: Mapping[str, type] = {
    "": BrokerConfig,
    "remote": RemoteLogManagerConfig,
    "groups": GroupConfig,
    "transactions": TransactionConfig,
    "share_coordinator": ShareCoordinatorConfig,
    "replication": ReplicationConfig,
    "cleaner": CleanerConfig,
    "quorum": QuorumConfig,
    "security": SecurityConfig,
    "inert": InertConfig,
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
            first = declared.synonyms[0]
            keys[first.name] = DynamicKey("topic_defaults", field_name, declared.under(first))
    return DynamicKeys(keys)


def with_dynamic_texts(
    config: BrokerConfig, *, for_all: Mapping[str, str], for_this: Mapping[str, str]
) -> BrokerConfig:
    """The file's `config` with the values that were set while running, for all brokers and for this
    one.

    A key that is not in `dynamic_broker_keys` is kept, and changes nothing. Raises ConfigError,
    which names the key.
    """
    keys = dynamic_broker_keys()
    by_group: dict[str, dict[str, Any]] = {}
    for name, text in {**for_all, **for_this}.items():
        if name not in keys:
            continue
        group, field_name, declared, listener = keys[name]
        value = declared.parse(text)
        # The keys of listeners have no field. BrokerConfig.security_of and limits_of look them up.
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
    """Raise ConfigError, with Kafka's message, for keys that can be set for one broker only."""
    of_one = [name for name in names if name in PER_BROKER or split_key_material(name) is not None]
    if of_one:
        raise ConfigError(
            "Cannot update these configs at default cluster level, broker id must be specified:"
            f" {sorted(of_one)}"
        )


def check_connection_limits(texts: Mapping[str, str | None]) -> None:
    """Raise ConfigError, with Kafka's message, for connection limits that a file may have but a
    change at run time may not."""
    for name, text in texts.items():
        _, base_name = split_listener_limit(name) or ("", name)
        if base_name in LISTENER_LIMITS and text is not None:
            value = dynamic_broker_keys()[name].declared.parse(text)
            if value <= 0:
                raise ConfigError(f"Invalid {base_name} {value}")


def check_thread_pools(running: BrokerConfig, changed: BrokerConfig) -> None:
    """Raise ConfigError if a pool would shrink to less than half, or grow to more than double. The
    message is Kafka's, because tools search for it. Source: Kafka DynamicThreadPool,
    DynamicRemoteLogConfig."""
    for name, dynamic_key in dynamic_broker_keys().items():
        if not dynamic_key.declared.thread_pool:
            continue
        old, new = _value(running, dynamic_key), _value(changed, dynamic_key)
        refused = f"Dynamic thread count update validation failed for {name}={new}, value should"
        # Integer division, as in Java: a pool of 3 may shrink to 1.
        if new < old // 2:
            raise ConfigError(f"{refused} be at least half the current value {old}")
        if new > old * 2:
            raise ConfigError(f"{refused} not be greater than double the current value {old}")


def is_dynamic_listener_key(name: str) -> bool:
    """Whether the key is set for a listener and takes effect while the broker runs."""
    dynamic_key = dynamic_broker_keys().get(name)
    return dynamic_key is not None and dynamic_key.listener is not None


def dynamic_text(config: BrokerConfig, name: str) -> str:
    """The text of a dynamic key's value in `config`."""
    dynamic_key = dynamic_broker_keys()[name]
    return dynamic_key.declared.format(_value(config, dynamic_key))


def _value(config: BrokerConfig, dynamic_key: DynamicKey) -> Any:
    if dynamic_key.listener is not None:
        split = split_listener_limit(dynamic_key.declared.name)
        if split is not None:
            return config.limits_of(dynamic_key.listener)[split[1]]
        return getattr(config.security_of(dynamic_key.listener), dynamic_key.field_name)
    holder = getattr(config, dynamic_key.group) if dynamic_key.group else config
    return getattr(holder, dynamic_key.field_name)
