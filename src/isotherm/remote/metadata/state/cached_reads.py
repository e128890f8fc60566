"""The reads of a metadata manager that one partition's cache answers."""

from __future__ import annotations

from abc import ABC, abstractmethod

from isotherm.remote.metadata.state.cache import RemoteLogMetadataCache
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.types import LeaderEpoch, Offset, TopicIdPartition


class CachedReads(ABC):
    """See `isotherm.remote.metadata.api.RemoteLogMetadataManager` for the contract of each
    method."""

    @abstractmethod
    def _cache(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        """Raises RemoteResourceNotFoundError for a partition that is not assigned."""

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, leader_epoch: LeaderEpoch, offset: Offset
    ) -> RemoteLogSegmentMetadata | None:
        return self._cache(partition).find(leader_epoch, offset)

    def highest_offset_for_epoch(
        self, partition: TopicIdPartition, leader_epoch: LeaderEpoch
    ) -> Offset | None:
        return self._cache(partition).highest_offset_for_epoch(leader_epoch)

    def next_segment_with_txn_index(
        self, partition: TopicIdPartition, leader_epoch: LeaderEpoch, offset: Offset
    ) -> RemoteLogSegmentMetadata | None:
        return self._cache(partition).find_with_txn_index(leader_epoch, offset)

    def list_remote_log_segments(
        self, partition: TopicIdPartition, leader_epoch: LeaderEpoch | None = None
    ) -> list[RemoteLogSegmentMetadata]:
        return self._cache(partition).segments(leader_epoch)

    def remote_log_size(self, partition: TopicIdPartition, leader_epoch: LeaderEpoch) -> int:
        return self._cache(partition).size_in_bytes(leader_epoch)

    def first_finished_segment(
        self, partition: TopicIdPartition, leader_epoch: LeaderEpoch
    ) -> RemoteLogSegmentMetadata | None:
        """The finished segment with the epoch's lowest offset, without a look at the others. Raises
        as the other reads."""
        return self._cache(partition).first_finished(leader_epoch)

    def last_finished_segment(self, partition: TopicIdPartition) -> RemoteLogSegmentMetadata | None:
        """The finished segment at the end of the history; None without one. The latest leader epoch
        decides. Raises as the other reads."""
        return self._cache(partition).last_finished()
