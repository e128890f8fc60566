"""The user partitions of a metadata partition that a reader has selected, with their caches.

Each is opened at its first event. A broker opens a partition when it is assigned instead
(metadata_partition_reader.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from isotherm.remote.metadata.api import MetadataTopicRecord
from isotherm.remote.metadata.state.cache import RemoteLogMetadataCache
from isotherm.remote.metadata.state.partition_store import (
    Folded,
    FoldedPartition,
    RemotePartitionMetadataStore,
)
from isotherm.remote.metadata.wire.events import MetadataChange, decode_record, partition_of
from isotherm.remote.segment_metadata import RemotePartitionDeleteMetadata
from isotherm.types import Offset, TopicIdPartition

SelectsPartition = Callable[[TopicIdPartition], bool]


class SelectedPartitions:
    """The selected partitions, in the order of their first events. A partition is deleted once:
    later events do not open it again. Not thread-safe."""

    def __init__(self, selects: SelectsPartition) -> None:
        self._selects = selects
        self._store = RemotePartitionMetadataStore()
        self._is_selected: dict[TopicIdPartition, bool] = {}

    def __iter__(self) -> Iterator[TopicIdPartition]:
        """Includes the partitions whose deletion is finished."""
        return (partition for partition, is_selected in self._is_selected.items() if is_selected)

    def opens(self, partition: TopicIdPartition) -> bool:
        """Whether a partition with an event is selected."""
        is_selected = self._is_selected.get(partition)
        if is_selected is None:
            is_selected = self._is_selected[partition] = self._selects(partition)
            if is_selected:
                self._store.open(partition)
        return is_selected

    def apply(self, record: MetadataTopicRecord) -> None:
        """Apply a record if its partition is selected. Raises CorruptMetadataError, which names the
        record, for one that cannot be decoded or applied; one of others is decoded, too."""
        change = decode_record(record)
        # A tombstone names no topic: the store finds its partition by the topic id.
        if change.event is None or self.opens(partition_of(change.event)):
            self._store.apply_record(record, change)

    def apply_change(self, change: MetadataChange) -> None:
        """Apply a change of an open partition; see `RemotePartitionMetadataStore.apply_change`."""
        self._store.apply_change(change)

    def take_in(self, folded: Folded) -> None:
        """Start from a fold; call it before the first record."""
        # Open first: `install` fills open partitions only. The deleted ones are opened too, so
        # that later events do not open them again.
        for cache, _ in folded.partitions:
            self.opens(cache.partition)
        for deletion in folded.deleted:
            self.opens(deletion.topic_id_partition)
        self._store.install(folded)

    def cache(self, partition: TopicIdPartition) -> RemoteLogMetadataCache | None:
        """The partition's state; None after a finished deletion, or without records."""
        return self._store.get(partition)

    def caches(self) -> Iterator[RemoteLogMetadataCache]:
        """The caches of the partitions that are not deleted."""
        return (cache for cache in map(self._store.get, self) if cache is not None)

    def deletion(self, partition: TopicIdPartition) -> RemotePartitionDeleteMetadata | None:
        """The last event of a deletion under way."""
        return self._store.deletion(partition)

    def folded(self, next_offset: Offset) -> Folded:
        """The result of the records before `next_offset`."""
        finished = map(self._store.finished_deletion, self)
        return Folded(
            [FoldedPartition(cache, self.deletion(cache.partition)) for cache in self.caches()],
            [event for event in finished if event is not None],
            next_offset,
        )
