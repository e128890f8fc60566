"""Every key of the remote tier, with a value that is not its default, reaches the part of a running
broker that uses it.

The tests of each part cover what it does with the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from isotherm.config.definition import config_keys
from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.testing.embedded_broker import EmbeddedBroker
from isotherm.types import REMOTE_LOG_METADATA_TOPIC

PREFIX = "remote.log."
Observe = Callable[[Any, Any], object]

# key -> (a value that is not the default, the value expected in the broker, where the broker and
# its tier keep it)
KEYS: dict[str, tuple[str, object, Observe]] = {
    "metadata.custom.metadata.max.bytes": (
        "70000",
        70_000,
        lambda _, tier: tier.tier.custom_metadata_size_max(),
    ),
    "index.file.cache.total.size.bytes": (
        "7000000",
        7_000_000,
        lambda _, tier: tier._index_cache._total_size_bytes,
    ),
    "index.file.cache.ttl.ms": ("77000", 77_000, lambda _, tier: tier._index_cache._ttl_ms),
    "index.file.cache.statistics.enable": (
        "true",
        True,
        lambda _, tier: tier._index_cache._statistics is not None,
    ),
    "manager.copier.thread.pool.size": (
        "7",
        7,
        lambda _, tier: tier._schedule.copies._thread_count,
    ),
    "manager.expiration.thread.pool.size": (
        "6",
        6,
        lambda _, tier: tier._schedule.expirations._thread_count,
    ),
    "manager.task.interval.ms": ("12345", 12.345, lambda _, tier: tier._schedule.interval_s),
    "manager.task.retry.backoff.ms": (
        "777",
        777,
        lambda _, tier: tier._schedule._backoff.backoff_ms,
    ),
    "manager.task.retry.backoff.max.ms": (
        "7777",
        7777,
        lambda _, tier: tier._schedule._backoff.backoff_max_ms,
    ),
    "manager.task.retry.jitter": ("0.4", 0.4, lambda _, tier: tier._schedule._backoff.jitter),
    "reader.threads": ("5", 5, lambda _, tier: tier.readers._pool._thread_count),
    "reader.max.pending.tasks": ("17", 17, lambda _, tier: tier.readers._pool._pending_max),
    "reader.read.ahead.max.bytes": (
        "12000000",
        12_000_000,
        lambda _, tier: tier.readers._reader._read_ahead._settings.size_max,
    ),
    "manager.copy.max.bytes.per.second": (
        "5000000",
        5_000_000,
        lambda _, tier: tier.tier.copy_quota.limit,
    ),
    "manager.copy.quota.window.num": ("7", 7, lambda _, tier: tier._copy_quota._rate._window_count),
    "manager.copy.quota.window.size.seconds": (
        "3",
        3.0,
        lambda _, tier: tier._copy_quota._window_s,
    ),
    "manager.fetch.max.bytes.per.second": (
        "6000000",
        6_000_000,
        lambda _, tier: tier.readers.fetch_quota.limit,
    ),
    "manager.fetch.quota.window.num": (
        "8",
        8,
        lambda _, tier: tier.readers.fetch_quota._rate._window_count,
    ),
    "manager.fetch.quota.window.size.seconds": (
        "4",
        4.0,
        lambda _, tier: tier.readers.fetch_quota._window_s,
    ),
    "remote.fetch.max.wait.ms": (
        "1234",
        1234,
        lambda node, _: node.services.config.remote.remote_fetch_max_wait_ms,
    ),
    "remote.list.offsets.request.timeout.ms": (
        "2345",
        2345,
        lambda node, _: node.services.config.remote.remote_list_offsets_request_timeout_ms,
    ),
    "metadata.compaction.initial.level": (
        "0",
        False,
        lambda node, _: node.services.metadata.topic_config(REMOTE_LOG_METADATA_TOPIC).compacts,
    ),
    "storage.manager.class.name": (
        "tests.support.recording_store.RecordingStore",
        "RecordingStore",
        lambda _, tier: type(tier._storage._inner).__name__,
    ),
    "storage.manager.impl.prefix": ("my.rsm.", True, lambda _, tier: tier is not None),
    "metadata.manager.impl.prefix": (
        "my.rlmm.",
        3,
        lambda _, tier: tier._metadata._topic.partition_count,
    ),
}
ELSEWHERE = {
    "storage.system.enable": "test_node.py",
    "metadata.manager.class.name": "tests/tiered/test_plugins.py",
    "metadata.manager.listener.name": "has no effect",
    "manager.follower.thread.pool.size": "has no effect",
}


def full_name(key: str) -> str:
    return key if key.startswith("remote.") else PREFIX + key


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker with all these settings. It starts only if the prefixed keys name the bucket."""
    directory = tmp_path_factory.mktemp("broker")
    settings = {full_name(key): value for key, (value, _, _) in KEYS.items()}
    settings["my.rsm.url"] = (directory / "other-bucket").as_uri()
    settings["my.rlmm.remote.log.metadata.topic.num.partitions"] = "3"
    with EmbeddedBroker(directory, settings, without=("rsm.config.", "rlmm.config.")) as started:
        yield started


@pytest.mark.parametrize("key", KEYS)
def test_key_of_the_remote_tier_reaches_what_goes_by_it(key: str, broker: EmbeddedBroker) -> None:
    value, expected, observe = KEYS[key]
    default = config_keys(RemoteLogManagerConfig)[full_name(key)][1].default
    assert str(default).lower() != value
    node = broker.node
    assert observe(node, node.services.remote_log_manager) == expected


def test_every_key_of_the_remote_tier_is_tested_at_another_value_than_its_default() -> None:
    tested = {full_name(key) for key in (*KEYS, *ELSEWHERE)}
    assert tested == set(config_keys(RemoteLogManagerConfig))
