"""How many connections there may be: of an address, of a listener, and of all clients.

- Above max.connections.per.ip, or its quota of new ones, an address's connection is closed.
- Above max.connections, that of its listener or of the broker, a connection waits until another one ends.
  The listener between brokers has its own limit alone where there are others; what is above the broker's
  then is closed on those, the least recently used first.
- Above max.connection.creation.rate it waits for its turn (connection_rate).

Source: KIP-306, KIP-402, KIP-612; Kafka ConnectionQuotas.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Mapping

from isotherm.broker.net.connection_quota import ConnectionQuota
from isotherm.broker.net.connection_rate import ConnectionRates
from isotherm.clock import Clock
from isotherm.config.broker import BrokerConfig

logger = logging.getLogger(__name__)


class ConnectionLimits:
    """Event loop thread only, but for `update`."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        layout = config.listener_layout
        self._listeners = [each.name for each in layout.brokers]
        self._protected = layout.inter_broker if len(self._listeners) > 1 else None
        window_ms, window_count = config.quota_window_size_seconds * 1000, config.quota_window_num
        self.quota = ConnectionQuota(clock, window_ms=window_ms, window_count=window_count)
        self._rates = ConnectionRates(
            clock, window_ms=window_ms, window_count=window_count, protected=self._protected
        )
        self._total = 0
        self._of_listeners: collections.Counter[str] = collections.Counter()
        self._of_addresses: collections.Counter[str] = collections.Counter()
        self.update(config)

    def update(self, config: BrokerConfig) -> None:
        """Apply these limits to new connections."""
        limits: Mapping[str, Mapping[str, int]] = {
            name: config.limits_of(name) for name in self._listeners
        }
        self._limits = limits
        self._broker = config

    def is_protected(self, listener: str) -> bool:
        return listener == self._protected

    def throttle_ms(self, address: str) -> int:
        """Count a new one of this address; after how many ms it must be closed, or 0 to serve it."""
        throttle_ms = self.quota.record(address)
        if throttle_ms > 0:
            logger.info("connection throttled client=%s throttle_ms=%d", address, throttle_ms)
        return throttle_ms

    def has_too_many(self, address: str) -> bool:
        """Whether there must be no other one of this address."""
        if self._of_addresses[address] < self._broker.max_connections_per_ip:
            return False
        logger.warning("connection refused, too many client=%s key=max.connections.per.ip", address)
        return True

    def turn_in_ms(self, listener: str) -> int:
        """Count a new one of this listener; in how many ms its turn comes."""
        return self._rates.record(
            listener,
            limit=self._limits[listener]["max.connection.creation.rate"],
            broker_limit=self._broker.max_connection_creation_rate,
        )

    def has_room(self, listener: str) -> bool:
        if self._of_listeners[listener] >= self._limits[listener]["max.connections"]:
            return False
        return listener == self._protected or self._total < self._broker.max_connections

    @property
    def excess(self) -> int:
        """So many of other listeners must go, for the sake of the one between brokers or of a lower limit."""
        return max(0, self._total - self._broker.max_connections)

    def enter(self, listener: str, address: str) -> None:
        self._total += 1
        self._of_listeners[listener] += 1
        self._of_addresses[address] += 1

    def leave(self, listener: str, address: str) -> None:
        self._total -= 1
        self._of_listeners[listener] -= 1
        self._of_addresses[address] -= 1
        if not self._of_addresses[address]:
            del self._of_addresses[address]
