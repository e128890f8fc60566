"""The caches of all partitions that a metadata manager follows."""

from __future__ import annotations

import logging
import threading
from typing import NamedTuple

from isotherm.errors import CorruptMetadataError, RemoteResourceNotFoundError
from isotherm.remote.metadata.api import MetadataTopicRecord
from isotherm.remote.metadata.state.cache import RemoteLogMetadataCache
from isotherm.remote.metadata.wire.events import (
    MetadataChange,
    corrupt_record,
    decode_record,
    partition_of,
)
from isotherm.remote.metadata.wire.keys import PartitionKey, SegmentKey, partition_key
from isotherm.remote.metadata.wire.serde import RemoteLogMetadataEvent
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from isotherm.types import Offset, TopicIdPartition

_logger = logging.getLogger(__name__)


class FoldedPartition(NamedTuple):
    """A user partition after every record; `deletion` is the last event of a deletion under way."""

    cache: RemoteLogMetadataCache
    deletion: RemotePartitionDeleteMetadata | None


class Folded(NamedTuple):
    """The result of the records of a metadata partition before `next_offset`.

    `deleted` has the last event of each partition whose deletion is finished.
    """

    partitions: list[FoldedPartition]
    deleted: list[RemotePartitionDeleteMetadata]
    next_offset: Offset


class RemotePartitionMetadataStore:
    """Caches by partition, and the deletions under way. Thread-safe.

    Source: Kafka RemotePartitionMetadataStore.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._caches: dict[TopicIdPartition, RemoteLogMetadataCache] = {}
        self._deletions: dict[TopicIdPartition, RemotePartitionDeleteMetadata] = {}
        self._finished: dict[TopicIdPartition, RemotePartitionDeleteMetadata] = {}
        self._partitions: dict[PartitionKey, TopicIdPartition] = {}

    def open(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        """The partition's cache. Makes an empty one if there is none, also after a deletion."""
        with self._lock:
            self._finished.pop(partition, None)
            self._partitions[partition_key(partition)] = partition
            return self._caches.setdefault(partition, RemoteLogMetadataCache(partition))

    def install(self, folded: Folded) -> None:
        """Move folded states into the open partitions. A partition that was dropped meanwhile stays
        dropped; one whose deletion is finished is closed."""
        for cache, deletion in folded.partitions:
            mine = self.get(cache.partition)
            if mine is not None:
                mine.take_over(cache)
                if deletion is not None:
                    self._apply_deletion(deletion)
        for finished in folded.deleted:
            self._apply_deletion(finished)

    def drop(self, partition: TopicIdPartition) -> None:
        with self._lock:
            self._caches.pop(partition, None)
            self._deletions.pop(partition, None)
            self._finished.pop(partition, None)
            self._partitions.pop(partition_key(partition), None)

    def is_deleted(self, partition: TopicIdPartition) -> bool:
        """Whether the partition was opened, and its deletion is finished."""
        with self._lock:
            return partition in self._finished

    def finished_deletion(
        self, partition: TopicIdPartition
    ) -> RemotePartitionDeleteMetadata | None:
        """The event that closed a partition."""
        with self._lock:
            return self._finished.get(partition)

    def get(self, partition: TopicIdPartition) -> RemoteLogMetadataCache | None:
        with self._lock:
            return self._caches.get(partition)

    def deletion(self, partition: TopicIdPartition) -> RemotePartitionDeleteMetadata | None:
        """The last deletion event of a partition that is being deleted."""
        with self._lock:
            return self._deletions.get(partition)

    def partition_of(self, change: MetadataChange) -> TopicIdPartition | None:
        """The partition that a change is about; None for a tombstone of one that is not open."""
        if change.event is not None:
            return partition_of(change.event)
        with self._lock:
            return self._partitions.get(change.place)

    def apply_record(
        self, record: MetadataTopicRecord, change: MetadataChange | None = None
    ) -> None:
        """Apply the change of a record, which the caller may have decoded. Same as `apply_change`,
        but errors name the record."""
        change = change or decode_record(record)
        try:
            self.apply_change(change)
        except CorruptMetadataError as error:
            raise corrupt_record(record, str(error)) from error

    def apply_change(self, change: MetadataChange) -> None:
        """Fold one record into its partition's cache, if that is open.

        Raises CorruptMetadataError, and changes nothing, if the event contradicts its kind (a
        segment that is added in a later state, say). An update of an unknown segment is logged and
        dropped, as in Kafka.
        """
        partition = self.partition_of(change)
        cache = self.get(partition) if partition is not None else None
        # Kafka's store throws here, which ends its ConsumerTask. A metadata partition also has
        # records of partitions that are not followed here.
        if partition is None or cache is None:
            return
        if isinstance(change.event, RemotePartitionDeleteMetadata):
            self._apply_deletion(change.event)
        elif change.event is None:
            self._apply_tombstone(partition, cache, change)
        elif change.key is not None:
            assert isinstance(change.event, RemoteLogSegmentMetadata)
            cache.put(change.event)
        else:
            _apply_event(cache, change.event)

    def _apply_tombstone(
        self, partition: TopicIdPartition, cache: RemoteLogMetadataCache, change: MetadataChange
    ) -> None:
        if isinstance(change.key, SegmentKey):
            cache.remove_key(change.key.end_offset, change.key.broker_leader_epoch)
        else:
            with self._lock:
                self._deletions.pop(partition, None)

    def _apply_deletion(self, event: RemotePartitionDeleteMetadata) -> None:
        partition = event.topic_id_partition
        with self._lock:
            if partition not in self._caches:
                return
            if event.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
                # The partition has no cache until it is opened again.
                del self._caches[partition]
                self._deletions.pop(partition, None)
                self._finished[partition] = event
            else:
                self._deletions[partition] = event


def _apply_event(cache: RemoteLogMetadataCache, event: RemoteLogMetadataEvent) -> None:
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
