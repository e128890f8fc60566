from __future__ import annotations

import pytest

from isotherm.config.broker import BrokerConfig, parse_broker_config
from isotherm.config.dynamic import check_thread_pools, dynamic_broker_keys
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
