"""Internal topics: their names, as in Kafka's Topic.INTERNAL_TOPICS, and creation on demand."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


def is_internal(topic: str) -> bool:
    return topic in INTERNAL_TOPICS


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalTopic:
    """The settings for creating a topic. The last two fields apply only to replicated topics."""

    name: str
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)
    replication_factor: int = 1
    replica_configs: Mapping[str, str] = field(default_factory=dict)


class TopicCreator(Protocol):
    def __call__(self, topic: InternalTopic) -> Awaitable[None]:
        """Create the topic unless it exists. Event loop thread only.

        The embedded controller's creator returns when this broker leads the topic. A cluster
        member's creator returns when it has sent a request to the cluster's controller; the topic
        may appear in the metadata later, or never. Raises IsothermError if the topic cannot be
        created.
        """
