"""KIP-599's token bucket, by the proposal and Kafka's ControllerMutationQuotaManagerTest."""

from __future__ import annotations

import pytest

from isotherm.broker.server.requests.mutation_quota import MutationQuota, TokenBucket
from isotherm.errors import ThrottlingQuotaExceededError
from isotherm.testing.sim_clock import SimClock

RATE = 10.0  # partitions a second
WINDOW_S = 11.0  # after an idle time 110 may be created at once


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


@pytest.fixture
def bucket(clock: SimClock) -> TokenBucket:
    return TokenBucket(clock, window_s=WINDOW_S)


def strict(bucket: TokenBucket) -> MutationQuota:
    return MutationQuota(bucket, RATE, is_strict=True)


def test_request_that_there_is_any_token_for_is_let_through_as_a_whole(bucket: TokenBucket) -> None:
    quota = strict(bucket)
    quota.charge(109)
    quota.charge(91)
    assert quota.throttle_ms == 0
    with pytest.raises(ThrottlingQuotaExceededError, match="throttle_ms=9000"):
        quota.charge(1)
    assert quota.throttle_ms == 9000


def test_what_is_refused_costs_nothing(clock: SimClock, bucket: TokenBucket) -> None:
    strict(bucket).charge(120)
    for _ in range(3):
        with pytest.raises(ThrottlingQuotaExceededError, match="throttle_ms=1000"):
            strict(bucket).charge(50)
    clock.advance(1000)
    strict(bucket).charge(1)


def test_older_client_is_served_with_a_throttle_time(bucket: TokenBucket) -> None:
    quota = MutationQuota(bucket, RATE, is_strict=False)
    quota.charge(110)
    assert quota.throttle_ms == 0
    quota.charge(5)
    assert quota.throttle_ms == 500
    quota.charge(5)
    assert quota.throttle_ms == 1000


def test_bucket_is_never_more_than_full(clock: SimClock, bucket: TokenBucket) -> None:
    clock.advance(1_000_000)
    quota = MutationQuota(bucket, RATE, is_strict=False)
    quota.charge(120)
    assert quota.throttle_ms == 1000


def test_bucket_fills_at_the_rate(clock: SimClock, bucket: TokenBucket) -> None:
    MutationQuota(bucket, RATE, is_strict=False).charge(160)
    clock.advance(4_999)
    with pytest.raises(ThrottlingQuotaExceededError):
        strict(bucket).charge(1)
    clock.advance(1)
    strict(bucket).charge(1)
