"""The two metadata topics of a broker, in a folder, with real logs and the real cleaner."""

from __future__ import annotations

import uuid
from pathlib import Path

from isotherm.broker.partitions.partition import Partition
from isotherm.broker.tier.embedded_remote_metadata_topic import EmbeddedRemoteMetadataTopic
from isotherm.broker.tier.remote_metadata_topics import compacted_settings
from isotherm.config.topic import TopicConfig
from isotherm.errors import UnknownTopicOrPartitionError
from isotherm.remote.metadata.topic_based_settings import TopicBasedSettings
from isotherm.testing.sim_clock import SimClock
from isotherm.types import (
    REMOTE_LOG_METADATA_AUDIT_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
    REMOTE_LOG_METADATA_TOPICS,
    TopicIdPartition,
)
from tests.support.compacted_log import CompactedLog
from tests.support.led_topic import NobodyWaits, alone, led


class HostedMetadataTopics:
    """Both topics, with one partition each.

    The broker that leads them has neither network nor threads. The feature level is 1 by default.
    """

    def __init__(self, directory: Path, clock: SimClock, *, level: int = 1) -> None:
        texts = compacted_settings(TopicBasedSettings()) if level else {}
        config = TopicConfig.parse(texts, TopicConfig())
        self._clock = clock
        self._retention_ms = config.delete_retention_ms
        self._compacted = CompactedLog(
            directory / f"{REMOTE_LOG_METADATA_TOPIC}-0", config=config, clock=clock
        )
        audited = CompactedLog(
            directory / f"{REMOTE_LOG_METADATA_AUDIT_TOPIC}-0", config=TopicConfig(), clock=clock
        )
        self._partitions = {
            name: Partition(
                TopicIdPartition(uuid.UUID(int=1), name, 0), log.log, alone(clock), NobodyWaits()
            )
            for name, log in zip(
                REMOTE_LOG_METADATA_TOPICS, (self._compacted, audited), strict=True
            )
        }
        for partition in self._partitions.values():
            partition.make_leader(led())
        self.metadata_topic, self.audit_topic = (
            EmbeddedRemoteMetadataTopic(self, clock, 1, name) for name in REMOTE_LOG_METADATA_TOPICS
        )

    def find_partition(
        self, topic: str | None, topic_id: uuid.UUID | None, partition: int
    ) -> Partition:
        if topic not in self._partitions or partition != 0:
            raise UnknownTopicOrPartitionError(
                f"no such partition topic={topic} topic_id={topic_id} partition={partition}"
            )
        return self._partitions[topic]

    def compact(self) -> None:
        """Clean the metadata topic twice, delete.retention.ms apart.

        The first round sets the delete horizon of tombstones, and the second drops them.
        """
        self._compacted.log.roll()
        self._compacted.clean(first_dirty_offset=0)
        self._clock.advance(self._retention_ms + 1)
        self._compacted.clean(first_dirty_offset=0)
