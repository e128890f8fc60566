"""The connection limits that can be set for one listener.

A key with the prefix `listener.name.NAME.` applies to that listener. Without the prefix it applies
to the whole broker, and to each listener without its own value. Source: KIP-306, KIP-612; Kafka
DynamicBrokerConfig, ConnectionQuotas.
"""

from __future__ import annotations

from isotherm.config.security import split_listener_key

LISTENER_LIMITS = ("max.connections", "max.connection.creation.rate")


def split_listener_limit(name: str) -> tuple[str, str] | None:
    """The listener, in lower case, and the key. None for a name that is not a listener's limit."""
    return split_listener_key(name, LISTENER_LIMITS)
