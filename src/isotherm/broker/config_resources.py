"""The kinds of things that have a configuration, with the numbers of the wire."""

from __future__ import annotations

import enum


class ResourceType(enum.IntEnum):
    """Kafka: ConfigResource.Type."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32
