"""Enforces controller_mutation_rate, the partitions per second that a client may create and delete.

A bucket holds as many tokens as the quota allows in all its windows, and refills at the quota's
rate. Each partition costs one token. A request is accepted as a whole if any token is left, so the
bucket may be overdrawn afterwards. While it is overdrawn, a request of a strict version (one that
has the error code) is refused topic by topic. A request of an older version is accepted, and its
client is throttled. Both responses have the throttle time.
Source: KIP-599; Kafka ControllerMutationQuotaManager, TokenBucket.
"""

from __future__ import annotations

import threading

from isotherm.clock import Clock
from isotherm.errors import ThrottlingQuotaExceededError


class TokenBucket:
    """Thread-safe; the event loop and the control thread use it."""

    def __init__(self, clock: Clock, *, window_s: float) -> None:
        """`window_s` is the length of all windows together."""
        self._clock = clock
        self._window_s = window_s
        self._lock = threading.Lock()
        # What was spent is kept, not what is left: the rate comes with each
        # call and may have changed.
        self._spent = 0.0
        self._spent_at_s = clock.monotonic_s()

    def owed_ms(self, rate: float) -> int:
        """The milliseconds until the bucket is no longer overdrawn."""
        with self._lock:
            return round(max(0.0, -self._tokens(rate)) / rate * 1000)

    def spend(self, rate: float, tokens: float) -> None:
        with self._lock:
            self._spent = rate * self._window_s - self._tokens(rate) + tokens

    def _tokens(self, rate: float) -> float:
        """The tokens now: full if nothing was spent, negative if overdrawn."""
        now_s = self._clock.monotonic_s()
        refilled = (now_s - self._spent_at_s) * rate
        self._spent = max(0.0, self._spent - refilled)
        self._spent_at_s = now_s
        return rate * self._window_s - self._spent


class MutationQuota:
    """The quota for one request. The control thread calls `charge`; `throttle_ms` is read after the
    request is handled."""

    def __init__(self, bucket: TokenBucket, rate: float, *, is_strict: bool) -> None:
        self._bucket = bucket
        self._rate = rate
        self._is_strict = is_strict
        self.throttle_ms = 0

    def charge(self, partition_count: int) -> None:
        """Spend a token per partition. Raises ThrottlingQuotaExceededError, and spends nothing, if
        a client of a strict version must wait first."""
        if self._is_strict:
            self.throttle_ms = self._bucket.owed_ms(self._rate)
            if self.throttle_ms > 0:
                raise ThrottlingQuotaExceededError(
                    "the client creates and deletes partitions faster than its quota"
                    f" controller_mutation_rate={self._rate:g} throttle_ms={self.throttle_ms}"
                )
            self._bucket.spend(self._rate, partition_count)
        else:
            self._bucket.spend(self._rate, partition_count)
            self.throttle_ms = self._bucket.owed_ms(self._rate)
