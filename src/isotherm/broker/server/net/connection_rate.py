"""Enforces max.connection.creation.rate, the connections per second of a listener and of the
broker.

- A connection that brings a rate above its limit is delayed until the rate would be at the limit,
  for at most one window of quota.window.size.seconds. Its listener accepts no other connection
  meanwhile.
- If there are other listeners, the inter-broker listener counts only in its own rate, so clients
  cannot keep brokers from reaching each other.

Source: KIP-612; Kafka ConnectionQuotas, Acceptor.
"""

from __future__ import annotations

from isotherm.clock import Clock
from isotherm.metrics.sampled_rate import SampledRate


class ConnectionRates:
    """Event loop thread only."""

    def __init__(
        self, clock: Clock, *, window_ms: int, window_count: int, protected: str | None
    ) -> None:
        """`protected` is the inter-broker listener, or None if it is the only listener."""
        self._clock = clock
        self._window_ms = window_ms
        self._window_count = window_count
        self._protected = protected
        self._of_broker = SampledRate(window_ms, window_count)
        self._of_listeners: dict[str, SampledRate] = {}

    def record(self, listener: str, *, limit: int, broker_limit: int) -> int:
        """Count a connection; returns how many ms it is delayed before it is served."""
        now_ms = self._clock.monotonic_s() * 1000
        rate = self._of_listeners.get(listener)
        if rate is None:
            rate = SampledRate(self._window_ms, self._window_count)
            self._of_listeners[listener] = rate
        wait_ms = self._record(rate, limit, now_ms)
        if listener == self._protected:
            return wait_ms
        return max(wait_ms, self._record(self._of_broker, broker_limit, now_ms))

    def _record(self, rate: SampledRate, limit: int, now_ms: float) -> int:
        rate.record(1, now_ms)
        # In Kafka the division by a limit of 0 gives infinity, and so the longest delay.
        wait_ms = rate.throttle_ms(limit, now_ms) if limit else self._window_ms
        return min(wait_ms, self._window_ms)
