"""controller_mutation_rate enforced: how many partitions a client may make and delete a second.

A bucket holds as many tokens as the quota lets through in all its windows, and fills at the quota's rate.
Each partition costs one; a request that the bucket had any token left for is let through as a whole, so
that it may owe some afterwards. While it owes, a request of a strict version (one that knows the error)
is refused topic by topic; an older one is let through and told to wait. Both are told how long.

Source: KIP-599; Kafka ControllerMutationQuotaManager, TokenBucket.
"""

from __future__ import annotations

import threading

from isotherm.clock import Clock
from isotherm.errors import ThrottlingQuotaExceededError


class TokenBucket:
    """Thread-safe: the event loop asks, the control thread spends."""

    def __init__(self, clock: Clock, *, window_s: float) -> None:
        """`window_s` is that of all windows together."""
        self._clock = clock
        self._window_s = window_s
        self._lock = threading.Lock()
        self._spent = 0.0
        self._spent_at_s = clock.monotonic_s()

    def owed_ms(self, rate: float) -> int:
        """How long it takes until nothing is owed."""
        with self._lock:
            return round(max(0.0, -self._tokens(rate)) / rate * 1000)

    def spend(self, rate: float, tokens: float) -> None:
        with self._lock:
            self._spent = rate * self._window_s - self._tokens(rate) + tokens

    def _tokens(self, rate: float) -> float:
        """What is there now: full when nothing was spent, below zero when something is owed."""
        now_s = self._clock.monotonic_s()
        refilled = (now_s - self._spent_at_s) * rate
        self._spent = max(0.0, self._spent - refilled)
        self._spent_at_s = now_s
        return rate * self._window_s - self._spent


class MutationQuota:
    """Of one request. `charge` is called on the control thread, `throttle_ms` read after it."""

    def __init__(self, bucket: TokenBucket, rate: float, *, is_strict: bool) -> None:
        self._bucket = bucket
        self._rate = rate
        self._is_strict = is_strict
        self.throttle_ms = 0

    def charge(self, partition_count: int) -> None:
        """ThrottlingQuotaExceededError when the client has to wait first; nothing is spent then."""
        if self._is_strict:
            self.throttle_ms = self._bucket.owed_ms(self._rate)
            if self.throttle_ms > 0:
                raise ThrottlingQuotaExceededError(
                    "the client makes and deletes partitions faster than its quota"
                    f" controller_mutation_rate={self._rate:g} throttle_ms={self.throttle_ms}"
                )
            self._bucket.spend(self._rate, partition_count)
        else:
            self._bucket.spend(self._rate, partition_count)
            self.throttle_ms = self._bucket.owed_ms(self._rate)
