"""What DescribeConfigs tells of a key: its value, where it comes from, and what it falls back to.

Source: Kafka ConfigHelper, DescribeConfigsResponse.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from isotherm.config.broker import BrokerConfig
from isotherm.config.definition import ConfigKey, config_keys
from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.config.topic import TopicConfig


class ConfigSource(enum.IntEnum):
    """The numbers are the wire's."""

    DYNAMIC_TOPIC_CONFIG = 1
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


class ConfigSynonym(NamedTuple):
    name: str
    value: str | None
    source: ConfigSource


class DescribedConfig(NamedTuple):
    """`synonyms` begin with what gives the value; each later one would if those before it went."""

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
    """Every key of a topic. `texts` are its own settings, `effective` what they amount to."""
    for field_name, declared in config_keys(TopicConfig).values():
        synonyms = []
        if declared.name in texts:
            synonyms.append(
                ConfigSynonym(
                    declared.name, texts[declared.name], ConfigSource.DYNAMIC_TOPIC_CONFIG
                )
            )
        elif declared.internal:
            continue
        synonyms += _broker_synonyms(declared, broker)
        yield DescribedConfig(
            declared.name,
            _text(declared, getattr(effective, field_name)),
            synonyms[0].source,
            read_only=False,
            type_name=declared.type.name,
            documentation=declared.documentation,
            synonyms=tuple(synonyms),
        )


def _broker_synonyms(declared: ConfigKey, broker: BrokerConfig) -> Iterator[ConfigSynonym]:
    for synonym in declared.synonyms:
        if synonym.name in broker.explicit:
            yield ConfigSynonym(
                synonym.name, broker.explicit[synonym.name], ConfigSource.STATIC_BROKER_CONFIG
            )
    name = declared.synonyms[0].name if declared.synonyms else declared.name
    yield ConfigSynonym(name, _text(declared, declared.default), ConfigSource.DEFAULT_CONFIG)


def describe_broker_config(broker: BrokerConfig) -> Iterator[DescribedConfig]:
    """Every key of the broker, those of the remote tier and the topics' defaults included.

    What is below the prefixes of the remote storage plug-ins is left out: it may hold secrets.
    """
    groups: list[tuple[type, object]] = [
        (BrokerConfig, broker),
        (RemoteLogManagerConfig, broker.remote),
    ]
    for config_class, values in groups:
        for field_name, declared in config_keys(config_class).values():
            names = [declared.name, *(synonym.name for synonym in declared.synonyms)]
            value = _text(declared, getattr(values, field_name))
            yield _described_broker_key(declared.name, declared, value, names, broker)
    for field_name, declared in config_keys(TopicConfig).values():
        if declared.synonyms:
            names = [synonym.name for synonym in declared.synonyms]
            value = _text(declared, getattr(broker.topic_defaults, field_name))
            yield _described_broker_key(names[0], declared, value, names, broker)


def _described_broker_key(
    name: str, declared: ConfigKey, value: str | None, names: list[str], broker: BrokerConfig
) -> DescribedConfig:
    synonyms = [
        ConfigSynonym(known, broker.explicit[known], ConfigSource.STATIC_BROKER_CONFIG)
        for known in names
        if known in broker.explicit
    ]
    default = _text(declared, declared.default)
    synonyms.append(ConfigSynonym(name, default, ConfigSource.DEFAULT_CONFIG))
    return DescribedConfig(
        name,
        value,
        synonyms[0].source,
        read_only=True,
        type_name=declared.type.name,
        documentation=declared.documentation,
        synonyms=tuple(synonyms),
    )
