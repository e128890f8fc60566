"""Kafka's server.properties: synonyms, units, prefixed keys of plug-ins, and keys without
effect."""

from __future__ import annotations

import logging

import pytest

from isotherm.config.server_properties import parse_broker_config
from isotherm.config.topic import TopicConfig
from isotherm.errors import ConfigError


def test_topic_defaults_come_from_the_broker_synonyms() -> None:
    config = parse_broker_config({"log.segment.bytes": "2097152", "log.retention.hours": "2"})
    assert config.topic_defaults.segment_bytes == 2097152
    assert config.topic_defaults.retention_ms == 7_200_000


def test_finer_unit_wins_over_the_coarser() -> None:
    config = parse_broker_config({"log.retention.hours": "2", "log.retention.ms": "5"})
    assert config.topic_defaults.retention_ms == 5


def test_flush_interval_of_the_scheduler_is_its_own_and_the_last_default_of_topics() -> None:
    """As in Kafka: log.flush.interval.ms comes before it as the default of flush.ms."""
    config = parse_broker_config({"log.flush.scheduler.interval.ms": "200"})
    assert config.log_flush_scheduler_interval_ms == 200
    assert config.topic_defaults.flush_ms == 200
    both = {"log.flush.interval.ms": "5000", "log.flush.scheduler.interval.ms": "200"}
    config = parse_broker_config(both)
    assert config.log_flush_scheduler_interval_ms == 200
    assert config.topic_defaults.flush_ms == 5000


def test_unlimited_retention_keeps_its_meaning_in_hours() -> None:
    assert parse_broker_config({"log.retention.hours": "-1"}).topic_defaults.retention_ms == -1


def test_prefixed_keys_go_to_the_plugins() -> None:
    config = parse_broker_config(
        {"rsm.config.url": "file:///b", "rlmm.config.remote.log.metadata.topic.num.partitions": "5"}
    )
    assert config.remote.rsm_config == {"url": "file:///b"}
    assert config.remote.rlmm_config == {"remote.log.metadata.topic.num.partitions": "5"}


def test_prefix_can_be_changed() -> None:
    config = parse_broker_config(
        {"remote.log.storage.manager.impl.prefix": "tier.", "tier.url": "file:///b"}
    )
    assert config.remote.rsm_config == {"url": "file:///b"}


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("segment.bytes", "log.segment.bytes"),
        ("log.retention.hour", "log.retention.hours"),
        # Keys of families of which only some have an effect.
        ("ssl.client.auht", "ssl.client.auth"),
        ("sasl.enabled.mechanism", "sasl.enabled.mechanisms"),
        ("controller.quorum.bootstrap.server", "controller.quorum.bootstrap.servers"),
        ("replica.lag.time.max", "replica.lag.time.max.ms"),
        ("listener.name.plaintext.ssl.client.auht", "listener.name.plaintext.ssl.client.auth"),
        (
            "listener.name.plaintext.plain.sasl.jaas.confg",
            "listener.name.plaintext.plain.sasl.jaas.config",
        ),
    ],
)
def test_unknown_key_is_passed_over_and_named_with_the_nearest(
    name: str, nearest: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = parse_broker_config({name: "2097152"})
    assert config.topic_defaults == TopicConfig()
    assert f"key={name} nearest={nearest}" in caplog.text


@pytest.mark.parametrize("listener", ["cleints", "CLIENTS"])
def test_key_of_no_listener_is_warned_of(listener: str, caplog: pytest.LogCaptureFixture) -> None:
    """Kafka requires lower case. Without the warning, clients would silently not be asked for
    certificates."""
    listeners = {
        "listeners": "CLIENTS://:9092",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT",
        "inter.broker.listener.name": "CLIENTS",
    }
    parse_broker_config({**listeners, "listener.name.clients.ssl.client.auth": "required"})
    assert not caplog.text
    name = f"listener.name.{listener}.ssl.client.auth"
    parse_broker_config({**listeners, name: "required"})
    assert f"key={name} nearest=listener.name.clients listeners=clients" in caplog.text


@pytest.mark.parametrize(
    "name",
    [
        "create.topic.policy.class.name",
        "alter.config.policy.class.name",
        "client.quota.callback.class",
        "config.providers",
    ],
)
def test_key_whose_promise_cannot_be_kept_is_refused_unless_it_is_empty(name: str) -> None:
    with pytest.raises(ConfigError, match=f"key={name} value=org.example.Class"):
        parse_broker_config({name: "org.example.Class"})
    parse_broker_config({name: ""})


def test_key_without_meaning_is_passed_over_with_its_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        parse_broker_config({"num.network.threads": "3"})
    assert "num.network.threads" in caplog.text
    assert "event loop" in caplog.text


def test_key_without_effect_says_so_when_it_is_set(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        parse_broker_config({"auto.leader.rebalance.enable": "false"})
    assert "key=auto.leader.rebalance.enable" in caplog.text
    assert (
        "reason=controllers elect leaders, and the one in the process has nothing to elect"
        in caplog.text
    )
