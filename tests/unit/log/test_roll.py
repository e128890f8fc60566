"""When a new active segment is rolled. The rules are Kafka's."""

from __future__ import annotations

import random
from typing import Any

import pytest

from isotherm.config.topic import TopicConfig
from isotherm.log.roll import RollReason, roll_jitter_ms, roll_reason

CONFIG = TopicConfig(internal_segment_bytes=1000, segment_ms=100)
SEGMENT: dict[str, Any] = {
    "size": 500,
    "created_ms": 0,
    "first_batch_timestamp_ms": 1000,
    "jitter_ms": 0,
    "indexes_are_full": False,
}
INCOMING: dict[str, Any] = {
    "incoming_size": 100,
    "max_timestamp_ms": 1050,
    "last_offset_fits": True,
}


@pytest.mark.parametrize(
    ("segment", "incoming", "now_ms", "expected"),
    [
        ({}, {}, 0, None),
        ({"size": 900}, {}, 0, None),
        ({"size": 901}, {}, 0, RollReason.SIZE),
        ({}, {"max_timestamp_ms": 1100}, 0, None),
        ({}, {"max_timestamp_ms": 1101}, 0, RollReason.TIME),
        # The age is measured in the data's timestamps, not by the wall clock ...
        ({}, {}, 10**9, None),
        # ... unless the first batch has no timestamp.
        ({"first_batch_timestamp_ms": -1}, {}, 100, None),
        ({"first_batch_timestamp_ms": -1}, {}, 101, RollReason.TIME),
        ({"jitter_ms": 60}, {"max_timestamp_ms": 1041}, 0, RollReason.TIME),
        ({"jitter_ms": 60}, {"max_timestamp_ms": 1040}, 0, None),
        ({"size": 0, "first_batch_timestamp_ms": None}, {}, 10**9, None),
        ({"first_batch_timestamp_ms": 0}, {"max_timestamp_ms": 100}, 10**9, None),
        ({"size": 1}, {"max_timestamp_ms": 1101}, 0, RollReason.TIME),
        ({"size": 1, "indexes_are_full": True}, {}, 0, RollReason.INDEX_FULL),
        ({"indexes_are_full": True}, {}, 0, RollReason.INDEX_FULL),
        ({"indexes_are_full": True, "size": 0}, {}, 0, None),
        ({}, {"last_offset_fits": False}, 0, RollReason.OFFSET_OVERFLOW),
    ],
)
def test_roll_reason_is_kafkas(
    segment: dict[str, int], incoming: dict[str, int], now_ms: int, expected: RollReason | None
) -> None:
    given = SEGMENT | INCOMING | segment | incoming
    assert roll_reason(CONFIG, now_ms, **given) is expected


def test_jitter_lies_below_its_bound_and_below_segment_ms() -> None:
    rng = random.Random(1)
    config = TopicConfig(segment_ms=50, segment_jitter_ms=20)
    drawn = {roll_jitter_ms(config, rng) for _ in range(500)}
    assert drawn == set(range(20))
    assert {roll_jitter_ms(TopicConfig(), rng) for _ in range(5)} == {0}
    config = TopicConfig(segment_ms=3, segment_jitter_ms=20)
    assert {roll_jitter_ms(config, rng) for _ in range(100)} == {0, 1, 2}
