"""The broker's keys. Names and defaults of the remote tier's keys are Kafka's."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import isotherm
from isotherm.config.broker import BrokerConfig
from isotherm.config.cleaner import CleanerConfig
from isotherm.config.definition import config_keys
from isotherm.config.groups import GroupConfig, GroupLevelConfig
from isotherm.config.quorum import QuorumConfig
from isotherm.config.remote import NATIVE_METADATA_MANAGER, RemoteLogManagerConfig
from isotherm.config.server_properties import parse_broker_config
from isotherm.config.topic import TopicConfig
from isotherm.config.transactions import TransactionConfig
from isotherm.errors import ConfigError

CONFIG_CLASSES = [
    BrokerConfig, CleanerConfig, GroupConfig, GroupLevelConfig, RemoteLogManagerConfig, TopicConfig,
    TransactionConfig, QuorumConfig,
]  # fmt: skip


@pytest.mark.parametrize("config_class", CONFIG_CLASSES, ids=lambda each: each.__name__)
def test_key_is_read_somewhere_or_says_that_it_has_no_effect(config_class: type) -> None:
    package = Path(isotherm.__file__).parent
    source = "".join(path.read_text() for path in package.rglob("*.py"))
    silent = [
        name
        for name, (field_name, declared) in config_keys(config_class).items()
        if declared.no_effect is None
        and not re.search(rf"\.{field_name}\b", source)
        and not is_of_each_group(name)
    ]
    assert silent == []


def is_of_each_group(name: str) -> bool:
    """Whether it is the default or a bound of a group's key: group_keys reads all of them."""
    return re.sub(r"^group\.(\w+)\.(?:min\.|max\.)?", r"\1.", name) in config_keys(GroupLevelConfig)


def test_local_retention_above_the_total_is_refused() -> None:
    with pytest.raises(ConfigError, match="local retention"):
        parse_broker_config(
            {
                "log.retention.ms": "5",
                "log.local.retention.ms": "6",
                "remote.log.storage.system.enable": "true",
            }
        )


@pytest.mark.parametrize("unit", ["ms", "minutes", "hours"])
def test_retention_of_no_time_is_refused(unit: str) -> None:
    with pytest.raises(ConfigError, match=r"log\.retention\.ms must be unlimited \(-1\)"):
        parse_broker_config({f"log.retention.{unit}": "0"})
    assert parse_broker_config({f"log.retention.{unit}": "-1"}).topic_defaults.retention_ms == -1
    # Kafka takes the smallest unit that is set.
    texts = {"log.retention.ms": "1", f"log.retention.{unit}": "1"}
    assert parse_broker_config({"log.retention.hours": "0", **texts}).topic_defaults.retention_ms


# Source: Kafka RemoteLogManagerConfig and ReplicationConfigs with their defaults, and KIP-405.
# Kafka never built the remover of partitions that the KIP describes.
KAFKAS_REMOTE_KEYS = {
    "remote.log.storage.system.enable": "false",
    "remote.log.storage.manager.impl.prefix": "rsm.config.",
    "remote.log.storage.manager.class.path": "/opt/plugin/*",
    "remote.log.metadata.manager.impl.prefix": "rlmm.config.",
    "remote.log.metadata.manager.class.name": (
        "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"
    ),
    "remote.log.metadata.manager.class.path": "/opt/plugin/*",
    "remote.log.metadata.manager.listener.name": "PLAINTEXT",
    "remote.log.metadata.custom.metadata.max.bytes": "128",
    "remote.log.index.file.cache.total.size.bytes": "1073741824",
    "remote.log.index.file.cache.ttl.ms": "900000",
    "remote.log.manager.thread.pool.size": "2",
    "remote.log.manager.follower.thread.pool.size": "2",
    "remote.log.manager.copier.thread.pool.size": "10",
    "remote.log.manager.expiration.thread.pool.size": "10",
    "remote.log.manager.task.interval.ms": "30000",
    "remote.log.manager.task.retry.backoff.ms": "500",
    "remote.log.manager.task.retry.backoff.max.ms": "30000",
    "remote.log.manager.task.retry.jitter": "0.2",
    "remote.log.reader.threads": "10",
    "remote.log.reader.max.pending.tasks": "100",
    "log.local.retention.ms": "-2",
    "log.local.retention.bytes": "-2",
    "log.remote.copy.lag.ms": "0",
    "log.remote.copy.lag.bytes": "-1",
    "remote.log.manager.copy.max.bytes.per.second": "9223372036854775807",
    "remote.log.manager.copy.quota.window.num": "11",
    "remote.log.manager.copy.quota.window.size.seconds": "1",
    "remote.log.manager.fetch.max.bytes.per.second": "9223372036854775807",
    "remote.log.manager.fetch.quota.window.num": "11",
    "remote.log.manager.fetch.quota.window.size.seconds": "1",
    "remote.fetch.max.wait.ms": "500",
    "remote.list.offsets.request.timeout.ms": "30000",
    "follower.fetch.last.tiered.offset.enable": "false",
    "remote.partition.remover.task.interval.ms": "3600000",
}


def test_kafkas_keys_of_the_remote_tier_are_known_with_kafkas_defaults() -> None:
    texts = {"log.dirs": "/data", **KAFKAS_REMOTE_KEYS}
    explicit = parse_broker_config(texts)
    default = parse_broker_config({"log.dirs": "/data"})
    manager = {"remote_log_metadata_manager_class_name": NATIVE_METADATA_MANAGER}
    listener = {"remote_log_metadata_manager_listener_name": None}
    assert replace(explicit.remote, **manager, **listener) == replace(default.remote, **listener)
    assert explicit.topic_defaults == default.topic_defaults


def test_port_beyond_the_last_is_an_error_of_its_own() -> None:
    with pytest.raises(ConfigError, match="a port is 0 to 65535 port=80000"):
        parse_broker_config({"listeners": "PLAINTEXT://localhost:80000"})


def test_listener_of_the_metadata_manager_is_one_of_the_listeners_as_in_kafka() -> None:
    texts = {
        "log.dirs": "/data",
        "remote.log.storage.system.enable": "true",
        "remote.log.metadata.manager.listener.name": "INTERNL",
    }
    with pytest.raises(ConfigError, match=r"listener\.name value=INTERNL listeners=PLAINTEXT"):
        parse_broker_config(texts)
    parse_broker_config({**texts, "remote.log.storage.system.enable": "false"})
    parse_broker_config({**texts, "remote.log.metadata.manager.listener.name": "plaintext"})


def test_fetch_that_would_outlast_its_socket_is_refused() -> None:
    texts = {"log.dirs": "/data", "replica.fetch.wait.max.ms": "40000"}
    with pytest.raises(ConfigError, match=r"key=replica\.socket\.timeout\.ms value=30000"):
        parse_broker_config(texts)
    texts["replica.socket.timeout.ms"] = "40000"
    with pytest.raises(ConfigError, match=r"key=replica\.lag\.time\.max\.ms value=30000"):
        parse_broker_config(texts)
    config = parse_broker_config({**texts, "replica.lag.time.max.ms": "40000"})
    assert config.replication.replica_fetch_wait_max_ms == 40000
