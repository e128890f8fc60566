"""Enforces max.connection.creation.rate: how many connections per second all clients may open.

Behaviour
- A connection above the rate is served later, when Kafka's broker would: there the thread that accepts sleeps
  before it serves a connection with which the rate is above the limit, at most a window of
  quota.window.size.seconds, and accepts the next one after it. So each one's turn comes after those before it.
- Those that wait are counted and idle. As many may wait as socket.listen.backlog.size says, which is where
  they wait in Kafka; further ones are refused, and not counted in the rate.
- The listener between brokers is exempt where there are others: clients cannot keep brokers from each other.

Not done: a rate for one listener (listener.name.NAME.max.connection.creation.rate).
Source: KIP-612; Kafka ConnectionQuotas.
"""

from __future__ import annotations

import math
from collections import deque

from isotherm.clock import Clock
from isotherm.metrics.sampled_rate import SampledRate


class ConnectionRate:
    """Event loop thread only."""

    def __init__(self, clock: Clock, *, window_ms: int, window_count: int) -> None:
        self._clock = clock
        self._window_ms = window_ms
        self._rate = SampledRate(window_ms, window_count)
        self._last_turn_ms = 0.0
        # The turns that are still to come.
        self._turns: deque[float] = deque()

    def turn_in_ms(self, limit: int, *, waiting_max: int) -> int | None:
        """Count a connection; returns in how many ms it is to be served, or None to refuse it."""
        now_ms = self._clock.monotonic_s() * 1000
        while self._turns and self._turns[0] <= now_ms:
            self._turns.popleft()
        if len(self._turns) >= waiting_max:
            return None
        begin_ms = max(now_ms, self._last_turn_ms)
        self._rate.record(1, begin_ms)
        # Kafka divides by a limit of 0 too, and gets the longest wait.
        wait_ms = self._rate.throttle_ms(limit, begin_ms) if limit else self._window_ms
        turn_ms = begin_ms + min(wait_ms, self._window_ms)
        self._last_turn_ms = turn_ms
        if turn_ms <= now_ms:
            return 0
        self._turns.append(turn_ms)
        return math.ceil(turn_ms - now_ms)
