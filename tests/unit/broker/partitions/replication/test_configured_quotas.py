"""Replication quotas apply to the replicas that the configuration names, at the rate that it
sets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from isotherm.broker.partitions.replication.configured_quotas import follower_quota, leader_quota
from isotherm.config.server_properties import parse_broker_config
from isotherm.config.topic import TopicConfig
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicPartition

A, B = TopicPartition("named", 0), TopicPartition("named", 1)
ALL, OTHER = TopicPartition("all", 5), TopicPartition("other", 0)
RATE = 1000


def metadata_of(kind: str) -> Any:
    topics = {
        "named": TopicConfig(**{f"{kind}_replication_throttled_replicas": ("0:3", "1:2")}),
        "all": TopicConfig(**{f"{kind}_replication_throttled_replicas": ("*",)}),
        "other": TopicConfig(),
    }
    texts = {"node.id": "3", "log.dirs": "/data", f"{kind}.replication.throttled.rate": str(RATE)}
    return SimpleNamespace(
        broker_config=parse_broker_config(texts), topic_config=lambda topic: topics[topic]
    )


@pytest.mark.parametrize(
    ("kind", "quota_of"), [("leader", leader_quota), ("follower", follower_quota)]
)
def test_quota_holds_back_the_replicas_of_this_broker_that_are_named(
    kind: str, quota_of: Any
) -> None:
    clock = SimClock()
    quota = quota_of(metadata_of(kind), clock)
    quota.record(OTHER, 10**9)
    quota.record(B, 10**9)  # throttled on another broker
    assert not quota.is_exceeded
    quota.record(A, 12 * RATE)
    assert [quota.holds_back(each) for each in (A, B, ALL, OTHER)] == [True, False, True, False]
    clock.advance(60_000)
    assert not quota.holds_back(A)


def test_quota_of_one_kind_is_not_the_others() -> None:
    quota = follower_quota(metadata_of("leader"), SimClock())
    quota.record(A, 10**9)
    assert not quota.holds_back(A)


def test_rate_that_changes_holds_at_once() -> None:
    metadata = metadata_of("follower")
    quota = follower_quota(metadata, SimClock())
    quota.record(A, 12 * RATE)
    assert quota.is_exceeded
    metadata.broker_config = parse_broker_config({"node.id": "3", "log.dirs": "/data"})
    assert not quota.is_exceeded
