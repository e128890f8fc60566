"""Decides which logs have a remote tier. Source: Kafka UnifiedLog.remoteLogEnabled."""

from __future__ import annotations

from isotherm.config.topic import TopicConfig
from isotherm.types import CLUSTER_METADATA_TOPIC, REMOTE_LOG_METADATA_TOPICS

# Kafka's internal topics, and the logs that the remote tier itself depends on.
TOPICS_NEVER_TIERED = frozenset(
    {
        "__consumer_offsets",
        "__transaction_state",
        "__share_group_state",
        *REMOTE_LOG_METADATA_TOPICS,
        CLUSTER_METADATA_TOPIC,
    }
)


def is_remote_log_enabled(topic: str, config: TopicConfig, *, system_enabled: bool) -> bool:
    """`system_enabled` is remote.log.storage.system.enable of the broker."""
    return (
        system_enabled
        and config.remote_storage_enable
        and not config.compacts
        and topic not in TOPICS_NEVER_TIERED
    )
