"""The caches of all partitions that a metadata manager follows."""

from __future__ import annotations

import logging
import threading

from isotherm.errors import CorruptMetadataError, RemoteResourceNotFoundError
from isotherm.remote.metadata.cache import RemoteLogMetadataCache
from isotherm.remote.metadata.serde import RemoteLogMetadataEvent
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from isotherm.types import TopicIdPartition

_logger = logging.getLogger(__name__)


def partition_of(event: RemoteLogMetadataEvent) -> TopicIdPartition:
    """The user partition that an event is about.

    CorruptMetadataError for a segment snapshot, which names none: it belongs in no topic.
    """
    match event:
        case RemoteLogSegmentMetadata() | RemotePartitionDeleteMetadata():
            return event.topic_id_partition
        case RemoteLogSegmentMetadataUpdate():
            return event.segment_id.topic_id_partition
    raise CorruptMetadataError(f"a segment snapshot names no partition segment={event.id}")


class RemotePartitionMetadataStore:
    """Caches by partition, and the deletions under way. Thread-safe.

    Source: Kafka RemotePartitionMetadataStore.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._caches: dict[TopicIdPartition, RemoteLogMetadataCache] = {}
        self._deletions: dict[TopicIdPartition, RemotePartitionDeleteMetadata] = {}

    def open(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        """The partition's cache, made empty when there is none."""
        with self._lock:
            return self._caches.setdefault(partition, RemoteLogMetadataCache(partition))

    def drop(self, partition: TopicIdPartition) -> None:
        with self._lock:
            self._caches.pop(partition, None)
            self._deletions.pop(partition, None)

    def get(self, partition: TopicIdPartition) -> RemoteLogMetadataCache | None:
        with self._lock:
            return self._caches.get(partition)

    def deletion(self, partition: TopicIdPartition) -> RemotePartitionDeleteMetadata | None:
        """The last deletion event of a partition that is being deleted."""
        with self._lock:
            return self._deletions.get(partition)

    def apply(self, event: RemoteLogMetadataEvent) -> None:
        """Fold one event into its partition's cache.

        CorruptMetadataError when the event cannot stand where it stands (a segment that is added
        in a later state, say); nothing is changed then. An update of a segment nobody knows is
        logged and dropped, as Kafka does.
        """
        partition = partition_of(event)
        if isinstance(event, RemotePartitionDeleteMetadata):
            self._apply_deletion(event)
            return
        cache = self.get(partition)
        if cache is None:
            return
        try:
            if isinstance(event, RemoteLogSegmentMetadata):
                cache.apply_add(event)
            elif isinstance(event, RemoteLogSegmentMetadataUpdate):
                cache.apply_update(event)
        except ValueError as error:
            raise CorruptMetadataError(
                f"metadata event contradicts its kind reason={str(error)!r}"
            ) from error
        except RemoteResourceNotFoundError as error:
            _logger.warning("metadata event dropped: %s", error)

    def _apply_deletion(self, event: RemotePartitionDeleteMetadata) -> None:
        with self._lock:
            if event.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
                self._caches.pop(event.topic_id_partition, None)
                self._deletions.pop(event.topic_id_partition, None)
            elif event.topic_id_partition in self._caches:
                self._deletions[event.topic_id_partition] = event
