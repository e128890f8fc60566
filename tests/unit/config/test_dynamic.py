"""Settings that change while the broker runs, and the bounds on such changes."""

from __future__ import annotations

import pytest

from isotherm.config.broker import BrokerConfig
from isotherm.config.dynamic import (
    check_connection_limits,
    check_for_all,
    check_thread_pools,
    dynamic_broker_keys,
    dynamic_text,
    with_dynamic_texts,
)
from isotherm.config.server_properties import parse_broker_config
from isotherm.errors import ConfigError

# Kafka's thread pools that Isotherm has. Source: Kafka DynamicRemoteLogConfig, LogCleaner.
POOLS = {
    "background.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "log.cleaner.threads",
    "num.replica.fetchers",
    "remote.log.manager.copier.thread.pool.size",
    "remote.log.manager.expiration.thread.pool.size",
    "remote.log.manager.follower.thread.pool.size",
    "remote.log.reader.threads",
}


def with_pool(name: str, thread_count: int) -> BrokerConfig:
    return parse_broker_config({"log.dirs": "/data", name: str(thread_count)})


def test_pools_that_change_while_running_are_those_of_kafka() -> None:
    declared = dynamic_broker_keys()
    assert {name for name, each in declared.items() if each.declared.thread_pool} == POOLS


@pytest.mark.parametrize("name", sorted(POOLS))
@pytest.mark.parametrize(
    ("running", "wanted", "refusal"),
    [
        (10, 5, None),
        (10, 20, None),
        (10, 4, "be at least half the current value 10"),
        (10, 21, "not be greater than double the current value 10"),
        (3, 1, None),
        (1, 2, None),
        (1, 3, "not be greater than double the current value 1"),
    ],
)
def test_pool_is_halved_or_doubled_at_a_time(
    name: str, running: int, wanted: int, refusal: str | None
) -> None:
    old, new = with_pool(name, running), with_pool(name, wanted)
    if refusal is None:
        check_thread_pools(old, new)
        return
    with pytest.raises(ConfigError) as raised:
        check_thread_pools(old, new)
    assert str(raised.value) == (
        f"Dynamic thread count update validation failed for {name}={wanted}, value should {refusal}"
    )


KEYSTORE = "listener.name.clients.ssl.keystore.location"


def test_key_material_is_set_for_one_listener_of_one_broker() -> None:
    assert dynamic_broker_keys()[KEYSTORE].listener == "clients"
    for name in (
        "ssl.keystore.location",
        "listener.name.clients.ssl.client.auth",
        "listener.name.clients.sasl.jaas.config",
    ):
        assert name not in dynamic_broker_keys()
    assert KEYSTORE not in set(dynamic_broker_keys())
    changed = with_dynamic_texts(BrokerConfig(), for_all={}, for_this={KEYSTORE: "new"})
    assert changed.security_of("CLIENTS").ssl_keystore_location == "new"
    assert changed.security_of("OTHERS").ssl_keystore_location is None
    assert dynamic_text(changed, KEYSTORE) == "new"
    with pytest.raises(ConfigError, match="broker id must be specified"):
        check_for_all([KEYSTORE])
    of_all = with_dynamic_texts(BrokerConfig(), for_all={KEYSTORE: "new"}, for_this={})
    assert of_all.security_of("CLIENTS").ssl_keystore_location is None


LIMIT = "listener.name.clients.max.connection.creation.rate"


def test_limit_of_a_listener_is_its_own_and_else_the_brokers() -> None:
    texts = {LIMIT: "7", "max.connection.creation.rate": "20"}
    started = parse_broker_config(texts)
    name = "max.connection.creation.rate"
    assert started.limits_of("CLIENTS")[name] == 7
    assert started.limits_of("OTHERS")[name] == 20
    assert dynamic_text(started, LIMIT) == "7"
    changed = with_dynamic_texts(started, for_all={LIMIT: "8", name: "30"}, for_this={})
    assert changed.limits_of("CLIENTS")[name] == 8
    assert changed.limits_of("OTHERS")[name] == 30
    changed = with_dynamic_texts(started, for_all={LIMIT: "8"}, for_this={LIMIT: "9"})
    assert changed.limits_of("CLIENTS")[name] == 9
    check_for_all([LIMIT])
    with pytest.raises(
        ConfigError, match=r"value many for configuration listener\.name\.clients\.max\.connection"
    ):
        parse_broker_config({LIMIT: "many"})


@pytest.mark.parametrize("name", [LIMIT, "max.connections"])
def test_limit_that_lets_nothing_in_is_refused_while_running(name: str) -> None:
    check_connection_limits({name: "1", "log.retention.ms": "0", LIMIT: None})
    with pytest.raises(ConfigError, match=r"Invalid max\.connection.* 0"):
        check_connection_limits({name: "0"})
