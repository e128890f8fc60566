"""Enforces max.connection.creation.rate: how many connections per second a listener, and all of them, may take.

Behaviour, that of Kafka's Acceptor
- A connection with which a rate is above its limit waits until it would be at the limit, at most a window of
  quota.window.size.seconds. Its listener takes no other one meanwhile.
- The listener between brokers is in no rate but its own where there are others: clients cannot keep brokers
  from each other.

Source: KIP-612; Kafka ConnectionQuotas.
"""

from __future__ import annotations

from isotherm.clock import Clock
from isotherm.metrics.sampled_rate import SampledRate


class ConnectionRates:
    """Event loop thread only."""

    def __init__(
        self, clock: Clock, *, window_ms: int, window_count: int, protected: str | None
    ) -> None:
        """`protected` is the listener between brokers, where there are others."""
        self._clock = clock
        self._window_ms = window_ms
        self._window_count = window_count
        self._protected = protected
        self._of_broker = SampledRate(window_ms, window_count)
        self._of_listeners: dict[str, SampledRate] = {}

    def record(self, listener: str, *, limit: int, broker_limit: int) -> int:
        """Count a connection; returns how many ms it waits before it is served."""
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
        # Kafka divides by a limit of 0 too, and gets the longest wait.
        wait_ms = rate.throttle_ms(limit, now_ms) if limit else self._window_ms
        return min(wait_ms, self._window_ms)
