"""connection_creation_rate enforced: how many connections a second an address may make.

The quota of the address counts, or that of all addresses that have none of their own; each address has a
rate of its own, over quota.window.num windows of quota.window.size.seconds. A connection too many is
not served and not counted: it is left alone as long as it takes for the rate to fall to the quota, a
window at most, and then closed, so that a client that comes back at once is slowed down.

A quota of a host's name is kept, and not enforced: names are not looked up. Source: KIP-612; Kafka
ConnectionQuotas.
"""

from __future__ import annotations

from collections import OrderedDict

from isotherm.broker.controller.client_quotas import CONNECTION_CREATION_RATE, IP, ClientQuotas
from isotherm.clock import Clock
from isotherm.metrics.sampled_rate import SampledRate

# Addresses are not measured for ever: those that were quiet longest are forgotten beyond this many.
RATES_MAX = 10_000


class ConnectionQuota:
    """Event loop thread only."""

    def __init__(self, clock: Clock, *, window_ms: int, window_count: int) -> None:
        self._clock = clock
        self._window_ms = window_ms
        self._window_count = window_count
        self._limits: dict[str | None, float] = {}
        self._rates: OrderedDict[str, SampledRate] = OrderedDict()

    def update(self, quotas: ClientQuotas) -> None:
        """These quotas count from now on; what was measured is kept."""
        self._limits = {
            name: values[CONNECTION_CREATION_RATE]
            for entity, values in quotas.items()
            for kind, name in entity
            if kind == IP and CONNECTION_CREATION_RATE in values
        }

    def record(self, address: str) -> int:
        """Count a connection: milliseconds to leave it alone before it is closed; 0 to serve it."""
        limit = self._limits.get(address, self._limits.get(None))
        if limit is None:
            return 0
        now_ms = self._clock.monotonic_s() * 1000
        rate = self._rates.get(address)
        if rate is None:
            rate = self._rates[address] = SampledRate(self._window_ms, self._window_count)
            if len(self._rates) > RATES_MAX:
                self._rates.popitem(last=False)
        self._rates.move_to_end(address)
        rate.record(1, now_ms)
        throttle_ms = rate.throttle_ms(limit, now_ms)
        if throttle_ms > 0:
            rate.record(-1, now_ms)
        return min(throttle_ms, self._window_ms)
