"""Compare and set for a metadata manager with only KIP-405's methods."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from isotherm.remote.metadata.api import (
    ExclusiveMetadata,
    RemoteLogMetadataManager,
    check_ready,
)
from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.types import TopicIdPartition

# Partitions share locks: a lock for each would have to be removed with its partition.
_LOCKS = 64


def exclusive_metadata(manager: RemoteLogMetadataManager) -> ExclusiveMetadata:
    """The manager itself if it can decide and record in one step, else locks around it."""
    return manager if isinstance(manager, ExclusiveMetadata) else LockedMetadata(manager)


class LockedMetadata:
    """Compare and set by locks of this process. They suffice if every writer of a partition's
    metadata is in this process and writes within `exclusively`, as `RemoteTierAccess.publish` does.
    """

    def __init__(self, manager: RemoteLogMetadataManager) -> None:
        self._manager = manager
        self._locks = [threading.RLock() for _ in range(_LOCKS)]

    @contextmanager
    def exclusively(self, partition: TopicIdPartition) -> Iterator[None]:
        with self._locks[hash(partition) % _LOCKS]:
            check_ready(self._manager, partition)
            yield

    def segment(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        listed = self._manager.list_remote_log_segments(segment_id.topic_id_partition)
        return next(
            (
                segment_metadata
                for segment_metadata in listed
                if segment_metadata.segment_id == segment_id
            ),
            None,
        )
