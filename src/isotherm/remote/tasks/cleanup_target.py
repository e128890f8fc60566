"""The remote tier of a broker, for the cleanup manager of its metadata."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from isotherm.remote.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.remote.tasks.cleanup import SegmentCheck
from isotherm.remote.tasks.tier import RemoteTierAccess
from isotherm.types import TopicIdPartition


@dataclass(frozen=True, slots=True)
class TierCleanupTarget:
    """See `isotherm.remote.tasks.cleanup.CleanupTarget`."""

    tier: RemoteTierAccess
    metadata: TopicBasedRemoteLogMetadataManager
    begin_deletion: Callable[[TopicIdPartition], Future[None]]
    leads: Callable[[TopicIdPartition], bool]
    keeps: Callable[[int], bool]
    is_alone: bool
    _running_deletions: dict[TopicIdPartition, Future[None]] = field(default_factory=dict)

    def exists(self, partition: TopicIdPartition) -> bool:
        return self.tier.leader_epoch_of(partition) is not None

    def is_keyed(self, number: int) -> bool:
        return self.metadata.is_keyed(number)

    def settled(self, number: int) -> AbstractContextManager[object]:
        return self.metadata.settled(number)

    def watch_copies(self) -> AbstractContextManager[Collection[RemoteLogSegmentId]]:
        return self.tier.copies.watch()

    def can_delete(self, partition: TopicIdPartition) -> bool:
        return self.leads(partition) and self.metadata.is_ready(partition)

    def is_keeper(self, number: int) -> bool:
        return self.keeps(number)

    def is_only_writer(self) -> bool:
        return self.is_alone

    def delete_segment(self, metadata: RemoteLogSegmentMetadata, still_due: SegmentCheck) -> bool:
        def is_due(current: RemoteLogSegmentMetadata) -> bool:
            live = self.metadata.list_remote_log_segments(current.topic_id_partition)
            if not self.leads(current.topic_id_partition):
                return False
            return not self.tier.copies.is_active(current.segment_id) and still_due(current, live)

        return self.tier.delete_segment(metadata, is_due)

    def delete_partition(self, partition: TopicIdPartition) -> None:
        running = self._running_deletions
        for each in [each for each, done in running.items() if done.done()]:
            del running[each]
        if partition not in running:
            # Noted once it has begun: after an error of `begin_deletion` the next run tries again.
            running[partition] = self.begin_deletion(partition)
