"""The backoff between retries: doubling, maximum and jitter."""

from __future__ import annotations

import random

from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.remote.tasks.backoff import RetryBackoff


def test_wait_doubles_up_to_the_maximum() -> None:
    backoff = RetryBackoff(500, 30_000, 0.0)
    waits = [backoff.wait_ms(count, random.Random(0)) for count in (1, 2, 3, 7, 8, 10_000)]
    assert waits == [500, 1000, 2000, 30_000, 30_000, 30_000]


def test_wait_is_spread_by_the_jitter() -> None:
    rng = random.Random(0)
    waits = [RetryBackoff(1000, 30_000, 0.2).wait_ms(1, rng) for _ in range(200)]
    assert 800 <= min(waits) < 850
    assert 1150 < max(waits) <= 1200


def test_backoff_is_that_of_the_configuration() -> None:
    assert RetryBackoff.from_config(RemoteLogManagerConfig()) == RetryBackoff(500, 30_000, 0.2)
