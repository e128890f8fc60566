"""What every task on the remote tier works with, and the steps they share."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from isotherm.clock import Clock
from isotherm.metrics.broker_topic_metrics import BrokerTopicMetrics, TopicMeter
from isotherm.remote.metadata.api import RemoteLogMetadataManager
from isotherm.remote.quota import RemoteQuota
from isotherm.remote.remote_tier_metrics import RetentionShares
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.remote.tasks.copies_in_progress import CopiesInProgress
from isotherm.types import NO_LEADER_EPOCH, BrokerId, LeaderEpoch, TopicIdPartition


class CachedIndexes(Protocol):
    """The part of RemoteIndexCache that deletion needs."""

    def remove(self, segment_ids: Iterable[RemoteLogSegmentId]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTierAccess:
    """The remote tier as a broker sees it. Thread-safe: of `rng`, one call at a time takes bits.

    `custom_metadata_size_max` answers the limit that holds now, `leader_epoch_of` the epoch under
    which a partition is led now, None when there is no such partition any more.
    """

    storage: RemoteStorageManager
    metadata: RemoteLogMetadataManager
    index_cache: CachedIndexes
    copies: CopiesInProgress
    clock: Clock
    rng: random.Random
    broker_id: BrokerId
    metrics: BrokerTopicMetrics
    retention_shares: RetentionShares
    copy_quota: RemoteQuota
    custom_metadata_size_max: Callable[[], int]
    leader_epoch_of: Callable[[TopicIdPartition], LeaderEpoch | None]

    def new_segment_id(self, partition: TopicIdPartition) -> RemoteLogSegmentId:
        return RemoteLogSegmentId(partition, uuid.UUID(int=self.rng.getrandbits(128), version=4))

    def update_of(
        self,
        metadata: RemoteLogSegmentMetadata,
        state: RemoteLogSegmentState,
        custom_metadata: bytes | None,
    ) -> RemoteLogSegmentMetadataUpdate:
        return RemoteLogSegmentMetadataUpdate(
            segment_id=metadata.segment_id,
            event_timestamp_ms=self.clock.now_ms(),
            state=state,
            broker_id=self.broker_id,
            custom_metadata=custom_metadata,
            broker_leader_epoch=self.broker_leader_epoch(metadata.topic_id_partition),
        )

    def broker_leader_epoch(self, partition: TopicIdPartition) -> LeaderEpoch:
        """The epoch that events of the partition are published under."""
        epoch = self.leader_epoch_of(partition)
        return NO_LEADER_EPOCH if epoch is None else epoch

    def publish(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        """Store the event and wait until it is visible here."""
        self.metadata.update_remote_log_segment_metadata(update).result()

    def make_way_for(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete what an earlier attempt under this leader epoch left, before a copy is started:
        once it has taken the key, no metadata names those objects (KIP-1266, Scenario 3)."""
        predecessor = self.metadata.predecessor(metadata)
        if predecessor is None:
            return
        if predecessor.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            self.storage.delete_log_segment_data(predecessor)
        else:
            self.delete_segment(predecessor)

    def delete_segment(self, metadata: RemoteLogSegmentMetadata) -> None:
        """DELETE_SEGMENT_STARTED, the objects, DELETE_SEGMENT_FINISHED, each after the other.

        Whatever fails, the segment stays listed, so that the expiration task tries again. The
        custom metadata goes along: the storage manager may need it to find the objects.
        """
        custom = metadata.custom_metadata
        started = self.update_of(metadata, RemoteLogSegmentState.DELETE_SEGMENT_STARTED, custom)
        if metadata.state is not RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
            self.publish(started)
        self.index_cache.remove([metadata.segment_id])
        self.metrics.mark(TopicMeter.REMOTE_DELETE_REQUESTS, metadata.topic_id_partition.topic)
        self.storage.delete_log_segment_data(metadata.updated(started))
        self.publish(
            self.update_of(metadata, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED, custom)
        )
