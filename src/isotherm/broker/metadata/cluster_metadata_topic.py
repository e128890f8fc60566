"""The id and log configuration of `__cluster_metadata-0`, the topic partition of the cluster's
metadata.
"""

from __future__ import annotations

import uuid

from isotherm.config.topic import UNLIMITED, TopicConfig
from isotherm.types import CLUSTER_METADATA_TOPIC, TopicPartition

METADATA_TOPIC_PARTITION = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
METADATA_TOPIC_ID = uuid.UUID(int=1)  # Kafka: Uuid.METADATA_TOPIC_ID
BATCH_SIZE_MAX = 8 * 1024 * 1024  # Kafka: KafkaRaftClient.MAX_BATCH_SIZE_BYTES
METADATA_LOG_CONFIG = TopicConfig(
    retention_ms=UNLIMITED, retention_bytes=UNLIMITED, max_message_bytes=BATCH_SIZE_MAX
)
