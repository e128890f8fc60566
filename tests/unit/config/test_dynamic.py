from __future__ import annotations

import pytest

from isotherm.config.broker import BrokerConfig
from isotherm.config.dynamic import (
    check_for_all,
    check_thread_pools,
    dynamic_broker_keys,
    dynamic_text,
    with_dynamic_texts,
)
from isotherm.config.server_properties import parse_broker_config
from isotherm.errors import ConfigError

# Those of Kafka's pools that there are here. Source: Kafka DynamicRemoteLogConfig, LogCleaner.
POOLS = {
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
