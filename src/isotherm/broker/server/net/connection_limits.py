"""Limits the connections of an address, of a listener, and of the broker.

- Above max.connections.per.ip, or above the connection quota of its address, a new connection is
  closed.
- Above max.connections, of its listener or of the broker, a new connection waits until another one
  ends.
- The inter-broker listener is protected if there are other listeners: only its own limit applies to
  it. If its connections bring the broker above max.connections, connections of the other listeners
  are closed, the least recently used first.
- Above max.connection.creation.rate a new connection is delayed (`connection_rate`).

Source: KIP-306, KIP-402, KIP-612; Kafka ConnectionQuotas. Reasons: docs/decisions/0105.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Mapping

from isotherm.broker.server.net.connection_quota import ConnectionQuota
from isotherm.broker.server.net.connection_rate import ConnectionRates
from isotherm.clock import Clock
from isotherm.config.broker import BrokerConfig

logger = logging.getLogger(__name__)


class ConnectionLimits:
    """Event loop thread only, except `update`."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        layout = config.listener_layout
        self._listeners = [broker.name for broker in layout.brokers]
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
        # Replaced as a whole, since the event loop may read them at any moment.
        self._limits = limits
        self._broker = config

    def is_protected(self, listener: str) -> bool:
        return listener == self._protected

    def throttle_ms(self, address: str) -> int:
        """Count a new connection of the address; returns after how many ms to close it, or 0 to
        serve it.
        """
        throttle_ms = self.quota.record(address)
        if throttle_ms > 0:
            logger.info("connection throttled client=%s throttle_ms=%d", address, throttle_ms)
        return throttle_ms

    def has_too_many(self, address: str) -> bool:
        """Whether the address has reached max.connections.per.ip."""
        if self._of_addresses[address] < self._broker.max_connections_per_ip:
            return False
        logger.warning("connection refused, too many client=%s key=max.connections.per.ip", address)
        return True

    def turn_in_ms(self, listener: str) -> int:
        """Count a new connection of the listener; returns how many ms it is delayed."""
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
        """The number of connections above the broker's max.connections.

        It is positive after the protected listener has exceeded the limit or the limit was lowered.
        """
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
