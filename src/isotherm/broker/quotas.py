"""Client quotas enforced: how fast a client may produce, fetch and use the broker's time.

Behaviour
- A rate is measured over quota.window.num windows of quota.window.size.seconds, the one that is
  going on included; fewer full windows than that count as if they had been empty.
- Who goes over a quota is answered at once and told to wait (throttle_time_ms) as long as it takes
  for the rate to fall to the quota; its connection is not read meanwhile (KIP-219). A produce has
  been appended all the same; a fetch over its quota is answered without records, uncounted. Time
  over request_percentage is made good at most one window at a time.
- Partitions made and deleted are counted by tokens: see isotherm.broker.mutation_quota.
- The most specific quota counts: user and client id, user and any client, user, any user and
  client id, any user and any client, any user, client id, any client. Connections that fall under
  the same quota of the same user or client share its rate.

Source: Kafka ClientQuotaManager, ClientRequestQuotaManager, Rate, SampledStat, QuotaUtils.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from isotherm.broker.controller.client_quotas import (
    CLIENT_ID,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    ClientQuotas,
)
from isotherm.broker.mutation_quota import MutationQuota, TokenBucket
from isotherm.clock import Clock
from isotherm.metrics.sampled_rate import SampledRate

# Who every client is without authentication (Kafka: KafkaPrincipal.ANONYMOUS).
ANONYMOUS = "ANONYMOUS"

ENFORCED = frozenset(
    {PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE}
)

# Client ids are the clients' choice: rates not measured for long are forgotten beyond this many.
RATES_MAX = 10_000


class Client(NamedTuple):
    user: str
    client_id: str


class QuotaLimit(NamedTuple):
    """`key` names what shares the limit's rate."""

    key: tuple[str | None, str | None]
    value: float


def find_limit(quotas: ClientQuotas, client: Client, quota: str) -> QuotaLimit | None:
    """The most specific quota that is set for a client."""
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
    """Event loop thread only. `is_active` is False while there is nothing to measure."""

    def __init__(
        self, clock: Clock, *, window_ms: int, window_count: int, mutation_window_s: float = 11.0
    ) -> None:
        """`mutation_window_s` is that of all windows of controller_mutation_rate together."""
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
        """These quotas count from now on; what was measured is kept."""
        self._quotas = quotas
        self.is_active = any(ENFORCED & values.keys() for values in quotas.values())

    def record_produce(self, client: Client, size: int) -> int:
        """Milliseconds to wait after a produce request of `size` bytes."""
        return self._record(PRODUCER_BYTE_RATE, client, size)

    def record_fetch(self, client: Client, size: int) -> int:
        """Milliseconds to wait instead of getting `size` bytes; -size takes them back."""
        return self._record(CONSUMER_BYTE_RATE, client, size)

    def fetch_size_max(self, client: Client) -> int | None:
        """What a fetch may bring at most, so that it is within the quota after a quiet while.

        None without a quota. Source: Kafka ClientQuotaManager.getMaxValueInQuotaWindow.
        """
        limit = find_limit(self._quotas, client, CONSUMER_BYTE_RATE)
        if limit is None:
            return None
        return int(limit.value * self._window_ms * max(1, self._window_count - 1) / 1000)

    def record_request(self, client: Client, processing_s: float) -> int:
        """Milliseconds to wait after a request that took the broker `processing_s`."""
        return min(self._record(REQUEST_PERCENTAGE, client, processing_s * 100), self._window_ms)

    def mutation_quota(self, client: Client, *, is_strict: bool) -> MutationQuota | None:
        """For one request that makes or deletes partitions; None without a quota."""
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
