"""Topic settings. Defaults and rules are those of Kafka's LogConfig."""

from __future__ import annotations

from dataclasses import replace

import pytest

from isotherm.config.server_properties import parse_broker_config
from isotherm.config.topic import TopicConfig
from isotherm.errors import ConfigError

KAFKA_DEFAULTS = {
    # Source: Kafka's LogConfig.
    "segment.bytes": "1073741824",
    "segment.ms": "604800000",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "max.message.bytes": "1048588",
    "file.delete.delay.ms": "60000",
    "index.interval.bytes": "4096",
    "segment.index.bytes": "10485760",
    "local.retention.ms": "-2",
    "local.retention.bytes": "-2",
    "remote.storage.enable": "false",
    "delete.retention.ms": "86400000",
    "min.cleanable.dirty.ratio": "0.5",
    "cleanup.policy": "delete",
}


@pytest.mark.parametrize(("name", "text"), KAFKA_DEFAULTS.items())
def test_default_is_kafkas(name: str, text: str) -> None:
    assert TopicConfig().texts()[name] == text


def test_parse_keeps_the_base_where_nothing_is_said() -> None:
    base = TopicConfig(retention_ms=5)
    assert TopicConfig.parse({"retention.bytes": "7"}, base) == TopicConfig(
        retention_ms=5, retention_bytes=7
    )


def test_every_negative_retention_bytes_is_no_limit() -> None:
    """A topic of Kafka's controllers may have it. Ignored, it would get the broker's limit."""
    base = TopicConfig(retention_bytes=7)
    for text in ("-1", "-2", "-9223372036854775808"):
        assert TopicConfig.parse({"retention.bytes": text}, base).retention_bytes == -1
        assert parse_broker_config({"log.retention.bytes": text}).topic_defaults == TopicConfig()
    with pytest.raises(ConfigError, match="Not a number of type LONG"):
        TopicConfig.parse({"retention.bytes": "none"}, base)


def test_local_retention_of_minus_two_is_the_total() -> None:
    config = TopicConfig(retention_ms=5, retention_bytes=6)
    assert config.effective_local_retention_ms == 5
    assert config.effective_local_retention_bytes == 6
    assert replace(config, local_retention_ms=1).effective_local_retention_ms == 1


@pytest.mark.parametrize(
    "config",
    [
        TopicConfig(remote_storage_enable=True, cleanup_policy=("compact",)),
        TopicConfig(remote_storage_enable=True, retention_bytes=10, local_retention_bytes=11),
        TopicConfig(remote_storage_enable=True, retention_bytes=10, local_retention_bytes=-1),
        TopicConfig(remote_storage_enable=True, retention_ms=10, local_retention_ms=11),
        TopicConfig(remote_storage_enable=True, local_retention_ms=10, remote_copy_lag_ms=11),
        TopicConfig(remote_storage_enable=True, remote_log_copy_disable=True, local_retention_ms=1),
        TopicConfig(min_compaction_lag_ms=2, max_compaction_lag_ms=1),
    ],
)
def test_rules_that_join_keys_are_refused(config: TopicConfig) -> None:
    with pytest.raises(ConfigError):
        config.check_remote_rules(remote_system_enabled=True)


@pytest.mark.parametrize(
    "config",
    [
        TopicConfig(),
        TopicConfig(cleanup_policy=("compact",)),
        TopicConfig(remote_storage_enable=True),
        TopicConfig(remote_storage_enable=True, retention_ms=-1, local_retention_ms=1),
        TopicConfig(remote_storage_enable=True, cleanup_policy=()),
    ],
)
def test_legal_combinations_are_accepted(config: TopicConfig) -> None:
    config.check_remote_rules(remote_system_enabled=True)


def test_tiering_without_a_remote_tier_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"remote\.log\.storage\.system\.enable"):
        TopicConfig(remote_storage_enable=True).check_remote_rules(remote_system_enabled=False)
