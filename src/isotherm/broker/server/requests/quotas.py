"""Enforces client quotas on produced bytes, fetched bytes and the broker's time.

Behaviour
- A rate is measured over quota.window.num windows of quota.window.size.seconds, including the
  current one. Missing windows count as empty.
- A client above its quota is answered at once and throttled (throttle_time_ms) until the rate falls
  to the quota. Its connection is muted meanwhile (KIP-219). A produce request is appended
  nevertheless. A fetch above the quota is answered without records and not counted, so the client
  can read them later. For request_percentage the throttle time is at most one window.
- Created and deleted partitions cost tokens: see isotherm.broker.server.requests.mutation_quota.
- The most specific quota applies: user and client id, user and default client, user, default user
  and client id, default user and default client, default user, client id, default client.
  Connections with the same quota and the same user or client share its rate.

Source: Kafka ClientQuotaManager, ClientRequestQuotaManager, Rate, SampledStat, QuotaUtils.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from isotherm.broker.metadata.client_quotas import (
    CLIENT_ID,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    ClientQuotas,
)
from isotherm.broker.server.requests.mutation_quota import MutationQuota, TokenBucket
from isotherm.clock import Clock
from isotherm.metrics.sampled_rate import SampledRate

ENFORCED = frozenset(
    {PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE}
)

# Clients choose their client ids, so the number of rates is limited. The least recently used are
# dropped.
RATES_MAX = 10_000


class Client(NamedTuple):
    user: str
    client_id: str


class QuotaLimit(NamedTuple):
    """`key` identifies the clients that share the limit's rate."""

    key: tuple[str | None, str | None]
    value: float


def find_limit(quotas: ClientQuotas, client: Client, quota: str) -> QuotaLimit | None:
    """The most specific quota for a client."""
    user, client_id = client
    for user_part, client_part in (
        ((USER, user), (CLIENT_ID, client_id)),
        ((USER, user), (CLIENT_ID, None)),
        ((USER, user), None),
        ((USER, None), (CLIENT_ID, client_id)),
        ((USER, None), (CLIENT_ID, None)),
        ((USER, None), None),
        (None, (CLIENT_ID, client_id)),
        (None, (CLIENT_ID, None)),
    ):
        entity = frozenset(part for part in (user_part, client_part) if part is not None)
        value = quotas.get(entity, {}).get(quota)
        if value is not None:
            return QuotaLimit((user_part and user, client_part and client_id), value)
    return None


class ClientQuotaManager:
    """Event loop thread only. `is_active` is False if no quota is enforced."""

    def __init__(
        self, clock: Clock, *, window_ms: int, window_count: int, mutation_window_s: float = 11.0
    ) -> None:
        """`mutation_window_s` is the length of all windows of controller_mutation_rate together."""
        self.clock = clock
        self._window_ms = window_ms
        self._window_count = window_count
        self._mutation_window_s = mutation_window_s
        self._buckets: OrderedDict[tuple[str | None, str | None], TokenBucket] = OrderedDict()
        self._quotas: ClientQuotas = {}
        self._rates: OrderedDict[tuple[str, tuple[str | None, str | None]], SampledRate] = (
            OrderedDict()
        )
        self.is_active = False

    def update(self, quotas: ClientQuotas) -> None:
        """Replace the quotas. Measured rates are kept."""
        self._quotas = quotas
        self.is_active = any(ENFORCED & values.keys() for values in quotas.values())

    def record_produce(self, client: Client, size: int) -> int:
        """Record a produce request of `size` bytes; returns the throttle time in ms."""
        return self._record(PRODUCER_BYTE_RATE, client, size)

    def record_fetch(self, client: Client, size: int) -> int:
        """Record a fetch of `size` bytes of records; returns the throttle time in ms. A size of
        -size undoes the recording."""
        return self._record(CONSUMER_BYTE_RATE, client, size)

    def fetch_size_max(self, client: Client) -> int | None:
        """The bytes of the largest fetch response within the quota of an idle client; None without
        a quota.

        A larger response would be withheld every time. Source: Kafka
        ClientQuotaManager.getMaxValueInQuotaWindow.
        """
        limit = find_limit(self._quotas, client, CONSUMER_BYTE_RATE)
        if limit is None:
            return None
        return int(limit.value * self._window_ms * max(1, self._window_count - 1) / 1000)

    def record_request(self, client: Client, processing_s: float) -> int:
        """Record `processing_s` of the broker's time for a request; returns the throttle time in
        ms.
        """
        return min(self._record(REQUEST_PERCENTAGE, client, processing_s * 100), self._window_ms)

    def mutation_quota(self, client: Client, *, is_strict: bool) -> MutationQuota | None:
        """The quota for one request that creates or deletes partitions; None without a quota."""
        limit = find_limit(self._quotas, client, CONTROLLER_MUTATION_RATE)
        if limit is None:
            return None
        bucket = self._buckets.get(limit.key)
        if bucket is None:
            bucket = TokenBucket(self.clock, window_s=self._mutation_window_s)
            self._buckets[limit.key] = bucket
            if len(self._buckets) > RATES_MAX:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(limit.key)
        return MutationQuota(bucket, limit.value, is_strict=is_strict)

    def _record(self, quota: str, client: Client, value: float) -> int:
        limit = find_limit(self._quotas, client, quota)
        if limit is None:
            return 0
        now_ms = self.clock.monotonic_s() * 1000
        rate = self._rate(quota, limit.key)
        rate.record(value, now_ms)
        return rate.throttle_ms(limit.value, now_ms)

    def _rate(self, quota: str, key: tuple[str | None, str | None]) -> SampledRate:
        rate = self._rates.get((quota, key))
        if rate is None:
            rate = self._rates[quota, key] = SampledRate(self._window_ms, self._window_count)
            if len(self._rates) > RATES_MAX:
                self._rates.popitem(last=False)
        self._rates.move_to_end((quota, key))
        return rate
