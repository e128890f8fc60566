"""Keys of share groups, with Kafka's rules and names."""

from __future__ import annotations

import pytest

from isotherm.config.groups import GroupConfig, GroupLevelConfig
from isotherm.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"group_share_session_timeout_ms": 44_999}, "group.share.session.timeout.ms"),
        ({"group_share_session_timeout_ms": 60_001}, "group.share.session.timeout.ms"),
        ({"group_share_heartbeat_interval_ms": 4_999}, "group.share.heartbeat.interval.ms"),
        ({"group_share_assignment_interval_ms": 15_001}, "group.share.assignment.interval.ms"),
        ({"group_share_min_delivery_count_limit": 5, "group_share_delivery_count_limit": 4},
         "group.share.delivery.count.limit"),
        ({"group_share_record_lock_duration_ms": 60_001}, "group.share.record.lock.duration.ms"),
        ({"group_share_partition_max_record_locks": 4_001},
         "group.share.partition.max.record.locks"),
        ({"group_share_max_share_sessions": 199}, "group.share.max.share.sessions"),
        (
            {
                "group_share_max_heartbeat_interval_ms": 45_000,
                "group_share_heartbeat_interval_ms": 45_000,
            },
            "group.share.heartbeat.interval.ms must be less than",
        ),
    ],
)  # fmt: skip
def test_keys_of_the_broker_fit_together(settings: dict[str, int], key: str) -> None:
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        GroupConfig(**settings)


def test_a_group_has_the_brokers_values_within_its_bounds() -> None:
    broker = GroupConfig(
        group_share_session_timeout_ms=50_000, group_share_record_lock_duration_ms=20_000
    )
    texts = {"share.record.lock.duration.ms": "40000"}
    group = GroupLevelConfig.parse(texts, broker)
    assert (group.share_session_timeout_ms, group.share_record_lock_duration_ms) == (50_000, 40_000)
    group.check(broker, texts)
    texts = {"share.record.lock.duration.ms": "60001"}
    with pytest.raises(
        ConfigError,
        match=r"share\.record\.lock\.duration\.ms must be less than or equal to"
        r" group\.share\.max\.record\.lock\.duration\.ms",
    ):
        GroupLevelConfig.parse(texts, broker).check(broker, texts)
    texts = {"share.session.timeout.ms": "45000", "share.heartbeat.interval.ms": "45000"}
    broker = GroupConfig(group_share_max_heartbeat_interval_ms=45_000)
    with pytest.raises(ConfigError, match=r"share\.session\.timeout\.ms must be greater"):
        GroupLevelConfig.parse(texts, broker).check(broker, texts)


@pytest.mark.parametrize(
    "value", ["earliest", "latest", "by_duration:P1DT2H", "by_duration:PT0.5S"]
)
def test_an_offset_reset_is_a_name_or_a_duration(value: str) -> None:
    texts = {"share.auto.offset.reset": value}
    assert GroupLevelConfig.parse(texts, GroupConfig()).share_auto_offset_reset == value
    with pytest.raises(ConfigError, match="either 'earliest', 'latest' or of the format"):
        GroupLevelConfig.parse({"share.auto.offset.reset": f"{value} "[::-1]}, GroupConfig())


@pytest.mark.parametrize(
    ("text", "is_taken"),
    [
        # As Java's Duration.parse: the seconds are a long.
        ("P106751991167300D", True),
        ("P106751991167301D", False),
        ("P9999999999999999D", False),
        ("PT9223372036854775807S", True),
        ("PT9223372036854775808S", False),
        ("P1DT9223372036854775807S", False),
        (f"P{'9' * 5000}D", False),
    ],
)
def test_a_duration_of_an_offset_reset_has_javas_largest_number(text: str, is_taken: bool) -> None:
    texts = {"share.auto.offset.reset": f"by_duration:{text}"}
    if is_taken:
        GroupLevelConfig.parse(texts, GroupConfig())
    else:
        with pytest.raises(ConfigError, match="of the format"):
            GroupLevelConfig.parse(texts, GroupConfig())
