"""Enforces connection_creation_rate, the connections per second that an address may open.

The quota of the address applies, or else the default for all addresses. Each address has its own
rate, over quota.window.num windows of quota.window.size.seconds. A connection above the quota is
not served and not counted. It stays open and idle until the rate would fall to the quota, for at
most one window, and is then closed. So a client that reconnects at once is slowed down.

An address may be spelled in any way: Java shows `::1` as `0:0:0:0:0:0:0:1`. A quota for a host name
is stored but not enforced, because names are not resolved. Source: KIP-612; Kafka ConnectionQuotas.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

from isotherm.broker.metadata.client_quotas import CONNECTION_CREATION_RATE, IP, ClientQuotas
from isotherm.clock import Clock
from isotherm.metrics.sampled_rate import SampledRate

# Maximum of measured addresses. Above it the rate of the address that was idle longest is dropped.
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
        """Replace the quotas. Measured rates are kept."""
        self._limits = {
            None if name is None else _plain(name): values[CONNECTION_CREATION_RATE]
            for entity, values in quotas.items()
            for kind, name in entity
            if kind == IP and CONNECTION_CREATION_RATE in values
        }

    def record(self, address: str) -> int:
        """Count a connection; returns how many ms it must idle before it is closed, or 0 to
        serve it.
        """
        if not self._limits:
            return 0
        limit = self._limits.get(_plain(address), self._limits.get(None))
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
        # Refused connections do not count. Otherwise retries would keep the rate above the quota.
        if throttle_ms > 0:
            rate.record(-1, now_ms)
        return min(throttle_ms, self._window_ms)


def _plain(name: str) -> str:
    """One spelling for each address; host names as they are."""
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
