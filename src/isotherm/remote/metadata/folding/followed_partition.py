"""One partition of the metadata topic, folded once and followed from there, for readers outside of a
broker: Spark's driver, the command line, the console."""

from __future__ import annotations

from collections.abc import Iterator

from isotherm.remote.metadata.api import MetadataTopic
from isotherm.remote.metadata.folding.fold import (
    COLUMNAR_RECORDS_MIN,
    Wanted,
    fold_metadata_partition,
)
from isotherm.remote.metadata.state.cache import RemoteLogMetadataCache
from isotherm.remote.metadata.state.partition_store import RemotePartitionMetadataStore
from isotherm.remote.metadata.wire.events import decode_record, iterate_records, partition_of
from isotherm.types import Offset, TopicIdPartition


class FollowedPartition:
    """The partitions that `wanted` accepts, also those whose first event comes later. Not thread-safe.

    CorruptMetadataError, of the first fold or of `catch_up`, names the record that cannot be applied.
    """

    def __init__(
        self,
        topic: MetadataTopic,
        number: int,
        wanted: Wanted,
        *,
        columnar_records_min: int = COLUMNAR_RECORDS_MIN,
    ) -> None:
        self._topic = topic
        self._number = number
        self._wanted = wanted
        self._store = RemotePartitionMetadataStore()
        # In the order of their first events; a partition is deleted once.
        self._opened: dict[TopicIdPartition, None] = {}
        folded = fold_metadata_partition(
            topic, number, wanted, columnar_records_min=columnar_records_min
        )
        for cache, _ in folded.partitions:
            self._open(cache.partition)
        for deletion in folded.deleted:
            self._open(deletion.topic_id_partition)
        self._store.install(folded)
        self._next_offset = folded.next_offset

    @property
    def next_offset(self) -> Offset:
        """What is stored below it is applied."""
        return self._next_offset

    def catch_up(self) -> int:
        """Apply what has come since; how many records that were."""
        count = 0
        for record in iterate_records(self._topic, self._number, start_offset=self._next_offset):
            change = decode_record(record)
            if change.event is not None and self._wanted(partition_of(change.event)):
                self._open(partition_of(change.event))
            self._store.apply_record(record, change)
            self._next_offset = record.offset + 1
            count += 1
        return count

    def caches(self) -> Iterator[RemoteLogMetadataCache]:
        """Of the partitions that are not deleted."""
        for partition in self._opened:
            cache = self._store.get(partition)
            if cache is not None:
                yield cache

    def _open(self, partition: TopicIdPartition) -> None:
        if partition not in self._opened:
            self._opened[partition] = None
            self._store.open(partition)
