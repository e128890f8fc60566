"""The limits of connections that a listener may have of its own.

Without `listener.name.NAME.` before it a key holds for the whole broker, and for each listener that has
none of its own. Source: KIP-306, KIP-612; Kafka DynamicBrokerConfig, ConnectionQuotas.
"""

from __future__ import annotations

from isotherm.config.security import split_listener_key

LISTENER_LIMITS = ("max.connections", "max.connection.creation.rate")


def split_listener_limit(name: str) -> tuple[str, str] | None:
    """The listener, in small letters, and the key; None for a key that is no listener's limit."""
    return split_listener_key(name, LISTENER_LIMITS)
