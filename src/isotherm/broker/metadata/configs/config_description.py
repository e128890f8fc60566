"""The descriptions in DescribeConfigs: value, source and synonyms of each key.

Source: Kafka ConfigHelper, DescribeConfigsResponse.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from isotherm.config.broker import BrokerConfig
from isotherm.config.client_metrics import ClientMetricsConfig
from isotherm.config.definition import PASSWORD, ConfigKey, config_keys, split_understood
from isotherm.config.dynamic import CONFIG_GROUPS, dynamic_broker_keys
from isotherm.config.groups import GroupLevelConfig
from isotherm.config.topic import TopicConfig


class ConfigSource(enum.IntEnum):
    """The source of a value, with the protocol's numbers."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


UNKNOWN_TYPE = "UNKNOWN"
"""The type of a key that no broker knows. It counts as sensitive."""


class ConfigSynonym(NamedTuple):
    name: str
    value: str | None
    source: ConfigSource


class DescribedConfig(NamedTuple):
    """A key's entry in the response. `synonyms` start with the value's source, in order of
    precedence: each later one would apply if those before it were removed."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    type_name: str
    documentation: str
    synonyms: tuple[ConfigSynonym, ...]


def _text(declared: ConfigKey, value: Any) -> str | None:
    return None if value is None else declared.format(value)


def describe_topic_config(
    texts: Mapping[str, str], effective: TopicConfig, broker: BrokerConfig
) -> Iterator[DescribedConfig]:
    """Every key of a topic. `texts` has the settings of the topic alone, `effective` the resulting
    configuration."""
    return _describe_resource(texts, effective, ConfigSource.DYNAMIC_TOPIC_CONFIG, broker)


def describe_group_config(
    texts: Mapping[str, str], broker: BrokerConfig
) -> Iterator[DescribedConfig]:
    """Every key of a group.

    A group without settings has the defaults, even if it does not exist.
    """
    # A later controller may have accepted what this broker does not understand.
    understood, _ = split_understood(GroupLevelConfig, texts)
    effective = GroupLevelConfig.parse(understood, broker.groups)
    for config in _describe_resource(
        understood, effective, ConfigSource.DYNAMIC_GROUP_CONFIG, broker
    ):
        declared = config_keys(GroupLevelConfig)[config.name][1]
        if declared.synonyms:
            yield config
        else:
            # As in Kafka: without a key of the broker, the default is that of the key itself.
            default = _default_synonym(config.name, declared)
            yield config._replace(synonyms=(*config.synonyms, default))


def describe_client_metrics(
    texts: Mapping[str, str], broker: BrokerConfig
) -> Iterator[DescribedConfig]:
    """Every key of a client metrics subscription."""
    understood, _ = split_understood(ClientMetricsConfig, texts)
    effective = ClientMetricsConfig.parse(understood)
    return _describe_resource(
        understood, effective, ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG, broker
    )


def describe_loggers(levels: Mapping[str, str]) -> Iterator[DescribedConfig]:
    """The levels of the broker's loggers, by name."""
    for name, level in levels.items():
        yield DescribedConfig(
            name,
            level,
            ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG,
            read_only=False,
            type_name="STRING",
            documentation="",
            synonyms=(),
        )


def _describe_resource(
    texts: Mapping[str, str], effective: object, source: ConfigSource, broker: BrokerConfig
) -> Iterator[DescribedConfig]:
    for field_name, declared in config_keys(type(effective)).values():
        synonyms = []
        if declared.name in texts:
            synonyms.append(ConfigSynonym(declared.name, texts[declared.name], source))
        elif declared.internal:
            continue
        synonyms += _broker_synonyms(declared, broker)
        yield DescribedConfig(
            declared.name,
            _text(declared, getattr(effective, field_name)),
            synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
            read_only=False,
            type_name=declared.type.name,
            documentation=declared.documentation,
            synonyms=tuple(synonyms),
        )


def _broker_synonyms(declared: ConfigKey, broker: BrokerConfig) -> Iterator[ConfigSynonym]:
    names = [synonym.name for synonym in declared.synonyms]
    yield from _set_for_broker(names, broker)
    # With several names, the first has no default in Kafka: it falls back to the others.
    if len(names) == 1:
        yield ConfigSynonym(
            names[0], _text(declared, declared.default), ConfigSource.DEFAULT_CONFIG
        )


def _set_for_broker(names: Sequence[str], broker: BrokerConfig) -> Iterator[ConfigSynonym]:
    """The places that set one of `names` for this broker, by precedence."""
    for texts, source in (
        (broker.dynamic_for_this, ConfigSource.DYNAMIC_BROKER_CONFIG),
        (broker.dynamic_for_all, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        (broker.explicit, ConfigSource.STATIC_BROKER_CONFIG),
    ):
        for name in names:
            if name in texts:
                yield ConfigSynonym(name, texts[name], source)


def describe_dynamic_defaults(broker: BrokerConfig) -> Iterator[DescribedConfig]:
    """The dynamic settings for all brokers."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    for name, text in broker.dynamic_for_all.items():
        broker_key = dynamic_broker_keys().get(name)
        if broker_key is None:
            yield _unknown_key(name, [ConfigSynonym(name, None, source)])
            continue
        declared = broker_key.declared
        yield DescribedConfig(
            name,
            text,
            source,
            read_only=False,
            type_name=declared.type.name,
            documentation=declared.documentation,
            synonyms=(ConfigSynonym(name, text, source),),
        )


def describe_broker_config(broker: BrokerConfig) -> Iterator[DescribedConfig]:
    """Every key of the broker, including the remote tier, the coordinators and topic defaults.

    Keys with the prefixes of remote storage plug-ins are left out, because they may be secrets.
    """
    for group, config_class in CONFIG_GROUPS.items():
        values = getattr(broker, group) if group else broker
        for field_name, declared in config_keys(config_class).values():
            if declared.internal and not _is_set(declared.name, broker):
                continue
            names = [declared.name, *(synonym.name for synonym in declared.synonyms)]
            value = _text(declared, getattr(values, field_name))
            yield _described_broker_key(declared.name, declared, value, names, broker)
    for field_name, declared in config_keys(TopicConfig).values():
        if declared.synonyms:
            names = [synonym.name for synonym in declared.synonyms]
            value = _text(declared, getattr(broker.topic_defaults, field_name))
            yield _described_broker_key(names[0], declared, value, names, broker)
    for name, text in {**broker.dynamic_for_all, **broker.dynamic_for_this}.items():
        broker_key = dynamic_broker_keys().get(name)
        if broker_key is None:
            yield _unknown_key(name, [*_set_for_broker([name], broker)])
        elif broker_key.listener is not None:
            yield _described_broker_key(name, broker_key.declared, text, [name], broker)


def _unknown_key(name: str, synonyms: Sequence[ConfigSynonym]) -> DescribedConfig:
    """The description of a key that was set and that no broker knows. Its value may be a secret, so
    it is not shown, as in Kafka."""
    return DescribedConfig(
        name,
        None,
        synonyms[0].source,
        read_only=True,
        type_name=UNKNOWN_TYPE,
        documentation="",
        synonyms=tuple(synonym._replace(value=None) for synonym in synonyms),
    )


def _described_broker_key(
    name: str, declared: ConfigKey, value: str | None, names: list[str], broker: BrokerConfig
) -> DescribedConfig:
    synonyms = [*_set_for_broker(names, broker)]
    if not declared.internal:
        synonyms.append(_default_synonym(name, declared))
    if declared.type.name == PASSWORD.name:
        value = None
        synonyms = [synonym._replace(value=None) for synonym in synonyms]
    dynamic = dynamic_broker_keys().get(name)
    return DescribedConfig(
        name,
        value,
        synonyms[0].source,
        # Kafka reports listener keys as read-only too: it matches them by a pattern and has no key
        # for each.
        read_only=dynamic is None or dynamic.listener is not None,
        type_name=declared.type.name,
        documentation=declared.documentation,
        synonyms=tuple(synonyms),
    )


def _is_set(name: str, broker: BrokerConfig) -> bool:
    return any(True for _ in _set_for_broker([name], broker))


def _default_synonym(name: str, declared: ConfigKey) -> ConfigSynonym:
    """The default.

    In Kafka it belongs to the last name: log.retention.hours, not log.retention.ms.
    """
    default, last = declared.default, declared.synonyms[-1:]
    if name != declared.name and len(declared.synonyms) > 1:
        name, default = last[0].name, default // last[0].multiplier
    return ConfigSynonym(name, _text(declared, default), ConfigSource.DEFAULT_CONFIG)
