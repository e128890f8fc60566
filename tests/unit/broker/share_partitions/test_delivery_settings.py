"""The settings of a share group's deliveries."""

from __future__ import annotations

import pytest

from isotherm.broker.share_partitions.delivery_settings import DeliverySettings, reset_timestamp_ms
from isotherm.config.groups import GroupConfig, GroupLevelConfig
from isotherm.log.log_read import FetchIsolation

NOW_MS = 1_000_000_000_000


@pytest.mark.parametrize(
    ("text", "age_ms"),
    [
        ("PT0S", 0),
        ("PT10S", 10_000),
        ("PT1H2M3.004S", 3_723_004),
        ("P1D", 86_400_000),
        ("P2DT0.5S", 172_800_500),
        ("pt1m", 60_000),
        ("PT1.0009S", 1000),
    ],
)
def test_group_begins_at_an_age(text: str, age_ms: int) -> None:
    assert reset_timestamp_ms(f"by_duration:{text}", NOW_MS) == NOW_MS - age_ms


def test_age_beyond_the_first_timestamp_is_the_first_timestamp() -> None:
    assert reset_timestamp_ms("by_duration:P99999D", NOW_MS) == 0


def test_settings_are_those_of_the_group() -> None:
    texts = {
        "share.isolation.level": "read_committed",
        "share.record.lock.duration.ms": "20000",
        "share.delivery.count.limit": "7",
        "share.partition.max.record.locks": "300",
        "share.renew.acknowledge.enable": "false",
        "share.auto.offset.reset": "earliest",
    }
    settings = DeliverySettings.of(GroupLevelConfig.parse(texts, GroupConfig()))
    assert settings == (20_000, 7, 300, False, FetchIsolation.TXN_COMMITTED, "earliest")
    assert settings.deliveries(5).lock_end_ms is None
    plain = DeliverySettings.of(GroupLevelConfig.parse({}, GroupConfig()))
    assert plain == (30_000, 5, 2000, True, FetchIsolation.HIGH_WATERMARK, "latest")
    assert plain.deliveries(5).lock_end_ms == 30_005
