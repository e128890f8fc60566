"""The names of internal topics, as in Kafka's Topic.INTERNAL_TOPICS."""

from __future__ import annotations

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


def is_internal(topic: str) -> bool:
    return topic in INTERNAL_TOPICS
